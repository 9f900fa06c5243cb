"""The race: every figure of a row recomputed in a slower way, limits against the exact optimum, and the command."""

import dataclasses
import json
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import reference_streams as ref
import seqveil as sv
from seqveil import datasets, distortion, mechanisms, plots
from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import DataError, InputError
from seqveil.evaluate.comparison import Arena, Contestant, Row, constant, converse, line_up, race, rate_distortion
from seqveil.evaluate.comparison.files import Division, Job, RowBook, jobs, read_arena, set_arena
from seqveil.evaluate.comparison.race import _Batched, _OneByOne
from seqveil.evaluate.comparison.rows import clustered
from seqveil.evaluate.comparison.tables import winners
from seqveil.evaluate.rivals.mutual_information import _blahut, single_release
from seqveil.interfaces.cli import app, main
from seqveil.receive.decode import decode_codes
from seqveil.release import batches, stream

pytestmark = pytest.mark.slow

SECRET = "zq-secret-77"


@pytest.fixture(scope="module")
def chain():
    prior, transitions = ref.random_chain(np.random.default_rng(3), 4)
    return sv.MarkovModel(prior, 0.6 * np.eye(4) + 0.4 * transitions)


def ragged(model, lengths, seed=1):
    return [
        codes[:length] for codes, length in zip(model.sample(max(lengths), len(lengths), seed), lengths, strict=True)
    ]


class Slow:
    """One user after the other, with the same coin for whoever asks."""

    def __init__(self, setting, streams, coin):
        self.totals, self.lifts, self.ldp, self.leakage = np.zeros(3), [], [], []
        for codes in streams:
            release = self.in_batches if setting.in_batches else self.one_by_one
            state, made, online, late = release(setting, codes, coin)
            guesses = (made, setting.distortion.best_guess(online), setting.distortion.best_guess(late))
            self.totals += [setting.distortion.between(codes, guess).sum() for guess in guesses]
            self.leakage.append((state.account.most[0], state.account.least[0]))
        self.means = self.totals / sum(map(len, streams))

    def one_by_one(self, setting, codes, coin):
        state, made = stream.State.start(setting), []
        for k, x in enumerate(codes):
            belief = stream.filtering.symbols(setting.model, state.states)
            used = float(stream.allowance(setting, state)[0][0])
            kernel = stream.kernels(setting, belief, used).one(0)
            self.lifts += [pair for pair in ref.exact_lifts(kernel.weights, belief[0]) if pair]
            self.ldp.append(ref.exact_ldp(kernel.weights))
            out, state = stream.step(setting, state, np.array([x]), coin)
            made.append(int(out.codes[0]))
            assert state.steps[0] == k + 1
        made = np.array(made)
        return state, made, *(decode_codes(setting, made[None], smooth=smooth)[0] for smooth in (False, True))

    def in_batches(self, setting, codes, coin):
        state, sent = stream.State.start(setting), []
        for begin in range(0, len(codes), setting.batch):
            part = codes[begin : begin + setting.batch]
            fair = dataclasses.replace(setting, epsilon=0.6 * len(part))  # a short last batch has its symbols' share
            one, state = batches.step(fair, state, part, coin)
            sent.append(one)
            self.lifts.append((one.least, one.most))
            self.ldp.append(one.most - one.least)
        made = np.concatenate([one.codes for one in sent])
        return state, made, batches.filtered(setting, sent), batches.smooth(setting, sent)


RACES = [("optimal", 1, 1), ("optimal", 1, 3), ("randomized_response", 1, 1), ("crr", 1, 1), ("tree", 2, 1)]


@pytest.mark.parametrize(("mechanism", "batch", "period"), RACES)
@pytest.mark.parametrize("coin", [0, 1 << 61])
def test_a_race_measures_what_a_slow_reading_finds(chain, mechanism, batch, period, coin, monkeypatch):
    monkeypatch.setattr("seqveil.evaluate.comparison.arena.PART", 100)  # several parts of several users
    streams = ragged(chain, [1, 5, 3, 7, 4, 4])
    setting = stream.Setting.of(chain, mechanism, 0.6 * batch, schedule=period, batch=batch)
    coins, seen = ref.OneCoin(), []
    coins.value = coin
    meter = (_Batched if batch > 1 else _OneByOne)(setting, coins, seen.append)
    meter.run(streams)
    slow = Slow(setting, streams, coins)
    assert sum(seen) == meter.tally.events == 24
    assert meter.tally.users == 6
    errors = [meter.tally.mean(name)[0] for name in ("error", "filtered", "smoothed")]
    np.testing.assert_allclose(errors, slow.means, atol=1e-12)
    assert meter.watch.most == pytest.approx(max(most for _, most in slow.lifts), abs=1e-9)
    assert meter.watch.least == pytest.approx(min(least for least, _ in slow.lifts), abs=1e-9)
    assert meter.watch.ldp == pytest.approx(max(slow.ldp), abs=1e-9)
    assert meter.most == pytest.approx(max(most for most, _ in slow.leakage))
    assert meter.least == pytest.approx(min(least for _, least in slow.leakage))
    assert meter.tally.means()["online_1"] == pytest.approx(1 - slow.means[1])  # Hamming: the best guess is the mode
    assert meter.tally.means()["hindsight_1"] == pytest.approx(1 - slow.means[2])


