"""Declared secrets through every interface: released, with a state file and without, audited, refused, served."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

import seqveil as sv
from bridges import Wire, came, core_of
from policies import promise
from reference.mixtures import mixture
from reference.streams import twin
from seqveil.client import Client
from seqveil.core.errors import InputError
from seqveil.core.times import Slots
from seqveil.engine import stream
from seqveil.engine.policy import NO_BOUND, saved_terms
from seqveil.engine.streams import CodeStreams
from served import WORDS, running, words_model

NAMES = ["news", "sports", "health"]
MODEL = sv.MarkovModel([0.5, 0.3, 0.2], [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]], alphabet=NAMES)
LENGTH, USERS = 5, 8
PROMISE = re.compile(r"at most|factor|\bkept\b|nobody|stays between")


def write(path, model, length, users, seed=3):
    """Streams of a model, user by user."""
    codes = model.sample(length, users, seed=seed)
    names = model.alphabet.values
    rows = [(f"u{user}", seq, names[code]) for user, own in enumerate(codes) for seq, code in enumerate(own)]
    pl.DataFrame(rows, schema=["user", "seq", "value"], orient="row").write_csv(path)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    MODEL.save("m.model")
    write("d.csv", MODEL, LENGTH, USERS)
    return tmp_path


def worst(secret, setting, released, model=MODEL) -> float:
    """The most that the odds of any window moved for any user, from the columns of the public kernels."""
    most = 0.0
    for _, own in released.group_by("user"):
        state, tracker = stream.State.start(setting), sv.secrets.SecretTrackers.start(model, secret)
        for code in MODEL.alphabet.encode(own["value"].to_list()):
            seen, state = stream.observe(setting, state, np.array([code]))
            tracker = tracker.observe(seen.columns[0])
        most = max(most, tracker.rows[0][0].worst.worst())
    return most


GUARDED = ("--mechanism", "guarded", "--secret", "ever:health", "--secret-epsilon", "0.5")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "window"),
    [(("--policy", "p.toml"), "3"), (("--epsilon", 1), "stream"), (("--mechanism", "balanced", "-e", 2), "2")],
)
def test_the_account_of_an_audit_is_that_of_every_stream(seqveil, files, how, window):
    """Of every mechanism, and of other secrets than those that were kept."""
    sv.Policy(secrets=sv.secrets.ever("health", epsilon=0.5, window=3), side_information=0.0).save("p.toml")
    made = seqveil("release", "d.csv", "-m", "m.model", *how, "--out", "r.csv")
    assert made.code == 0, made.err
    found = seqveil("audit", "r.csv", "-m", "m.model", "--secret", "ever:health", "--secret-window", window, "--json")
    disclosed = found.json["secrets"][-1]
    secret = sv.secrets.ever("health", window=None if window == "stream" else int(window), epsilon=1.0)
    setting = saved_terms(json.loads((files / "r.csv.meta.json").read_text())["setting"], MODEL)
    exact = worst(secret, setting, pl.read_csv("r.csv"))
    assert disclosed["log_odds_worst"] == pytest.approx(exact, abs=1e-9)
    assert disclosed["epsilon"] == (0.5 if setting.guards else None)
    assert (disclosed["name"], disclosed["users"]) == ("ever:health", USERS)
    assert "whether health occurs" in disclosed["sentence"]
    assert found.json["passed"]


@pytest.mark.slow
@pytest.mark.parametrize("state", [False, True])
def test_release_audit_and_decode(seqveil, files, state):
    kept = ("--state", "s.db") if state else ()
    args = ("release", "d.csv", "-m", "m.model", *GUARDED, "--secret-window", LENGTH, *kept, "--out", "r.csv")
    made = seqveil(*args, "--json")
    assert made.code == 0, made.err
    assert made.json["secrets"][0]["log_odds_worst"] <= 0.5
    assert made.json["whole_sequence"] == NO_BOUND
    assert made.json["composition"] is None
    meta = json.loads((files / "r.csv.meta.json").read_text(), parse_constant=lambda text: pytest.fail(text))
    assert meta["setting"]["secret"] == [sv.secrets.ever("health", epsilon=0.5, window=LENGTH).to_dict()]
    assert meta["secrets"][0]["log_odds_worst"] == made.json["secrets"][0]["log_odds_worst"]
    assert meta["whole_sequence"] == NO_BOUND
    assert meta["held_out_check"] is None
    assert pl.read_csv("r.csv").columns == ["user", "seq", "value"]
    checks = seqveil("audit", "r.csv", "-m", "m.model", "--json").json["checks"]
    assert (checks["declared"], checks["unchanged"], checks["each_release"]) == (True, True, None)
    said = seqveil("audit", "r.csv", "-m", "m.model").out
    assert NO_BOUND in said
    assert "every declared secret within its ε" in said
    assert seqveil("decode", "r.csv", "-m", "m.model", "--out", "best.csv").code == 0
    assert pl.read_csv("best.csv").height == USERS * LENGTH
    before = (files / "r.csv").read_bytes()
    if state:
        assert "never checked on held-out people" in seqveil(*args).err
        assert (files / "r.csv").read_bytes() == before


REFUSED = [
    (("--secret", "ever:helth", "--secret-epsilon", 0.5), "not in the alphabet"),
    (("--secret", "count:health:9", "--secret-epsilon", 0.5, "--secret-window", 3), "certain or impossible"),
    (("--secret", "ever:health"), "add --secret-epsilon"),
    (("--secret", "ever:health", "--epsilon", 1), "--secret needs an ε; add --secret-epsilon"),
    (("--policy", "p.toml", "--epsilon", 1, "--secret-epsilon", 3), "leave out --secret-epsilon, --epsilon"),
    ((), "pass --epsilon E"),
    (("--secret", "helth", "--secret-epsilon", 1), "written ever:A"),
    (("--secret-epsilon", 1, "--epsilon", 1), "without a secret"),
    (("--secret", "ever:health", "--secret-epsilon", 1, "--secret-window", "day"), "need slots of time"),
    (("--policy", "nowhere.toml"), "no such policy file"),
]


@pytest.mark.parametrize("state", [False, True])
def test_what_cannot_be_kept_is_refused_in_one_line_and_nothing_is_released(seqveil, files, state):
    for args, words in REFUSED:
        kept = ("--state", "s.db") if state else ()
        made = seqveil("release", "d.csv", "-m", "m.model", *args, *kept, "--out", "r.csv")
        assert made.code == 2
        assert words in made.err
        assert len(made.err.strip().splitlines()) == 1
        if (files / "r.csv").exists():  # a run that can be gone on with has made its output
            assert (files / "r.csv").read_text().count("\n") <= 1


OTHER = sv.MarkovModel([0.2, 0.2, 0.6], [[0.2, 0.3, 0.5], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8]], alphabet=NAMES)
MIXED = mixture([MODEL, OTHER], [0.5, 0.5])


@pytest.mark.slow
def test_a_secret_is_kept_from_several_observers(seqveil, files):
    """Each of them reasons by a model of their own; the side file names these, and receivers need them."""
    OTHER.save("other.model")
    MIXED.save("mixed.model")
    names = [str(files / name) for name in ("other.model", "mixed.model")]
    secret = sv.secrets.ever("health", epsilon=0.5, window=5)
    policy = promise(secrets=secret, observers=names, side_information=0.0)  # so that a twin by symbol can follow
    made = seqveil("release", "d.csv", "-m", "m.model", *policy, "--state", "s.db", "--out", "r.csv", "--json")
    assert made.code == 0, made.err
    saved = json.loads((files / "r.csv.meta.json").read_text())["setting"]
    assert saved["observers"] == [OTHER.fingerprint, MIXED.fingerprint]
    without = seqveil("audit", "r.csv", "-m", "m.model")
    assert without.code == 2
    assert "name the models of all of them" in without.err
    assert len(without.err.strip().splitlines()) == 1
    found = seqveil("audit", "r.csv", "-m", "m.model", *policy, "--json")
    assert found.code == 0, found.err
    setting = sv.Policy(secrets=secret, observers=[OTHER, MIXED], side_information=0.0).on(MODEL)
    assert setting.to_dict() == saved
    figures = [worst(secret, setting, pl.read_csv("r.csv"), each) for each in (MODEL, OTHER)]
    assert max(figures) <= found.json["secrets"][0]["log_odds_worst"] + 1e-9 <= 0.5 + 1e-9
    # a release counts for an ended window what later events might still reveal about it, an audit what they did
    assert found.json["secrets"][0]["log_odds_worst"] <= made.json["secrets"][0]["log_odds_worst"] <= 0.5
    assert seqveil("decode", "r.csv", "-m", "m.model", *policy, "--out", "best.csv").code == 0


# audits


@pytest.mark.slow
def test_an_audit_measures_what_nothing_keeps_and_promises_nothing(seqveil, files):
    assert seqveil("release", "d.csv", "-m", "m.model", "-e", 3, "--out", "r.csv").code == 0
    asked = ("audit", "r.csv", "-m", "m.model", "--secret", "ever:health", "--secret-window", LENGTH)
    for epsilon, clause in ((None, ""), (0.5, "did not stay within ε = 0.5"), (40, "stayed within ε = 40")):
        given = () if epsilon is None else ("--secret-epsilon", epsilon)
        found = seqveil(*asked, *given, "--json").json
        (total,) = found["secrets"]
        assert (total["epsilon"], found["checks"]["declared"]) == (None, None)
        assert total["log_odds_worst"] > 0.5
        assert "measured, not promised" in total["sentence"]
        assert clause in total["sentence"]
        assert bool(clause) == ("ε" in total["sentence"])
        (line,) = [line for line in seqveil(*asked, *given).out.splitlines() if line.startswith("secret")]
        assert not PROMISE.search(line), line
    seqveil("release", "d.csv", "-m", "m.model", "-e", 1, "--batch", 3, "--out", "b.csv")
    assert "one by one" in seqveil("audit", "b.csv", "-m", "m.model", "--secret", "ever:health").err


@pytest.mark.slow
def test_an_audit_of_a_kept_secret_says_its_own_promise_whatever_is_asked_beside_it(seqveil, files):
    kept = ("--secret", "ever:health", "--secret-window", LENGTH)
    assert seqveil("release", "d.csv", "-m", "m.model", *kept, "--secret-epsilon", 0.5, "--out", "g.csv").code == 0
    cases = {
        (): [0.5],
        kept: [0.5],
        (*kept, "--secret-epsilon", 0.5): [0.5],
        (*kept, "--secret-epsilon", 2): [0.5, None],
        ("--secret", "ever:sports"): [0.5, None],
    }
    for asked, epsilons in cases.items():
        found = seqveil("audit", "g.csv", "-m", "m.model", *asked, "--json").json
        assert [total["epsilon"] for total in found["secrets"]] == epsilons
        assert found["checks"]["declared"] is True
        assert "move by at most a factor of 1.65" in found["secrets"][0]["sentence"]


# streams that end inside a window

# from work people soon go to the clinic, so that a first event says little about twenty, and all about itself
SOON = sv.MarkovModel(
    [0.75, 0.2, 0.05],
    [[0.1, 0.899, 0.001], [0.899, 0.1, 0.001], [0.005, 0.005, 0.99]],
    alphabet=["work", "clinic", "home"],
)
TWENTY = sv.secrets.ever("clinic", epsilon=0.5, window=20)


@pytest.mark.slow
def test_one_event_streams_are_not_called_kept_and_not_graded_green(seqveil, files):
    """Windows of 20 and one event each: "clinic" moves the odds of that event by e^4.3, those of twenty by less."""
    write("one.csv", SOON, 1, 500)
    SOON.save("soon.model")
    kept = ("--secret", "ever:clinic", "--secret-epsilon", 0.5, "--secret-window", 20)
    made = seqveil("release", "one.csv", "-m", "soon.model", *kept, "--out", "r.csv")
    said = "the first window of these 500 streams is not over"
    assert f"{said}: the bound is about the whole window" in made.err
    found = seqveil("audit", "r.csv", "-m", "soon.model", "--json", "--html", "report.html").json
    page = (files / "report.html").read_text()
    assert (found["grade"], found["checks"]["declared"]) == ("red", None)
    assert found["secrets"][0]["without_window"] == 500
    assert said in found["grade_why"]
    assert said in page
    assert "within its ε, in every whole window" not in page


@pytest.mark.slow
def test_some_streams_end_inside_a_window_and_some_do_not():
    lengths = {"short": 3, "whole": 20, "longer": 25, "twice": 40, "one": 1}
    names = np.array(SOON.alphabet.decode(range(3)))[SOON.sample(40, 5, seed=2)]
    rows = [(user, name) for own, user in zip(names, lengths, strict=True) for name in own[: lengths[user]]]
    frame = pl.DataFrame(rows, schema=["user", "value"], orient="row")
    released = sv.release(frame, SOON, secrets=[TWENTY])
    (total,) = released.account.secrets
    assert (total.users, total.without_window, total.inside_window, total.kept) == (5, 2, 1, True)
    audited = sv.audit(released, SOON)
    for shown in (released, audited):
        said = shown._repr_html_()
        assert "the first window of 2 of 5 streams is not over" in said
        assert "the last window of 1 of 5 streams is not over" in said
    assert (released.account.grade, audited.graded.colour) == ("unchecked", "unchecked")
    assert not sv.release(frame, SOON, secrets=[sv.secrets.ever("clinic", epsilon=0.5)]).account.secrets[0].unkept


# the hours of a clock

NIGHTS = sv.secrets.during("clinic", (22, 6), epsilon=0.5)
MAY = 1_714_953_600.0 + 14 * 3600  # 6 May 2024, 14:00 UTC


def nightly():
    rows = [[0.8, 0.15, 0.04, 0.01], [0.3, 0.65, 0.04, 0.01], [0.5, 0.3, 0.19, 0.01], [0.4, 0.4, 0.1, 0.1]]
    places = sv.Alphabet(["home", "work", "clinic", "nothing"]).with_slots(Slots(3600))
    return sv.Policy(secrets=NIGHTS).on(sv.MarkovModel([0.6, 0.3, 0.05, 0.05], rows, alphabet=places))


def clinic(people: int, days: int = 3) -> pl.DataFrame:
    """Rows by the hour from 14:00 on; half of the nights somebody is at the clinic at two."""
    rng, rows = np.random.default_rng(1), []
    for person in range(people):
        for now in (datetime(2024, 5, 6, 14) + timedelta(hours=k) for k in range(24 * days)):
            value = "work" if 9 <= now.hour < 17 and rng.random() < 0.8 else "home"
            value = "clinic" if now.hour == 2 and rng.random() < 0.5 else value
            rows.append((f"p{person:02}", now.isoformat(timespec="minutes"), value))
    return pl.DataFrame(rows, schema=["user", "time", "value"], orient="row")


@pytest.mark.slow
def test_a_file_that_begins_at_14h_hides_the_clinic_at_two(files, seqveil):
    """The hours are the clock's, here two ahead of UTC: rows at 02h are not released as they are, those by day are."""
    raw = clinic(30)
    raw.with_columns(pl.col("time") + ":00+02:00").write_csv("raw.csv")
    fitted = seqveil("fit", "raw.csv", "-o", "n.model", "--every-seconds", 3600, "--smoothing", 1, "--utc-offset", 2)
    assert fitted.code == 0, fitted.err
    secret = ("--secret", "during:clinic:22-6", "--secret-epsilon", 0.5)
    assert seqveil("release", "raw.csv", "-m", "n.model", *secret, "-o", "out.csv").code == 0
    clock = pl.col("time").str.slice(0, 19).str.to_datetime() + timedelta(hours=2)  # slots are written in UTC
    released = pl.read_csv("out.csv", infer_schema=False).with_columns(clock.dt.strftime("%Y-%m-%dT%H:%M"))
    both = raw.join(released.select("user", "time", out="value"), on=["user", "time"])
    nights = both.filter(pl.col("time").str.ends_with("T02:00"), value="clinic")
    assert nights.height > 30
    assert (nights["out"] == "clinic").mean() <= 0.15
    assert (both["out"] == both["value"]).mean() > 0.9
    audited = seqveil("audit", "out.csv", "-m", "n.model")
    assert "every declared secret within its ε" in audited.out  # under a chain, which these nights do not follow


