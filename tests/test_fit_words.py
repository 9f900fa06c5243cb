"""One record says what a fit is told, whoever makes it: the options, `sv.fit`, or a comparison."""

from __future__ import annotations

import io
import sys
from dataclasses import fields

import polars as pl
import pytest

import seqveil as sv
from seqveil.core.errors import InputError
from seqveil.interfaces.cli import main
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.files.fit import fit_file
from seqveil.interfaces.files.words import FitWords
from seqveil.interfaces.frames import FitKeywords

ROWS = pl.DataFrame({"who": ["a", "b"] * 30, "value": ["x", "y", "y", "x", "x"] * 12})


def test_every_word_of_a_fit_can_be_given_to_the_function_and_has_a_type():
    told = {each.name for each in fields(FitWords)} - {"columns", "slots", "chunk", "sort"}
    parts = {each.name for part in (o.ColumnOptions, o.FitSlotOptions) for each in fields(part)}
    assert told | parts == set(FitKeywords.__annotations__)


def test_options_keywords_and_fields_make_the_same_model(tmp_path):
    ROWS.write_csv(tmp_path / "d.csv")
    words = o.fit_words(o.CutOptions(), o.FileOptions(user_column="who"), o.SlotOptions(), smoothing=1.0)
    by_record = fit_file(tmp_path / "d.csv", words).model
    others = (fit_file(ROWS, words).model, sv.fit(ROWS, user_column="who", smoothing=1.0))
    assert {model.fingerprint for model in others} == {by_record.fingerprint}
    command = ["fit", str(tmp_path / "d.csv"), "-o", str(tmp_path / "m"), "--user-column", "who", "--smoothing", "1"]
    assert main(command) == 0
    assert sv.MarkovModel.load(tmp_path / "m").fingerprint == by_record.fingerprint


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"context": "order:2", "order": 2}, "--context says what --order says"),
        ({"seed": 1}, "are for a private fit"),
        ({"private": 1.0, "context": "auto"}, "of one chain"),
        ({"private": 1.0, "order": 2}, "of order 1"),
        ({"private": 1.0, "other": 2}, "--other looks at who has what"),
        ({"private": 1.0}, "needs a public alphabet"),
        ({"private": 1.0, "levels": 3}, "quantiles of the data"),
        ({"alphabet": ["x", "y"], "bins": 2}, "alphabet= names the values"),
        ({"every_second": 3}, "'every_second' is not known here"),
        ({"columns": "who"}, "'columns' is not known here"),
    ],
)
def test_what_does_not_go_together_is_refused_wherever_it_comes_from(words, said):
    with pytest.raises(InputError, match=said):
        sv.fit(ROWS.rename({"who": "user"}), **words)


def places(path):
    rows = [(f"u{k % 12}", 52.5 + 0.004 * (k % 7), 13.4 + 0.004 * (k % 5)) for k in range(240)]
    pl.DataFrame(rows, schema=["user", "lat", "lon"], orient="row").write_csv(path)
    return str(path)


def test_a_plan_finds_the_columns_of_places_for_real_people_too(tmp_path, capsys):
    few = ["--epsilon", "1", "--users", "3", "--length", "4", "--smoothing", "1"]
    assert main(["plan", places(tmp_path / "w.csv"), "--cell-metres", "1000", *few]) == 0
    assert "except those called realised" in capsys.readouterr().out


def test_a_plan_of_a_pipe_does_not_read_it_again(monkeypatch, capsys):
    text = ROWS.rename({"who": "user"}).write_csv().encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    few = ["--epsilon", "1", "--users", "3", "--length", "4", "--smoothing", "1"]
    assert main(["plan", "-", *few]) == 0
    assert "realised" not in capsys.readouterr().out
