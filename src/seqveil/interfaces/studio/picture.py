"""One stream released under a policy, as far as there was time, everything that the page shows of it, and its attack.

The steps are those of a `Session` with the same seed. What is promised is said of the policy alone: it does not depend
on how many events are shown.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from seqveil.core import mechanisms, words
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets import Secret, ever
from seqveil.core.words import Risk
from seqveil.engine import batches
from seqveil.engine.policy import Policy
from seqveil.engine.stream import NOTHING, State, Terms, step
from seqveil.interfaces import trials
from seqveil.interfaces.files.writing import symbol_columns
from seqveil.interfaces.studio.source import StudioSource

FIGURES = ("epsilons", "leakage", "most", "least", "spent")  # of each event
SHADES = 255
REMEDY = (  # with no secret declared, and with one
    "Say in step 3 what must stay secret, and all else is released truthfully; or protect the whole stream together.",
    "Move the slider of step 4 to the left.",
)
SEEDED = "Draws are seeded here, so nothing this page makes is a private release; the commands below draw afresh."
EVENTS, TOGETHER = 100, 20  # events of a person in an attack, and people released at a time
FEWEST = 40  # people without whom an attack says nothing
SINGLE = 100  # people who are enough where every event is a case
SECONDS = 15.0  # of the processor for releases, after which those who were released are attacked


class PictureRun:
    """One stream under way: what a slow mechanism has made so far can be shown."""

    def __init__(self, terms: Terms, raw: Ints, seed: int) -> None:
        self.terms, self.raw = terms, raw
        self._randomness = SeededRandomness(seed)
        self._made: list[Any] = []  # what each event, or batch, made public
        self._state = State.start(terms)  # after them
        self._figures: list[dict[str, Floats]] = []  # what each cost, and the account after it

    @property
    def done(self) -> int:
        """Events released so far."""
        return min(len(self._made) * self.terms.batch, self.raw.size)

    @property
    def complete(self) -> bool:
        """Whether every event was released."""
        return self.done == self.raw.size

    def go(self, seconds: float = math.inf) -> None:
        """Release on until the end, or for so many seconds of the processor after a first step, which may load much."""
        end = math.inf
        while not self.complete and time.thread_time() < end:
            part, before = self.raw[self.done : self.done + self.terms.batch], self._state
            made, self._state = step(self.terms, before, part, self._randomness)
            self._made.append(made)
            self._figures.append(self._read(made, before))
            if math.isinf(end):
                end = time.thread_time() + seconds

    def _read(self, made: Any, before: State) -> dict[str, Floats]:
        """What an event or batch cost, and the accounts after it, that of the first secret among them."""
        account, trackers = self._state.account, self._state.trackers
        odds = np.zeros(0) if trackers is None else np.array([trackers[0].rows[0][0].latest.log_odds])
        if not self.terms.in_batches:
            paid = {"epsilons": made.epsilons, "costs": made.costs}
        else:
            cost = 0.0 if made is None else max(made.most, -made.least)
            paid = {"epsilons": self._state.spent - before.spent, "costs": np.array([cost])}
        sides = {"most": account.most, "least": account.least}
        return paid | sides | {"leakage": account.worst, "spent": self._state.spent, "odds": odds}

    def series(self) -> dict[str, Any]:
        """Of each event so far the release, NOTHING where nothing was, what an observer believes of it from the
        releases up to it (T, n), and its figures: what it costs stands at the first event of a batch."""
        terms = self.terms
        which, place = np.divmod(np.arange(self.done), terms.batch)
        found = {name: np.concatenate([each[name] for each in self._figures]) for name in self._figures[0]}
        if terms.in_batches:
            nothing = np.full(terms.batch, NOTHING, np.int64)
            codes = np.concatenate([nothing if sent is None else sent.codes for sent in self._made])
            beliefs = batches.filtered(terms, self._made)
        else:
            codes = np.concatenate([one.codes for one in self._made])
            beliefs = np.concatenate([one.posterior for one in self._made])
        shown = {name: found[name][which] for name in ("leakage", "most", "least", "spent")}
        paid = {name: np.where(place == 0, found[name][which], 0.0) for name in ("epsilons", "costs")}
        return {"released": codes[: self.done], "beliefs": beliefs[: self.done], "odds": found["odds"]} | shown | paid


def picture_of(source: StudioSource, run: PictureRun) -> dict[str, Any]:
    """What a run has made so far, and what its policy promises, as JSON values."""
    terms, series = run.terms, run.series()
    decoded = terms.distortion.best_guess(series["beliefs"])
    shown = {name: [_short(value) for value in series[name].tolist()] for name in FIGURES}
    codes = {"raw": run.raw[: run.done], "released": series["released"], "decoded": decoded}
    risk, own = _judged(terms), [in_words(source, secret) for secret in terms.policy.secrets]
    promised = [
        *replace(terms.policy, secrets=tuple(own)).sentences,
        *([f"lasts {terms.lasts}"] if terms.lasts else []),
    ]
    about = [  # for policy.toml
        "Written by the page (`seqveil studio`); commands take it with --policy.",
        *risk["sentences"],
        f"grade {risk['colour']}: {risk['why']}",
    ]
    odds = [_short(value) for value in series["odds"].tolist()]  # of the first secret, after each release
    return {
        "complete": run.complete,
        "done": run.done,
        "events": run.raw.size,
        "series": {name: each.tolist() for name, each in codes.items()} | shown,
        "beliefs": shades(series["beliefs"]),
        "figures": {name: _short(value) for name, value in figures_of(source, run, series, decoded).items()},
        "risk": risk,
        "promise": [f"{each[0].upper()}{each[1:]}." for each in promised] + [SEEDED],
        "secret": {"about": words.about(own[0]), "epsilon": own[0].total, "odds": odds} if own else None,
        "unbounded": terms.unbounded,
        "mechanism": terms.mechanism.name,
        "toml": terms.policy.to_toml(about),
        "steps": source.steps,
    }


def _short(value: float | None) -> float | None:
    """Six figures; nothing for what has no bound, which JSON has no number for."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _judged(terms: Terms) -> dict[str, Any]:
    """What a policy means for a person: sentences, a grade, and what to do about a bad one. What the secret is about is
    said elsewhere, without places in degrees."""
    risk = Risk.promised(terms)
    said = list(risk.sentences)
    for each in risk.secrets:
        said = [sentence.replace(f"secret {each.name},", "the secret,", 1) for sentence in said]
    good = risk.grade.colour in ("green", "unchecked") or bool(risk.undone)
    remedy = "" if good else REMEDY[bool(risk.secrets)]
    return {"colour": risk.grade.colour, "why": risk.grade.why, "sentences": said, "remedy": remedy}


