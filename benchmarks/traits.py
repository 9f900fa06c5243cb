"""Traits: what a total promise about who somebody is costs, and whether classifiers without a model break it.

Swiss meters: 8 levels, one week of quarter hours, who heats with a heat pump or electricity (households that gave the
survey another answer, or none, are the others), every seventh household held out. MSNBC: the first 20 clicks of people
with 30 or more, who reads about health in the ten clicks after, 16 types for each answer. Gaze: who it is among 45
people, which is what traits are not for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks.timing import find
from seqveil import MarkovModel, secrets
from seqveil.core.filtering import foresee, log_likelihoods, unseen
from seqveil.core.kernel import Ints
from seqveil.core.randomness import randomness
from seqveil.engine.policy import Policy
from seqveil.engine.store import Memory
from seqveil.engine.streams import CodeStreams
from seqveil.evaluate.attack.guess import attack_trait
from tests.reference.mixtures import mixture

LEVELS, WEEK, HELD_OUT, MOST_WATT_HOURS = 8, 672, 7, 10_000
CLICKS, LATER, TYPES, PEOPLE = 20, 30, 16, 3_000
CELLS, SAMPLES = 12, 60
HEALTH, EPSILON = "health", 1.0


def run(data: Path | None) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, part in (("meters", meters), ("clicks", clicks), ("gaze", gaze)):
        made = part(data)
        if made is not None:
            found[name] = made
    return found


def meters(data: Path | None) -> dict[str, float] | None:
    """Who heats with electricity, from a week of a meter's readings."""
    import polars as pl

    path, survey = find(data, "electricity/swiss_15min.parquet"), find(data, "electricity/swiss_households.parquet")
    if path is None or survey is None:
        return None
    readings = pl.read_parquet(path).sort("household", "t")
    heating = pl.read_parquet(survey).sort("household")["heating_type"].fill_null("").to_list()
    rows = readings["wh"].to_numpy().reshape(len(heating), -1)
    labels = np.array(["electric" if kind.startswith(("heat pump", "electric")) else "other" for kind in heating])
    usable = (rows.max(1) > 0) & (rows.min(1) >= 0) & (rows.max(1) <= MOST_WATT_HOURS)
    held = np.arange(len(rows)) % HELD_OUT == HELD_OUT // 2
    train, test = usable & ~held, usable & held
    edges = np.quantile(rows[train], np.arange(1, LEVELS) / LEVELS)
    codes = np.searchsorted(edges, rows, side="right")
    model = MarkovModel.fit(list(codes[train]), alphabet=range(LEVELS), trait=("heating", labels[train].tolist()))
    print(f"{model}; a week of {test.sum()} households, {int((labels[test] == 'electric').sum())} of them electric")
    return measured(model, codes[test, :WEEK], labels[test].tolist(), "heating")


def clicks(data: Path | None) -> dict[str, float] | None:
    """Who reads about health later, from 20 clicks."""
    import polars as pl

    path, named = find(data, "msnbc/msnbc_sequences.parquet"), find(data, "msnbc/msnbc_categories.parquet")
    if path is None or named is None:
        return None
    health = int(pl.read_parquet(named).filter(pl.col("name") == HEALTH)["code"].item()) - 1
    long = pl.read_parquet(path).filter(pl.col("seq").list.len() >= LATER)
    rows = np.array(long["seq"].list.head(LATER).to_list()) - 1
    labels = np.where((rows[:, CLICKS:] == health).any(1), "yes", "no")
    order = np.random.default_rng(1).permutation(len(rows))
    test, train = order[:PEOPLE], order[PEOPLE:]
    labelled = ("later", labels[train].tolist())
    model = MarkovModel.fit(list(rows[train, :CLICKS]), alphabet=range(17), trait=labelled, types=TYPES)
    print(
        f"{model}; first {CLICKS} clicks of {PEOPLE} people, {(labels[test] == 'yes').mean():.1%} read {HEALTH} later"
    )
    return measured(model, rows[test, :CLICKS], labels[test].tolist(), "later")


