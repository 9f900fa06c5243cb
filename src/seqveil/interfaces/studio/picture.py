"""One stream released under a policy, as far as there was time, and everything that the page shows of it.

The steps are those of a `Session` with the same seed. What is promised is said of the policy alone: it does not depend
on how many events are shown.
"""

from __future__ import annotations

import base64
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqveil.core import mechanisms, words
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import BatchMechanism
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets import Secret, SecretTracker
from seqveil.core.words import Risk
from seqveil.engine import batches, toml
from seqveil.engine.blocks import ReleasedInBlocks
from seqveil.engine.policy import Policy
from seqveil.engine.state import Private
from seqveil.engine.step import step
from seqveil.engine.stream import NOTHING, State, Terms
from seqveil.interfaces import planning
from seqveil.interfaces.studio.source import StudioSource

FIGURES = ("epsilons", "costs", "leakage", "most", "least", "spent")  # of each event
SHADES = 255
REMEDY = (  # with no secret declared, and with one
    "Say in step 3 what must stay secret, and all else is released truthfully; or protect the whole stream together.",
    "Move the slider of step 4 to the left.",
)
SEEDED = (
    "Draws are seeded here so that figures can be repeated: nothing this page makes is a private release. The commands "
    "below draw afresh, so their figures differ."
)
STEPS, MANY = 40, 60  # events and people of a simulation
BRIEF, FEW = 20, 5  # where each release takes milliseconds


class PictureRun:
    """One stream under way: what a slow mechanism has made so far can be shown.

    After a batch all of its events have its figures.

    >>> from seqveil.interfaces.studio.source import sample
    >>> source = sample("clicks")
    >>> run = PictureRun(Policy(epsilon=1.0).on(source.model), source.streams[0][:10], seed=1)
    >>> run.go()
    >>> run.complete, bool(run.figures["leakage"][-1] <= run.figures["spent"][-1])
    (True, True)
    """

    def __init__(self, terms: Terms, raw: Ints, seed: int) -> None:
        self.terms, self.raw = terms, raw
        self.done = 0  # events
        self.tracked: list[SecretTracker] = []  # the account of the first secret after each event
        self._state, self._private = State.start(terms), Private.start(terms)
        self._randomness = SeededRandomness(seed)
        self._released = np.full(raw.size, NOTHING, np.int64)
        self._figures = np.zeros((len(FIGURES), raw.size))
        self._beliefs = np.zeros((raw.size, terms.model.n))

    @property
    def complete(self) -> bool:
        """Whether every event was released."""
        return self.done == self.raw.size

    def go(self, seconds: float = math.inf) -> None:
        """Release on until the end or until the time is over; one step is always made."""
        end = time.perf_counter() + seconds
        while not self.complete:
            self._batch() if self.terms.in_batches else self._symbol()
            if time.perf_counter() > end:
                return

    def _symbol(self) -> None:
        at, before = self.done, self._state
        raw = self.raw[at : at + 1]
        made, self._state, self._private = step(self.terms, before, self._private, raw, self._randomness)
        self._released[at] = made.codes[0]
        if isinstance(made, ReleasedInBlocks):
            self._beliefs[at] = made.posterior[0]
        else:
            weights = made.beliefs[0] * made.columns[0]
            if not weights.sum():  # only an unsound mechanism releases it: what could have made it is believed
                weights = made.columns[0].astype(np.float64)
            self._beliefs[at] = weights / weights.sum()
        if self._state.trackers is not None:
            self.tracked.append(self._state.trackers[0].rows[0][0])
        self._note(at + 1, float(made.epsilons[0]), float(made.costs[0]))

    def _batch(self) -> None:
        part, before = slice(self.done, self.done + self.terms.batch), self._state
        sent, self._state = batches.step(self.terms, before, self.raw[part], self._randomness)
        cost = 0.0
        if sent is not None:
            self._released[part] = sent.codes
            self._beliefs[part] = sent.smooth(np.ones(self.terms.model.size))[0]
            cost = max(sent.most, -sent.least)
        self._note(min(part.stop, self.raw.size), float((self._state.spent - before.spent)[0]), cost)

    def _note(self, done: int, epsilon: float, cost: float) -> None:
        """Write down what a release spent and disclosed, and where the account stands after it."""
        state, part = self._state, slice(self.done, done)
        self._figures[:2, self.done] = epsilon, cost
        account = state.account
        disclosed = [float(each[0]) for each in (account.worst, account.most, account.least, state.spent)]
        self._figures[2:, part] = np.array(disclosed)[:, None]
        self.done = done

    @property
    def released(self) -> Ints:
        """The codes released so far, NOTHING where nothing was."""
        return self._released[: self.done]

    @property
    def figures(self) -> dict[str, Floats]:
        """The figures of the events so far, by their names."""
        return dict(zip(FIGURES, self._figures[:, : self.done], strict=True))

    @property
    def beliefs(self) -> Floats:
        """What an observer believes of each symbol (T, n) from the releases up to it."""
        return self._beliefs[: self.done]


