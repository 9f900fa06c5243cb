"""From a request to everything that the page shows: a stream released step by step, its figures, and what they mean.

The steps are those of a `Session` with the same seed, so a release with the exported configuration comes out the same.
"""

from __future__ import annotations

import base64
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np

from seqveil.core import filtering, words
from seqveil.core.distortion import resolve
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import Sent
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets import Secret, SecretTracker
from seqveil.core.words import Risk, moved, percent, percent_down, percent_up
from seqveil.engine import batches, stream
from seqveil.engine.accounting import compose
from seqveil.engine.releases import Accounts
from seqveil.engine.secrets import totals
from seqveil.engine.stream import NOTHING, State, Terms, Weights
from seqveil.engine.terms import NO_BOUND
from seqveil.interfaces.events import finite_or_text
from seqveil.interfaces.studio.ask import Ask, compared, offers
from seqveil.interfaces.studio.exports import policy_file, python, steps
from seqveil.interfaces.studio.sources import StudioSource

# figures of each release: ε used, the most that it moved a belief (those of a batch stand at its first event), and
# where the account stands after it: leakage, its two sides, Σε, the level that needs no model
SERIES = ("epsilons", "costs", "leakage", "most", "least", "spent", "ldp")
DELTA = 1e-6
SHADES = 255
REMEDY_HERE = (  # with no secret declared, and with one: what the command line says by its options
    "Say in step 3 what must stay secret, and all else is released truthfully; or protect the whole stream together.",
    "Move the slider of step 4 to the left.",
)


