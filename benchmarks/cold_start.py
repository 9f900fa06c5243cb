"""No model to begin with: chains learned from releases alone, against raw-fitted ones and none, on held-out people."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.timing import find
from seqveil import Alphabet, MarkovModel, Setting, Streams
from seqveil.core.alphabet import Symbols
from seqveil.core.coins import SeededCoins
from seqveil.core.kernel import Ints
from seqveil.core.model import Counts
from seqveil.receiver.decode import decode_codes
from seqveil.receiver.learn import Evidence, Learned, learn, region, slack_along
from seqveil.receiver.reweigh import Reweighed

EPSILON, PERIOD = 1.0, 4
GROWTH = (300, 1_000, 3_000, 10_000, 20_000)


@dataclass(frozen=True)
class Split:
    """Streams to learn from and streams to try on, of different people and all of one length."""

    name: str
    learned_from: Ints
    held_out: Ints
    alphabet: Symbols

    @property
    def n(self) -> int:
        return self.alphabet.n

    @property
    def none(self) -> MarkovModel:
        return MarkovModel(np.full(self.n, 1 / self.n), np.full((self.n, self.n), 1 / self.n), alphabet=self.alphabet)


def run(data: Path | None) -> list[dict[str, object]]:
    began, rows = time.perf_counter(), list[dict[str, object]]()
    for load in (msnbc, heart_rate, electricity):
        split = load(data)
        if split is not None:
            rows += trial(split)
    if rows:
        print(f"  all of it: {time.perf_counter() - began:.1f} s")
    return rows


def trial(split: Split) -> list[dict[str, object]]:
    """Growth with the number of people learned from, then other kernels to learn from, then the two ends."""
    people, clicks = split.learned_from.shape
    print(f"{split.name}: {split.n} symbols, {clicks} events a stream, {len(split.held_out)} held-out streams, ε = 1")
    print(f"  {'model':<42}{'streams':>8}{'released':>10}{'filtered':>10}{'smoothed':>10}{'gain':>9}{'seconds':>9}")
    sizes = sorted({min(size, people) for size in GROWTH})
    rows = [learned_row(split, size, "randomized_response", 1) for size in sizes]
    middle = 3_000 if people >= 3_000 else people
    rows += [learned_row(split, middle, "randomized_response", period) for period in (2, 4)]
    rows += [learned_row(split, middle, "randomized_response", 1, strength) for strength in (3.0, 300.0)]
    raw = _raw(split)
    rows.append(row(split, "raw-fitted", people, raw, "optimal", PERIOD))
    rows.append(row(split, "none, optimal every 4th", 0, split.none, "optimal", PERIOD))
    rows.append(row(split, "none, k-RR every event", 0, split.none, "randomized_response", 1))
    return [*rows, *(slack_rows(split, middle, period, raw) for period in (1, PERIOD))]


def learned_row(split: Split, size: int, kernel: str, period: int, strength: float | None = None) -> dict[str, object]:
    """Release some streams without a model, learn from those releases alone, release the held-out with the result."""
    setting = Setting.of(split.none, kernel, EPSILON, schedule=period)
    released = release(setting, split.learned_from[:size], seed=11)
    began = time.perf_counter()
    learned = learn(Evidence.of(setting, released), split.alphabet, strength=strength)
    taken = time.perf_counter() - began
    how = "every event" if period == 1 else "every 2nd" if period == 2 else f"every {period}th"
    how += "" if strength is None else f", prior {strength:g}"
    return row(split, f"learned from k-RR, {how}", size, learned.model, "optimal", PERIOD, learned, taken)


def row(
    split: Split,
    title: str,
    size: int,
    model: MarkovModel,
    mechanism: str,
    period: int,
    learned: Learned | None = None,
    taken: float = 0.0,
) -> dict[str, object]:
    setting = Setting.of(model, mechanism, EPSILON, schedule=period)
    released = release(setting, split.held_out, seed=7)
    online, smooth = (decode_codes(setting, released, smooth=s).argmax(2) for s in (False, True))
    wrong = [float((guess != split.held_out).mean()) for guess in (released, online, smooth)]
    gain = None if learned is None or learned.held_out is None else learned.held_out.gain
    more = "" if learned is None else f"{gain:>9.4f}{taken:>9.1f}" if gain is not None else f"{'':>9}{taken:>9.1f}"
    print(f"  {title:<42}{size:>8}{''.join(f'{w:>10.3f}' for w in wrong)}{more}", flush=True)
    facts = {"data": split.name, "model": title, "streams": size, "wrong": wrong, "gain": gain, "seconds": taken}
    if learned is not None:
        facts |= {"rounds": learned.rounds, "converged": learned.converged, "strength": learned.strength}
    return facts


def slack_rows(split: Split, size: int, period: int, raw: MarkovModel) -> dict[str, object]:
    """What releases under a learned chain leak if another chain is the truth: one of its region, or the raw-fitted."""
    setting = Setting.of(split.none, "randomized_response", EPSILON, schedule=period)
    evidence = Evidence.of(setting, release(setting, split.learned_from[:size], seed=11))
    learned = learn(evidence, split.alphabet)
    around = region(learned, evidence)
    rows = np.asarray(raw.chain.todense()) + raw.backoff[:, None] * raw.base
    inside = int((np.abs(rows - learned.chain.rows).sum(1) / 2 <= around.rows).sum())
    used, length = Setting.of(learned.model, "optimal", EPSILON, schedule=PERIOD), min(20, split.held_out.shape[1])
    released = release(used, split.held_out[:, :length], seed=7)
    bound = slack_along(used, around, released)[:, ::PERIOD]
    facts: dict[str, object] = {
        "data": split.name,
        "learned_every": period,
        "region": repr(around),
        "raw_rows_inside": inside,
    }
    print(f"  learned from k-RR, period {period}: {around}; a paid release promises e^{EPSILON * PERIOD:g}")
    print(f"    {inside} of {split.n} rows of the raw-fitted chain are inside")
    print(f"    {'if the truth is':<34}{'mean':>8}{'worst':>8}{'worst stream':>14}")
    most = f"{bound.mean():>8.2f}{bound.max():>8.2f}{bound.sum(1).max():>14.1f}"
    print(f"    {'in the region (bound)':<34}{most}")
    for name, chain in [*((f"drawn from the posterior, {k}", m) for k, m in enumerate(around.plausible(2), 1)),
                        ("the raw-fitted chain", raw)]:  # fmt: skip
        both, everyone = Reweighed(used, chain, len(released)), np.arange(len(released))
        costs = np.stack([both.observe(everyone, step).costs for step in released.T], axis=1)[:, ::PERIOD]
        worst = float(both.account.worst.max())
        print(f"    {name:<34}{costs.mean():>8.2f}{costs.max():>8.2f}{worst:>14.1f}", flush=True)
        facts[name] = {"mean": float(costs.mean()), "worst": float(costs.max()), "stream": worst}
    return facts


def _raw(split: Split) -> MarkovModel:
    counts = Counts(split.n)
    counts.add(np.repeat(np.arange(len(split.learned_from)), split.learned_from.shape[1]), split.learned_from.ravel())
    return counts.model(split.alphabet, smoothing=1.0)


def release(setting: Setting, truth: Ints, seed: int) -> Ints:
    many, rows = Streams(setting, coins=SeededCoins(seed)), np.arange(len(truth))
    return np.stack([many.release(rows, step).codes for step in truth.T], axis=1)


def msnbc(data: Path | None) -> Split | None:
    """20 clicks of people with at least as many: 1,000 held out, all others to learn from."""
    import polars as pl

    path = find(data, "msnbc/msnbc_sequences.parquet")
    if path is None:
        return None
    long = pl.read_parquet(path).filter(pl.col("seq").list.len() >= 20).sample(fraction=1.0, shuffle=True, seed=1)
    clicks = long["seq"].list.head(20).explode().to_numpy().astype(np.int64).reshape(-1, 20) - 1
    return Split("MSNBC", clicks[1_000:], clicks[:1_000], Alphabet.codes(17))


def heart_rate(data: Path | None) -> Split | None:
    """35 people by the second for 20 minutes, in bins of 5 beats: 25 to learn from, 10 held out."""
    return _people(data, "heart_rate", "heart_rate/heart_rate_1hz.parquet", 1_200, 10)


def electricity(data: Path | None) -> Split | None:
    """Swiss households by the quarter of an hour, ten levels, two days: 100 held out, all others to learn from."""
    return _people(data, "electricity", "electricity/swiss_15min.parquet", 192, 100)


def _people(data: Path | None, name: str, file: str, length: int, held_out: int) -> Split | None:
    from seqveil import datasets

    if find(data, file) is None:
        return None
    found = datasets.load(name, data)
    streams = np.stack([codes[:length] for codes in found.arrays(at_least=length)])
    streams = np.random.default_rng(1).permutation(streams)
    return Split(found.name, streams[held_out:], streams[:held_out], found.alphabet)
