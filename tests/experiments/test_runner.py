"""`python -m experiments`: the same numbers twice, parts that are kept, one page with all pictures, and refusals."""

import json
import re

import pytest

import experiments
from experiments import claims, datasets, report, streams
from experiments.__main__ import main
from experiments.context import Context
from seqveil import MarkovModel
from seqveil.engine.policy import Policy

pytestmark = pytest.mark.slow

QUICK = ("fig3", "fig4", "fig5")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    for folder in folders:
        assert main([*QUICK, "--out", str(folder), "--synthetic", "--quick"]) == 0
    return folders


def test_two_runs_give_the_same_numbers_to_the_byte(runs):
    one, two = runs
    for name in QUICK:
        assert (one / f"{name}.json").read_bytes() == (two / f"{name}.json").read_bytes()
    assert (one / "report.html").read_bytes() == (two / "report.html").read_bytes()


def test_the_page_stands_alone_and_has_every_picture_and_claim(runs):
    page = (runs[0] / "report.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<img [^>]*src='data:image/png;base64,[A-Za-z0-9+/=]{1000,}'", page)) == len(QUICK)
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"(src|href)=['\"]https?:", page)
    for name in QUICK:
        for claim in json.loads((runs[0] / f"{name}.json").read_text(encoding="utf-8"))["claims"]:
            assert report.html.escape(claim["claim"]) in page
            assert report.html.escape(claim["reason"]) in page


def test_the_page_keeps_what_earlier_runs_left_in_the_folder(runs):
    before = (runs[0] / "claims.md").read_text(encoding="utf-8")
    assert main(["fig3", "--out", str(runs[0]), "--synthetic", "--quick"]) == 0
    assert (runs[0] / "claims.md").read_text(encoding="utf-8") == before


def test_everything_runs_from_one_command_with_no_data_at_hand(tmp_path):
    assert main(["all", "--out", str(tmp_path), "--synthetic", "--quick"]) == 0
    page, table = ((tmp_path / name).read_text(encoding="utf-8") for name in ("report.html", "claims.md"))
    for name in experiments.EXPERIMENTS:
        result = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        assert f"id='{name}'" in page
        assert result["claims"] or result["numbers"].get("skipped")
        for claim in result["claims"]:
            assert claim["verdict"] in claims.VERDICTS
            assert claim["figures"]
            assert claim["reason"].replace("|", "\\|") in table


def test_parts_outlive_an_interrupt_and_belong_to_their_options(tmp_path):
    made = []

    def work(name):
        made.append(name)
        return {"value": len(name) / 3}

    context = Context(tmp_path, "trial")
    assert context.part("first", lambda: work("first")) == {"value": 1.666666667}
    with pytest.raises(KeyboardInterrupt):
        context.part("second", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["trial.first.json"]
    again = Context(tmp_path, "trial")
    assert again.part("first", lambda: work("first")) == {"value": 1.666666667}
    assert made == ["first"]
    Context(tmp_path, "trial", seed=1).part("first", lambda: work("other seed"))
    assert made == ["first", "other seed"]
    (tmp_path / "parts" / "trial.first.json").write_text("{ cut sho")
    Context(tmp_path, "trial", seed=1).part("first", lambda: work("damaged"))
    assert made[-1] == "damaged"


def test_streams_held_out_are_nobody_elses_and_sets_have_one_order():
    clicks, sets = datasets.synthetic("clicks", 30, 12, 1), datasets.synthetic("sets", 200, 6, 1, n=40)
    truth, rest = streams.hold_out(clicks, 10, 8, seed=2)
    assert truth.shape == (8, 10)
    assert len(rest) == 22
    whole = [row[:10].tolist() for row in clicks.arrays(people=rest)]
    every = [row[:10].tolist() for row in clicks.arrays()]
    assert sorted(whole + truth.tolist()) == sorted(every)
    assert streams.rarer_order(sets) == 0.0
    assert streams.rarer_order(clicks) > 0.2


def test_a_short_last_batch_spends_its_share():
    model = MarkovModel([0.5, 0.5], [[0.8, 0.2], [0.2, 0.8]])
    truth = model.sample(5, users=20, seed=1)
    found = streams.release(Policy(epsilon=3.0, batch=3, mechanism="batch_lp").on(model), truth, seed=1)
    assert 3.0 < found["leakage"] <= 5.0  # 3 for the first three, 2 for the last two
    assert found["released"].shape == found["hindsight"].shape == truth.shape


def test_the_restricted_response_stays_among_followers():
    chain = MarkovModel([1.0, 0.0, 0.0], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    truth = chain.sample(400, users=4, seed=1)
    made = streams.restricted_response(chain, truth, 1.0, seed=2)
    able = chain.chain.toarray()[truth[:, :-1], made[:, 1:]]
    assert (able > 0).all()
    # one of two followers: the truth with probability e/(1+e) = .731; five standard errors
    assert (made[:, 1:] == truth[:, 1:]).mean() == pytest.approx(0.731, abs=0.06)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fig99", "--synthetic"], "expected an experiment among all, fig3"),
        (["fig7"], "fig7 needs gaze_vr/gaze.parquet"),
        (["fig3", "--seed", "-1"], "seed"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(arguments, says, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("SEQVEIL_DATA", raising=False)
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert says in lines[0]
    assert not (tmp_path / "out").exists()
