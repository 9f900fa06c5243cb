"""Pictures: they draw what they are given, look different without colour, and say what they cannot draw."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest

import seqveil as sv
from seqveil import planning, plots
from seqveil.core.errors import InputError
from seqveil.planning import Plan, Row

STEPS, SYMBOLS = 12, 5


@pytest.fixture
def drawn():
    rng = np.random.default_rng(3)
    raw, released = rng.integers(1, 4, STEPS), rng.integers(1, 4, STEPS)
    laws = rng.dirichlet(np.full(SYMBOLS, 0.3), STEPS)
    leakage = np.cumsum(rng.random(STEPS))
    return raw, released, laws, leakage, leakage + 1.0


def luminance(colour):
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.slow
def test_a_stream_is_drawn_as_given(drawn, tmp_path):
    raw, released, laws, leakage, composed = drawn
    labels = [f"symbol {k}" for k in range(SYMBOLS)]
    figure = plots.stream(raw, released, laws, leakage, composed, labels, tmp_path / "s.png", budget=9.0)
    top, middle, bottom = figure.axes[:3]
    lines = {line.get_label(): line for line in (*top.lines, *bottom.lines)}
    assert lines["raw"].get_ydata().tolist() == raw.tolist()
    assert lines["released"].get_ydata().tolist() == released.tolist()
    assert lines["decoded"].get_ydata().tolist() == laws.argmax(1).tolist()
    assert np.allclose(middle.images[0].get_array(), laws.T)
    assert lines["exact leakage of what was released"].get_ydata().tolist() == leakage.tolist()
    assert set(lines["budget"].get_ydata()) == {9.0}
    assert (tmp_path / "s.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_what_was_not_released_is_not_drawn(drawn):
    raw, released, laws, leakage, composed = drawn
    released[[2, 5]] = -1
    figure = plots.stream(raw, released, laws, leakage, composed, ["a"] * SYMBOLS)
    points = next(line for line in figure.axes[0].lines if line.get_label() == "released")
    assert points.get_xdata().tolist() == [k for k in range(STEPS) if k not in (2, 5)]


def test_lengths_that_differ_are_refused(drawn):
    raw, released, laws, leakage, composed = drawn
    with pytest.raises(InputError, match="expected leakage for 12 releases, got 11"):
        plots.stream(raw, released, laws, leakage[:-1], composed, ["a"] * SYMBOLS)
    with pytest.raises(InputError, match="expected composed for 3"):
        plots.account([1.0, 2.0, 3.0], [1.0])
    with pytest.raises(InputError, match="expected truth for 12"):
        plots.belief(laws, ["a"] * SYMBOLS, raw[:3])
    grid = sv.Grid.regular(2, 2, (0, 2, 0, 2))
    with pytest.raises(InputError, match="expected decoded for 2 events, got 1"):
        plots.grid_path(grid, np.array([0, 1]), np.array([0, 1]), np.array([0]))


@pytest.mark.slow
def test_names_with_dollars_are_not_formulas(drawn):
    laws = drawn[2]
    picture = io.BytesIO()
    plots.belief(laws, ["a$", "$b$", r"$\bad{", "x" * 99, "<"]).savefig(picture, format="png")  # a formula would raise
    assert picture.getvalue().startswith(b"\x89PNG")


def test_the_distance_in_a_path_is_that_of_the_cells():
    grid = sv.Grid.regular(3, 4, (0, 3, 0, 4))
    raw, released = np.array([0, 4, 11, 3]), np.array([0, 0, -1, 0])
    figure = plots.grid_path(grid, raw, released, raw)
    made = released >= 0
    off = np.sqrt(((grid.points[raw[made]] - grid.points[released[made]]) ** 2).sum(1)).mean()
    assert figure.axes[1].get_title(loc="left") == f"released: {off:.2f} off on average"
    assert figure.axes[2].get_title(loc="left") == "decoded: 0.00 off on average"


def test_a_plan_has_a_line_for_each_mechanism_schedule_and_batch_size():
    def row(name, epsilon, period=1, batch=1):
        return Row(epsilon, name, period, 0.5, 0.4, 0.5, 0.8, None, 1.0, batch)

    rows = [row("tree", e) for e in (1.0, 2.0)] + [row("optimal", e, p) for e in (1.0, 2.0) for p in (1, 4)]
    rows += [row("auto", 1.0, batch=5), row("auto", 1.0, batch=10)]
    axes = plots.tradeoff(Plan(tuple(rows), 10, "hamming", 3)).axes[0]
    labels = [line.get_label() for line in axes.lines if "decoder" not in line.get_label()]
    assert labels == [
        "optimal",
        "optimal, pulsed",
        "auto, 10 at a time",
        "auto, 5 at a time",
        "tree",
        "best guess, no release",
    ]
    assert axes.get_xlabel() == "ε an event"
    assert axes.get_xscale() == "linear"


def test_ticks_are_at_the_bounds_that_were_planned():
    model = sv.MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    axes = plots.tradeoff(planning.plan(model, [0.1, 0.5, 2.0], length=4, users=5)).axes[0]
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.1", "0.5", "2"]


def test_no_two_lines_differ_by_colour_alone():
    looks = [look for look, _ in zip(plots.looks(), range(14), strict=False)]
    assert len({(look["marker"], look["markerfacecolor"] == "white") for look in looks}) == 14
    assert len({look["color"] for look in looks[:7]}) == 7


def test_raw_released_and_decoded_are_told_apart_in_grey():
    """A heat map's colours darken steadily, so no kind of colour vision loses its order."""
    assert luminance(plots.RAW) > 1.5 * max(luminance(plots.RELEASED), luminance(plots.DECODED))
    steps = [luminance(plots._heat_map()(share)) for share in np.linspace(0, 1, 30)]
    assert (np.diff(steps) < 0).all()


def test_a_picture_shows_itself_in_a_notebook():
    assert plots.account([1.0], [1.0])._repr_png_()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_the_pictures_of_the_docs_can_be_drawn(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "scripts"))
    import docs_pictures

    docs_pictures.one_stream(tmp_path)
    docs_pictures.a_path(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["path.png", "stream.png"]


def test_without_matplotlib_the_remedy_is_named(monkeypatch):
    plots._picture.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"a picture needs matplotlib; in the clone .*'\.\[plots\]'"):
        plots.account([1.0], [1.0])
