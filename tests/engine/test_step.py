"""One gate for codes: numpy and compiled refuse alike and answer alike; audits of files with rows lost or large ε."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiling import restored, use  # noqa: F401 -- it restores after every test
from filed import audit_file, decode_file, release_file
from reference_streams import Rows
from seqveil import Budget, MarkovModel, mechanisms
from seqveil.core.errors import DataError, InputError, SeqveilError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches, stream
from seqveil.engine.policy import Policy

CHAIN = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
QUICK = [name for name in mechanisms.instantaneous() if name != "temporal"]


def answer(act) -> tuple[object, ...]:
    """What came of a call: the refusal's kind and words, or all that was released."""
    try:
        released, after = act()
    except SeqveilError as error:
        return type(error).__name__, str(error)
    made = (released.codes, released.epsilons, released.columns)
    return tuple(array.tobytes() for array in (*made, after.states, after.account.most, after.account.least))


codes = st.lists(st.integers(-3, 5), min_size=3, max_size=3).map(np.array)
odd = st.sampled_from(
    [
        *map(np.array, ([0.0, 1.0, 2.0], [True, False, True], [0, 1], [[0], [1], [2]], ["0", "1", "2"])),
        *map(np.array, ([0, 1, 10**12], [-(2**62), 0, 0])),
        *(np.array([0, 1, 2**63], np.uint64), np.array([0, 1, 2], np.int8)),
    ]
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(given=codes | odd, name=st.sampled_from(QUICK), stop=st.booleans(), spent=st.booleans())
def test_numpy_and_compiled_refuse_alike_and_answer_alike(given, name, stop, spent):
    sound = mechanisms.get(name).sound
    budget = Budget(total=1.0 if spent else 50.0, when_spent="stop") if stop and sound else None
    setting = Policy(epsilon=1.0, budget=budget, mechanism=name).on(CHAIN)
    found = []
    for compiled in (True, False):
        use(compiled)
        state = stream.State.start(setting, 3)
        if spent:
            _, state = stream.step(setting, state, np.array([0, 1, 2]), SeededRandomness(4))
        found.append(answer(lambda state=state: stream.step(setting, state, given, SeededRandomness(5))))
        found.append(answer(lambda state=state: stream.observe(setting, state, given)))
    assert found[:2] == found[2:]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", QUICK)
def test_codes_outside_the_alphabet_are_refused_by_every_mechanism(name, compiled):
    use(compiled)
    setting = Policy(epsilon=1.0, mechanism=name).on(CHAIN)
    for wrong in ([0, -1], [0, 3], [0, 10**9], [-(2**40), 0], [0.0, 1.0]):
        with pytest.raises(DataError):
            Rows(setting, 2).observe(np.arange(2), np.array(wrong))
        with pytest.raises(InputError):
            Rows(setting, 2).release(np.arange(2), np.array(wrong), SeededRandomness(1))


@pytest.mark.parametrize("wrong", [[0, 3], [0, -1], [0.5, 1.0]])
@pytest.mark.parametrize("name", mechanisms.batched())
def test_batches_pass_the_same_gate(name, wrong):
    setting = Policy(epsilon=2.0, batch=2, mechanism=name).on(CHAIN)
    with pytest.raises(InputError, match="expected"):
        batches.step(setting, stream.State.start(setting), np.array(wrong), SeededRandomness(1))


@pytest.fixture
def stopped(tmp_path):
    """A release under a budget with policy "stop", large enough not to be spent, of which 200 rows were deleted."""
    CHAIN.save(tmp_path / "m.model")
    rows = CHAIN.sample(1000, 1, seed=2)[0]
    pl.DataFrame({"user": ["u"] * 1000, "value": rows}).write_csv(tmp_path / "raw.csv")
    setting = Policy(epsilon=1.0, budget=Budget(total=5000.0, when_spent="stop"), mechanism="randomized_response").on(
        CHAIN
    )
    release_file(tmp_path / "raw.csv", setting, tmp_path / "r.csv", seed=1)
    frame = pl.read_csv(tmp_path / "r.csv")
    kept = frame.filter(~pl.col("event").is_between(300, 499))
    assert frame.height - kept.height == 200
    kept.write_csv(tmp_path / "r.csv")
    return tmp_path / "r.csv"


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_a_file_with_200_rows_deleted_is_refused(stopped, compiled):
    use(compiled)
    with pytest.raises(DataError, match="missing where it allows one"):
        audit_file(stopped, CHAIN)
    with pytest.raises(DataError, match="missing where it allows one"):
        decode_file(stopped, CHAIN, stopped.with_name("d.csv"))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [17.0, 32.0])
def test_audit_takes_a_batched_release_at_any_epsilon_it_may_have(seqveil, tmp_path, monkeypatch, epsilon):
    monkeypatch.chdir(tmp_path)
    CHAIN.save("m.model")
    pl.DataFrame({"user": ["u"] * 8, "value": [0, 0, 1, 1, 2, 2, 0, 0]}).write_csv("raw.csv")
    assert seqveil("release", "raw.csv", "-m", "m.model", "-e", epsilon, "--batch", 4, "-o", "r.csv").code == 0
    report = seqveil("audit", "r.csv", "-m", "m.model", "--json")
    assert report.code == 0, report.err
    assert report.json["composed"]["basic"] == 2 * epsilon
    assert report.json["composed"]["best"] <= 2 * epsilon
