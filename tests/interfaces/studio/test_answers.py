"""The page without a browser: what it shows is what the library does, for any file that `inspect` reads."""

import gzip
import io
import json
import math
import random
import shlex
import sys
import tomllib

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

import seqveil as sv
from seqveil.core.errors import InputError
from seqveil.interfaces.cli import main
from seqveil.interfaces.files.inspection import inspect
from seqveil.interfaces.studio.answers import Studio
from seqveil.interfaces.studio.picture import PictureRun, offers
from seqveil.interfaces.studio.serving import _answered as answered
from seqveil.interfaces.studio.source import SAMPLES, sample
from seqveil.interfaces.studio.upload import Upload, UploadChoice, here, loaded
from studios import asked, finish

POWER = {"distortion": "absolute", "epsilon": 1.0}
HIGH = {"distortion": "absolute", "secret": [{"ever": [8], "epsilon": 1.0, "window": 4}]}
SETTINGS = {
    "plain": ("clicks", {"epsilon": 1.0}),
    "budget": ("clicks", {"epsilon": 1.0, "budget": {"total": 9.5}}),
    "stop": ("clicks", {"epsilon": 1.0, "mechanism": "balanced", "budget": {"total": 6.0, "when_spent": "stop"}}),
    "window": ("clicks", {"epsilon": 1.0, "budget": {"window": {"epsilon": 2.5, "releases": 8}}}),
    "whole stream": ("clicks", {"budget": {"total": 1.0, "over": 1000}}),
    "batches": ("power", {**POWER, "mechanism": "tree", "batch": 5, "epsilon": 4.0}),
    "tree": ("gaze", {"distortion": "euclidean", "mechanism": "tree", "epsilon": 1.0}),
    "blocks": ("power", {**POWER, "block": 5, "epsilon": 4.0}),
    "blocks, budget": ("clicks", {"block": 4, "epsilon": 3.0, "budget": {"total": 7.0}}),
    "unsound": ("clicks", {"epsilon": 1.0, "mechanism": "crr"}),
    "ever": ("power", HIGH),
    "first": ("power", {"secret": [{"ever": [8], "epsilon": 1.0, "window": "first 30"}]}),
    "count": ("power", {"secret": [{"count": [8], "at_least": 3, "epsilon": 1.0, "window": 10}]}),
    "both": ("power", {"epsilon": 1.5, "secret": [{"followed_by": [8], "then": [2], "epsilon": 1.0, "window": 10}]}),
    "zone": ("gaze", {"secret": [{"zone": {"centre": [3.5, 3.5], "radius": 1.01}, "epsilon": 1.0, "window": 5}]}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given"),
    [pytest.param(*each, id=key, marks=pytest.mark.slow if key == "both" else ()) for key, each in SETTINGS.items()],
)
def test_a_picture_is_what_a_session_releases_and_its_account(name, given):
    shown, source, policy = finish(Studio(), name, given, events=30, person=1), sample(name), sv.Policy.from_dict(given)
    session, alphabet = sv.Session(source.model, policy, seed=1), source.model.alphabet
    raw, size = alphabet.decode(source.streams[1][:30]), policy.batch
    parts = [raw[at : at + size] for at in range(0, len(raw) - size + 1, size)]
    released = [session.release(x) for x in raw] if size == 1 else [y for x in parts for y in session.release_batch(x)]
    assert [None if code < 0 else alphabet.decode([code])[0] for code in shown["series"]["released"]] == released
    account, figures = session.account, shown["figures"]
    for figure, value in (("leakage", account.leakage), ("composition", account.epsilon_spent)):
        assert figures[figure] == (pytest.approx(value, rel=1e-5) if math.isfinite(value) else None)
    if policy.secrets:
        assert shown["secret"]["odds"][-1] == pytest.approx(account.secrets[0].log_odds, rel=1e-4, abs=1e-6)
        assert max(map(abs, shown["secret"]["odds"])) <= policy.secrets[0].epsilon
    if policy.block > 1:
        assert shown["mechanism"] == "blocks"
    steps = session.paths if session.setting.in_batches else released
    beliefs = sv.decode_stream(source.model, steps, policy, smooth=False)
    assert shown["series"]["decoded"] == session.setting.distortion.best_guess(beliefs).tolist()
    assert sv.Policy.from_dict(tomllib.loads(shown["toml"])) == policy
    json.dumps(shown, allow_nan=False)


@pytest.mark.slow
def test_the_promise_does_not_depend_on_how_much_is_shown_or_of_whom():
    studio = Studio()
    for name in ("whole stream", "ever", "plain"):
        source, policy = SETTINGS[name]
        few, many = (finish(studio, source, policy, events=n, person=n % 3) for n in (5, 30))
        assert all(few[part] == many[part] for part in ("risk", "promise", "toml", "steps"))
    assert "step 3" in many["risk"]["remedy"]
    colours = [
        finish(studio, *SETTINGS[name])["risk"]["colour"] for name in ("plain", "unsound", "whole stream", "ever")
    ]
    assert colours == ["red", "red", "unchecked", "unchecked"]


def test_a_moment_shows_the_first_events_and_asking_again_goes_on(monkeypatch):
    whole = finish(Studio(), *SETTINGS["plain"], events=6)
    monkeypatch.setattr("seqveil.interfaces.studio.answers.SLICE", 0.0)
    studio = Studio()
    for done in range(1, 7):
        shown = studio.show(**asked(*SETTINGS["plain"], events=6))
        assert (shown["done"], shown["events"], shown["complete"]) == (done, 6, done == 6)
        assert all(shown["series"][name] == values[:done] for name, values in whole["series"].items())
        assert shown["promise"] == whole["promise"]
    assert shown == whole


def test_a_trait_is_kept_by_the_label_of_each_person():
    rng = random.Random(1)
    people = [(k, "yes" if k % 3 else "no") for k in range(240)]
    rows = [f"{k},{label},{rng.choice('aab' if label == 'no' else 'abb')}" for k, label in people for _ in range(30)]
    studio = Studio(Upload.of("\n".join(["user,ill,value", *rows]).encode(), "d.csv"), UploadChoice(trait="ill"))
    name = studio.begin()["upload"]["upload"]
    assert studio.load(upload=name, columns={"trait": "ill"})["trait"] == "ill"
    shown = finish(studio, name, {"secret": [{"trait": "ill", "epsilon": 0.5}]}, events=10)
    assert max(map(abs, shown["secret"]["odds"])) <= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_offered_runs(name):
    source, costs = sample(name), sample(name).start["distortion"]
    for more in ({}, {"batch": 3}, {"budget": 3.0}):
        policy = sv.Policy(2.0, distortion=costs, **more)
        fit = [each["name"] for each in offers(source, policy) if not each["why_not"]]
        assert fit
        for mechanism in fit:
            made = sv.Policy(2.0, mechanism=mechanism, distortion=costs, **more).on(source.model)
            run = PictureRun(made, source.streams[0][:4], 1)
            run.go()
            assert run.complete


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
LINES = ("epsilon", "batch", "secret", "budget", "mechanism", "distortion", "withhold", "observers", "more")
POLICIES = st.dictionaries(st.sampled_from(LINES), JSON, max_size=4) | st.just({"epsilon": 1.0})
ANSWERS = ("show", "offers", "source", "load", "look")


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.text(max_size=8), JSON, max_size=3)
    | st.fixed_dictionaries({"source": st.just("clicks"), "policy": POLICIES | JSON})
    | st.fixed_dictionaries(
        {"source": st.just("clicks"), "policy": POLICIES, "person": JSON, "events": JSON, "seed": JSON}
    )
    | POLICIES.map(lambda policy: asked("clicks", policy, events=2))
)
def test_no_request_gets_anything_but_an_answer_or_one_line(given):
    studio = Studio()
    for name in ANSWERS:
        refusal = ""
        try:
            json.dumps(answered(getattr(studio, name), **given), allow_nan=False)
        except HTTPException as error:
            refusal = error.detail
        assert "\n" not in refusal


