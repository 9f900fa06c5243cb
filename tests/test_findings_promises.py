"""Statistics of releases that keep declared secrets: what they say is right, or not said."""

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

import seqveil as sv
from seqveil.core.coins import SeededCoins
from seqveil.core.errors import InputError
from seqveil.engine.terms import Terms
from seqveil.interfaces.cli import main
from seqveil.interfaces.commands.receive import stats_told
from seqveil.interfaces.files.estimates import Counted
from seqveil.receiver import statistics
from seqveil.receiver.drift import ModelCheck
from seqveil.receiver.statistics import summarise

CALM, LIVELY = ([0.8, 0.2], [[0.9, 0.1], [0.3, 0.7]]), ([0.5, 0.5], [[0.4, 0.6], [0.5, 0.5]])
SECRET = sv.secrets.ever(1, epsilon=0.5, window=3)


def _mixture() -> sv.MarkovModel:
    return sv.MarkovModel.mixture([sv.MarkovModel(*CALM), sv.MarkovModel(*LIVELY)], [0.6, 0.4])


def _released(setting: Terms, users: int, length: int) -> tuple[list[int], np.ndarray]:
    streams, raw = sv.Streams(setting, coins=SeededCoins(3)), setting.model.sample(length, users=users, seed=2)
    codes = np.stack([streams.release(range(users), column).codes for column in raw.T], axis=1)
    return np.repeat(np.arange(users), length).tolist(), codes.ravel()


def test_statistics_of_a_guarded_release_with_an_epsilon_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "DRAWN", 20)
    setting = sv.Policy(epsilon=1.0, secrets=[SECRET], mechanism="guarded").on(sv.MarkovModel(*CALM))
    said = _released(setting, 6, 3)
    assert summarise(setting, *said).method == "learned"
    with pytest.raises(InputError, match="cannot be inverted, because they tell too little"):
        summarise(setting, *said, method="design")


def _exact_counts(columns: list[np.ndarray]) -> np.ndarray:
    """How often each symbol is expected in a stream of the mixture, over all its truths."""
    counts, total = np.zeros(2), 0.0
    for weight, (first, chain) in ((0.6, CALM), (0.4, LIVELY)):
        for truth in product((0, 1), repeat=len(columns)):
            chance = weight * first[truth[0]] * np.prod([chain[a][b] for a, b in pairwise(truth)])
            chance *= np.prod([column[x] for column, x in zip(columns, truth, strict=True)])
            counts, total = counts + chance * np.bincount(truth, minlength=2), total + chance
    return counts / total


def test_counts_behind_a_guarded_release_of_types_are_those_of_all_truths() -> None:
    model = _mixture()
    setting = sv.Policy(secrets=[SECRET], mechanism="guarded").on(model)
    expected = np.zeros(2)
    names, codes = _released(setting, 4, 3)
    for stream in codes.reshape(4, 3):
        followed, columns = sv.Session(model, mechanism="guarded", secrets=[SECRET], seed=1), []
        for code in stream:
            kernel = followed.kernel()
            columns.append(kernel.probabilities[:, kernel.outputs.index(int(code))])
            _, followed._state = sv.engine.stream.observe(setting, followed._state, np.array([code]))
        expected += _exact_counts(columns)
    found = summarise(setting, names, codes)
    assert found.method == "model"
    assert np.abs(found.histogram.value - expected).max() < 4 * found.histogram.error.max() / np.sqrt(statistics.DRAWN)
    assert (found.histogram.low <= expected).all()
    assert (expected <= found.histogram.high).all()


def test_a_symbol_that_is_hardly_told_is_not_estimated_where_there_are_no_intervals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "DRAWN", 30)
    chain = sv.MarkovModel([0.6, 0.35, 0.05], [[0.6, 0.35, 0.05], [0.4, 0.55, 0.05], [0.3, 0.2, 0.5]])
    setting = sv.Policy(secrets=[sv.secrets.ever(2, epsilon=0.2, window=4)], mechanism="guarded").on(chain)
    found = summarise(setting, *_released(setting, 20, 4), method="model")
    assert found.untold == (2,)
    misfit = ModelCheck(False, 9.0, 4.6, "a rule")
    counted = Counted(found.without_intervals(), misfit, False)
    assert np.isnan(counted.summary.histogram.value).tolist() == [False, False, True]
    assert np.isnan(counted.summary.transitions.value).sum() == 5
    assert 2 not in [each.code for each in counted.summary.top]
    said = dict(stats_told(counted, ["news", "sport", "health"]))
    assert said["not told"].startswith("health: no estimate; the release keeps declared secrets")
    assert "the model" in dict(stats_told(Counted(found, misfit, True), ["a", "b", "health"]))["hardly told"]


def _rows(path: Path, values: str, users: str = "ab") -> Path:
    path.write_text("user,value\n" + "".join(f"{user},{value}\n" for value in values for user in users))
    return path


def _run(tmp_path: Path, *given: str) -> int:
    words = ["--model", str(tmp_path / "m.model"), "--state", str(tmp_path / "s.db"), "--key", str(tmp_path / "k")]
    return main(["release", *given, *words, "--out", str(tmp_path / "out.csv"), "--yes"])


@pytest.mark.slow
def test_a_run_that_releases_nothing_new_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sv.MarkovModel(*CALM, alphabet=["x", "y"]).save(tmp_path / "m.model")
    data = _rows(tmp_path / "d.csv", "xyx")
    assert _run(tmp_path, str(data), "--epsilon", "1") == 0
    assert "earlier" not in capsys.readouterr().err
    assert _run(tmp_path, str(_rows(tmp_path / "tomorrow.csv", "yyy")), "--epsilon", "1") == 0
    assert "nothing new: all rows were released by an earlier run" in " ".join(capsys.readouterr().err.split())
    assert _run(tmp_path, str(_rows(data, "xyxy")), "--epsilon", "1") == 0
    assert "6 of the rows were released by an earlier run" in capsys.readouterr().err


@pytest.mark.slow
def test_new_rows_of_an_erased_person_stop_a_file_with_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sv.MarkovModel(*CALM, alphabet=["x", "y"]).save(tmp_path / "m.model")
    data, secret = _rows(tmp_path / "d.csv", "xyx"), ("--secret", "ever:y", "--secret-epsilon", "0.5")
    assert _run(tmp_path, str(data), *secret) == 0
    assert main(["state", "erase", str(tmp_path / "s.db"), "a", "--key", str(tmp_path / "k")]) == 0
    capsys.readouterr()
    earlier = data.read_text()
    assert _run(tmp_path, str(_rows(data, "xyxy")), *secret) == 2
    assert "after row 6 it has rows of somebody who was erased" in " ".join(capsys.readouterr().err.split())
    data.write_text(earlier + "b,y\n")
    assert _run(tmp_path, str(data), *secret) == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 8
