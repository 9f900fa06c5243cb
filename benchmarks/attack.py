"""Attacks on releases of MSNBC's people: failures that must be found, and promises that nobody should refute.

`python -m benchmarks.attack --people N` says how many are released where a promise is attacked, as the attackers take
most of the time.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contexts import clicks_of
from benchmarks.timing import find
from seqveil import MarkovModel, secrets
from seqveil.core.alphabet import Alphabet
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets.declared import Compiled
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy, Terms
from seqveil.engine.streams import CodeStreams
from seqveil.evaluate.attack import Finding, attack_secret
from seqveil.evaluate.attack.attackers import posteriors
from seqveil.receiver.evidence import Evidence

FEW, MANY, FITTED, CLICKS, TYPES = 1_000, 6_000, 20_000, 20, 48
EPSILONS = (0.5, 1.0)
# A visit begins with the weather in 8 of 100 cases, and the closed form is unsound where a symbol is less likely than
# 1/(1+e^ε), 38 of 100 at ε = 0.5: the rarer a symbol, the more it gives away, and the fewer people there are to see it.
RARE = "weather"


@dataclass(frozen=True)
class Attacked:
    """What is released, of how many people and clicks, and what was promised about which secret."""

    name: str
    people: int
    secret: secrets.Secret
    release: Callable[[np.ndarray], list[np.ndarray]]
    clicks: int = CLICKS
    setting: Terms | None = None  # where a Bayes attacker who knows the types shall guess as well


def run(
    data: Path | None,
    people: int = MANY,
    epsilons: tuple[float, ...] = EPSILONS,
    planted: bool = True,
) -> list[dict[str, Any]]:
    rows = []
    for same in (False, True) if planted else ():
        name = f"one day of seven at home, {'the same for all' if same else 'everybody their own'} (planted)"
        rows.append(_printed(name, 1.0, attack_secret(*habits(same), 1.0)))
    clicks = clicks_of(data)
    if clicks is None:
        print("no MSNBC data: pass --data DIR or set SEQVEIL_DATA")
        return rows
    clicks = np.random.default_rng(0).permutation(clicks)
    fitted, held = clicks[:FITTED], clicks[FITTED:]
    print(f"{FITTED:,} people fit the models, others are released and attacked; secret: ever health in {CLICKS} clicks")
    names = names_of(data)
    chain, types = (MarkovModel.fit(list(fitted), alphabet=range(17), types=k) for k in (1, TYPES))
    for epsilon in epsilons:
        for each in releases(names, chain, types, epsilon, people):
            if "planted" in each.name and not planted:
                continue
            raw, secret, more = held[: each.people, : each.clicks], each.secret.over(chain.alphabet), {}
            released = each.release(raw)
            if each.setting is not None:
                users = np.repeat(np.arange(len(released)), list(map(len, released)))
                evidence = Evidence.of_streams(each.setting, users, np.concatenate(list(released)))
                believer = partial(posteriors, evidence, types)
                more = {"believers": {f"Bayes with {TYPES} types": believer}}
            found = attack_secret(released, list(raw), secret, each.secret.epsilon, **more)
            rows.append(_printed(each.name, each.secret.epsilon, found))
    return rows


def _printed(name: str, epsilon: float | None, found: Finding) -> dict[str, Any]:
    print(f"  {name}: {found.sentence} ({'nobody' if found.guess is None else found.guess.attacker})", flush=True)
    names = ("people", "verdict", "epsilon_at_least", "epsilon_estimate", "epsilon_noticeable")
    return {"what": name, "epsilon": epsilon} | {key: getattr(found, key) for key in names}


def habits(same: bool, people: int = 2_600, days: int = 21) -> tuple[list[np.ndarray], list[np.ndarray], Compiled]:
    """Releases, truth and secret of people of whom some go to the clinic, which is shown as a shop.

    Those are at home on one day of seven, always, and as often in all as the others, so that neither counts nor
    transitions betray them. `same`: whether it is one day for all of them.
    """
    rng, shape = np.random.default_rng(1), (people, days)
    patient = rng.random(people) < 0.4
    habit = np.arange(days) % 7 == (np.full(people, 3) if same else rng.integers(7, size=people))[:, None]
    otherwise = (0.3 - 1 / 7) / (6 / 7)
    home = rng.random(shape) < np.where(patient[:, None], np.where(habit, 1.0, otherwise), 0.3)
    truth = np.where(home, 0, 1 + (rng.random(shape) < 0.33))
    visit = np.argmax(rng.random(shape) * ~home, axis=1)
    truth[patient, visit[patient]] = 3
    secret = secrets.ever("clinic", window=days, epsilon=1.0).over(Alphabet(["home", "work", "shop", "clinic"]))
    return list(np.where(truth == 3, 2, truth)), list(truth), secret


def releases(
    names: list[str], chain: MarkovModel, types: MarkovModel, epsilon: float, people: int
) -> Iterator[Attacked]:
    """What is attacked: planted failures, mostly with few people, promises with so many under one chain and types.

    Under types once with the usual side information, ε, and once with all that memory can do.
    """
    health, rare = names.index("health"), names.index(RARE)
    secret = secrets.ever(health, window=f"first {CLICKS}", epsilon=epsilon)
    blank = np.roll(np.arange(17), 1)[health]
    yield Attacked("raw (planted)", FEW, secret, list)
    left_out = "health pages left out (planted)"
    yield Attacked(left_out, FEW, secret, lambda raw: list(np.where(raw == health, blank, raw)))
    wrong = Policy(secrets=[secret]).on(other_people(chain))
    yield Attacked("guarded, a model of others (planted)", people, secret, lambda raw: streams(wrong, raw))
    # of one click, since its own claim grows with every release; lifts within ε are odds within 2ε
    published = Policy(epsilon=epsilon, mechanism="crr").on(chain)
    first = secrets.ever(rare, window="first 1", epsilon=2 * epsilon)
    claim = f"published closed form, first click {RARE} (planted)"
    yield Attacked(claim, FEW, first, lambda raw: streams(published, raw), 1)
    one = Policy(secrets=[secret]).on(chain)
    yield Attacked("guarded, chain of order 1", people, secret, lambda raw: streams(one, raw))
    knowing = "guarded, chain of order 1, who knows the types"
    yield Attacked(knowing, people, secret, lambda raw: streams(one, raw), setting=one)
    for dial in (epsilon, math.inf):
        name = f"guarded, {TYPES} types, side information {dial:g}"
        terms = Policy(secrets=[secret], side_information=dial).on(types)
        yield Attacked(name, people, secret, partial(streams, terms))
    total = Policy(epsilon=epsilon, budget=Budget(total=epsilon)).on(types)
    yield Attacked(f"optimal, {TYPES} types, a total of {epsilon:g}", people, secret, partial(streams, total))
    each = Policy(epsilon=1.0).on(types)
    yield Attacked(f"optimal, {TYPES} types, 1 a click (promises less)", people, secret, partial(streams, each))


def other_people(chain: MarkovModel) -> MarkovModel:
    """A wrong model: the pages have changed places."""
    turned = np.roll(np.arange(chain.n), 5)
    table = chain.advance(np.eye(chain.n))[np.ix_(turned, turned)]
    return MarkovModel(chain.prior[turned], table, alphabet=range(chain.n))


def streams(setting: Terms, raw: np.ndarray, seed: int = 5) -> list[np.ndarray]:
    many, users = CodeStreams(setting, randomness=SeededRandomness(seed)), list(range(len(raw)))
    return list(np.stack([many.release(users, raw[:, t]).codes for t in range(raw.shape[1])], axis=1))


def names_of(data: Path | None) -> list[str]:
    import polars as pl

    path = find(data, "msnbc/msnbc_categories.parquet")
    assert path is not None
    return pl.read_parquet(path)["name"].to_list()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__)
    parser.add_argument("--data", default=os.environ.get("SEQVEIL_DATA"))
    parser.add_argument("--people", type=int, default=MANY, help="people released where a promise is attacked")
    parser.add_argument("--promises", action="store_true", help="leave the planted failures out")
    parser.add_argument("--epsilon", type=float, action="append", help="again for more; 0.5 and 1 by default")
    chosen = parser.parse_args()
    data = None if chosen.data is None else Path(chosen.data)
    run(data, chosen.people, tuple(chosen.epsilon or EPSILONS), not chosen.promises)


if __name__ == "__main__":
    main()
