"""Pictures: they draw what they are given, look different without colour, and say what they cannot draw."""

import sys
from pathlib import Path

import numpy as np
import pytest

from seqveil import plots
from seqveil.core.errors import InputError

STEPS, SYMBOLS = 12, 5


@pytest.fixture
def drawn():
    rng = np.random.default_rng(3)
    raw, released = rng.integers(1, 4, STEPS), rng.integers(1, 4, STEPS)
    distributions = rng.dirichlet(np.full(SYMBOLS, 0.3), STEPS)
    leakage = np.cumsum(rng.random(STEPS))
    return raw, released, distributions, leakage, leakage + 1.0


@pytest.mark.slow
def test_a_stream_is_drawn_as_given(drawn, tmp_path):
    raw, released, distributions, leakage, composed = drawn
    released[[2, 5]] = -1  # nothing was released
    labels = [f"symbol {k}" for k in range(SYMBOLS)]
    figure = plots.stream(raw, released, distributions, leakage, composed, labels, tmp_path / "s.png", budget=9.0)
    top, middle, bottom = figure.axes[:3]
    lines = {line.get_label(): line for line in (*top.lines, *bottom.lines)}
    assert lines["raw"].get_ydata().tolist() == raw.tolist()
    assert lines["released"].get_ydata().tolist() == released[released >= 0].tolist()
    assert lines["released"].get_xdata().tolist() == np.flatnonzero(released >= 0).tolist()
    assert lines["decoded"].get_ydata().tolist() == distributions.argmax(1).tolist()
    assert np.allclose(middle.images[0].get_array(), distributions.T)
    assert lines["exact leakage of what was released"].get_ydata().tolist() == leakage.tolist()
    assert set(lines["budget"].get_ydata()) == {9.0}
    assert (tmp_path / "s.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_the_pictures_of_the_docs_can_be_drawn(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    import docs_pictures

    docs_pictures.main(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["secret.png", "tradeoff.png"]


def test_without_matplotlib_the_remedy_is_named(drawn, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"a picture needs matplotlib; in the clone .*'\.\[plots\]'"):
        plots.stream(*drawn, ["a"] * SYMBOLS)