def in_words(source: StudioSource, secret: Secret) -> Secret:
    """A secret with the page's names for its values in place of degrees and the middles of bins."""

    def label(value: Any) -> str:
        """The page's name for a value."""
        return source.labels[int(source.model.alphabet.encode([value])[0])]

    if secret.circle:
        *centre, radius = secret.circle
        middle = label(tuple(centre) if len(centre) > 1 else centre[0])
        named = f"something within {radius:g}{' m' if source.model.alphabet.on_map else ''} of {middle}"
        return replace(secret, kind="ever", circle=(), values=(named,))
    values, then = (tuple(map(label, some)) for some in (secret.values, secret.then))
    return replace(secret, values=values, then=then)


def figures_of(
    source: StudioSource, run: PictureRun, series: Mapping[str, Any], decoded: Ints
) -> dict[str, float | None]:
    """What the events shown cost and disclosed; None where there is none, or no bound."""
    terms, truth, released = run.terms, run.raw[: run.done], series["released"]
    made, between = released >= 0, terms.distortion.between
    begins = np.arange(0, run.done, terms.batch * terms.policy.block)
    dry = begins[series["epsilons"][begins] == 0] if terms.budget.limited else begins[:0]
    return {
        "leakage": float(series["leakage"][-1]),
        "composition": float(series["spent"][-1]),
        "worst_release": float(series["costs"].max(initial=0.0)),
        "claimed": terms.epsilon,
        "error": float(between(truth[made], released[made]).mean()) if made.any() else None,
        "decoded_error": float(between(truth, decoded).mean()),
        "silent_error": float(between(truth, source.guesses(terms.distortion, run.done)).mean()),
        "budget": terms.budget.exact_total,
        "spent_at": int(dry[0]) if dry.size else None,  # the first event for which a budget had nothing left
    }


def shades(beliefs: Floats) -> str:
    """Beliefs (T, n) as one byte a probability, in base 64: the square root, so that small ones can be seen.

    >>> list(base64.b64decode(shades(np.array([[0.25, 0.75]]))))
    [128, 221]
    """
    roots = np.sqrt(np.clip(beliefs, 0.0, 1.0))
    return base64.b64encode(np.rint(SHADES * roots).astype(np.uint8).tobytes()).decode()


