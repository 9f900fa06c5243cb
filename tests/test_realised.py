"""Figures of real people beside those of the model: `plan --data`, `decode --truth`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from seqveil import MarkovModel
from seqveil.core.errors import InputError
from seqveil.core.randomness import SeededRandomness
from seqveil.engine.policy import Policy
from seqveil.interfaces.cli import main
from seqveil.interfaces.planning import plan, realised
from seqveil.interfaces.trial import in_batches, one_by_one
from seqveil.receiver.decode import decode_codes

NAMES = ["a", "b", "c"]
CALM = MarkovModel([0.4, 0.3, 0.3], 0.9 * np.eye(3) + 0.1 / 3, alphabet=NAMES)
LIVELY = MarkovModel([0.4, 0.3, 0.3], 0.1 * np.eye(3) + 0.9 / 3, alphabet=NAMES)


def write(path: Path, streams: np.ndarray, by_step: bool = False) -> Path:
    rows = [(t if by_step else k, k, t, x) for k, s in enumerate(streams) for t, x in enumerate(s)]
    rows.sort(key=lambda row: row[0])
    path.write_text("user,seq,value\n" + "\n".join(f"u{k},{t},{NAMES[x]}" for _, k, t, x in rows) + "\n")
    return path


@pytest.mark.slow
def test_people_who_follow_the_model_fare_as_it_expects_and_others_do_not() -> None:
    made = plan(CALM, [1.0], length=12, users=100, period=2, batch_sizes=[2])
    for people, far in ((CALM, 0.0), (LIVELY, 0.2)):
        streams = people.sample(12, 200, seed=3)
        found = realised(made, np.repeat(np.arange(200), 12), streams.ravel(), people=200)
        assert found.realised_people == 200
        for row in found.rows:
            assert row.realised_error is not None
            assert row.realised_decoded is not None
            if row.mechanism == "randomized_response":  # it uses no model
                assert row.realised_error == pytest.approx(row.error, abs=0.03)
            elif far:
                assert min(row.realised_error - row.error, row.realised_decoded - row.decoded_error) > far
            else:
                few = 0.03 if row.batch == 1 else 0.1  # of batches, 40 people alone are released
                assert row.realised_error == pytest.approx(row.error, abs=few)
                assert row.realised_decoded == pytest.approx(row.decoded_error, abs=few)


def test_streams_of_any_length_and_order_are_measured() -> None:
    made = plan(CALM, [2.0], length=6, users=20)
    lengths = [1, 9, 3, 6]
    users, codes = np.repeat([7, 2, 9, 4], lengths), np.concatenate([CALM.sample(k, seed=k)[0] for k in lengths])
    found = realised(made, users, codes)
    mixed = np.argsort(np.concatenate([np.arange(k) for k in lengths]), kind="stable")
    assert realised(made, users[mixed], codes[mixed]) == found
    assert found.realised_people == 4


def asked(capsys: pytest.CaptureFixture[str], *call: object) -> dict[str, object]:
    assert main([*map(str, call), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.slow
def test_the_plan_says_whose_figures_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CALM.save(tmp_path / "m")
    raw = write(tmp_path / "raw.csv", LIVELY.sample(12, 60, seed=5), by_step=True)
    more = ("-e", 1, "--length", 12, "--users", 30)
    plain = asked(capsys, "plan", tmp_path / "m", *more)
    assert plain["realised_people"] is None
    assert "realised" not in str(plain["holds"])
    named = asked(capsys, "plan", tmp_path / "m", *more, "--data", raw)
    assert named["realised_people"] == 30
    assert "only if the model was not fitted to them" in str(named["holds"])
    row = named["rows"][0]  # type: ignore[index]
    assert row["realised_error"] > row["error"] + 0.1
    assert main(list(map(str, ("plan", tmp_path / "m", *more, "--data", raw)))) == 0
    said = capsys.readouterr().out
    assert said.split("expected hamming error")[0].count("realised") == 2
    assert "of 30 people whom --data names" in said
    secret = ("--secret", "ever:c", "--secret-window", 3, "--secret-epsilon", 0.5, "--length", 6, "--users", 5)
    kept = asked(capsys, "plan", tmp_path / "m", *secret, "--data", raw)["rows"][0]  # type: ignore[index]
    assert 0 < kept["realised_error"] < kept["constant_error"]
    for wrong, message in (
        (("plan", raw, *more), "seqveil fit DATA"),
        (("plan", tmp_path / "m", *more, "--data", tmp_path / "no.csv"), "no.csv"),
    ):
        assert main(list(map(str, wrong))) != 0
        error = capsys.readouterr().err.strip()
        assert message in error
        assert "\n" not in error
    (tmp_path / "odd.csv").write_text("user,value\nu,zq-secret\n")
    assert main(list(map(str, ("plan", tmp_path / "m", *more, "--data", tmp_path / "odd.csv")))) != 0
    assert "zq-secret" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4])
def test_decoding_says_how_many_estimates_are_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: int
) -> None:
    CALM.save(tmp_path / "m")
    truth = CALM.sample(20, 60, seed=5)
    raw, out = write(tmp_path / "raw.csv", truth, by_step=True), tmp_path / "out.csv"
    call = ["release", raw, "-m", tmp_path / "m", "-e", 2, "--batch", batch, "--out", out, "--seed", 1]
    assert main(list(map(str, call))) == 0
    capsys.readouterr()
    decode = ["decode", out, "-m", tmp_path / "m", "--out", tmp_path / "decoded.csv"]
    found = asked(capsys, *decode, "--truth", raw)
    assert found["right"] == pytest.approx(found["confidence"], abs=0.05)
    lines = (tmp_path / "decoded.csv").read_text().splitlines()[1:]
    seen = {(line.split(",")[0], line.split(",")[1]): line.split(",")[2] for line in lines}
    right = np.mean([seen[f"u{k}", str(t)] == NAMES[x] for k, s in enumerate(truth) for t, x in enumerate(s)])
    assert found["right"] == pytest.approx(right)
    assert asked(capsys, *decode)["right"] is None
    assert main([*map(str, decode), "--truth", str(raw)]) == 0
    assert "of the estimates are right" in capsys.readouterr().err
    assert main([*map(str, decode[:-1]), str(raw), "--truth", str(raw)]) != 0  # never over what it reads
    assert "u0" in raw.read_text()
    capsys.readouterr()
    before = (tmp_path / "decoded.csv").read_bytes()
    short = write(tmp_path / "short.csv", truth[:, :10])
    for wrong in (short, write(tmp_path / "fewer.csv", truth[:30]), write(tmp_path / "other.csv", truth[:, :1])):
        assert main([*map(str, decode), "--truth", str(wrong)]) != 0
        error = capsys.readouterr().err.strip()
        assert "the same" in error
        assert "\n" not in error
    assert (tmp_path / "decoded.csv").read_bytes() == before


MODEL = MarkovModel([0.5, 0.3, 0.2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])


def test_streams_of_several_lengths_are_each_released_to_their_end():
    streams = [np.array(codes) for codes in ([0, 1, 2, 2], [1, 1], [2])]
    steps = list(one_by_one(Policy(epsilon=1.0).on(MODEL), streams, SeededRandomness(1)))
    assert [step.truth.tolist() for step in steps] == [[0, 1, 2], [1, 1], [2], [2]]
    assert [step.made.codes.size for step in steps] == [3, 2, 1, 1]
    assert steps[-1].after.steps.tolist() == [4]


def test_the_distribution_after_a_release_is_that_of_the_decoder():
    setting, streams = Policy(epsilon=1.0).on(MODEL), MODEL.sample(5, 4, seed=3)
    steps = list(one_by_one(setting, streams, SeededRandomness(2)))
    released = np.stack([step.made.codes for step in steps], axis=1)
    distributions = np.stack([step.distribution for step in steps], axis=1)
    np.testing.assert_allclose(distributions, decode_codes(setting, released, smooth=False), atol=1e-12)


def test_a_longer_stream_behind_a_shorter_one_is_refused():
    with pytest.raises(InputError, match="longest stream first"):
        next(one_by_one(Policy(epsilon=1.0).on(MODEL), [np.array([0]), np.array([0, 1])], SeededRandomness(1)))


def test_batches_hold_a_stream_to_its_end():
    sent, state = in_batches(
        Policy(epsilon=2.0, batch=2, mechanism="tree").on(MODEL), np.array([0, 1, 2, 1, 0]), SeededRandomness(1)
    )
    assert [one.codes.size for one in sent] == [2, 2, 1]
    assert state.steps.tolist() == [3]