# services, bridges and jobs


def guarded(model, value, **more):
    return sv.Policy(secrets=sv.secrets.ever(value, epsilon=0.5, window=4), **more).on(model)


@pytest.mark.slow
def test_a_service_keeps_secrets_and_tells_where_users_stand(tmp_path):
    setting = guarded(words_model(), "gym")
    with running(tmp_path, setting) as service:
        with Client(service.url, service.secret) as client:
            made = client.release_many([("ann", seq, WORDS[seq % 4]) for seq in range(6)])
            assert {(each.status, each.epsilon) for each in made} == {("released", None)}
            account, again = client.account("ann"), list(client.releases("ann"))
        assert [each.value for each in again] == [each.value for each in made]
        answer = service.ask("GET", "/v1/users/ann").json["account"]
    assert account.whole_sequence == answer["whole_sequence"] == NO_BOUND
    assert abs(account.secrets[0].log_odds) <= 0.5
    with CodeStreams.open(tmp_path / "state.db", setting, key=bytes(range(32))) as store:
        assert account.secrets == store.account("ann").secrets


@pytest.mark.slow
def test_a_service_says_where_something_is_withheld(tmp_path):
    setting = guarded(words_model(), "gym", withhold=True)
    with running(tmp_path, setting) as service, Client(service.url, service.secret) as client:
        made = client.release_many([("ann", seq, "gym") for seq in range(4)])
        assert {(each.status, each.value) for each in made} <= {("withheld", None), ("released", "gym")}
        assert "withheld" in {each.status for each in made}
        assert [each.status for each in client.releases("ann")] == [each.status for each in made]


