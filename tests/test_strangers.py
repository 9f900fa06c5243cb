"""What strangers send: odd values, odd times, odd files. Nothing of it changes what others get, or ends a service."""

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import seqveil as sv
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.errors import DataError, InputError
from seqveil.core.model import MarkovModel
from seqveil.core.times import seconds
from seqveil.engine.accounting import Budget
from seqveil.engine.stream import UNKNOWN
from seqveil.interfaces.cli import main
from seqveil.interfaces.client import Event, _body
from seqveil.interfaces.events import Wording
from seqveil.interfaces.files import Chunk, rows
from seqveil.interfaces.files.ordering import order_key
from seqveil.interfaces.files.release import release_file
from seqveil.interfaces.mqtt import Payloads
from seqveil.interfaces.service.messages import OneSymbol

LARGE = 2**53
ALPHABETS = [
    Alphabet.codes(4),
    Alphabet([LARGE, LARGE + 1, LARGE + 2]),
    Alphabet([2**63, 2**63 + 2048, 0.5]),
    Alphabet([2**62 + 1, 2**64 + 1, -1]),
    Alphabet([0, 0.5, 1]),
    Alphabet([0.5, 2.0**53]),
    Alphabet(["a", "", 1, None]),
    Alphabet(["a", (1, 0), ()]),
    Alphabet([True, False, 7]),
    Bins([0, 1, 2.5, 2.0**60]),
    Grid.regular(3, 2, (0, 3, 0, 2)),
]
ODD = st.sampled_from(
    [
        *(math.nan, math.inf, -math.inf, None, 0.5, "", "a", True, False, [], (), [[]], {}, (1, 0), (True, 0)),
        *((1, True), (0.5, math.nan), [1.5, 1], [1, [2]], 2**63, 2**63 + 1, 2**64 + 1, 2**70, 10**400, -1, 1, 0),
        *(1.0, b"a", 1j, LARGE, LARGE + 1, LARGE + 2, float(LARGE), 2**62 + 1, Decimal(1), Fraction(1, 2), "9" * 300),
        *(np.float32("nan"), np.int8(1), np.uint64(2**63 + 1), np.True_, np.array(1), np.array([1, 0])),
        np.zeros((2, 2)),
    ]
)


def same_symbol(value, symbol):
    """Python's own equality, but for True and False, which are no numbers."""
    if isinstance(value, tuple) and isinstance(symbol, tuple):
        return len(value) == len(symbol) and all(map(same_symbol, value, symbol))
    if isinstance(value, bool | np.bool_) and not isinstance(symbol, bool):
        return False
    return bool(value == symbol)


@settings(deadline=None)
@given(which=st.integers(0, len(ALPHABETS) - 1), values=st.lists(ODD, max_size=6), nearest=st.booleans())
@example(which=1, values=[LARGE, LARGE + 1, LARGE + 2, math.nan], nearest=False)
@example(which=2, values=[2**63 + 1, None], nearest=False)
def test_a_code_depends_on_its_own_value_alone(which, values, nearest):
    alphabet = ALPHABETS[which]
    if nearest and alphabet.points is None:
        return
    alphabet = alphabet.watched("nearest" if nearest else "hide")
    alone = [alphabet.encode_one(value) for value in values]
    assert alphabet.encode(values).tolist() == alone
    assert [int(alphabet.encode([value])[0]) for value in values] == alone
    assert alphabet.encode(tuple(values)).tolist() == alone
    if isinstance(alphabet, Alphabet) and not nearest:
        for value, code in zip(values, alone, strict=True):
            value = value.item() if isinstance(value, np.ndarray | np.generic) and np.ndim(value) == 0 else value
            if not isinstance(value, np.ndarray):
                found = [k for k, symbol in enumerate(alphabet.values) if same_symbol(value, symbol)]
                assert [code] == (found or [UNKNOWN])


@pytest.mark.parametrize("form", ["[]", "[[]]", "[[],[]]", "{}", "[null]", "[[[]]]", "1e999", "true"])
@pytest.mark.parametrize("alphabet", [["a", "b"], [0, 1], [0, 5], Bins([0, 2, 4]), Grid.regular(2, 1, (0, 2, 0, 1))])
def test_any_value_over_mqtt_is_hidden(form, alphabet):
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=alphabet)
    one = Payloads(sv.Policy(epsilon=1.0, mechanism="balanced").on(model))
    assert one.read("ann", b'{"seq":0,"value":%s}' % form.encode()).codes == (UNKNOWN,)
    batched = Payloads(sv.Policy(epsilon=1.0, batch=2, mechanism="tree").on(model))
    assert batched.read("ann", b'{"seq":0,"values":[%s]}' % form.encode()).codes == (UNKNOWN,)