def picture_of(source: StudioSource, run: PictureRun) -> dict[str, Any]:
    """What a run has made so far, and what its policy promises, as JSON values."""
    terms, series = run.terms, run.figures
    decoded = terms.distortion.best_guess(run.beliefs)
    shown = {name: [_short(value) for value in series[name].tolist()] for name in FIGURES if name != "costs"}
    codes = {"raw": run.raw[: run.done], "released": run.released, "decoded": decoded}
    risk = _named(Risk.promised(terms))
    return {
        "complete": run.complete,
        "done": run.done,
        "events": run.raw.size,
        "series": {name: each.tolist() for name, each in codes.items()} | shown,
        "beliefs": shades(run.beliefs),
        "figures": {name: _short(value) for name, value in figures_of(source, run, decoded).items()},
        "risk": risk,
        "promise": [f"{each[0].upper()}{each[1:]}." for each in _labelled(source, terms.policy).sentences] + [SEEDED],
        "secret": _secret(source, run),
        "unbounded": terms.unbounded,
        "mechanism": terms.mechanism.name,
        "toml": policy_file(terms.policy, risk),
        "steps": steps(source),
    }


def _short(value: float | None) -> float | None:
    """Six figures; nothing for what has no bound, which JSON has no number for."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _named(risk: Risk) -> dict[str, Any]:
    """What a policy means for a person: sentences, a grade, and what to do about a bad one.

    The page has one secret and says elsewhere what it is about, so that no place stands there in degrees.
    """
    said = list(risk.sentences)
    for each in risk.secrets:
        said = [sentence.replace(f"secret {each.name},", "the secret,", 1) for sentence in said]
    good = risk.grade.colour in ("green", "unchecked") or bool(risk.undone)
    remedy = "" if good else REMEDY[bool(risk.secrets)]
    return {"colour": risk.grade.colour, "why": risk.grade.why, "sentences": said, "remedy": remedy}


def _labelled(source: StudioSource, policy: Policy) -> Policy:
    """The policy with the page's names for values in place of degrees and the middles of bins."""
    return replace(policy, secrets=tuple(in_words(source, secret) for secret in policy.secrets))


def in_words(source: StudioSource, secret: Secret) -> Secret:
    """A secret with the page's names for its values."""

    def label(value: Any) -> str:
        return source.labels[int(source.model.alphabet.encode([value])[0])]

    if secret.circle:
        *centre, radius = secret.circle
        middle = label(tuple(centre) if len(centre) > 1 else centre[0])
        named = f"something within {radius:g}{' m' if source.model.alphabet.on_map else ''} of {middle}"
        return replace(secret, kind="ever", circle=(), values=(named,))
    values, then = (tuple(map(label, some)) for some in (secret.values, secret.then))
    return replace(secret, values=values, then=then)


def figures_of(source: StudioSource, run: PictureRun, decoded: Ints) -> dict[str, float | None]:
    """What the events shown cost and disclosed; None where there is none, or no bound."""
    terms, series, truth, released = run.terms, run.figures, run.raw[: run.done], run.released
    made, between = released >= 0, terms.distortion.between
    return {
        "leakage": float(series["leakage"][-1]),
        "composition": float(series["spent"][-1]),
        "worst_release": float(series["costs"].max(initial=0.0)),
        "claimed": terms.epsilon,
        "error": float(between(truth[made], released[made]).mean()) if made.any() else None,
        "decoded_error": float(between(truth, decoded).mean()),
        "silent_error": float(between(truth, source.guesses(terms.distortion, run.done)).mean()),
        "budget": terms.budget.exact_total,
        "spent_at": _spent_at(run),
    }


def _spent_at(run: PictureRun) -> int | None:
    """The first event for which a budget had nothing left, if there is one."""
    if not run.terms.budget.limited:
        return None
    begins = np.arange(0, run.done, run.terms.batch * run.terms.policy.block)
    dry = np.flatnonzero(run.figures["epsilons"][begins] == 0)
    return int(begins[dry[0]]) if dry.size else None