class PictureRun:
    """Streams of a source under way, as far as there is time: what a slow mechanism has made so far can be shown.

    Arrays have a row for each stream and a column for each event; after a batch all of its events have its figures.

    Parameters:
        source: where the streams are from.
        ask: the stream, how many events of it, and how they are released.
        streams: so many of the first streams in place of the one asked for, cut to the same length.

    >>> from seqveil.interfaces.studio.sources import builtin
    >>> run = PictureRun(builtin("clicks"), Ask("clicks", events=10, epsilon=1.0))
    >>> run.go()
    >>> run.complete, bool(run.series["leakage"][0, -1] <= run.series["spent"][0, -1])
    (True, True)
    """

    def __init__(self, source: StudioSource, ask: Ask, streams: int | None = None) -> None:
        self.source, self.ask = source, ask
        self.setting = ask.setting(source.model)
        chosen = source.streams[:streams] if streams else [source.codes(ask.stream, ask.events)]
        length = min(ask.events, *(codes.size for codes in chosen))
        self.raw = np.stack([codes[:length] for codes in chosen])
        self.lock = threading.Lock()
        self.done = 0  # events
        self._randomness, size = SeededRandomness(ask.seed), len(chosen)
        one_by_one = [slice(k, k + 1) for k in range(size)]
        self._rows = one_by_one if self.setting.in_batches else [slice(0, size)]  # that are released in one step
        self._states = [State.start(self.setting, rows.stop - rows.start) for rows in self._rows]
        self.sent: list[list[Sent]] = [[] for _ in chosen]  # the batches of each stream
        self._released = np.full(self.raw.shape, NOTHING, np.int64)
        self._figures = np.zeros((len(SERIES), *self.raw.shape))
        self._columns = np.ones((*self.raw.shape, source.model.n), np.int64)
        self._distributions = np.zeros(self._columns.shape)  # of single events as they were before each release
        self._weighed: list[Weights] = []  # the columns of each step of single events
        self.tracked: list[
            SecretTracker
        ] = []  # the account of the first stream's secret, where one is kept, after each event

    @property
    def complete(self) -> bool:
        """Whether every event was released."""
        return self.done == self.raw.shape[1]

    def go(self, seconds: float = math.inf, stop: Callable[[], bool] = lambda: False) -> None:
        """Release on until the end, until the time is over, or until somebody else waits; one step is always made."""
        size, end = self.setting.batch if self.setting.in_batches else 1, time.perf_counter() + seconds
        step = self._batch if self.setting.in_batches else self._symbols
        while not self.complete:
            part = slice(self.done, min(self.raw.shape[1], self.done + size))
            for k, rows in enumerate(self._rows):
                epsilons, costs, state = step(self._states[k], rows, part)
                account = state.account
                disclosed = np.array([account.worst, account.most, account.least, state.spent, state.ldp])
                self._figures[:2, rows, part.start] = epsilons, costs
                self._figures[2:, rows, part] = disclosed[:, :, None]
                self._states[k] = state
            self.done = part.stop
            if time.perf_counter() > end or stop():
                break

    def _symbols(self, state: State, rows: slice, part: slice) -> tuple[Floats, Floats, State]:
        made, after = stream.step(self.setting, state, self.raw[rows, part.start], self._randomness)
        self._distributions[rows, part.start], self._columns[rows, part.start] = made.beliefs, made.columns
        self._released[rows, part.start] = made.codes
        self._weighed.append(made.weights)
        if after.trackers is not None:
            self.tracked.append(after.trackers[0].rows[0][0])
        return made.epsilons, np.zeros(len(made.codes)), after  # what each cost is computed for all at once

    def _batch(self, state: State, rows: slice, part: slice) -> tuple[Floats, Floats, State]:
        sent, after = batches.step(self.setting, state, self.raw[rows.start, part], self._randomness)
        assert sent is not None  # the page offers batches with the policy hold alone
        self.sent[rows.start].append(sent)
        self._distributions[rows.start, part] = sent.smooth(np.ones(self.setting.model.size))[0]
        self._released[rows.start, part] = sent.codes
        return after.spent - state.spent, np.array([max(sent.most, -sent.least)]), after

    def risk(self) -> Risk:
        """What the releases of the first stream so far mean for the person in it, and what its promise allows."""
        state, setting = self._states[0], self.setting
        disclosed = totals(setting.secrets, state.trackers or (), [secret.total for secret in setting.secrets])
        figures = (state.spent, state.account.most, state.account.least, state.ldp)
        return Risk.of(setting, Accounts([0], state.steps, state.steps, *figures), disclosed)

    @property
    def released(self) -> Ints:
        """(users, done) the codes released so far."""
        return self._released[:, : self.done]

    @property
    def series(self) -> dict[str, Floats]:
        """The figures by their names."""
        made = dict(zip(SERIES, self._figures[:, :, : self.done], strict=True))
        if self._weighed:  # what single events cost, all at once
            parts = ([getattr(each, name) for each in self._weighed] for name in ("low", "high", "marginal"))
            low, high, marginal = (np.stack(part, axis=1) for part in parts)
            flat = Weights(low.ravel(), high.ravel(), marginal.ravel(), self._weighed[0].terms)
            made["costs"] = flat.costs.reshape(low.shape)
        return made

    @property
    def online(self) -> Floats:
        """What an observer believes of each symbol (streams, T, n) from the releases up to it."""
        distributions, columns = self._distributions[:, : self.done], self._columns[:, : self.done]
        if self.setting.in_batches:
            return distributions
        weights = distributions * columns
        ruled_out = weights.sum(-1) == 0  # only an unsound mechanism releases it: what could have made it is believed
        weights[ruled_out] = columns[ruled_out]
        return np.asarray(weights / weights.sum(-1, keepdims=True))

    @cached_property
    def hindsight(self) -> Floats:
        """The same (T, n) for the first stream from all releases, once they are made."""
        assert self.complete
        if self.setting.in_batches:
            return batches.smooth(self.setting, self.sent[0])
        columns, model = self._columns[0][:, None, :], self.setting.model
        columns = columns / columns.max(-1, keepdims=True)
        if model.size > model.n:
            return filtering.distributions(model, columns)[0]
        distributions = self.online[0][:, None, :]  # where states are symbols, the way forward was gone already
        filtering.smooth(model, distributions, columns)
        return distributions[:, 0]


def picture(source: StudioSource, ask: Ask) -> dict[str, Any]:
    """Release the stream that is asked for and tell all about it, as JSON values.

    >>> from seqveil.interfaces.studio.sources import builtin
    >>> shown = picture(builtin("power"), Ask("power", events=12, distortion="absolute", epsilon=0.5))
    >>> shown["complete"], len(shown["series"]["released"]), shown["figures"]["composition"]
    (True, 12, 6.0)
    """
    run = PictureRun(source, ask)
    run.go()
    return picture_of(run)


