"""What the page says is what the library does: figures against `seqveil audit`, any request, and no data out."""

import json
import math
import shlex

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqveil import mechanisms
from seqveil.core.distortion import resolve
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.interfaces.cli import main
from seqveil.interfaces.studio import Ask, builtin, picture
from seqveil.interfaces.studio.ask import offers
from seqveil.interfaces.studio.exports import python
from seqveil.interfaces.studio.picture import PictureRun, factor
from seqveil.interfaces.studio.sandbox import Curve, Sandbox
from seqveil.interfaces.studio.sources import BUILTIN, loaded, sampled
from seqveil.interfaces.studio.uploads import Cut, rows_of_file
from seqveil.receiver.decode import decode_codes, decode_paths
from served import words_model
from studios import finish

POWER = {"source": "power", "distortion": "absolute", "epsilon": 1.0}
BALANCED = {"source": "clicks", "mechanism": "balanced", "epsilon": 1.0}
GAZE = {"source": "gaze", "distortion": "euclidean", "epsilon": 1.0}
SETTINGS = {
    "plain": {"source": "clicks", "events": 120, "epsilon": 1.0},
    "pulsed": {**POWER, "events": 60, "every": 4, "epsilon": 0.7, "stream": 3, "seed": 5},
    "budget": {"source": "clicks", "events": 80, "epsilon": 1.0, "budget": 9.5},
    "stop": {**BALANCED, "events": 60, "budget": 6.0, "when_spent": "stop"},
    "window": {**BALANCED, "mechanism": "randomized_response", "events": 90, "window": 2.5, "window_releases": 8},
    "batches": {**POWER, "events": 47, "mechanism": "tree", "batch": 5, "epsilon": 0.8},
    "batches with a budget": {**POWER, "events": 40, "mechanism": "tree", "batch": 4, "budget": 7.0, "every": 2},
    "tree": {**GAZE, "events": 40, "mechanism": "tree", "every": 2},
    "unsound": {"source": "clicks", "events": 60, "mechanism": "crr", "epsilon": 1.0},
    "without bound": {"source": "clicks", "events": 30, "mechanism": "mutual_information", "epsilon": 1.0},
}


def run_lines(lines, folder, monkeypatch, capfd, seed=None):
    """Run the commands that the page shows: as they stand, or with a seed."""
    monkeypatch.chdir(folder)
    out = []
    for line in lines.splitlines():
        words = shlex.split(line)
        assert words[0] == "seqveil"
        words += ["--seed", str(seed)] if seed is not None and words[1] == "release" else []
        code = main(words[1:] + (["--json"] if words[1] == "audit" else []))
        out.append((code, capfd.readouterr().out))
    return out


def saved(shown, folder):
    """The commands that the page shows, with the files beside them that it saves."""
    (folder / "seqveil-page.json").write_text(json.dumps(shown["configuration"]))
    (folder / "policy.toml").write_text(shown["files"]["toml"])
    return shown["files"]["steps"]


def disclosed(value):
    return float(value) if value in ("inf", "-inf") else value