def _secret(source: StudioSource, run: PictureRun) -> dict[str, Any] | None:
    """The secret that is kept and its log odds after each release; None where nothing is declared."""
    if not run.tracked:
        return None
    secret = in_words(source, run.tracked[-1].secret)
    odds = [_short(tracker.log_odds) for tracker in run.tracked]
    return {"about": words.about(secret), "epsilon": secret.total, "odds": odds}


def shades(beliefs: Floats) -> str:
    """Beliefs (T, n) as one byte a probability, in base 64: the square root, so that small ones can be seen.

    >>> list(base64.b64decode(shades(np.array([[0.25, 0.75]]))))
    [128, 221]
    """
    roots = np.sqrt(np.clip(beliefs, 0.0, 1.0))
    return base64.b64encode(np.rint(SHADES * roots).astype(np.uint8).tobytes()).decode()


def policy_file(policy: Policy, risk: dict[str, Any]) -> str:
    """The policy as `policy.toml`, which release, serve, bridge and Spark take by --policy."""
    said = ["Written by the page (`seqveil studio`); release, serve, bridge and spark take it by --policy."]
    return toml.written(policy.to_dict(), [*said, *risk["sentences"], f"grade {risk['colour']}: {risk['why']}"])


def steps(source: StudioSource) -> str:
    """The commands that fit, release, check and attack, with the policy that the page saves."""
    files = f"{source.data} --model {source.model_file}{source.columns}"
    lines = [source.fit] if source.fit else []
    lines += [f"seqveil release {files} --policy policy.toml --out released.csv"]
    lines += [f"seqveil audit released.csv --model {source.model_file}"]
    lines += [f"seqveil attack released.csv --truth {source.data} --model {source.model_file}"]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Offer:
    """A mechanism with what it promises; `why_not` is empty where it fits."""

    name: str
    summary: str
    guarantee: str
    sound: bool
    batched: bool
    why_not: str = ""


def offers(source: StudioSource, policy: Policy) -> list[Offer]:
    """Every mechanism, and why it does not fit where it does not.

    >>> from seqveil.interfaces.studio.source import sample
    >>> found = offers(sample("clicks"), Policy(epsilon=3.0, batch=3, mechanism="auto"))
    >>> [each.name for each in found if not each.why_not]
    ['auto', 'tree', 'tree_ldp']
    """
    return [_offer(name, source, policy) for name in mechanisms.names()]


def _offer(name: str, source: StudioSource, policy: Policy) -> Offer:
    found = mechanisms.find(name)
    try:
        replace(policy, mechanism=name).on(source.model)
        why = too_slow(name, source.model.n, policy)
    except InputError as refusal:
        why = str(refusal)
    return Offer(name, found.summary, found.guarantee, found.sound, isinstance(found, BatchMechanism), why)


# the sizes up to which a release takes some hundredths of a second: a program over 128 possible batches, say
_LARGEST = {"batch_lp": 128, "batch_descent": 32, "optimal": 120, "optimal_ldp": 40, "mutual_information": 24}


def too_slow(name: str, n: int, policy: Policy) -> str:
    """Why a mechanism would take too long to look at, if it would.

    >>> too_slow("optimal", 500, Policy(epsilon=1.0)), too_slow("tree", 500, Policy(epsilon=1.0, distortion="metres"))
    ('', '')
    """
    if name not in _LARGEST or (policy.distortion == "hamming" and name in ("optimal", "optimal_ldp")):
        return ""
    if n**policy.batch <= _LARGEST[name]:
        return ""
    return f"with {n} symbols{f' in batches of {policy.batch}' * (policy.batch > 1)} a release takes too long to watch"


def expected(terms: Terms) -> float:
    """The error that the receiver's best guess is expected to have under a policy, on streams simulated by the model.

    >>> from seqveil.interfaces.studio.source import sample
    >>> little, much = (expected(Policy(epsilon=e).on(sample("clicks").model)) for e in (0.5, 4.0))
    >>> little > 2 * much
    True
    """
    if terms.guards:
        return planning.simulate(terms, BRIEF, FEW).decoded_error
    if terms.in_blocks:
        runs = [PictureRun(terms, codes, seed=1) for codes in terms.model.sample(STEPS, FEW, seed=0)]
        for run in runs:
            run.go()
        errors = [terms.distortion.between(run.raw, terms.distortion.best_guess(run.beliefs)) for run in runs]
        return float(np.mean(errors))
    if terms.in_batches:
        return planning.simulate(terms, max(BRIEF, terms.batch), FEW).decoded_error
    size = (STEPS, MANY) if terms.distortion.is_hamming else (BRIEF, FEW)
    return planning.simulate(terms, *size).decoded_error
