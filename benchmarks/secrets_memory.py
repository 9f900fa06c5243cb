"""Kernels that remember the raw stream: what side information buys, whom the errors fall on, and how fast releases go.

MSNBC's people, "ever read health" in 20 clicks; and the months of 712 young people (mvad), "ever jobless" in 24.
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np

from benchmarks.timing import find
from seqveil import MarkovModel, secrets
from seqveil.core import bulk
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets import SecretTrackers
from seqveil.engine.policy import Policy, Terms
from seqveil.engine.stream import Released, State, observe, observed, step
from seqveil.evaluate.attack import attack_secret
from tests.reference.mixtures import mixture

DIALS = (0.0, 0.5, 1.0, math.inf)
KNOWN = 10  # the event that a bystander knows
BULK, EVENTS = 2_000, 40


def figures(name: str, model: MarkovModel, truth: np.ndarray, secret: secrets.Secret) -> list[dict[str, float]]:
    """The error at each dial, for everybody, for people with and without the secret, and events a second."""
    bulk.load()
    found = []
    for dial in DIALS:
        setting = Policy(secrets=secret, side_information=dial).on(model)
        codes, columns, rate = released(setting, truth)
        with_it, without = errors_by_answer(setting, truth, codes)
        wrong = float((codes != truth).mean())
        most, alone = bystander(setting, truth[:300], columns)
        print(
            f"  {name}, ε = {secret.epsilon:g}, side information {dial:g}: wrong {wrong:.3f} (with the secret "
            f"{with_it:.3f}, without {without:.3f}); {rate:,.0f} events a second; somebody who knows event {KNOWN}: "
            f"all releases move the odds by up to {most:.2f} (its own by up to {alone:.2f})",
            flush=True,
        )
        found.append({"dial": dial, "wrong": wrong, "with": with_it, "without": without, "rate": rate, "known": most})
    return found


def errors_by_answer(setting: Terms, truth: np.ndarray, codes: np.ndarray) -> tuple[float, float]:
    """The mean cost of releases for people with the secret, and without it, by the first window of each."""
    compiled = setting.secrets[0].over(setting.model.alphabet)
    answers = np.array([compiled.read(stream[: compiled.length]) for stream in truth.tolist()])
    costs = np.where(codes < 0, 1.0, setting.distortion.between(truth, np.maximum(codes, 0))).mean(1)
    return float(costs[answers == 1].mean()), float(costs[answers == 0].mean())


def released(setting: Terms, truth: np.ndarray) -> tuple[np.ndarray, list[np.ndarray], float]:
    """The releases of streams side by side, their columns, and events a second of processor time."""
    state, randomness = State.start(setting, len(truth)), SeededRandomness(7)
    codes, columns, began = [], list[np.ndarray](), process_time()
    for raw in truth.T:
        made, state = step(setting, state, raw, randomness)
        assert isinstance(made, Released)
        codes.append(made.codes)
        columns.append(made.remembered)
    return np.stack(codes, axis=1), columns, truth.size / (process_time() - began)


def bystander(setting: Terms, truth: np.ndarray, columns: list[np.ndarray]) -> tuple[float, float]:
    """How far the odds move for somebody who knows one true event: by all releases, and by that of the event alone."""
    first, n = SecretTrackers.start(setting.model, setting.secrets, memory=setting.remembered), setting.model.n
    told, silent, before = (np.full(len(truth), first, object) for _ in range(3))
    alone = np.zeros(len(truth))
    for t, wide in enumerate(columns):
        wide = wide[: len(truth)].astype(np.float64)
        blank = np.ones_like(wide)
        if t == KNOWN:
            here = np.tile(np.equal.outer(truth[:, t], np.arange(n)), wide.shape[1] // n)
            before = observed(told, blank * here)
            wide, blank = wide * here, blank * here
        told, silent = observed(told, wide), observed(silent, blank)
        if t == KNOWN:
            alone = np.abs(_odds(told) - _odds(before))
    moved = np.abs(_odds(told) - _odds(silent))
    return float(np.nanmax(moved)), float(np.nanmax(alone))


def _odds(trackers: np.ndarray) -> np.ndarray:
    after = np.array([each.rows[0][0].latest.posterior for each in trackers])
    open_still = (after > 0.0) & (after < 1.0)  # else the known event says it all
    return np.where(
        open_still, np.log(np.where(open_still, after / (1.0 - np.where(open_still, after, 0.5)), 1.0)), np.nan
    )


def attacked(name: str, model: MarkovModel, truth: np.ndarray, secret: secrets.Secret) -> None:
    """What guessers who learned from real people find, at the default dial and without one."""
    for dial in (secret.total, math.inf):
        setting = Policy(secrets=secret, side_information=dial).on(model)
        codes, _, _ = released(setting, truth)
        found = attack_secret(list(codes), list(truth), secret.over(model.alphabet), secret.total)
        print(f"  attack on {name}, ε = {secret.epsilon:g}, side information {dial:g}: {found.sentence}", flush=True)


CONTEXTS = ((1, 1e-4), (4, 1e-4), (16, 1e-4), (4, 0.01), (16, 0.01))  # types of people, and how readily they switch


def chosen(people: list[list[str]]) -> tuple[int, float]:
    """The types of people, and how readily they switch, that predict best who of these was left out of the fit."""
    alphabet, found = sorted({value for one in people for value in one}), dict[tuple[int, float], float]()
    for types, switch in CONTEXTS:
        found[types, switch] = 0.0
        for fold in range(4):
            fitted = [one for k, one in enumerate(people) if k % 4 != fold]
            model = MarkovModel.fit(fitted, alphabet=alphabet, types=types, switch=switch)
            found[types, switch] += sum(model.log_likelihood(model.alphabet.encode(one)) for one in people[fold::4])
    rows = (f"types:{types},switch:{switch:g} {sum_ / len(people):.3f}" for (types, switch), sum_ in found.items())
    print("  log-likelihood of people left out of the fit:", ", ".join(rows), flush=True)
    return max(found, key=lambda each: found[each])


def mvad(data: Path | None) -> dict[str, list[dict[str, float]]]:
    """Months of young people, half of them fitted on: ever jobless within 24 months, from the July that school ends
    with, when many are jobless for the summer, and from the September after it, where studies of these data begin. By a
    chain, and by the types of people that the half fitted on are predicted best by."""
    import polars as pl

    path = find(data, "activity/mvad_monthly.parquet")
    if path is None:
        return {}
    table, found = pl.read_parquet(path).sort("person", "month"), {}
    for name, first in (("July", 0), ("September", 2)):
        months = table.filter(pl.col("month").is_between(first, first + 23))
        people = [part["state"].to_list() for _, part in months.group_by("person", maintain_order=True)]
        secret = secrets.ever("joblessness", epsilon=0.5, window="first 24")
        for called, (types, switch) in (("", CONTEXTS[0]), (", with types of people", chosen(people[::2]))):
            model = MarkovModel.fit(people[::2], types=types, switch=switch)
            truth = np.stack([model.alphabet.encode(one) for one in people[1::2]])
            found[name + called] = figures(f"mvad, from {name}{called}", model, truth, secret)
    return found


def receivers() -> dict[str, float]:
    """Processor time of what a receiver asks of a released file, as a multiple of that of its release."""
    rng, found = np.random.default_rng(0), {}
    rows = 0.5 * rng.dirichlet(np.full(17, 0.3), 17) + 0.5 * rng.dirichlet(np.ones(17))
    codes = MarkovModel(rng.dirichlet(np.ones(17)), rows).sample(20, BULK, seed=1)
    with TemporaryDirectory() as place:
        lines = (f"{user},{code}\n" for user, stream in enumerate(codes.tolist()) for code in stream)
        Path(place, "raw.csv").write_text("user,value\n" + "".join(lines))
        given = "--secret ever:0 --secret-epsilon 0.5 --secret-window 20 -o out.csv"
        runs = {"fit": "raw.csv -o some.model", "release": f"raw.csv --model some.model {given}"}
        runs |= dict.fromkeys(("audit", "decode", "stats"), "out.csv --model some.model")
        runs["decode"] += " -o decoded.csv"
        for name, options in runs.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            subprocess.run(
                [sys.executable, "-m", "seqveil", name, *options.split()], cwd=place, check=True, capture_output=True
            )
            found[name] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    for name in ("audit", "decode", "stats"):
        print(
            f"  {name}: {found[name] / found['release']:.2f} times the release ({found['release']:.1f} s)", flush=True
        )
    return found


def speed() -> dict[str, float]:
    """Events a second in bulk, of a chain and of 16 types over 17 symbols, release and what a receiver recomputes.

    The windows: the whole stream whenever it ends, its first 40 events, every 20 events.
    """
    bulk.load()
    rng, found = np.random.default_rng(0), {}
    chains = [
        MarkovModel(
            rng.dirichlet(np.ones(17)), 0.5 * rng.dirichlet(np.full(17, 0.3), 17) + 0.5 * rng.dirichlet(np.ones(17))
        )
        for _ in range(16)
    ]
    models = {"order 1": chains[0], "16 types": mixture(chains, np.full(16, 1 / 16))}
    for name, model in models.items():
        everybody = model.sample(EVENTS, BULK if name == "order 1" else BULK // 10, seed=1)
        for window in (None, f"first {EVENTS}", 20):
            truth = everybody if window or name == "order 1" else everybody[:20]  # most of these need a program
            for dial in (0.0, 0.5, math.inf):
                setting = Policy(secrets=secrets.ever(0, epsilon=0.5, window=window), side_information=dial).on(model)
                released(setting, truth[:4])
                codes, _, rate = released(setting, truth)
                state, began = State.start(setting, len(truth)), process_time()
                for part in codes.T:
                    state = observe(setting, state, part)[1]
                again = truth.size / (process_time() - began)
                key = f"{name}, window {window or 'whole stream'}, side information {dial:g}"
                found[key] = rate
                print(f"  {key}: {rate:,.0f} events a second, as a receiver {again:,.0f}", flush=True)
    return found