@pytest.mark.parametrize("value", [(), [], [[]], np.zeros(0), np.zeros((1, 0)), {}, object()])
def test_a_session_that_hides_takes_any_value(value):
    model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=Alphabet.codes(2, "hide"))
    assert sv.Session(model, epsilon=1.0).release(value) in (0, 1)
    assert len(sv.Session(model, mechanism="tree", epsilon=1.0, batch=2).release_batch([value, 1])) == 2


@pytest.mark.parametrize("alphabet", [Alphabet.codes(2), Alphabet([0, 1, 5]), Bins([0, 1, 2]), Alphabet(["a", 0, 1])])
def test_true_is_no_number_over_http_and_mqtt_alike(alphabet):
    law = np.full(alphabet.n, 1 / alphabet.n)
    payloads = Payloads(sv.Policy(epsilon=1.0).on(MarkovModel(law, np.tile(law, (alphabet.n, 1)), alphabet=alphabet)))
    for value in (True, False):
        payload = json.dumps({"seq": 0, "value": value}).encode()
        assert payloads.read("ann", payload).codes == (UNKNOWN,)
        assert Wording(alphabet).encode([value]).tolist() == [UNKNOWN]
        assert Wording(alphabet).encode([value, 1]).tolist()[0] == UNKNOWN
        assert alphabet.watched().encode(np.array([value])).tolist() == [UNKNOWN]


def test_true_is_a_symbol_of_an_alphabet_that_holds_it():
    alphabet = Alphabet([False, True]).watched()
    assert alphabet.encode([True, False, "x"]).tolist() == [1, 0, UNKNOWN]
    assert alphabet.encode(np.array([True, False])).tolist() == [1, 0]


def coins_model(alphabet=("a", "b")):
    return MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], alphabet=list(alphabet))


def seconds_setting():
    return sv.Policy(epsilon=1.0, budget=Budget(per_window=3.0, seconds=100.0), mechanism="balanced").on(coins_model())