def test_who_passes_the_claim_is_marked_and_who_keeps_it_is_not(chain):
    arena = Arena.of(chain, ragged(chain, [6] * 20), fitted=ragged(chain, [6] * 30, seed=2))
    rows = {each.label: race(arena, each, 0.5) for each in line_up(["all"], [1, 2])}
    assert {row.mechanism for row in rows.values()} >= {*mechanisms.instantaneous(), "tree", "tree_ldp"}
    for label, row in rows.items():
        promised = mechanisms.find(row.mechanism).sound
        worst = np.inf if row.status == "skipped" else max(row.lift_most, -row.lift_least)
        expected = "unsound" if worst > row.claimed + 1e-9 else "sound" if promised else "no promise"
        assert row.status in (expected, "skipped"), label
        assert row.status == "sound" or not row.may_win
        assert row.status != "unsound" or not promised, label
    assert rows["crr"].status == "unsound"
    assert rows["randomized_response at 2ε"].claimed == 1.0
    assert not rows["randomized_response at 2ε"].may_win
    assert rows["optimal"].lift_most == pytest.approx(0.5)
    assert rows["tree, 2 at a time"].claimed == 1.0
    assert rows["tree, 2 at a time"].lift_scope == "releases"
    marked = {row.label: mark for row, mark in winners(list(rows.values()))}
    best = min((row for row in rows.values() if row.may_win), key=lambda row: row.filtered)
    assert marked[best.label] == "★ "


def test_a_mechanism_that_refuses_gives_a_row_that_says_so(chain):
    arena = Arena.of(chain, ragged(chain, [6] * 3))
    row = race(arena, Contestant("optimal", factor=2), 12.0)
    assert row.status == "skipped"
    assert row.reason.startswith("does not fit: expected epsilon of at most 16")
    many = sv.MarkovModel(np.full(300, 1 / 300), np.full((300, 300), 1 / 300))
    wide = Arena.of(many, ragged(many, [5] * 2))
    assert race(wide, Contestant("batch_lp", batch=5), 1.0).reason.startswith("does not fit")


def test_a_race_is_repeatable_and_the_arena_knows_what_it_depends_on(chain):
    streams = ragged(chain, [6] * 5)
    one, two = (race(Arena.of(chain, streams, seed=4), Contestant("balanced"), 1.0) for _ in range(2))
    assert {**one.to_json(), "micros": 0} == {**two.to_json(), "micros": 0}
    prints = {
        Arena.of(chain, streams, seed=4).fingerprint,
        Arena.of(chain, streams, seed=5).fingerprint,
        Arena.of(chain, streams[::-1], seed=4).fingerprint,
        Arena.of(chain, streams, distortion="absolute", seed=4).fingerprint,
        Arena.of(chain, streams, seed=4, batched_users=3).fingerprint,
        Arena.of(chain, streams, seed=4, fitted=streams[:1]).fingerprint,
    }
    assert len(prints) == 6


def test_intervals_are_those_of_the_users_means():
    from scipy import stats

    sums, counts = np.array([3.0, 1.0, 4.0, 2.0]), np.full(4, 5.0)
    mean, half = clustered(sums, counts)
    low, high = stats.t.interval(0.95, 3, np.mean(sums / 5), stats.sem(sums / 5))
    assert (mean - half, mean + half) == (pytest.approx(low), pytest.approx(high))
    assert clustered(sums[:1], counts[:1]) == (0.6, None)