def picture_of(run: PictureRun, whole: bool = True) -> dict[str, Any]:
    """What a run has made so far; what takes all releases to tell is left for the `whole` picture."""
    source, ask = run.source, run.ask
    complete = run.complete and whole
    costs = resolve(ask.distortion, source.model.alphabet)
    distributions = {"online": run.online[0], **({"hindsight": run.hindsight} if complete else {})}
    guesses = {name: costs.best_guess(distribution) for name, distribution in distributions.items()}
    figures = figures_of(run, guesses, complete)
    series: dict[str, Any] = {"raw": run.raw[0, : run.done].tolist(), "released": run.released[0].tolist()}
    series |= {"decoded": guesses["online"].tolist(), "hindsight": guesses.get("hindsight", guesses["online"]).tolist()}
    disclosed = run.series
    for name in ("epsilons", "leakage", "most", "least", "spent"):
        series[name] = [_short(value) for value in disclosed[name][0].tolist()]
    heat = {name: shades(distribution) for name, distribution in distributions.items()}
    risk = run.risk()
    return {
        "complete": complete,
        "done": run.done,
        "events": int(run.raw.shape[1]),
        "series": series,
        "heat": {"hindsight": heat["online"]} | heat,
        "figures": {name: finite_or_text(value) for name, value in figures.items()},
        "risk": risk_of(risk),
        "secret": secret_of(run),
        "sentence": sentence(run.setting, figures, *(about_secret(source, ask, each) for each in run.setting.secrets)),
        "notes": notes(run.setting, figures),
        "mechanisms": [asdict(each) for each in offers(source, ask)],
        "mechanism": run.setting.mechanism.name,
        "curves": source.remember(("compared", ask.distortion), lambda: compared(source, ask.distortion)),
        "configuration": ask.to_json(source.origin),
        "snippets": {"python": python(ask, source)},
        "files": {"toml": policy_file(run.setting, risk), "steps": steps(source)},
    }


def risk_of(risk: Risk) -> dict[str, Any]:
    """What releases mean for a person, as the page shows it: sentences, a grade, and what to do about a bad one."""
    remedy = "" if risk.grade.colour in ("green", "unchecked") or risk.undone else REMEDY_HERE[bool(risk.secrets)]
    said = list(risk.sentences)
    for each in risk.secrets:  # the page has one secret, and says elsewhere what it is about
        said = [sentence.replace(f"secret {each.name},", "the secret,", 1) for sentence in said]
    grade = {"colour": risk.grade.colour, "why": risk.grade.why}
    return {**grade, "sentences": said, "remedy": remedy}


def figures_of(run: PictureRun, guesses: Mapping[str, Any], complete: bool) -> dict[str, Any]:
    """The figures of a release: those of `seqveil audit`, and the errors, which take the truth."""
    setting, released = run.setting, run.released[0]
    disclosed = {name: values[0] for name, values in run.series.items()}
    costs, made, size = disclosed["costs"], released != NOTHING, setting.batch if setting.in_batches else 1
    truth, distortion = run.raw[0, : run.done], setting.distortion
    window = setting.budget.releases
    alone = run.source.guesses(distortion)[: run.done]
    late = distortion.between(truth, guesses["hindsight"]).mean() if complete else None
    begins = np.arange(run.done) % size == 0 if setting.in_batches else made
    held = costs <= 1e-9 if setting.in_batches else disclosed["epsilons"] == 0
    return {
        "releases": int(begins.sum()),
        "held": int(held[begins].sum()),
        "stopped": int((~made).sum()),
        "leakage": float(disclosed["leakage"][-1]),
        "most": float(disclosed["most"][-1]),
        "least": float(disclosed["least"][-1]),
        "composition": float(disclosed["spent"][-1]),
        "worst_release": float(costs.max(initial=0.0)),
        "worst_window": None if window is None else _worst_window(costs[::size], window),
        "ldp": float(disclosed["ldp"][-1]),
        "delta": DELTA,
        "with_delta": _with_delta(run) if complete else None,
        "error": float(distortion.between(truth[made], released[made]).mean()) if made.any() else None,
        "decoded_error": float(distortion.between(truth, guesses["online"]).mean()),
        "hindsight_error": None if late is None else float(late),
        "silent_error": float(distortion.between(truth, alone).mean()),
        "spent_at": _spent_at(run),
        "budget": setting.budget.exact_total,
        "window": setting.budget.per_window,
        "claimed": setting.epsilon * setting.schedule,
    }


