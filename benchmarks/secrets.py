"""Declared secrets: what they cost on MSNBC and GeoLife, how long a kernel takes, and whether any promise is broken.

On MSNBC the secret is "ever read health" in the first 20 clicks, beside ε = 1 a click about everything and baselines,
for an order-1 chain and for a mixture of 48 chains.
"""

from __future__ import annotations

import math
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks import secrets_memory, secrets_soundness, secrets_zone
from benchmarks.timing import best, find
from seqveil import Budget, MarkovModel, secrets
from seqveil.core.alphabet import Symbols
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Kernels, to_weights, usable
from seqveil.core.mechanisms import Mechanism
from seqveil.core.randomness import randomness
from seqveil.core.secrets import SecretTrackers
from seqveil.core.secrets.solving import released_as_asked
from seqveil.core.secrets.tables import AskedOfUsers, Dial
from seqveil.engine.policy import Policy
from seqveil.engine.secrets import guarded_table
from seqveil.engine.store import Memory
from seqveil.engine.streams import CodeStreams
from seqveil.evaluate.baselines.declared import suppression
from seqveil.interfaces.trials import Trial, release

USERS, CLICKS, TYPES, PEOPLE_HELD_OUT = 300, 20, 48, 3_000
HEALTH = "health"
CASES = (  # total ε, sides, the truth or nothing
    (0.5, "both", False),
    (1.0, "both", False),
    (1.0, "up", False),
    (1.0, "both", True),
    (1.0, "up", True),
)
LARGE = 10_000
ROWS, PEOPLE = 2_000, 50
CHAINS = 10_000


def run(data: Path | None) -> dict[str, object]:
    found: dict[str, object] = {"large": time_of_large(), "rows": time_of_rows()}
    loaded = clicks(data)
    if loaded is not None:
        streams, model, truth, health = loaded
        print(f"{model}; first {CLICKS} clicks of {len(truth)} users; share of wrong symbols")
        found["kernel_17_us"] = time_of_first(model, health)
        found["guarded"] = [race(model, truth, health, *case) for case in CASES]
        found["optimal"] = whole_sequence(model, truth, health)
        found["baselines"] = baselines(model, truth, health)
        mixture = MarkovModel.fit(streams, types=TYPES)
        print(f"{mixture}")
        found["guarded_types"] = [race(mixture, truth, health, *case) for case in CASES]
    found["speed"] = secrets_memory.speed()
    found["receivers"] = secrets_memory.receivers()
    found["memory"] = memory(data)
    found["zone"] = secrets_zone.run(data)
    found["soundness"] = secrets_soundness.run(CHAINS)
    return found


def memory(data: Path | None) -> dict[str, object]:
    """Kernels that remember, on 3,000 people where the data has them."""
    found: dict[str, object] = {"mvad": secrets_memory.mvad(data)}
    loaded = clicks(data, PEOPLE_HELD_OUT)
    if loaded is not None:
        streams, model, truth, health = loaded
        found["order 1"] = secrets_memory.figures("order 1", model, truth, health_of(health))
        mixture = MarkovModel.fit(streams, types=TYPES)
        found["types"] = secrets_memory.figures(f"{TYPES} types", mixture, truth, health_of(health))
        for epsilon in (0.5, 1.0):
            secrets_memory.attacked(f"{TYPES} types", mixture, truth, health_of(health, epsilon))
    return found


def clicks(data: Path | None, users: int = USERS) -> tuple[list[list[int]], MarkovModel, np.ndarray, int] | None:
    """Streams of all other users with so many clicks, a chain fitted on them, those held out, and the secret value."""
    import polars as pl

    path, named = find(data, "msnbc/msnbc_sequences.parquet"), find(data, "msnbc/msnbc_categories.parquet")
    if path is None or named is None:
        return None
    everyone, names = pl.read_parquet(path), pl.read_parquet(named)
    health = int(names.filter(pl.col("name") == HEALTH)["code"].item())
    long = everyone.filter(pl.col("seq").list.len() >= CLICKS).with_columns(pl.col("seq").list.head(CLICKS))
    held_out = long.sample(users, seed=1)
    rest = long.join(held_out.select("user"), on="user", how="anti")
    model = MarkovModel.fit(rest["seq"].to_list())
    codes = model.alphabet.encode(held_out["seq"].explode().to_numpy())
    return rest["seq"].to_list(), model, codes.reshape(-1, CLICKS), health