def test_rate_distortion_of_known_sources():
    def entropy(d):
        return -d * np.log(d) - (1 - d) * np.log(1 - d)

    d = 0.1
    binary = -(0.3 * np.log(0.3) + 0.7 * np.log(0.7)) - entropy(d)
    assert rate_distortion(np.array([[0.3, 0.7]]), binary, distortion.hamming())[0] == pytest.approx(d, abs=1e-9)
    uniform = np.log(5) - entropy(d) - d * np.log(4)
    assert rate_distortion(np.full((1, 5), 0.2), uniform, distortion.hamming())[0] == pytest.approx(d, abs=1e-9)
    assert rate_distortion(np.array([[0.3, 0.7]]), 1.0, distortion.hamming()).tolist() == [0.0]
    with pytest.raises(InputError, match="takes too long"):
        rate_distortion(np.full((1, 400), 1 / 400), 1.0, distortion.absolute(range(400)))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10**6), st.sampled_from([0.2, 0.7, 1.2]))
def test_closed_form_and_iteration_agree(n, seed, rate):
    beliefs = np.random.default_rng(seed).dirichlet(np.ones(n), 3)
    exact = rate_distortion(beliefs, rate, distortion.hamming())
    below = _blahut(beliefs, rate, 1.0 - np.eye(n))
    assert (below <= exact + 1e-9).all()
    assert (below >= exact - 0.03).all()  # few slopes, few iterations


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10**6), st.sampled_from([0.2, 0.7, 1.5, 3.0]), st.booleans())
def test_the_converse_is_below_the_exact_optimum(n, seed, epsilon, numbers):
    belief = ref.random_belief(np.random.default_rng(seed), n)
    costs = distortion.absolute(range(n)) if numbers else distortion.hamming()
    optimum = reference.full_lp(belief, epsilon, costs.matrix(n))
    value = optimum if np.isscalar(optimum) else optimum[0]
    assert single_release(belief[None], epsilon, costs)[0] <= value + 1e-7


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_the_converse_is_met_by_a_fair_coin(epsilon):
    """There the exact optimum errs e^-ε / 2, and the bound can be no higher and is no lower."""
    assert single_release(np.array([[0.5, 0.5]]), epsilon, distortion.hamming())[0] == pytest.approx(
        np.exp(-epsilon) / 2
    )


def test_limits_bound_the_race(chain):
    arena = Arena.of(chain, list(chain.sample(8, 400, seed=5)))
    for epsilon in (0.5, 2.0):
        guess, bound, best = (
            constant(arena, epsilon),
            converse(arena, epsilon),
            race(arena, Contestant("optimal"), epsilon),
        )
        assert bound.error < best.filtered + best.filtered_half + bound.error_half
        assert best.filtered < guess.error
        assert guess.guesses["without_1"] == pytest.approx(1 - guess.error)
        assert guess.guesses["without_1"] == pytest.approx(best.guesses["without_1"])
        assert guess.lift_most == guess.ldp == 0


# From here on: files and the command.


def frame(users=14, seed=5):
    """Users told apart by the number of their events."""
    rng, rows = np.random.default_rng(seed), []
    for user in range(users):
        x = int(rng.integers(4))
        for seq in range(user + 2):
            x = int(rng.integers(4)) if rng.random() < 0.3 else x
            rows.append((f"{SECRET}-{user}", seq, f"{SECRET}-{'abcd'[x]}", float(x)))
    return pl.DataFrame(rows, schema=["user", "seq", "value", "x"], orient="row")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.csv"
    frame().write_csv(path)
    return path


@pytest.fixture
def seqveil(seqveil):
    def run(*args):
        said = seqveil(*args)
        assert SECRET not in said.out + said.err
        return said

    return run


def test_no_user_is_on_both_sides_and_the_seed_draws_them(data, tmp_path):
    def lengths(path, sort=False, **options):
        arena, split = read_arena(path, Division(**options), sort=sort)
        released, kept = ([len(codes) for codes in side] for side in (arena.streams, arena.fitted))
        assert sorted(released + kept) == list(range(2, 16))
        assert (split.test_users, split.fit_users) == (len(released), len(kept))
        assert split.test_events + split.fit_events == frame().height
        return released

    one = lengths(data)
    assert len(one) == 7
    assert lengths(data) == one
    shuffled = tmp_path / "shuffled.csv"
    frame().sample(fraction=1, shuffle=True, seed=1).write_csv(shuffled)
    assert lengths(shuffled, sort=True) == one
    assert len({tuple(lengths(data, seed=seed)) for seed in range(5)}) == 5
    assert len(lengths(data, test_users=3)) == 3
    assert lengths(data, test_users=3) == one[:3]
    assert len(lengths(data, test_share=0.01)) == 1
    assert len(lengths(data, test_share=0.99)) == 13