def kept_name(source: StudioSource, ask: Ask) -> str:
    """What the page calls the symbol that is kept secret; nothing where none is.

    >>> from seqveil.interfaces.studio.sources import builtin
    >>> kept_name(builtin("gaze"), Ask("gaze", secret=12, secret_epsilon=1.0))
    'cell 2, 3'
    """
    if ask.secret is None:
        return ""
    return ("cell " if source.describe()["grid"] else "") + source.labels[ask.secret]


def about_secret(source: StudioSource, ask: Ask, secret: Secret) -> str:
    """What is kept secret, as the first half of a sentence: with the page's name for a value where it has one."""
    if ask.secret_kind == "ever" and ask.secret_window is None:
        return f"whether {kept_name(source, ask)} occurs among the first {secret.length()} events"
    return words.about(secret)


def secret_of(run: PictureRun) -> dict[str, Any] | None:
    """The secret that is kept and its log odds after each release; None where nothing is declared."""
    if not run.tracked:
        return None
    last = run.tracked[-1]
    bound, most = last.secret.total, last.worst
    said = words.example(last.secret)
    stands, low, high = (moved(words.SUSPICION, odds) for odds in (last.log_odds, most.lowest, most.highest))
    least, greatest = (moved(words.SUSPICION, odds) for odds in (-bound, bound))
    return {
        "code": run.ask.secret,
        "name": kept_name(run.source, run.ask),
        "about": about_secret(run.source, run.ask, last.secret),
        "epsilon": bound,
        "odds": [_short(tracker.log_odds) for tracker in run.tracked],
        "kept": -bound <= most.lowest and most.highest <= bound,
        "suspicions": [percent_down(least), percent(words.SUSPICION), percent_up(greatest)],
        "sentence": f"{said[0].upper()}{said[1:]}; after the releases shown it is {percent(stands)}, and it was never "
        f"below {percent_down(low)} or above {percent_up(high)}.",
    }