def health_of(health: int, epsilon: float = 0.5, sides: str = "both") -> secrets.Secret:
    return secrets.ever(health, epsilon=epsilon, window=f"first {CLICKS}", one_sided=sides == "up")


def race(
    model: MarkovModel, truth: np.ndarray, health: int, epsilon: float, sides: str, withhold: bool
) -> dict[str, float]:
    secret = health_of(health, epsilon, sides)
    setting = Policy(secrets=secret, withhold=withhold).on(model)
    title = f"guarded, total ε = {epsilon:g}, {sides}{', the truth or nothing' if withhold else ''}"
    return show(title, release(setting, list(truth), 7, follow=SecretTrackers.start(model, secret)), truth)


def whole_sequence(model: MarkovModel, truth: np.ndarray, health: int) -> dict[str, object]:
    """A promise about everything: ε = 1 a click, a total of 20, and a total of 1 for the whole stream."""
    found: dict[str, object] = {}
    cases = (
        ("optimal, ε = 1 a click about everything", 1.0, None),
        ("optimal, a total of 1 about everything", 1.0, Budget(1.0)),
    )
    for title, epsilon, budget in cases:
        setting = Policy(epsilon=epsilon, budget=budget, mechanism="optimal").on(model)
        found[title] = show(
            title, release(setting, list(truth), 7, follow=SecretTrackers.start(model, health_of(health))), truth
        )
    return found


def baselines(model: MarkovModel, truth: np.ndarray, health: int) -> dict[str, object]:
    """Other ways to keep the same secret."""
    secret, found = health_of(health, 1.0), {}
    for epsilon in (1.0, 0.05):
        setting = Policy(epsilon=epsilon, mechanism=utility_optimised(model.alphabet, secret)).on(model)
        title = f"utility-optimised response, ε = {epsilon:g} a click"
        found[title] = show(title, release(setting, list(truth), 7, follow=SecretTrackers.start(model, secret)), truth)
    setting = Policy(epsilon=1.0, mechanism=suppression(model.alphabet, [secret])).on(model)
    found["suppression"] = show(
        "suppression", release(setting, list(truth), 7, follow=SecretTrackers.start(model, secret)), truth
    )
    return found


def utility_optimised(alphabet: Symbols, secret: secrets.Secret) -> Mechanism:
    """Utility-optimised randomised response: a sensitive symbol is distinguished from no symbol by more than e^ε.

    Over the k sensitive symbols it is randomised response; every other symbol comes out as each of them with
    probability 1/(k+e^ε-1), and else as it is.

    *Guarantee*: utility-optimised ε-LDP at each release, whatever the model. Nothing about a secret in total: over T
    releases its odds may move by Tε, and what symbols that are not sensitive tell about it is not bounded at all.

    Reference: Murakami, Kawamoto, *Utility-optimized local differential privacy mechanisms for distribution
    estimation*, USENIX Security 2019, section 4.1.
    """
    codes, n = np.unique(secret.named(alphabet)), alphabet.n
    named = np.isin(np.arange(n), codes)

    def build(beliefs: Floats, epsilon: float, _distortion: Distortion) -> Kernels:
        """One table for all beliefs: it does not look at them."""
        grown = math.exp(usable(epsilon, n))
        each = 1.0 / (codes.size + grown - 1.0)
        table = np.where(named[None, :], each, 0.0) * np.ones((n, 1))
        table[np.arange(n), np.arange(n)] = np.where(named, grown * each, 1.0 - codes.size * each)
        outputs, weights = (
            np.tile(each, (len(beliefs), *(1,) * each.ndim)) for each in (np.arange(n), to_weights(table))
        )
        return Kernels(n, outputs, np.zeros_like(outputs), weights)

    return Mechanism(
        name="utility_optimised",
        summary="randomised response that protects the sensitive symbols alone",
        guarantee="utility-optimised ε-LDP at each release, whatever the model",
        trusts="nothing",
        sound=False,
        ldp=math.inf,
        build=build,
    )


