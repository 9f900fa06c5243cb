"""What a receiver makes of released rows, from model and releases alone: `sv.audit`, `sv.decode`, `sv.stats`, learn.

All of it is post-processing and costs no privacy. Everything that is needed beside the model stands in the side file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from seqveil.core.bulk import Layout
from seqveil.core.distortion import Distortion, error_size, resolve
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret
from seqveil.core.words import Line, Result, ResultTable, count, percent, plain
from seqveil.engine.policy import Policy, several_secrets
from seqveil.interfaces.files import writing
from seqveil.interfaces.files.events import Progress, silent, symbol_events
from seqveil.interfaces.files.received import Received, ReleasedBatch, paired, received
from seqveil.interfaces.files.release import CALL_ROWS
from seqveil.interfaces.files.table import FilePath, as_kind, as_polars, chain_of
from seqveil.interfaces.files.writing import CONFIDENCE, ReleasedRows, model_check
from seqveil.receiver.audit import Audit, Report
from seqveil.receiver.decode import Seen, decode_paths, decode_seen, follow
from seqveil.receiver.drift import Drift, ModelCheck
from seqveil.receiver.evidence import Evidence
from seqveil.receiver.learn import Learned, learn
from seqveil.receiver.statistics import HIDDEN, Estimate, Summary, summarise

TOGETHER = 1 << 25  # numbers that the distributions of one batch of streams may take
SHOWN = 20  # rows of a table on the terminal


def audit(
    released: Any,
    model: MarkovModel | FilePath,
    *,
    secrets: Secret | Sequence[Secret] = (),
    policy: Policy | FilePath | None = None,
    meta: Any = None,
    html: FilePath | None = None,
    progress: Progress = silent,
) -> Report:
    """Check what releases leaked, exactly, and whether these people follow the model, as `seqveil audit` does.

    A model that is not the release's, and a release that the setting cannot have made, are refused. Where the rows have
    the column `epsilon` it is compared with what the setting spent, and where the side file has a digest of the rows,
    with the rows. Of a release in batches everything is recomputed from the paths, the values too. A release that its
    side file calls seeded does not pass, whatever the figures: whoever knows the seed can undo it.

    Parameters:
        released: what `release` gave back, or a frame or path of released rows.
        model: the model that it was released with, or the path of one.
        secrets: what to ask about besides; it is measured, not promised.
        policy: that of the release, or the path of it, where no side file has it.
        meta: `ReleasedRows.meta`, or the path of a side file, where `released` has none with it.
        html: also write a page for whoever answers for data protection.
    """
    chain, asked = chain_of(model), several_secrets(secrets)
    found = received(released, chain, policy, meta)
    found = replace(found, clock=any(secret.follows_clock for secret in asked))
    taken, side = Audit(found.setting, asked, found.drift()), found.meta
    progress(0, found.codes.size)
    used = (_audit_batches if found.setting.in_batches else _audit_symbols)(found, taken, progress)
    report = taken.report(found.unchanged(used))
    unseeded = None if side is None else side.get("seed") is None and side.get("private") is True
    report = replace(report, unseeded=unseeded, read=found.events.taken.sentence)
    if html is not None:
        from seqveil.interfaces.files.report import page

        path = released.frame if isinstance(released, ReleasedRows) else released
        beside = writing.side_of(path) if isinstance(path, str | os.PathLike) else None
        writing.refuse_read(html, [path, meta, beside])
        writing.write_text(html, page(path, report, chain, side))
    return report


def _audit_symbols(found: Received, taken: Audit, progress: Progress) -> Floats:
    """Account for all releases; returns the ε that each row used."""
    log, used = found.log, []
    for begin in range(0, len(log.users), CALL_ROWS):
        part = slice(begin, begin + CALL_ROWS)
        beside = (None if each is None else each[part] for each in (log.times, log.epsilons))
        with found.naming():
            used.append(taken.take(log.users[part], log.codes[part], *beside))
        progress(int((log.rows[part] >= 0).sum()))
    return np.concatenate(used)[log.rows >= 0]


def _audit_batches(found: Received, taken: Audit, progress: Progress) -> None:
    for batch in found.batches:
        sent = batch.path is not None
        codes = found.codes[batch.rows] if sent else batch.rows
        claimed = found.epsilons[batch.rows] if sent and found.epsilons is not None else None
        with found.naming(f"rows {found.events.row(int(batch.rows[0]))} on: " if sent else ""):
            taken.take_batch(batch.user, batch.path, codes, claimed, batch.time)
        progress(batch.rows.size)


@dataclass(frozen=True, eq=False, repr=False)
class Estimates(Result):
    """The best estimate of each row's true value with its probability (`frame`), and how good they are.

    Confidence holds under the model; the check says whether the releases fit it. `right` is the share of estimates that
    are the truth, where the truth was given.
    """

    frame: Any
    rows: int
    users: int
    confidence: float
    check: ModelCheck
    right: float | None = None
    away: float | None = None  # their mean cost, where the loss is a distance and the truth was given
    loss: str = ""  # the name of the loss that they minimise

    def to_dict(self) -> dict[str, Any]:
        """How much was decoded, as plain values."""
        facts: dict[str, Any] = {"rows": self.rows, "users": self.users, "confidence": self.confidence}
        facts |= {"confidence_holds": "under the model", "model": self.check, "right": self.right}
        facts |= {} if self.away is None else {"away": self.away, "loss": self.loss}
        return dict(plain(facts))

    def lines(self) -> list[Line]:
        """How much was decoded, line by line."""
        said = f"{count(self.rows, 'row')} of {count(self.users, 'user')}; on average an estimate is right with"
        found = [("decoded", f"{said} probability {self.confidence:.3f} under the model")]
        if self.right is not None:
            off = "" if self.away is None else f"; on average they are {error_size(self.away, self.loss)} off"
            found.append(("truth", f"{self.right:.3f} of the estimates are right, by the raw file{off}"))
        return [*found, self.check.said]


def decode(
    released: Any,
    model: MarkovModel | FilePath,
    *,
    out: FilePath | None = None,
    policy: Policy | FilePath | None = None,
    meta: Any = None,
    online: bool = False,
    distortion: str | Distortion | None = None,
    truth: Any = None,
    format: str | None = None,
    progress: Progress = silent,
) -> Estimates:
    """The best estimate of every row's true value, as `seqveil decode` gives it, in a frame of the kind that came.

    The releases are asked, too, whether they fit the model that all of this rests on.

    Parameters:
        released, model, policy, meta: as in `audit`.
        out: a file to write to instead.
        online: use the releases up to each row (or its batch) only.
        distortion: what the estimate minimises; by default that of the release.
        truth: the raw rows, to say how many estimates are right.
    """
    chain = chain_of(model)
    if out is not None:
        writing.check_place(out, [released, model, truth, meta], format if out == "-" else None)
    found = received(released, chain, policy, meta)
    events, drift = found.events, found.drift()
    loss = found.setting.distortion if distortion is None else resolve(distortion, chain.alphabet)
    true = None if truth is None else _truth(found, truth)
    progress(0, found.codes.size)
    if found.setting.in_batches:
        decoded = _decode_batches(found, online, progress)
    else:
        decoded = _decode_symbols(found, online, progress, drift)
    guess, confidence = _best(decoded, found, loss)
    more = {CONFIDENCE: confidence}
    table = writing.rows_frame(events.reading, events.users, events.order, chain.alphabet, guess, more)
    table = table[np.argsort(events.frame["row"].to_numpy(), kind="stable")]  # as the rows stood in what came
    if out is not None:
        writing.write_frame(out, table, format if out == "-" else None)
    frame = out if out is not None else _like(released, table)
    mean = float(confidence.mean(dtype=np.float64))
    made = Estimates(frame, events.n, len(events.people[0]), mean, ModelCheck.of(drift))
    if true is None or not (true >= 0).any():
        return made
    true, guess = true[true >= 0], guess[true >= 0]
    away = None if loss.is_hamming else float(loss.between(true, guess).mean())
    return replace(made, right=float((guess == true).mean()), away=away, loss=loss.name)


def _truth(found: Received, truth: Any) -> Ints:
    """The true code of each released row, from the raw file; negative outside the alphabet."""
    alphabet = found.setting.model.alphabet.tracked()
    reading = replace(found.events.reading, time=found.events.taken.order)
    raw = symbol_events(as_polars(truth), alphabet, reading, holes="any")
    return paired(found.events, raw, raw.codes(alphabet), found.setting.batch).codes


def _like(released: Any, table: pl.DataFrame) -> Any:
    """A table in the kind of frame that came."""
    return as_kind(released.frame if isinstance(released, ReleasedRows) else released, table)


Decoded = Iterator[tuple[Ints, Floats]]  # rows, -1 for none, and the distributions of their symbols


def _best(decoded: Decoded, found: Received, loss: Distortion) -> tuple[Ints, NDArray[np.float32]]:
    """Estimate and its probability for every row."""
    guess, confidence = np.zeros(found.codes.size, np.int64), np.zeros(found.codes.size, np.float32)
    for rows, distributions in decoded:
        if (rows < 0).any():
            rows, distributions = rows[rows >= 0], distributions[rows >= 0]
        best = loss.best_guess(distributions)
        guess[rows], confidence[rows] = best, distributions[np.arange(rows.size), best]
    return guess, confidence


def _decode_symbols(found: Received, online: bool, progress: Progress, drift: Drift | None) -> Decoded:
    """Decode as many streams together as fit, event by event; the model check sees what is decoded."""
    setting, log = found.setting, found.log
    width, layout = setting.model.size + setting.model.n, Layout.of(log.who)
    room = max(1, TOGETHER // width)
    for part in layout.parts(most=room) if online else layout.parts(events=room):
        steps = list(part.steps())
        codes = [log.codes[places] for places in steps]
        times, used = (None if each is None else [each[places] for places in steps] for each in found.symbols[2:])
        seen = _asked(drift, [log.who[places] for places in steps], follow(setting, codes, times, used))
        with found.naming():
            for places, distributions in zip(steps, decode_seen(setting, seen, not online), strict=True):
                yield log.rows[places], distributions
        progress(sum(places.size for places in steps))


def _asked(drift: Drift | None, people: list[Ints], followed: Seen) -> Seen:
    """Show the releases of these people at each step to the model check."""
    for who, (before, seen) in zip(people, followed, strict=True):
        if drift is not None:
            drift.take(who.astype(np.intp), seen)
        yield before, seen


def _decode_batches(found: Received, online: bool, progress: Progress) -> Decoded:
    """Decode user by user."""
    setting, own = found.setting, dict[Any, list[ReleasedBatch]]()
    for batch in found.batches:
        own.setdefault(batch.user, []).append(batch)
    for mine in own.values():
        rows = np.concatenate([each.rows for each in mine])
        paths, times = [each.path for each in mine], [each.time for each in mine]
        with found.naming():
            yield rows, decode_paths(setting, paths, rows.size, times, not online)
        progress(rows.size)


LEFT_OUT = "none: {}; all figures below are the best guess under {}, and no interval around them would hold"
LITTLE = "people differ a little from the model, which is tolerated for the promise but not for intervals"
NOT_MODEL = "they rest on no model: each release is inverted, and only its randomness is random"


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(Result):
    """How often each value occurred, with intervals (`frame`); all else in `summary`."""

    frame: Any
    summary: Summary
    check: ModelCheck
    intervals: bool  # whether they hold: else they are left out
    model: MarkovModel
    per: int | None = None  # events of a window of the histogram over time

    @property
    def _names(self) -> list[str]:
        return [str(value) for value in self.model.alphabet.decode(list(range(self.model.n)))]

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain values; arrays are in the order of `symbols`."""
        found, names = self.summary, self.model.alphabet.decode(list(range(self.model.n)))
        said = plain(found) | {"symbols": names, "model": self.check, "intervals": self.intervals}
        return dict(plain(said | {"not_disclosed": [names[code] for code in found.undisclosed]}))

    def lines(self) -> list[Line]:
        """What the figures rest on, line by line."""
        found = self.summary
        chain = "the model of the release" if found.method == "model" else "one chain of order 1"
        level = f"; intervals of {percent(found.confidence)} each" if self.intervals else ""
        said = [
            ("from", f"{count(found.events, 'event')} of {count(found.users, 'user')}{level}"),
            ("method", f"{found.method}: assumes {found.assumes}"),
            self.check.said,
        ]
        why = LITTLE if self.check.fits else "these people do not follow the model exactly"
        why = why if self.check.rejected else "the model is more than one chain of order 1"
        said += [] if self.intervals else [("intervals", LEFT_OUT.format(why, chain))]
        said += [("intervals", NOT_MODEL)] if self.intervals and self.check.rejected else []
        return said + self._undisclosed()

    def _undisclosed(self) -> list[Line]:
        """Which symbols a release that keeps secrets hardly reveals, so that their counts are not its own."""
        found = self.summary
        if not found.undisclosed:
            return []
        which = ", ".join(self._names[code] for code in found.undisclosed[:SHOWN])
        why = "the release keeps declared secrets, and on purpose reveals next to nothing about such counts"
        return [("not known", f"{which}: no estimate; {why}")]

    def tables(self) -> list[ResultTable]:
        """The most frequent values, the most frequent moves, and the shares over time where they were asked for."""
        found, names = self.summary, self._names
        counts, moves = found.histogram, found.transitions
        unknown = np.isin(np.arange(len(names)), found.undisclosed)
        order = np.lexsort([-np.asarray(counts.value), unknown])[:SHOWN].tolist()  # what is not known comes last
        rows = [(names[x], _span(counts, x), _span(counts, x, 1 / found.events, ".3f")) for x in order]
        pairs = [(a, b) for a in order for b in order if not math.isnan(moves.value[a, b])]
        largest = sorted(pairs, key=lambda pair: -moves.value[pair])[:SHOWN]
        steps = [(names[a], names[b], _span(moves, (a, b))) for a, b in largest]
        shown = [ResultTable("", ("symbol", "events", "share"), rows)]
        shown.append(ResultTable("", ("from", "to", "transitions"), steps))
        if self.per is not None:
            spans = []
            for w, events in enumerate(found.in_window[:SHOWN]):
                parts = (_span(found.over_time, (w, x), 1 / max(1, int(events)), ".3f") for x in order[:5])
                spans.append((f"{w * self.per}", *parts))
            shown.append(ResultTable("", ("from event", *(names[x] for x in order[:5])), spans))
        return shown


