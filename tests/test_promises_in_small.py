"""The central promises by a small case each: what a charge, a draw, a checksum, a row and a secret's bound must be."""

import math

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from filed import release_file
from seqveil.core.alphabet import WITHHELD
from seqveil.core.distortion import hamming
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets.tables import Bounds, Draft, GuardingTable
from seqveil.engine.streams import CodeStreams

KEY = bytes(range(32))
STICKY = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]
MODEL = sv.MarkovModel([0.5, 0.3, 0.2], STICKY, alphabet=["home", "work", "gym"])


def opened(kind, folder, setting, seed=1):
    """Streams in memory, or over a state file."""
    randomness = SeededRandomness(seed)
    return (
        CodeStreams(setting, randomness=randomness)
        if kind == "memory"
        else CodeStreams.open(folder / "s.db", setting, randomness=randomness)
    )


# what a release costs is in the ledger


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_release_is_charged_what_its_kernel_tells_about_each_symbol(tmp_path, kind):
    setting = sv.Policy(epsilon=1.0, mechanism="balanced").on(MODEL)
    with opened(kind, tmp_path, setting) as streams:
        code = int(streams.release(["ann"], [2]).codes[0])
        found = streams.account("ann")
    weights = sv.Session(MODEL, mechanism="balanced", epsilon=1.0).kernel().probabilities[:, code]
    lifts = np.log(weights / (np.asarray(MODEL.initial) @ weights))
    assert found.leakage == pytest.approx(np.abs(lifts).max(), abs=1e-6)
    assert found.leakage > 0.1
    assert (found.events, found.epsilon_spent) == (1, pytest.approx(1.0))
    assert found.ldp == pytest.approx(2.0)


def test_no_window_of_releases_costs_more_than_its_budget():
    setting = sv.Policy(epsilon=1.0, budget=sv.Budget(per_window=1.2, releases=3), mechanism="balanced").on(MODEL)
    for seed in range(5):
        streams, raw = (
            CodeStreams(setting, randomness=SeededRandomness(seed)),
            np.random.default_rng(seed).integers(0, 3, 12),
        )
        made = [int(streams.release(["ann"], [code]).codes[0]) for code in raw]
        costs = CodeStreams(setting).observe(["ann"] * 12, made).leakages  # as a receiver computes them
        sums = [sum(costs[k : k + 3]) for k in range(10)]
        assert max(sums) <= 1.2
        assert max(sums) > 0.6  # the window is what holds it back


# what was drawn is never drawn again


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_an_event_that_comes_again_has_the_release_that_it_had(tmp_path, kind):
    """In one call, in a later one, and with another symbol: one draw, one charge."""
    with opened(kind, tmp_path, sv.Policy(epsilon=0.3, mechanism="balanced").on(MODEL)) as streams:
        first = streams.release(["ann"] * 16, [0, 1] * 8, seqs=[k // 2 for k in range(16)])
        assert first.codes[::2].tolist() == first.codes[1::2].tolist()
        assert first.replayed.tolist() == [False, True] * 8
        again = streams.release(["ann"] * 8, [2] * 8, seqs=range(8))
        assert again.codes.tolist() == first.codes[::2].tolist()
        assert again.replayed.all()
        found = streams.account("ann")
    assert len(set(first.codes.tolist())) > 1
    assert (found.events, found.epsilon_spent) == (8, pytest.approx(8 * 0.3))


# rows stand where they stood


@pytest.mark.parametrize("state", [None, "state.db"], ids=["in memory", "with a state"])
@pytest.mark.parametrize("extension", ["csv", "ndjson"])
def test_each_row_of_a_file_is_the_release_of_its_own_row(tmp_path, state, extension):
    """At this ε every release is the truth, and every row has a time of its own."""
    rng = np.random.default_rng(3)
    values = [MODEL.alphabet.decode_one(int(code)) for code in rng.integers(0, 3, 60)]
    raw = pl.DataFrame({"user": rng.choice(["ann", "bob", "eve"], 60), "time": np.arange(60), "value": values})
    path, out = tmp_path / f"raw.{extension}", tmp_path / f"out.{extension}"
    getattr(raw, f"write_{extension}")(path)
    kept = {} if state is None else {"state": tmp_path / state}
    release_file(path, sv.Policy(epsilon=16.0, mechanism="optimal").on(MODEL), out, chunk=17, **({"seed": 2} | kept))
    released = getattr(pl, f"read_{extension}")(out)
    assert released.select("user", "time", "value").rows() == raw.rows()


# a declared secret's bound


@pytest.mark.parametrize(("share", "kept"), [(0.99, True), (1.01, False), (1.1, False)])
@pytest.mark.parametrize("withheld", [False, True])
def test_a_table_keeps_a_secret_up_to_its_epsilon_and_no_further(share, kept, withheld):
    """Whether one event is at the gym: a label moves its odds by the ratio of its two rows, here e^(share·ε)."""
    epsilon, model = 0.8, sv.MarkovModel([0.6, 0.4], [[0.5, 0.5], [0.5, 0.5]], alphabet=["home", "gym"])
    setting = sv.Policy(secrets=sv.secrets.ever("gym", epsilon=epsilon, window="first 1"), side_information=0).on(model)
    bounds, right = Bounds.of(setting.trackers.users), 1 / (1 + math.exp(-share * epsilon))
    rows = np.array([[right, 1 - right], [1 - right, right]])
    outputs = np.array([0, WITHHELD] if withheld else [0, 1])
    draft = Draft(2, outputs, np.arange(2), np.zeros(2), np.arange(2), rows, 0.0)
    assert GuardingTable.of(draft, np.array([0.6, 0.4]), hamming()).keeps(bounds) is kept