# files

PAGES = ("home", "Travel and public transport", "cart", "clinic")
DRAWN = np.random.default_rng(0)
WHO = np.repeat([f"p{k:02}" for k in range(40)], 20)
TIMES = np.tile(1_700_000_000 + 60 * np.arange(20), 40)
CLICKS = pl.DataFrame({"person": WHO, "page": DRAWN.choice(PAGES, WHO.size, p=[0.5, 0.3, 0.17, 0.03])})
NUMBERS = pl.DataFrame({"user": WHO, "time": TIMES, "value": DRAWN.normal(70, 9, WHO.size).round(1)})
NORTH, EAST = 48.85 + DRAWN.normal(0, 0.02, WHO.size), 2.35 + DRAWN.normal(0, 0.03, WHO.size)
PLACES = pl.DataFrame({"user": WHO, "time": TIMES, "lat": NORTH, "lon": EAST})
HOLES = CLICKS.with_columns(pl.when(pl.int_range(pl.len()) % 7 > 0).then("page").alias("page"))


def parquet(frame):
    held = io.BytesIO()
    frame.write_parquet(held)
    return held.getvalue()


FILES = {
    "clicks.csv": CLICKS.write_csv().encode(),
    "clicks.tsv": CLICKS.write_csv(separator="\t").encode(),
    "clicks.csv.gz": gzip.compress(CLICKS.write_csv(separator=";").encode()),
    "clicks.parquet": parquet(CLICKS),
    "clicks.jsonl": CLICKS.write_ndjson().encode(),
    "holes.csv": HOLES.write_csv().encode(),
    "codes.csv": CLICKS.with_columns("0" + pl.col("page").str.len_chars().cast(str)).write_csv().encode(),
    "rates.csv": NUMBERS[::-1].write_csv().encode(),
    "map.csv": PLACES.write_csv().encode(),
    "plane.parquet": parquet(PLACES.rename({"lat": "x", "lon": "y"})),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_every_file_that_inspect_reads_is_shown_and_its_commands_release_it(name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(FILES[name])
    studio = Studio()
    found = studio.upload(FILES[name], name)
    assert found["problem"] == ""
    made = studio.load(upload=found["upload"], columns=found["chosen"] | {"cut": None})
    shown = finish(studio, made["name"], {**made["start"], "mechanism": "balanced"}, events=5)
    fit, release, audit, attack = map(shlex.split, shown["steps"].strip().splitlines())
    assert fit[3:] == shlex.split(inspect(name).command)[3:]  # what inspect proposes for the file is what is fitted
    (tmp_path / "policy.toml").write_text(shown["toml"])
    for command in (fit, release, audit):
        assert main(command[1:]) == 0, (command, capfd.readouterr().err)
    same = loaded(Upload.of(FILES[name], name), UploadChoice(), "own").model
    assert (sv.MarkovModel.load(fit[4]).alphabet, attack[1]) == (same.alphabet, "attack")


def test_the_model_is_fitted_to_some_people_and_others_are_shown():
    source = loaded(Upload.of(FILES["clicks.csv"], "clicks.csv"), UploadChoice(), "own")
    people = sorted(set(WHO))
    others = CLICKS.filter(~pl.col("person").is_in(people[4::5]))
    alphabet = source.model.alphabet
    assert source.model.fingerprint == sv.fit(others, user="person", value="page", alphabet=alphabet).fingerprint
    shown = [CLICKS.filter(pl.col("person") == name)["page"].to_list() for name in people[4::5]]
    assert [alphabet.decode(codes) for codes in source.streams] == shown


def walks():
    """A page with walks on the map in cells of two kilometres, and the name of their source."""
    studio = Studio()
    found = studio.upload(FILES["map.csv"], "map.csv")
    return studio, studio.load(upload=found["upload"], columns=found["chosen"] | {"cut": 2000})["name"]


def test_places_are_never_shown_in_degrees():
    source = loaded(Upload.of(FILES["map.csv"], "map.csv"), UploadChoice(cut=2000), "own")
    assert source.labels[0].endswith(" north")
    assert source.describe()["step"] == 2000.0
    studio, name = walks()
    centre = source.values[source.rare]
    zone = {"latitude": centre[0], "longitude": centre[1], "metres": 500}
    for secret in ({"zone": zone}, {"ever": [centre]}):
        shown = finish(studio, name, {"secret": [{**secret, "epsilon": 1.0, "window": 10}]}, events=4)
        said = json.dumps([shown[part] for part in ("risk", "promise", "secret")])
        assert source.labels[source.rare] in said
        assert "48." not in said
    [x0, y0, x1, y1] = source.boxes[0]
    assert (x1 - x0, y1 - y0) == (pytest.approx(2000, rel=0.01), pytest.approx(2000, rel=0.01))


def test_an_attack_is_computed_on_people_whom_the_model_was_not_fitted_to(monkeypatch):
    """What it says is what `sv.attack` says of them, without a value of theirs, and places are not in degrees."""
    asked_of, real = [], sv.attack
    monkeypatch.setattr(sv, "attack", lambda *given, **more: asked_of.append(given) or real(*given, **more))
    monkeypatch.setattr("seqveil.interfaces.studio.picture.FEWEST", 2)
    source = loaded(Upload.of(FILES["map.csv"], "map.csv"), UploadChoice(cut=2000), "own")
    policy = {"secret": [{"ever": [source.values[source.rare]], "epsilon": 1.0, "window": 5}]}
    studio, name = walks()
    said = json.dumps(studio.attack(source=name, policy=policy, seed=1))
    assert (source.labels[source.rare] in said, "48." in said) == (True, False)
    [(released, truth)] = asked_of
    assert len(released) == len(truth) == sum(min(5, len(codes)) for codes in source.crowd)
    monkeypatch.undo()
    with pytest.raises(InputError, match="at least 40 people"):
        studio.attack(source=name, policy=policy, seed=1)


BAD = {
    "empty.csv": b"",
    "quote.csv": b'user,value\na,"secret-77\n',
    "cut.jsonl": b'{"user": "secret-77"',
    "cut.csv.gz": gzip.compress(b"user,value\na,secret-77\n")[:20],
    "no.parquet": b"secret-77",
    "no.txt": b"user,value\na,secret-77\n",
    "one.csv": b"user,value\na,secret-77\nb,secret-77\n",
    "nobody.csv": b"week,page\n1,secret-77\n2,b\n",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_is_refused_in_one_line_that_holds_none_of_it(name):
    studio = Studio()
    try:
        found = studio.upload(BAD[name], name)
        refusal = found["problem"]
        if not refusal:
            studio.load(upload=found["upload"], columns=found["chosen"])
    except InputError as error:
        refusal = str(error)
    assert refusal
    assert "\n" not in refusal
    assert "secret-77" not in refusal
    assert "user=" not in here(refusal)  # which is how a visitor of the page reads it


def test_columns_that_are_chosen_are_looked_at_as_chosen():
    weeks = b"person,week,hour,tile\n" + b"".join(
        b"p%d,%d,%d,t%d\n" % (k // 8, k % 8 // 4, k % 4, k * 7 % 3) for k in range(160)
    )
    studio = Studio()
    found = studio.upload(weeks, "own.csv")
    assert found["chosen"] == {"user": "person", "value": "tile", "time": "", "trait": ""}
    name = found["upload"]
    other = studio.look(upload=name, columns={"user": "person", "value": "hour", "time": ""})
    assert (other["chosen"]["value"], other["problem"]) == ("hour", "")
    for columns in ({"value": "tile", "time": "tile"}, {"user": "tile", "value": "tile"}):
        assert "different column" in studio.look(upload=name, columns=columns)["problem"]
    with pytest.raises(InputError, match="still to be chosen"):
        studio.show(**asked(name, {"epsilon": 1.0}))
    begun = Studio(Upload.of(weeks, "own.csv"), UploadChoice(value="hour")).begin()
    assert begun["upload"]["chosen"]["value"] == "hour"


def test_only_the_file_used_last_stays_in_memory():
    studio = Studio()

    def load():
        found = studio.upload(FILES["clicks.csv"], "clicks.csv")
        return studio.load(upload=found["upload"], columns=found["chosen"])["name"]

    first = load()
    studio.upload(FILES["clicks.tsv"], "clicks.tsv")
    assert finish(studio, first, {"epsilon": 1.0}, events=3)["complete"]  # until the other one is used
    second = load()
    assert finish(studio, second, {"epsilon": 1.0}, events=3)["complete"]
    with pytest.raises(InputError, match="load it again"):
        studio.show(**asked(first, {"epsilon": 1.0}))
    with pytest.raises(InputError, match="load it again"):
        studio.load(upload=first, columns={})
    assert "clinic" not in repr(vars(studio))


opened: list[str] | None = None


def test_nothing_that_is_loaded_is_written_to_a_disk():
    global opened
    sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" and opened is not None
                     and given[1] not in (None, "r", "rb") else None)  # fmt: skip
    studio = Studio()
    opened = []
    for name in ("clicks.csv.gz", "plane.parquet"):
        found = studio.upload(FILES[name], name)
        made = studio.load(upload=found["upload"], columns=found["chosen"])
        studio.show(**asked(made["name"], {"epsilon": 1.0, "mechanism": "balanced"}, events=4))
    written, opened = opened, None
    assert written == []