def _span(estimate: Estimate, at: Any, scale: float = 1.0, form: str = ".0f") -> str:
    value, low, high = (float(part[at]) * scale for part in (estimate.value, estimate.low, estimate.high))
    if math.isnan(value):
        return "not known"
    return f"{value:{form}}" + ("" if math.isnan(low) else f" ({low:{form}} to {high:{form}})")


def stats(
    released: Any,
    model: MarkovModel | FilePath,
    *,
    policy: Policy | FilePath | None = None,
    meta: Any = None,
    confidence: float = 0.95,
    per: int | None = None,
    method: str = "auto",
    progress: Progress = silent,
) -> Statistics:
    """How often values occurred and followed each other, with intervals, as `seqveil stats` estimates it.

    The releases are asked first whether they fit the model. If they speak against it, or if the model is of a higher
    order or of several types, intervals that rest on one chain of order 1 are left out: the estimates lean on it
    themselves, so no spread around them would say how far off they are. Releases that keep declared secrets are read
    under the model itself, and have intervals unless they speak against it; a symbol that they hardly reveal has no
    estimate. Intervals by "design" rest on no model.

    Parameters:
        released, model, policy, meta: as in `audit`.
        confidence: of every interval.
        per: also count for every so many events of a stream.
        method: "auto", "design", "learned" or "model" (docs/receiver.md).
    """
    chain = chain_of(model)
    found = received(released, chain, policy, meta)
    progress(0, found.codes.size)
    options: dict[str, Any] = {"confidence": confidence, "window": per, "method": method}
    who, codes, times, used = found.symbols
    drift = found.drift()
    options["seen"] = None if drift is None else drift.take
    summary = summarise(found.setting, who, codes, times, used, **options)
    shown = drift is not None and drift.events > 0  # else releases were inverted
    check = ModelCheck.of(drift) if drift is not None and shown else model_check(found.setting, *found.symbols)
    read_rightly = chain.size == chain.n or summary.method == "model"  # several chains are not read as one
    supported = summary.method == "design" or (read_rightly and not check.rejected)
    summary = summary.known(supported)
    figures = {"events": summary.histogram.value, "low": summary.histogram.low, "high": summary.histogram.high}
    values = writing.symbol_columns(chain.alphabet, found.events.reading.value_columns)
    table = pl.DataFrame([*values, *(pl.Series(name, numbers) for name, numbers in figures.items())])
    return Statistics(_like(released, table), summary, check, supported, chain, per)


def learn_released(
    released: Any,
    model: MarkovModel | FilePath,
    *,
    meta: Any = None,
    policy: Policy | FilePath | None = None,
) -> Learned:
    """The chain behind released rows; `model` is what the release was made with.

    *Guarantee*: post-processing of what is public already. The kernels are recomputed from the model and the releases,
    so a file that they cannot have made is refused.
    """
    chain = chain_of(model)
    found = received(released, chain, policy, meta)
    if found.setting.guards:
        raise InputError(f"{HIDDEN}; learn from a release without secrets, such as one by randomized_response")
    learned = learn(evidence_of(found), chain.alphabet)
    return learned if chain.reading is None else replace(learned, model=learned.model.with_reading(chain.reading))


def evidence_of(found: Received) -> Evidence:
    """What each release of a file reveals of the truth, in the file's order; users numbered as they come."""
    who, codes, times, used = found.symbols
    with found.naming():
        return Evidence.of_streams(found.setting, who.astype(np.intp), codes, times, used)
