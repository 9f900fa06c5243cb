"""What a first visitor of the page stumbled over: missing values, guesses, and words of the command line."""

import json
import random

import pytest

from seqveil.core.errors import DataError
from seqveil.interfaces.studio import exports
from seqveil.interfaces.studio.sandbox import Sandbox
from seqveil.interfaces.studio.sources import loaded
from seqveil.interfaces.studio.uploads import Cut, looked_at, rows_of_file, rows_of_text
from studios import finish

PAGES = ("home", "item", "cart")
DRAWN = random.Random(4)
CLEAN = "user,value\n" + "".join(f"u{k % 12},{DRAWN.choice(PAGES)}\n" for k in range(240))
HOLES = "user,value\n" + "".join(f"u{k % 12},{'' if k % 10 == 3 else DRAWN.choice(PAGES)}\n" for k in range(240))
NUMBERS = "user,value\n" + "".join(f"u{k % 12},{DRAWN.uniform(50, 120):.3f}\n" for k in range(240))
DAYS = "Kunde Nr.;am;was\n" + "".join(
    f"k{k % 3};0{1 + k % 3}.03.2026 08:{k // 6:02d};{'abc'[k % 7 % 3]}\n" for k in range(180)
)


def test_rows_without_a_value_are_left_out_as_the_look_at_them_says():
    said = dict(looked_at(HOLES)["lines"])
    assert "24 rows without a value: 24 dropped" in said["read"]
    found = Sandbox().load({"csv": HOLES, "columns": {"user": "user", "value": "value"}})
    assert "216 events in 12 streams, 3 symbols" in found["about"]
    assert "Left out: 24 rows without a value" in found["about"]


def test_a_file_with_holes_goes_the_same_way_on_the_command_line(tmp_path):
    (tmp_path / "holes.csv").write_text(HOLES)
    there, here = rows_of_file(str(tmp_path / "holes.csv"), Cut()), rows_of_text(HOLES, Cut())
    assert there == here
    (tmp_path / "timed.csv").write_text(
        "time," + "".join(f"{line}\n{k}," for k, line in enumerate(HOLES.split())) + "u0,"
    )
    timed = loaded(rows_of_file(str(tmp_path / "timed.csv"), Cut(time="time")), Cut(time="time"), "data")
    assert timed.model.alphabet.missing == "drop"
    one, two = loaded(there, Cut(), "data").model, loaded(here, Cut(), "own").model
    assert one.fingerprint == two.fingerprint
    assert one.alphabet.missing == "drop"  # so `seqveil release` follows it
    whole = loaded(rows_of_text(CLEAN, Cut()), Cut(), "own")
    assert whole.model.alphabet.missing is None
    assert "Left out" not in whole.about


def test_a_column_without_any_value_is_refused_in_one_line():
    with pytest.raises(DataError, match="no row has a value; choose another column"):
        loaded(rows_of_text("user,value\na,\na,\n", Cut()), Cut(), "own")


def test_the_page_advises_nothing_that_only_the_command_line_has():
    for text, given in ((NUMBERS, None), (DAYS, Cut("Kunde Nr.", "was", time="am")), (CLEAN, Cut("", "user,value"))):
        assert "--" not in json.dumps(looked_at(text, given=given))
    assert "Say it under “Cut numbers into”" in json.dumps(looked_at(NUMBERS), ensure_ascii=False)


def test_days_as_people_write_them_are_nobodys_name_and_a_guess_is_asked_about():
    found = looked_at(DAYS)
    assert found["chosen"]["user"] == "Kunde Nr."
    asked = [text for name, text in found["lines"] if name == "question"]
    assert "is 'Kunde Nr.' whose event it is? It is a guess, because its values come again" in asked
    lines = enumerate(DAYS.splitlines())
    holey = "\n".join(f"{line};{'' if k % 2 else f'm{k % 9}'}" for k, line in lines)  # not everybody has one
    assert looked_at(holey)["chosen"]["user"] == "Kunde Nr."
    assert not any("guess" in text for _, text in looked_at(CLEAN)["lines"])


def test_a_column_with_a_comma_in_its_name_is_to_be_renamed():
    text = CLEAN.replace("user,value", 'user,"a,b"')
    for given in (None, Cut("user", "a,b")):
        assert "comma in its name" in looked_at(text, given=given)["problem"]


@pytest.mark.slow
def test_the_script_reads_codes_that_look_like_numbers_as_text(tmp_path, monkeypatch):
    text = CLEAN.replace("home", "01").replace("item", "02").replace("cart", "03")
    sandbox = Sandbox()
    name = sandbox.load({"csv": text, "columns": {"user": "user", "value": "value"}})["name"]
    shown = finish(sandbox.show, source=name, events=10, epsilon=1.0)
    source = loaded(rows_of_text(text, Cut()), Cut(), "own")
    exports.unpack(shown["configuration"], source, tmp_path / "page")
    monkeypatch.chdir(tmp_path)
    said = {}
    exec(shown["snippets"]["python"], said)
    assert len(said["released"]) == 10
    assert set(said["released"]) <= {"01", "02", "03"}