@pytest.mark.slow
@pytest.mark.parametrize("asked", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_exported_commands_reprint_what_the_page_says(asked, tmp_path, monkeypatch, capfd):
    shown = finish(Sandbox().show, **asked)
    lines, seed = saved(shown, tmp_path), shown["configuration"]["seed"]
    (unpacked, _), (released, _), (audited, text) = run_lines(lines, tmp_path, monkeypatch, capfd, seed)
    figures, report = shown["figures"], json.loads(text)
    assert (unpacked, released, audited) == (0, 0, 1)  # a seeded release is not private, and the audit says so
    assert report["checks"]["unseeded"] is False
    assert report["checks"]["each_release"] or not mechanisms.find(shown["mechanism"]).sound
    for name in ("leakage", "most", "least", "composition", "worst_release", "ldp", "releases", "held"):
        assert disclosed(figures[name]) == pytest.approx(disclosed(report[name]), rel=1e-12), name
    if figures["worst_window"] is not None:
        assert figures["worst_window"] == pytest.approx(report["worst_window"], rel=1e-12)
    if report["composed"] is not None:
        assert figures["with_delta"] == pytest.approx(report["composed"]["best"], rel=1e-12)
    model = MarkovModel.load(tmp_path / "page" / "model.npz")
    names = ("x", "y") if shown["configuration"]["source"] == "gaze" else ("value",)
    raw, out = (codes_of(pl.read_csv(tmp_path / name), names, model) for name in ("page/stream.csv", "released.csv"))
    made = [code for code in shown["series"]["released"] if code >= 0]
    assert out.tolist() == made
    assert raw.tolist() == shown["series"]["raw"]
    kept = [k for k, code in enumerate(shown["series"]["released"]) if code >= 0]
    costs = resolve(shown["configuration"]["distortion"], model.alphabet)
    assert figures["error"] == pytest.approx(costs.between(raw[kept], out).mean(), rel=1e-12)


def codes_of(table, names, model):
    values = table[names[0]].to_list() if len(names) == 1 else list(zip(*(table[name] for name in names), strict=True))
    return model.alphabet.encode(values)


def seeded(script, seed):
    """The script that the page shows, with the seed that its comment names."""
    [line] = [line for line in script.splitlines() if line.startswith("session = ")]
    return script.replace(line, f"{line[:-1]}, seed={seed})")


@pytest.mark.slow
def test_the_exported_commands_are_private_as_they_stand(tmp_path, monkeypatch, capfd):
    shown = finish(Sandbox().show, **SETTINGS["pulsed"])
    *_, (code, text) = run_lines(saved(shown, tmp_path), tmp_path, monkeypatch, capfd)
    report = json.loads(text)
    assert (code, report["passed"], report["checks"]["unseeded"]) == (0, True, True)
    assert shown["figures"]["composition"] == pytest.approx(report["composition"])


@pytest.mark.slow
@pytest.mark.parametrize("asked", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_exported_script_reprints_what_the_page_says(asked, capfd):
    shown = picture(builtin(asked["source"]), Ask.of(asked))
    exec(compile(seeded(shown["snippets"]["python"], shown["configuration"]["seed"]), "snippet", "exec"), {})
    leakage, spent = (disclosed(shown["figures"][name]) for name in ("leakage", "composition"))
    assert capfd.readouterr().out == f"leakage {leakage:.6g}, Σε {spent:.6g}\n"


@pytest.mark.slow
@pytest.mark.parametrize("asked", SETTINGS.values(), ids=SETTINGS.keys())
def test_what_is_made_little_by_little_is_what_is_made_at_once(asked):
    ask = Ask.of(asked)
    whole, part = (PictureRun(builtin(ask.source), ask) for _ in range(2))
    whole.go()
    counts = []
    while not part.complete:
        part.go(1e-4)
        counts.append(part.done)
        assert part.online.shape == (1, part.done, whole.source.model.n)
    assert len(counts) > 1
    assert part.released.tolist() == whole.released.tolist()
    for name, values in whole.series.items():
        assert part.series[name].tolist() == values.tolist(), name
    assert (part.hindsight == whole.hindsight).all()
    setting, codes = whole.setting, whole.released[0]
    paths = [sent.path for sent in whole.sent[0]]
    for smooth, distribution in ((False, whole.online[0]), (True, whole.hindsight)):
        if setting.in_batches:
            expected = decode_paths(setting, paths, codes.size, smooth=smooth)
        else:
            expected = decode_codes(setting, codes[None], smooth=smooth)[0]
        assert np.allclose(distribution, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_the_sentence_is_true_and_names_what_is_not_sound():
    for name in mechanisms.instantaneous():
        ask = Ask("clicks", events=40, mechanism=name, epsilon=1.0)
        shown = picture(builtin("clicks"), ask)
        figures = {key: disclosed(value) for key, value in shown["figures"].items()}
        sound = mechanisms.find(name).sound
        assert shown["sentence"].startswith("Under the model, no observer") == sound
        assert factor(figures["claimed"]) in shown["sentence"]
        if sound:
            assert figures["worst_release"] <= figures["claimed"] + 1e-9
            assert figures["leakage"] <= figures["composition"] + 1e-9
        else:
            assert "keep" in shown["sentence"]
            assert factor(figures["worst_release"]).removeprefix("without ") in shown["sentence"]
    assert (
        "does not keep"
        in picture(builtin("clicks"), Ask("clicks", events=40, mechanism="crr", epsilon=1.0))["sentence"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILTIN)
def test_what_is_offered_runs_and_what_is_not_says_why(name):
    source = builtin(name)
    for changed in ({}, {"batch": 3}, {"budget": 3.0}, {"epsilon": 8.0, "every": 3}):
        more = {"epsilon": 1.0, **changed}
        ask = Ask(name, events=4, distortion=source.distortion, **more)
        fit = [each for each in offers(source, ask) if not each.why_not]
        assert fit or more.get("every")
        for each in fit:
            run = PictureRun(source, Ask(name, events=4, distortion=source.distortion, mechanism=each.name, **more))
            run.go()
            assert run.complete
        assert all(not each.sound for each in offers(source, ask) if "no budget can hold" in each.why_not)


@pytest.mark.slow
def test_a_curve_falls_and_shows_who_breaks_its_bound():
    for name in ("balanced", "crr"):
        curve = Curve(builtin("clicks"), Ask("clicks", mechanism=name, epsilon=1.0))
        curve.go(0.0)
        assert not curve.complete
        curve.go()
        disclosed = curve.to_json()
        errors = [row[2] for row in disclosed["points"]]
        assert errors[0] > errors[-1]
        assert [row[0] for row in disclosed["points"]] == sorted(row[0] for row in disclosed["points"])
        assert all(row[3] <= row[4] + 1e-9 for row in disclosed["points"]) == disclosed["sound"] == (name == "balanced")
        json.dumps(disclosed, allow_nan=False)


# requests of every kind

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.sampled_from([*sorted(Ask.__dataclass_fields__), "more"]), JSON, max_size=5)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(JSON | FIELDS | FIELDS.map(lambda given: {"source": "clicks", "events": 2, **given}))
def test_no_request_gets_anything_but_an_answer_or_one_line(given):
    sandbox = Sandbox()
    for name in ("show", "curve", "compare", "source", "load", "inspect", "advise"):
        act = getattr(sandbox, name)
        refusal = ""
        try:
            json.dumps(act(given), allow_nan=False)
        except InputError as error:
            refusal = str(error)
        assert "\n" not in refusal


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.fixed_dictionaries(
        {"epsilon": st.floats(0.01, 8.0), "every": st.integers(1, 4), "batch": st.sampled_from([1, 1, 2, 3])},
        optional={
            "budget": st.floats(0.1, 20.0),
            "window": st.floats(0.1, 5.0),
            "window_releases": st.integers(1, 30),
            "mechanism": st.sampled_from(["optimal", "balanced", "crr", "tree", "auto", "tree_ldp"]),
            "when_spent": st.sampled_from(["hold", "stop"]),
            "seed": st.integers(0, 5),
        },
    )
)
def test_every_setting_is_shown_with_its_account_or_refused(given):
    try:
        shown = finish(Sandbox().show, source="power", distortion="absolute", events=12, **given)
    except InputError:
        return
    json.dumps(shown, allow_nan=False)
    figures, series = shown["figures"], shown["series"]
    if mechanisms.find(shown["mechanism"]).sound:
        assert figures["leakage"] <= figures["composition"] * (1 + 1e-9)
        assert figures["worst_release"] <= figures["claimed"] * (1 + 1e-9)
        assert given.get("budget") is None or figures["leakage"] <= given["budget"] * (1 + 1e-9)
    assert len(series["released"]) == len(series["spent"]) == 12
    assert math.isclose(sum(series["epsilons"]), figures["composition"], rel_tol=1e-4)


# data of one's own


@pytest.mark.slow
def test_data_of_ones_own_is_reprinted_from_its_file(tmp_path, monkeypatch, capfd):
    rng = np.random.default_rng(2)
    rows = "".join(f"u{k % 3},{rng.normal(70, 9):.2f}\n" for k in range(240))
    (tmp_path / "DATA.csv").write_text(f"user,value\n{rows}")
    shown_by_upload = Sandbox().load({"csv": f"user,value\n{rows}", "columns": {"cells": 9}})
    assert shown_by_upload["symbols"] == 9
    cut = Cut(cells=9)
    source = loaded(rows_of_file(tmp_path / "DATA.csv", cut), cut, "data")
    asked = Ask("data", stream=1, events=70, mechanism="balanced", distortion="absolute", epsilon=0.6, budget=20.0)
    shown = picture(source, asked)
    lines = saved(shown, tmp_path).replace("release DATA.csv", "release page/stream.csv")  # the stream that is shown
    *_, (code, text) = run_lines(lines, tmp_path, monkeypatch, capfd, asked.seed)
    report = json.loads(text)
    assert code == 1
    for name in ("leakage", "composition", "worst_release"):
        assert shown["figures"][name] == pytest.approx(report[name], rel=1e-12)
    exec(compile(seeded(python(asked, source), asked.seed), "snippet", "exec"), {})
    assert capfd.readouterr().out.startswith(f"leakage {report['leakage']:.6g},")
    for wrong in (["studio", "--unpack", "seqveil-page.json"], ["studio", "--unpack", "DATA.csv"]):
        assert main(wrong) == 2
        assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_a_model_can_be_looked_at_without_data(tmp_path, monkeypatch, capfd):
    words_model().save(tmp_path / "MODEL")
    source = sampled(words_model())
    shown = picture(source, Ask("model", events=50, epsilon=1.0))
    *_, (code, text) = run_lines(saved(shown, tmp_path), tmp_path, monkeypatch, capfd)
    assert code == 0
    assert json.loads(text)["leakage"] == pytest.approx(shown["figures"]["leakage"], rel=1e-12)