@pytest.fixture
def dense(tmp_path):
    """Sixty events within six seconds: a budget of 3 in 100 seconds pays for three of them."""
    frame = pl.DataFrame(
        {"user": ["u"] * 60, "seq": [1000 * k for k in range(60)], "time": [k // 10 for k in range(60)]}
    )
    frame = frame.with_columns(value=pl.Series(["a", "b"] * 30))
    frame.write_csv(tmp_path / "both.csv")
    frame.drop("time").write_csv(tmp_path / "seq.csv")
    coins_model().save(tmp_path / "m.model")
    return tmp_path


def run(*arguments):
    return main([str(argument) for argument in arguments])


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [(), ("--state", "s.db"), ("--batch", 2), ("--batch", 2, "--state", "s.db"), ("--sort",)]
)
def test_a_budget_per_seconds_counts_by_the_time_column(dense, how, capsys, monkeypatch):
    monkeypatch.chdir(dense)
    command = ("both.csv", "-m", "m.model", "-e", 1, "--window", 3, "--window-seconds", 100, *how)
    assert run("release", *command, "--out", "out.csv") == 0
    said = capsys.readouterr().err
    assert "column 'time'" in said
    assert "seconds" in said
    released = pl.read_csv("out.csv")
    assert "time" in released.columns
    assert "seq" not in released.columns
    assert (released["epsilon"] > 0).sum() < 12  # by seq, fifty-seven are paid for
    assert json.loads((dense / "out.csv.meta.json").read_text())["columns"]["order"] == "time"
    assert run("audit", "out.csv", "-m", "m.model") == 0
    assert run("decode", "out.csv", "-m", "m.model", "--out", "decoded.csv") == 0
    if "--batch" not in how:
        assert run("stats", "out.csv", "-m", "m.model") == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--state", "s.db")])
def test_sequence_numbers_are_no_times_unless_named(dense, how, capsys, monkeypatch):
    monkeypatch.chdir(dense)
    command = ("-m", "m.model", "-e", 1, "--window", 3, "--window-seconds", 100, *how, "--out", "out.csv")
    assert run("release", "seq.csv", *command) == 2
    said = capsys.readouterr().err
    assert "--time-column" in said
    assert len(said.strip().splitlines()) == 1
    assert not (dense / "out.csv").exists() or not (dense / "out.csv").read_text()
    command = [part if part not in ("s.db", "out.csv") else f"again-{part}" for part in command]
    assert run("release", "seq.csv", *command, "--time-column", "seq") == 0
    assert "column 'seq'" in capsys.readouterr().err
    assert run("audit", "again-out.csv", "-m", "m.model") == 0


def test_a_library_call_takes_no_sequence_numbers_for_times(dense):
    with pytest.raises(DataError, match="time"):
        release_file(dense / "seq.csv", seconds_setting(), dense / "out.csv")
    assert not (dense / "out.csv").exists()


class Odd(float):
    """A float of somebody's own."""


HELD = [
    *(1, 1.5, "a", "", True, None, (1, 2), [1.5, 2], np.int64(3), np.float32(0.5), np.array([1, 2]), Odd(2.0), 2**60),
]
NOT_HELD = [
    *(math.nan, math.inf, np.float32("nan"), np.float64("-inf"), Odd("nan"), Decimal(1), b"a", {1}, object(), 1j),
    *(datetime(2024, 1, 1), np.datetime64("2024-01-01"), "\ud800", 10**5000, {"a": 1}, lambda: 1),
]


@given(values=st.lists(st.sampled_from(HELD + NOT_HELD), min_size=1, max_size=5))
def test_the_client_sends_any_value_as_json_or_as_null(values):
    for event, name in ((Event("u", 0, values[0]), "value"), (Event("u", 0, values), "values")):
        row = json.loads(_body([event], name))["events"][0]
        sent = row[name] if name == "values" else [row[name]]
        for value, told in zip(values, sent, strict=name == "values"):
            assert (told is None) == (value is None or any(value is each for each in NOT_HELD))
    part = json.loads(_body([Event("u", 0, np.array([1.0, math.nan]))], "value"))["events"][0]["value"]
    assert part == [1.0, None]


@pytest.mark.parametrize("seq", [13.9, 13.0, "0", True, None, np.float64(1), np.True_, Decimal(1)])
def test_the_client_refuses_a_sequence_number_that_is_not_whole(seq):
    with pytest.raises(InputError, match="whole") as refused:
        _body([Event("u", seq, "zq-secret")], "value")
    assert "zq-secret" not in str(refused.value)


def test_the_client_sends_times_and_users_as_the_service_takes_them():
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    times = [5, np.float32(1.5), "2024-05-01T12:00:00Z", noon, noon.replace(tzinfo=None), np.datetime64(1, "s")]
    sent = json.loads(_body([Event(7, np.int64(k), "a", time) for k, time in enumerate(times)], "value"))["events"]
    assert [row["user"] for row in sent] == ["7"] * len(times)
    assert [row["seq"] for row in sent] == list(range(len(times)))
    for row, expected in zip(sent, [5.0, 1.5, noon.timestamp(), noon.timestamp(), noon.timestamp(), 1.0], strict=True):
        stamp = OneSymbol.model_validate_json(json.dumps(row)).time
        assert seconds([stamp]).tolist() == [expected]
    for user in (True, None, 1.5, b"u"):
        with pytest.raises(InputError, match="user"):
            _body([Event(user, 0, "a")], "value")
    for time in (True, math.nan, b"x", [1]):
        with pytest.raises(InputError, match="time"):
            _body([Event("u", 0, "a", time)], "value")


FAR = ["1600-01-01", "2024-01-01", "2262-04-12", "2608-07-23", "4000-02-29"]


def column_of(order):
    return Chunk(pl.Series(["u"] * order.len()), pl.Series([0] * order.len()), order, np.arange(1, order.len() + 1))


def test_no_date_in_a_file_is_taken_for_another():
    expected = [datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in FAR]
    dates = pl.Series("time", FAR).str.to_date()
    for kind in (pl.Date, pl.Datetime("us"), pl.Datetime("ms")):
        assert rows.seconds(column_of(dates.cast(kind)), "data").tolist() == expected
    for text, stamp in zip(FAR, expected, strict=True):
        if text[:4] == "2024":
            assert rows.seconds(column_of(pl.Series("time", [text])), "data").tolist() == [stamp]
        else:
            with pytest.raises(DataError, match="row 2"):
                order_key(pl.Series("time", ["2024-01-01", text]), lambda i: i + 1, "data")


@pytest.mark.parametrize("date", ["9999-12-31", "5200-01-01"])
def test_a_date_that_no_clock_shows_is_refused_by_its_row(date):
    for column in (pl.Series("time", ["2024-01-01", date]), pl.Series("time", ["2024-01-01", date]).str.to_date()):
        with pytest.raises(DataError, match="row 2"):
            rows.seconds(column_of(column), "data")
    for far in ("586500-06-01", "-290000-01-01", date, "NaT"):
        with pytest.raises(InputError, match="expected a time"):
            seconds(np.array(["2024-01-01", far], "datetime64[D]"))
    with pytest.raises(InputError, match="expected a time"):
        seconds(np.array(["2262-01-01T00", "586500-06-01T00"], "datetime64[h]"))


def test_a_missing_time_column_names_its_own_option(dense, capsys, monkeypatch):
    monkeypatch.chdir(dense)
    assert run("release", "both.csv", "-m", "m.model", "-e", 1, "--time-column", "when", "--out", "out.csv") == 2
    said = capsys.readouterr().err
    assert "--time-column" in said
    assert "--user-column" not in said