def offers(source: StudioSource, policy: Policy) -> list[dict[str, Any]]:
    """Every mechanism with what it promises, and why it does not fit where it does not."""
    made = []
    for name in mechanisms.names():
        found = mechanisms.find(name)
        try:
            replace(policy, mechanism=name).on(source.model)
            why = too_slow(name, source.model.n, policy)
        except InputError as refusal:
            why = str(refusal)
        facts = {each: getattr(found, each) for each in ("name", "summary", "guarantee", "sound")}
        made.append(facts | {"why_not": why})
    return made


# the sizes up to which a release takes some hundredths of a second: a program over 128 possible batches, say
_LARGEST = {"batch_lp": 128, "batch_descent": 32, "optimal": 120, "mutual_information": 24}


def too_slow(name: str, n: int, policy: Policy) -> str:
    """Why a mechanism would take too long to look at, if it would.

    >>> too_slow("optimal", 500, Policy(epsilon=1.0)), too_slow("tree", 500, Policy(epsilon=1.0, distortion="metres"))
    ('', '')
    """
    if name not in _LARGEST or (policy.distortion == "hamming" and name == "optimal"):
        return ""
    if n**policy.batch <= _LARGEST[name]:
        return ""
    return f"with {n} symbols{f' in batches of {policy.batch}' * (policy.batch > 1)} a release takes too long to watch"


def attacked(source: StudioSource, terms: Terms, seed: int) -> dict[str, Any]:
    """What `sv.attack` finds out about the secret, or without one about single events, of people whom the model was not
    fitted to: all of them together, no event of anybody, and no place in degrees."""
    import seqveil as sv

    events = min(EVENTS, terms.secrets[0].length(None) or EVENTS) if terms.secrets else EVENTS
    trait = terms.secrets[0].text if terms.secrets and terms.secrets[0].kind == "trait" else ""
    if trait and not source.answers:
        raise InputError("an attack on a trait needs everybody's label; load the file with its column")
    people = [codes[:events] for codes in source.crowd[: None if terms.secrets else SINGLE]]
    if len(people) < FEWEST:
        raise InputError(f"an attack needs at least {FEWEST} people whom the model was not fitted to; load more data")
    released, charged = _released(terms, people, seed)
    named = source.values[source.usual]
    single = ever(tuple(named) if isinstance(named, list) else named, epsilon=None, window=1)
    secret = terms.secrets[0] if terms.secrets else single
    frames = [_rows(source.model, codes) for codes in (released, people[: len(released)])]
    if trait:
        labels = dict(enumerate(source.answers))
        frames[1] = frames[1].with_columns(frames[1]["user"].replace_strict(labels, default=None).alias(trait))
    value = "x,y" if source.model.alphabet.width == 2 else "value"
    claimed = secret.total if terms.secrets else charged
    found = sv.attack(*frames, model=source.model, secrets=secret, epsilon=claimed, seed=seed, value=value)
    [one] = found.attacks
    if one.guess is not None:
        one = replace(one, guess=replace(one.guess, target="it"))  # which `about` says without degrees
    lines = [text for name, text in replace(found, attacks=(one,)).lines() if name != "attacked"]
    about = words.about(in_words(source, secret))
    return {"about": about, "verdict": one.verdict, "people": len(released), "lines": lines}


def _released(terms: Terms, people: Sequence[Ints], seed: int) -> tuple[list[Ints], float]:
    """The releases of as many people as there is time for, and the most that any of them is charged."""
    released, charged, end = list[Ints](), 0.0, time.process_time() + SECONDS
    for at in range(0, len(people), TOGETHER):
        trial = trials.release(terms, people[at : at + TOGETHER], seed + at)
        released += [trial.released[place] for place in sorted(trial.released)]
        charged = max(charged, trial.spent)
        if time.process_time() > end and len(released) >= FEWEST:
            break
    return released, charged


def _rows(model: MarkovModel, people: Sequence[Ints]) -> pl.DataFrame:
    """Codes as the rows of a frame, with the values that they stand for; none where nothing was released."""
    names = ("x", "y") if model.alphabet.width == 2 else ("value",)
    codes = pl.Series(np.concatenate(people))
    places = codes.set(codes < 0, None)
    who = np.repeat(np.arange(len(people)), [len(own) for own in people])
    return pl.DataFrame({"user": who}).with_columns(
        column.gather(places) for column in symbol_columns(model.alphabet, names)
    )
