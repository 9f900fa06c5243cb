"""How well contexts describe people who were held out, on real data; how long a mixture takes to fit and to release.

Log-likelihood a symbol (0 at best) of people whom the model was not fitted to, with the share of wrong symbols that
`optimal` releases at ε = 1 and the share that the model predicts.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scale import sticky
from benchmarks.timing import find
from seqveil import Alphabet, MarkovModel
from seqveil.core.bulk import load, places_within
from seqveil.core.fitting import fit_codes
from seqveil.core.randomness import SystemRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.stream import State, step
from seqveil.interfaces.choosing import LONGEST, Check, Choice, CodedEvents, Context, check, people_held_out
from tests.reference.mixtures import mixture

Row = dict[str, Any]
CLICKS, SYMBOLS, TYPES, USERS = 20, 17, 16, 50_000
PLAIN = ("order:1", "order:2", "types:4", "types:16")
REACH = {"msnbc": ("types:48", -1.16), "power": ("types:16", -1.58)}


@dataclass(frozen=True, eq=False)
class Streams:
    """Events of a data set: which stream, which person, which of n symbols."""

    name: str
    about: str
    users: np.ndarray
    people: np.ndarray
    codes: np.ndarray
    n: int
    contexts: tuple[str, ...] = PLAIN
    least_people: int = 50


def run(data: Path | None) -> Row:
    results: Row = {}
    for streams in (*msnbc(data), *power(data), *shopclicks(data), *gaze(data), *heart_rate(data), *geolife(data)):
        results[streams.name] = table(streams)
    results["fit"] = fitting(data)
    results["bulk"] = bulk()
    return results


def table(streams: Streams) -> list[Row]:
    names, who = np.unique(streams.people, return_inverse=True)
    held = np.isin(who, people_held_out(names.size))
    order = np.argsort(streams.users, kind="stable")
    short = np.empty(streams.users.size, bool)
    short[order] = places_within(np.unique(streams.users, return_counts=True)[1]) < LONGEST
    alphabet, rows, checks = Alphabet(range(streams.n)), [], list[Check]()
    for name in streams.contexts:
        context, begun = Context.parse(name), time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few people, whose data are public
            own = CodedEvents.of(streams.users[~held], streams.codes[~held])
            model = own.fit(context, alphabet, np.zeros(0, np.int64), least_people=streams.least_people)
        spent = time.process_time() - begun
        checks.append(check(model, streams.users[held & short], streams.codes[held & short], context))
        rows.append({"context": name, "fit_seconds": spent, "types": model.types, **asdict(checks[-1])})
    print(f"\n{streams.about}; {np.unique(streams.people).size:,} people, {checks[0].people:,} streams held out")
    head, *lines = Choice(model, max(checks, key=lambda row: row.log_likelihood), checks, "").lines()
    print(f"  {head:<100}   types, seconds to fit")
    for line, row in zip(lines, rows, strict=True):
        print(f"  {line.replace('  taken', '  best'):<107}{row['types']:>3}{row['fit_seconds']:>7.1f}", flush=True)
    if streams.name in REACH:
        name, least = REACH[streams.name]
        reached = next(row["log_likelihood"] for row in rows if row["context"] == name)
        print(f"  must reach {least} with {name}: {'reached' if reached >= least else 'NOT reached'}")
    return rows


def msnbc(data: Path | None) -> Iterator[Streams]:
    clicks = clicks_of(data)
    if clicks is not None:
        users = np.repeat(np.arange(len(clicks)), CLICKS)
        contexts = (*PLAIN, "types:48", "order:2,types:16")
        yield Streams("msnbc", f"MSNBC, first {CLICKS} clicks", users, users, clicks.ravel(), SYMBOLS, contexts)


def clicks_of(data: Path | None) -> np.ndarray | None:
    """The first clicks of all who have so many: (people, clicks)."""
    import polars as pl

    path = find(data, "msnbc/msnbc_sequences.parquet")
    if path is None:
        return None
    long = pl.read_parquet(path).filter(pl.col("seq").list.len() >= CLICKS)
    return long["seq"].list.head(CLICKS).explode().to_numpy().reshape(-1, CLICKS).astype(np.int64) - 1


def power(data: Path | None) -> Iterator[Streams]:
    """Days of households, 96 readings each, in ten levels of equal count; whole households with types that change."""
    import polars as pl

    path = find(data, "electricity/swiss_15min.parquet")
    if path is None:
        return
    table = pl.read_parquet(path).sort("household", "t")
    readings = table["wh"].to_numpy().reshape(table["household"].n_unique(), -1)
    usual = (readings.min(1) >= 0) & (readings.max(1) < 10_000) & (readings.max(1) > 0)
    readings = readings[usual]
    edges = np.quantile(readings, np.linspace(0, 1, 11)[1:-1])
    codes = np.searchsorted(edges, readings, side="right").ravel()
    people = np.repeat(np.arange(len(readings)), readings.shape[1])
    days = np.arange(codes.size) // 96
    contexts = (*PLAIN, "order:2,types:16")
    yield Streams("power", "household power, 15 minutes, 10 levels, days", days, people, codes, 10, contexts)
    slow = ("order:1", "types:16", "types:16,switch:0.0104", "types:16,switch:0.0208")
    yield Streams("power_whole", "the same, seven weeks a household, types may change", people, people, codes, 10, slow)


def shopclicks(data: Path | None, kept: int = 99) -> Iterator[Streams]:
    import polars as pl

    path = find(data, "shopclicks/diginetica_train.parquet")
    if path is None:
        return
    clicks = pl.read_parquet(path).explode("seq")
    items, sessions = clicks["seq"].to_numpy().astype(np.int64), clicks["session"].to_numpy()
    often = np.argsort(-np.bincount(items), kind="stable")[:kept]
    code = np.full(items.max() + 1, kept)
    code[often] = np.arange(kept)
    about = f"shop clicks, the {kept} items viewed most and all others as one"
    yield Streams("shopclicks", about, sessions, sessions, code[items], kept + 1)


def gaze(data: Path | None, every: int = 6, side: int = 10) -> Iterator[Streams]:
    import polars as pl

    path = find(data, "gaze_vr/gaze.parquet")
    if path is None:
        return
    seen = pl.read_parquet(path).filter(pl.col("frame") % every == 0)
    persons = pl.read_parquet(path.parent / "recordings.parquet").select("rec", "user")
    seen = seen.join(persons, on="rec").sort("rec", "frame")
    x, y = (
        np.clip(seen[name].to_numpy().astype(np.int64) * side // 10_000, 0, side - 1) for name in ("eye_x", "eye_y")
    )
    codes = x * side + y
    about = f"gaze on {side} × {side} cells, about five a second, a recording is a stream"
    yield Streams("gaze", about, seen["rec"].to_numpy(), seen["user"].to_numpy(), codes, side * side)


def heart_rate(data: Path | None, every: int = 5, levels: int = 20) -> Iterator[Streams]:
    import polars as pl

    path = find(data, "heart_rate/heart_rate_1hz.parquet")
    if path is None:
        return
    beats = pl.read_parquet(path).filter(pl.col("t_s") % every == 0).sort("user", "t_s")
    edges = np.quantile(beats["bpm"].to_numpy(), np.linspace(0, 1, levels + 1)[1:-1])
    codes, people = np.searchsorted(edges, beats["bpm"].to_numpy(), side="right"), beats["user"].to_numpy()
    contexts = ("order:1", "order:2", "types:4", "types:4,switch:0.0167")
    about = f"heart rate, {levels} levels, every {every} seconds"
    yield Streams("heart_rate", about, people, people, codes, levels, contexts, least_people=4)


def geolife(data: Path | None, every: int = 5, side: int = 12) -> Iterator[Streams]:
    """Days of people in and around Beijing, on a grid of 12 × 12 cells of about a mile and a half."""
    import polars as pl

    path = find(data, "geolife/geolife_1min.parquet")
    if path is None:
        return
    box = pl.col("lat_e5").is_between(3_980_000, 4_010_000) & pl.col("lon_e5").is_between(11_620_000, 11_655_000)
    fixes = pl.read_parquet(path).filter(box & (pl.col("t_min") % every == 0)).sort("user", "t_min")
    north = (fixes["lat_e5"].to_numpy() - 3_980_000) * side // 30_001
    east = (fixes["lon_e5"].to_numpy() - 11_620_000) * side // 35_001
    people = fixes["user"].to_numpy().astype(np.int64)
    days = people * 100_000 + fixes["t_min"].to_numpy() // 1440
    about = f"GeoLife, {side} × {side} cells of central Beijing, every {every} minutes, a day is a stream"
    yield Streams("geolife", about, days, people, (north * side + east).astype(np.int64), side * side)


def fitting(data: Path | None) -> Row:
    """Seconds that 48 types take for 31,000 streams of 20 clicks (of MSNBC, else simulated)."""
    clicks = clicks_of(data)
    clicks = sticky(SYMBOLS).sample(CLICKS, 31_000, seed=1) if clicks is None else clicks[:31_000]
    begun = time.process_time()
    users = np.repeat(np.arange(len(clicks)), CLICKS)
    model = fit_codes(users, clicks.ravel(), Alphabet(range(SYMBOLS)), types=48)
    spent = time.process_time() - begun
    print(f"\n{len(clicks):,} streams, 48 types: {spent:.1f} s on one core; {model}")
    return {"streams": len(clicks), "seconds": spent}


def rate(model: MarkovModel, events: int = 8) -> float:
    """Releases a second of processor time, the quickest of some rounds: release, belief and exact account."""
    setting, randomness, spent = Policy(epsilon=1.0, mechanism="optimal").on(model), SystemRandomness(), []
    state = State.start(setting, USERS)
    for event in np.ascontiguousarray(model.sample(events, USERS, seed=1).T):
        begun = time.process_time()
        _, state = step(setting, state, event, randomness)
        spent.append(time.process_time() - begun)
    return USERS / min(spent[2:])


def bulk() -> Row:
    """Releases a second of `optimal` with a mixture, beside a chain of one type."""
    generator = np.random.default_rng(TYPES)
    chains = []
    for _ in range(TYPES):
        distribution = 0.6 * np.eye(SYMBOLS) + 0.4 * generator.dirichlet(np.full(SYMBOLS, 0.5), SYMBOLS) + 1e-4
        chains.append(
            MarkovModel(generator.dirichlet(np.ones(SYMBOLS)), distribution / distribution.sum(1, keepdims=True))
        )
    mixed = mixture(chains, np.full(TYPES, 1 / TYPES), 1e-4)
    load()
    found = {"chain": 0.0, "mixture": 0.0}
    for _ in range(2):  # in turn: the machine's other work weighs on both alike
        found["chain"] = max(found["chain"], rate(chains[0]))
        found["mixture"] = max(found["mixture"], rate(mixed))
    print(f"\noptimal in bulk, n={SYMBOLS}, {USERS:,} users at once, releases/s on one core")
    print(f"  one chain {found['chain']:>12,.0f}\n  {TYPES} types {found['mixture']:>13,.0f}")
    return found