def show(title: str, made: Trial, truth: np.ndarray) -> dict[str, float]:
    codes = np.stack([made.released[k] for k in range(len(truth))])
    share = float((codes != truth).mean())
    trackers = [each.rows[0][0] for each in made.trackers]
    disclosed = np.array([each.worst.worst(each.secret.sides) for each in trackers])
    seen = f"median {np.median(disclosed):.2f}, most {disclosed.max():.2f}"
    print(f"  {title:<52}{share:>8.3f}; disclosed about the secret: {seen}", flush=True)
    return {"wrong": share, "median_log_odds": float(np.median(disclosed)), "log_odds": float(disclosed.max())}


def time_of_first(model: MarkovModel, health: int) -> float:
    """Microseconds of one kernel of the chain, its check from the integers included."""
    setting = Policy(secrets=health_of(health), mechanism="guarded").on(model)
    trackers = setting.trackers
    if trackers is None:
        raise InputError("this benchmark needs a declared secret")
    took = 1e6 * best(lambda: guarded_table(setting, trackers), 300)
    print(f"  one kernel for {model.n} symbols: {took:.0f} µs")
    return took


def time_of_rows() -> dict[str, float]:
    """Milliseconds of one row of a generated log, released for many people at once: kernel, check, draw and account."""
    rng = np.random.default_rng(0)
    rows = 0.5 * rng.dirichlet(np.full(17, 0.3), 17) + 0.5 * rng.dirichlet(np.ones(17))
    model = MarkovModel(rng.dirichlet(np.ones(17)), rows)
    codes, found = model.sample(ROWS // PEOPLE, PEOPLE, seed=1), {}
    people = np.repeat(np.arange(PEOPLE), ROWS // PEOPLE).tolist()
    for name, window in (("whole stream", None), ("windows of 20", 20)):
        setting = Policy(secrets=secrets.ever(0, epsilon=0.5, window=window), mechanism="guarded").on(model)
        streams, began = CodeStreams(setting, Memory(releases=False), randomness(1)), process_time()
        streams.release(people, codes.ravel())
        found[name] = 1e3 * (process_time() - began) / ROWS
        print(f"  {ROWS} rows of {PEOPLE} people, 17 symbols, {name}: {found[name]:.1f} ms a row", flush=True)
    return found


def time_of_large() -> float:
    """Milliseconds of one kernel for 10⁴ symbols: a zone of 30 cells, and weights that fall with the distance."""
    rng = np.random.default_rng(1)
    belief = rng.dirichlet(np.ones(LARGE))
    weights = 0.05 + 0.9 * np.exp(-np.arange(LARGE) / 30) + 0.1 * rng.random(LARGE)
    weights = np.minimum(weights, 1.0)
    prior = float(belief @ weights)
    rows, priors = np.stack([1 - weights, weights])[None], np.array([[1 - prior, prior]])
    asked = [AskedOfUsers.of_windows(belief[None], belief * rows[None], priors[None], 0.5, "both", 0.0)]
    dial, source, draw = Dial(LARGE), np.zeros(1, np.int64), np.ones(1, np.int64)
    took = 1e3 * best(lambda: released_as_asked(asked, dial, source, draw, None), 20)
    print(f"  one kernel for {LARGE} symbols, checked and drawn from: {took:.1f} ms")
    return took
