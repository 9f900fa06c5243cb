"""Contexts checked on held-out people: what is measured, what is taken, and the command that does it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import seqveil as sv
from reference.mixtures import mixture
from seqveil.core import filtering
from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.choosing import CodedEvents, Context, candidates, check, choose
from seqveil.interfaces.cli import main
from tests.core.test_mixture import chains

# people of four types, type by type, 90 of each with 20 events
CODES = np.concatenate([model.sample(20, 90, seed=k) for k, model in enumerate(chains(4, 4, seed=11))]).ravel()
USERS = np.repeat(np.arange(CODES.size // 20), 20)
NAMES = sv.Alphabet(range(4))


@pytest.mark.parametrize(
    "model",
    [
        chains(4, 1)[0],
        chains(4, 1, order=2)[0],
        sv.MarkovModel.fit([[0, 1, 2, 3, 0], [3, 3, 1]], alphabet=range(4), smoothing=0.5, order=2),
        mixture(chains(4, 3), [0.5, 0.3, 0.2]),
        mixture(chains(4, 3), [0.5, 0.3, 0.2], 0.01),
        mixture(chains(4, 2, order=2), [0.5, 0.5], 0.01),
    ],
    ids=["order 1", "order 2", "smoothed", "types", "types that change", "types of order 2"],
)
def test_likelihoods_of_many_streams_are_those_of_each(model: sv.MarkovModel) -> None:
    rng = np.random.default_rng(3)
    streams = [rng.integers(0, 4, length).tolist() for length in (1, 7, 3, 30, 7)]
    users = np.concatenate([np.full(len(s), k) for k, s in enumerate(streams)])
    found = filtering.log_likelihoods(model, users, np.concatenate(streams))
    np.testing.assert_allclose(found, [model.log_likelihood(s) for s in streams], rtol=1e-9)
    never = sv.MarkovModel([0.5, 0.5], [[1.0, 0.0], [0.5, 0.5]])
    found = filtering.log_likelihoods(never, np.array([0, 0, 1, 1]), np.array([0, 1, 1, 0]))
    assert found.tolist() == [-np.inf, pytest.approx(np.log(0.25))]


def test_the_figures_of_a_check_are_those_of_each_stream() -> None:
    model = mixture(chains(4, 3, seed=2), [0.4, 0.3, 0.3])
    codes = model.sample(30, 800, seed=1)
    found = check(model, np.repeat(np.arange(800), 30), codes.ravel(), Context(types=3))
    assert found.people == 800
    assert found.symbols == 24_000
    alone = filtering.log_likelihoods(model, np.repeat(np.arange(800), 30), codes.ravel())
    assert found.log_likelihood == pytest.approx(alone.sum() / 24_000)
    assert found.standard_error == pytest.approx(alone.std(ddof=1) / 30 / np.sqrt(800), rel=1e-6)


def test_a_wrong_model_is_found_out() -> None:
    """A plain chain for people of four types: worse likelihood than the mixture, which `auto` takes."""
    made = choose(CodedEvents.of(USERS, CODES), NAMES)
    by_name = {row.context: row for row in made.table}
    assert list(by_name) == ["order:1", "order:2", "types:4"]
    assert made.taken.context == "types:4"
    assert by_name["types:4"].log_likelihood > by_name["order:1"].log_likelihood + 0.05
    assert made.model.types == 4
    assert made.model.origin is not None
    assert made.model.origin["checked"]["people"] == 72
    assert "checked on 72 held-out people" in made.model.origin["note"]


def test_the_smaller_is_taken_where_more_does_not_help_and_a_few_people_cannot_be_held_out() -> None:
    codes = chains(4, 1, seed=6)[0].sample(20, 400, seed=1)
    made = choose(CodedEvents.of(np.repeat(np.arange(400), 20), codes.ravel()), NAMES)
    assert made.taken.context == "order:1"
    assert made.model.types == 1
    with pytest.raises(DataError, match="held out, of 10 and more; got 3"):
        choose(CodedEvents.of(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 1])), sv.Alphabet(range(2)))


def test_a_context_that_is_named_is_taken_and_shown_beside_a_plain_chain(tmp_path: Path) -> None:
    made = choose(CodedEvents.of(USERS, CODES), NAMES, "order:2,types:2")
    assert [row.context for row in made.table] == ["order:1", "order:2,types:2"]
    assert made.model.order == 2
    made.model.save(tmp_path / "m")
    again = sv.MarkovModel.load(tmp_path / "m")
    assert again.origin == made.model.origin
    assert again.fingerprint == made.model.fingerprint


def test_candidates_are_what_people_and_symbols_allow() -> None:
    every = ["order:1", "order:2", "types:4", "types:16", "types:48"]
    for asked, names in {
        ("auto", 17, 10_000): every,
        ("auto", 500, 150): every[:1],
        ("order:1", 17, 100): every[:1],
    }.items():
        assert [each.name for each in candidates(*asked)] == names


def test_contexts_are_read_back_by_name_and_what_is_none_gets_one_line():
    for text in ("order:1", "order:3", "types:16", "order:2,types:4", "types:4,switch:0.01"):
        assert Context.parse(text).name == text
    none = ["", "hours", "types", "types:x", "types:0", "order:2;types:3", "switch:2", "order:1,order:2"]
    typeless = ["order:2,switch:0.01", "switch:0.01", "types:1,switch:0.5"]
    for text, said in [
        *((text, "context") for text in none),
        *((text, "switch is between types") for text in typeless),
    ]:
        with pytest.raises(InputError, match=said) as caught:
            Context.parse(text)
        assert "\n" not in str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.csv"
    rows = [f"u{user},{'abcd'[code]}" for user, code in zip(USERS.tolist(), CODES.tolist(), strict=True)]
    path.write_text("\n".join(["user,value", *rows]) + "\n")
    return path


@pytest.mark.slow
def test_the_command_prints_the_table_and_keeps_it(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, released = tmp_path / "m.model", tmp_path / "out.csv"
    assert main(["fit", str(file), "-o", str(out), "--context", "auto"]) == 0
    assert "types:4, checked on 72 held-out people" in capsys.readouterr().out
    model = sv.MarkovModel.load(out)
    assert model.types == 4
    assert model.origin is not None
    assert [row["context"] for row in model.origin["compared"]] == ["order:1", "order:2", "types:4"]
    assert main(["release", str(file), "-m", str(out), "--epsilon", "1", "-o", str(released)]) == 0
    assert main(["audit", str(released), "-m", str(out)]) == 0
    assert "checked on 72 held-out people" in capsys.readouterr().out