def test_the_chain_is_fitted_on_the_others_alone(data):
    arena, _ = read_arena(data, Division(smoothing=0.5))
    alone = sv.MarkovModel.fit([codes.tolist() for codes in arena.fitted], n=4, smoothing=0.5)
    np.testing.assert_allclose(arena.model.initial, alone.initial)
    np.testing.assert_allclose(arena.model.chain.toarray(), alone.chain.toarray())


QUICK = ("--epsilon", "0.5,2", "--mechanisms", "balanced,randomized_response,crr", "--batch", "1")
FEW = ("--epsilon", "0.5,2", "--mechanisms", "optimal,crr,tree", "--batch", "2")


def test_the_command_prints_tables_and_draws(seqveil, data, tmp_path):
    code, out, err = seqveil("compare", data, *FEW, "--plot", tmp_path / "race.png")
    assert code == 0, err
    assert out.count("an event, hamming error") == 2
    assert "✗ unsound" in out
    assert "★" in out
    assert "limits" in out
    assert (tmp_path / "race.png").read_bytes().startswith(b"\x89PNG")


def test_json_holds_everything(seqveil, data):
    code, out, _ = seqveil("compare", data, *FEW, "--batched-users", 3, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["private"] is False
    assert (told["fit_users"], told["test_users"], told["symbols"]) == (7, 7, 4)
    labels = ["optimal", "optimal, pulsed", "crr", "tree, 2 at a time", "best guess, no release"]
    assert [row["label"] for row in told["rows"]][:5] == labels
    assert len(told["rows"]) == 12
    users = {row["label"]: row["users"] for row in told["rows"]}
    assert (users["optimal"], users["tree, 2 at a time"]) == (7, 3)
    assert {row["status"] for row in told["rows"] if row["mechanism"] == "crr"} <= {"unsound", "no promise"}


def test_other_costs_and_points(seqveil, tmp_path):
    path = tmp_path / "numbers.csv"
    frame().write_csv(path)
    args = ("compare", path, "--value-column", "x", "--levels", 3, "--distortion", "absolute", "--json")
    code, out, err = seqveil(*args, "--epsilon", 1, "--mechanisms", "topl,balanced")
    assert code == 0, err
    rows = {row["label"]: row for row in json.loads(out)["rows"]}
    assert rows["converse, ε at each symbol"]["error"] < rows["best guess, no release"]["error"]
    assert rows["topl"]["ldp"] <= 1 + 1e-9


def same(one, two):
    return [{**row, "micros": 0} for row in one["rows"]] == [{**row, "micros": 0} for row in two["rows"]]


def test_a_second_run_goes_on_where_the_first_ended(seqveil, data, tmp_path):
    folder = tmp_path / "race"
    run = ("compare", data, *QUICK, "--json")
    whole, first = (json.loads(seqveil(*run, *more)[1]) for more in ((), ("--out", folder)))
    book = folder / "rows.jsonl"
    lines = book.read_text().splitlines(keepends=True)
    assert len(lines) == 12
    book.write_text("".join(lines[:9]) + lines[9][:50])  # cut short in the middle of a row
    code, out, err = seqveil(*run, "--out", folder)
    again = json.loads(out)
    assert code == 0
    assert err == f"9 of 12 rows stand in {folder}; the others are made now\n"
    assert again["resumed"] == 9
    assert same(first, again)
    assert same(first, whole)
    assert [row["micros"] for row in again["rows"][:9]] == [row["micros"] for row in first["rows"][:9]]
    assert "nothing is left to do" in seqveil(*run, "--out", folder)[2]
    assert json.loads(seqveil(*run, "--out", folder, "--seed", 1)[1])["resumed"] == 0
    assert json.loads(seqveil(*run, "--out", folder, "--smoothing", 2)[1])["resumed"] == 0
    assert SECRET not in book.read_text()


def test_damaged_lines_are_passed_over(tmp_path):
    row = Row("a", "a", 1.0, "unsound", lift_most=np.inf)
    job = Job("a", 1.0, "key", 1, lambda progress: row)
    RowBook(tmp_path).keep(job, row)
    path = tmp_path / "rows.jsonl"
    path.write_text("[]\n{}\n3\n\n" + path.read_text())
    assert RowBook(tmp_path).find(job) == row
    with pytest.raises(DataError, match="is a file"):
        RowBook(path)


def test_an_interrupted_run_says_what_stands(data, tmp_path):
    folder = tmp_path / "race"
    args = [
        sys.executable,
        "-m",
        "seqveil",
        "compare",
        data,
        "--mechanisms",
        "optimal,tree",
        "--batch",
        "1,3",
        "-o",
        folder,
    ]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        book = folder / "rows.jsonl"
        while process.poll() is None and not (book.exists() and book.stat().st_size):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = (part.decode() for part in process.communicate())
    stands = len(book.read_text().splitlines())
    assert (process.returncode, out) == (1, "")
    assert err == f"interrupted; {stands} of 24 rows stand in {folder}: the same command goes on from there\n"


def test_bad_input_is_one_line(seqveil, data, tmp_path):
    alone = tmp_path / "alone.csv"
    alone.write_text(f"user,value\n{SECRET},{SECRET}\n{SECRET},{SECRET}\n")
    cases = {
        "no such file": (tmp_path / "none.csv",),
        "expected a mechanism among": (data, "--mechanisms", "optimal,nonsense"),
        "names of mechanisms": (data, "--mechanisms", ","),
        "above 0": (data, "--epsilon", "0"),
        "holds 1 user": (alone,),
        "--test-share between": (data, "--test-share", "1"),
        "--test-users from 1 to 13": (data, "--test-users", "14"),
        "whole numbers ≥ 1": (data, "--batch", "0,5"),
        "expected a picture": (data, "--plot", tmp_path / "race.doc"),
        "is a file": (data, "--out", alone),
        "a seed": (data, "--seed", "-1"),
        "at least 1 user": (data, "--batched-users", "0"),
        "needs numbers": (data, "--distortion", "absolute"),
    }
    for expected, args in cases.items():
        code, out, err = seqveil("compare", *args)
        assert (code, out, err.count("\n")) == (2, "", 1), (expected, err)
        assert err.startswith("error: "), expected
        assert expected in err, err


def test_help_says_that_it_is_no_release(seqveil):
    code, out, _ = seqveil("compare", "--help")
    assert code == 0
    assert "nothing it makes is private" in " ".join(out.split())
    for parameter in typer.main.get_command(app).commands["compare"].params:
        for spelling in parameter.opts if parameter.param_type_name == "option" else ():
            assert spelling in out


def test_the_picture_tells_the_unsound_from_the_limits(chain):
    arena = Arena.of(chain, ragged(chain, [6] * 6))
    made = [job.make(lambda events: None) for job in jobs(arena, [0.5, 1.0], line_up(["optimal", "crr"], [1]))]
    lines = {line.get_label(): line for line in plots.comparison(made, "hamming").axes[0].lines}
    assert (lines["crr"].get_linestyle(), lines["crr"].get_marker()) == ("--", "x")
    assert lines["optimal"].get_linestyle() == "-"
    assert len(set(lines["best guess, no release"].get_color()[1:3])) <= 2
    assert lines["best guess, no release"].get_linestyle() == ":"


def test_a_set_is_named_only_where_its_folder_is_known(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("SEQVEIL_DATA", raising=False)
    assert main(["compare", "msnbc"]) == 2
    assert "SEQVEIL_DATA" in capsys.readouterr().err
    assert main(["compare", "msnbc", "--data", str(tmp_path), "--bins", "5"]) == 2
    assert "--bins is for files" in capsys.readouterr().err
    assert main(["compare", "gaze_vr:side=x", "--data", str(tmp_path)]) == 2
    assert "gaze_vr:side=10" in capsys.readouterr().err


def test_people_of_a_set_are_never_on_both_sides(monkeypatch):
    """A stand-in of the same shape: 12 people, two recordings each, told apart by a symbol of their own."""
    people = np.repeat(np.arange(12), 2)
    frame = pl.DataFrame({"user": np.repeat(np.arange(24), 5), "value": np.repeat(people, 5)})
    index = pl.DataFrame({"user": np.arange(24), "person": people, "recording": np.arange(24), "length": [5] * 24})
    made = datasets.synthetic("clicks", 2, 2)
    own = dataclasses.replace(
        made, streams=frame, index=index, alphabet=Alphabet(range(12)), distortion=distortion.hamming()
    )
    monkeypatch.setattr("seqveil.interfaces.datasets.load", lambda name, folder, **options: own)
    arena, split = set_arena("msnbc", division=Division(test_share=0.25, first=3, seed=1), streams=4)
    assert (split.fit_users, split.test_users, split.fit_events, split.test_events) == (9, 3, 90, 12)
    released = {int(code) for codes in arena.streams for code in codes}
    assert released
    assert not released & {int(code) for codes in arena.fitted for code in codes}