def _spent_at(run: PictureRun) -> int | None:
    """The first event for which a budget had less than its schedule asked for nothing left, if there is one."""
    setting = run.setting
    if not setting.budget.limited:
        return None
    size = setting.batch if setting.in_batches else 1
    releases = np.arange(0, run.done, size)
    wanted = (releases // size) % setting.schedule == 0
    dry = np.flatnonzero(wanted & (run.series["epsilons"][0, releases] == 0))
    return int(releases[dry[0]]) if dry.size else None


def _worst_window(costs: Floats, span: int) -> float:
    padded = np.concatenate([np.zeros(span - 1), costs])
    return float(np.lib.stride_tricks.sliding_window_view(padded, span).sum(1).max(initial=0.0))


def _with_delta(run: PictureRun) -> float | None:
    """ε of the releases so far with failure probability δ, where their ε was fixed."""
    setting = run.setting
    if setting.budget.limited or setting.unbounded or not setting.mechanism.sound:
        return None
    releases = -(-run.done // setting.batch)
    return compose(setting.epsilon * setting.schedule, -(-releases // setting.schedule), DELTA).best


def shades(distributions: Floats) -> str:
    """Distributions (T, n) as one byte a probability, in base 64: the square root, so that small beliefs can be seen.

    >>> list(base64.b64decode(shades(np.array([[0.25, 0.75]]))))
    [128, 221]
    """
    return base64.b64encode(
        np.rint(SHADES * np.sqrt(np.clip(distributions, 0.0, 1.0))).astype(np.uint8).tobytes()
    ).decode()


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def factor(nats: float) -> str:
    """e^ε as a reader takes it in.

    >>> factor(1.0), factor(0.01), factor(50.0), factor(0.0)
    ('2.72', '1.01', 'e^50', '1')
    """
    if math.isinf(nats):
        return "without bound"
    if nats > 9.2:
        return f"e^{nats:.4g}"
    value = math.exp(nats)
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def sentence(setting: Terms, figures: Mapping[str, Any], about: str = "") -> str:
    """The guarantee in words with the numbers filled in: nothing that does not hold. `about` says what is secret.

    It speaks of the probability of a sequence and not of its odds: lifts bound the first by e^ε, odds by e^2ε.
    """
    what = f"batch of {setting.batch}" if setting.batch > 1 else "release"
    count, many = figures["releases"], "batches" if setting.batch > 1 else "releases"
    realised = f"the {count} {many} shown" if count > 1 else "the one shown"
    total, leaked = figures["composition"], figures["leakage"]
    if not setting.mechanism.sound:
        return _unsound(setting.mechanism.name, what, realised, figures)
    text = ""
    if setting.guards:
        [secret] = setting.secrets
        text = f"{about[0].upper()}{about[1:]} is kept secret: {words.promise(secret)}. "
        if setting.unbounded:
            return f"{text}About everything else there is {NO_BOUND}."
    text += (
        "Under the model, no observer who sees every release, however much they compute, changes the probability they "
        f"give to any whole sequence by more than a factor {factor(figures['claimed'])}, up or down, at one {what}"
    )
    budget = setting.budget
    if budget.per_window is not None:
        text += f", or {factor(budget.per_window)} in any {budget.releases} in a row"
    if budget.exact_total is not None:
        text += f", or {factor(budget.exact_total)} over the whole stream"
    text += f"; {realised} changed it by at most a factor {factor(leaked)}"
    if leaked < total * (1 - 1e-6):
        text += f", where adding up their ε allows {factor(total)}"
    return text + "."


def _unsound(name: str, what: str, realised: str, figures: Mapping[str, Any]) -> str:
    """What a mechanism without a guarantee really did, beside what its ε says."""
    worst, leaked, claimed = figures["worst_release"], figures["leakage"], figures["claimed"]
    together = "without any bound" if math.isinf(leaked) else f"by up to a factor {factor(leaked)}"
    if worst <= claimed * (1 + 1e-9):
        return (
            f"“{name}” keeps to its ε here but need not elsewhere: one {what} shown changes the probability that an "
            f"observer gives to a sequence by up to a factor {factor(worst)}, where its ε says {factor(claimed)}, and "
            f"{realised} change it {together}."
        )
    one = "changes it without any bound" if math.isinf(worst) else f"changes it by a factor {factor(worst)}"
    return (
        f"“{name}” does not keep to its ε: that says one {what} changes the probability that an observer gives to any "
        f"sequence by at most a factor {factor(claimed)}, but one shown here {one}, and {realised} change it "
        f"{together}."
    )


def notes(setting: Terms, figures: Mapping[str, Any]) -> list[str]:
    """What else is true and worth knowing, a sentence each."""
    said = []
    if setting.guards:
        said.append(
            "The promise about the secret is a total for all releases together. It is about streams that follow the "
            "model, and says nothing about timing, or about other secrets combined with this one."
        )
    if setting.mechanism.sound and not setting.unbounded:
        level = setting.mechanism.ldp * setting.epsilon * setting.schedule
        what = "batch" if setting.batch > 1 else "release"
        said.append(
            f"With no trust in the model at all, one {what} is {level:.4g}-locally differentially private: no two "
            f"sequences have their odds changed by more than a factor {factor(level)}."
        )
    if figures["with_delta"] is not None and figures["with_delta"] < figures["composition"] * (1 - 1e-6):
        said.append(
            f"For the true sequence, releases like these stay within a factor {factor(figures['with_delta'])} "
            f"except with a probability of {figures['delta']:g}."
        )
    if figures["spent_at"] is not None:
        after = "nothing more is released" if setting.budget.when_spent == "stop" else "the best guess is released"
        said.append(f"The budget is spent at event {figures['spent_at'] + 1}; where nothing is left, {after}.")
    if setting.in_batches and setting.batch > 1:
        said.append("For batches the account adds up the worst of each, so it is a bound from above.")
    said.append(
        "Draws are seeded here so that figures can be repeated: nothing this page makes is a private release. The "
        "commands and the script below draw afresh, so their figures differ."
    )
    return said