def gaze(data: Path | None) -> dict[str, float] | None:
    """Who it is, among 45 people, each of them an answer: the model knows them from half of their recordings."""
    import polars as pl

    path, listed = find(data, "gaze_vr/gaze.parquet"), find(data, "gaze_vr/recordings.parquet")
    if path is None or listed is None:
        return None
    seen = pl.read_parquet(path).gather_every(6).join(pl.read_parquet(listed).select("rec", "user"), on="rec")
    across, up = (np.clip(seen[name].to_numpy() / 10_000, 0, 0.9999) for name in ("eye_x", "eye_y"))
    codes, recs, users = (across * 4).astype(int) * 3 + (up * 3).astype(int), seen["rec"].to_numpy(), seen["user"]
    who, begins = users.to_numpy(), np.flatnonzero(np.append(True, np.diff(recs) != 0))
    streams = [(who[at], codes[at:end]) for at, end in zip(begins, [*begins[1:], len(codes)], strict=True)]
    long = [(person, own) for person, own in streams if own.size >= SAMPLES]
    train, test = long[::2], long[1::2]
    parts = {
        p: MarkovModel.fit([own for q, own in train if q == p], alphabet=range(CELLS))
        for p in sorted({p for p, _ in train})
    }
    names = [f"person {p}" for p in parts]
    model = mixture(list(parts.values()), np.full(len(parts), 1 / len(parts)), trait=("who", names))
    some = [test[at] for at in np.random.default_rng(1).choice(len(test), 45, replace=False)]
    truth = np.array([own[:SAMPLES] for _, own in some])
    print(f"{model}; who it is among {len(parts)}, {SAMPLES} samples of 45 recordings")
    return measured(model, truth, None, "who")


def measured(model: MarkovModel, truth: Ints, labels: list[str] | None, name: str) -> dict[str, float]:
    """What a release at total ε costs and reveals, beside the raw stream and no release at all."""
    people, length = truth.shape
    users, codes = np.repeat(np.arange(people), length), truth.ravel()
    terms = Policy(secrets=secrets.trait(name, epsilon=EPSILON)).on(model)
    streams, began = CodeStreams(terms, Memory(releases=False), randomness(7)), process_time()
    made = streams.release(users.tolist(), codes).codes.reshape(truth.shape)
    took = 1e3 * (process_time() - began) / codes.size
    log_odds, wrong = streams.secrets()[0].log_odds_worst, float((made != truth).mean())
    found = {"wrong": wrong, "log_odds": log_odds, "ms": took} | guessed(model, truth)
    print(f"  total ε = {EPSILON:g}: {wrong:.1%} wrong; log odds at most {log_odds:.6f}; {took:.2f} ms an event")
    if labels is not None:
        found |= odds(model, users, codes)
        for kind, rows in (("raw", truth), ("released", made)):
            finding = attack_trait(list(rows), labels, model.n, EPSILON, about=name)
            found[f"attack_{kind}"] = finding.epsilon_estimate or 0.0
            print(f"  attack on {kind} streams: {finding.sentence}", flush=True)
    return found


def guessed(model: MarkovModel, truth: Ints) -> dict[str, float]:
    """How often a guess without any release is wrong: by the model alone, and by whoever knows all earlier events."""
    lengths = np.full(len(truth), truth.shape[1])
    alone = unseen(model, truth.shape[1]).argmax(1)
    guessed_wrong = [(predicted.argmax(1) != true).mean() for predicted, true in foresee(model, truth, lengths)]
    found = {"no_release": float((truth != alone).mean()), "all_earlier_events_known": float(np.mean(guessed_wrong))}
    shares = (f"{share:.1%}" for share in found.values())
    print("  no release at all: {} wrong; {} by whoever knows all earlier events".format(*shares))
    return found


def odds(model: MarkovModel, users: Ints, codes: Ints) -> dict[str, float]:
    """What the raw streams reveal to whoever has the model: log likelihood ratios of the two answers."""
    logs = [log_likelihoods(_given(model, answer), users, codes) for answer in (0, 1)]
    ratio = logs[1] - logs[0]
    print(f"  raw streams: log odds from {ratio.min():.1f} to {ratio.max():.1f}")
    return {"raw_least": float(ratio.min()), "raw_most": float(ratio.max())}


def _given(model: MarkovModel, answer: int) -> MarkovModel:
    """The model of the people with one answer."""
    first = np.where(model.answers == answer, model.initial, 0.0)
    return MarkovModel._of(replace(model.states, initial=first / first.sum()), model.alphabet)