@pytest.mark.slow
def test_a_service_asks_for_the_times_of_events(tmp_path):
    with running(tmp_path, nightly()) as service:
        assert "expected a time" in service.release({"user": "ann", "seq": 0, "value": "home"}).json["detail"]
        events = [{"user": "ann", "seq": k, "value": "home", "time": MAY + 3600 * k} for k in range(3)]
        assert service.release(*events).status == 200
        late = {"user": "ann", "seq": 3, "value": "home", "time": MAY + 4 * 3600}
        assert "one event in each slot" in service.release(late).json["detail"]
        assert service.release(late | {"time": MAY + 3 * 3600}).status == 200


def test_a_bridge_in_slots_keeps_the_hours_of_its_clock():
    store, hours, now = CodeStreams(nightly()), iter(range(1, 20)), MAY

    def later():
        nonlocal now
        now = MAY + 3600.0 * next(hours)
        return []

    core_of(store, "json:v", Wire([came("ann", {"v": "home"})], *[later] * 19), clock=lambda: now).run()
    assert store.account("ann").events == 19
    assert store.secrets()[0].log_odds_worst <= 0.5
    with pytest.raises(InputError, match="one event in each slot"):
        store.release(["ann"], [0], times=[MAY])  # its slots are those of the clock


def test_a_job_of_spark_keeps_hours_from_one_micro_batch_to_the_next():
    pytest.importorskip("pyspark")
    import sparks

    setting, salt, key, kept = nightly(), bytes(16), bytes(range(32)), sparks.MapState()
    randomness, whole, codes = (
        sv.randomness.KeyedRandomness(key),
        twin(setting.by_symbol, salt, key),
        setting.model.sample(12)[0],
    )
    for k in range(12):
        made = sparks.bucket(setting, kept, randomness, salt).release(["ann"], codes[[k]], [k], [MAY + 3600.0 * k])
        assert made.codes.tolist() == whole.release(["ann"], codes[[k]], [k], [MAY + 3600.0 * k]).codes.tolist()


# zones

PLACES = "the zone is public: name places that are the same for everyone, never one person's home"
PUBLIC = ("public", f"{PLACES}; its radius is in the units of the values")


def test_whoever_declares_a_zone_hears_that_it_is_public():
    """The place stands in what is handed out, so it is said where it is declared, and for other secrets it is not."""
    grid = sv.Grid.regular(3, 3, bounds=(0, 3, 0, 3))
    model = sv.MarkovModel(np.full(9, 1 / 9), np.full((9, 9), 0.05) + 0.55 * np.eye(9), alphabet=grid)
    points = grid.points[model.sample(4, 6, seed=1).ravel()]
    frame = pl.DataFrame({"user": np.repeat(np.arange(6), 4), "x": points[:, 0], "y": points[:, 1]})
    zone = sv.secrets.zone(centre=(0.5, 0.5), radius=0.3, epsilon=1.0, window=4)
    for secret, said in ((zone, True), (sv.secrets.pattern("'0.5,0.5'", epsilon=1.0, window=4), False)):
        assert (PUBLIC in sv.release(frame, model, secrets=secret, value="x,y").lines()) == said
