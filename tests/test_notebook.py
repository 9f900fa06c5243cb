"""The notebook: its cells run in order in one namespace, and it is stored without outputs."""

import ast
import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parent.parent / "examples" / "tour.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


def run(source, names):
    """Execute a cell, and return what a notebook would show below it: the value of its last expression."""
    parsed = ast.parse(source, str(NOTEBOOK))
    last = parsed.body.pop() if isinstance(parsed.body[-1], ast.Expr) else None
    exec(compile(parsed, str(NOTEBOOK), "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


def test_the_cells_run_and_show_what_they_end_with():
    names, shown = {"__name__": "tour"}, []
    for source in CODE:
        value = run(source, names)
        if value is None:
            continue
        picture = getattr(value, "_repr_png_", None)
        shown.append(picture()[:4] if picture else value._repr_html_()[:5])
    assert shown.count(b"\x89PNG") >= 5
    assert shown.count("<div ") >= 5
    assert names["tight"].leakage <= 15.0
    assert names["walker"].standing().releases == 120
    assert {row.status for row in names["rows"]} == {"sound", "unsound"}


def test_it_is_a_notebook_of_version_4_without_outputs():
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        assert isinstance(cell["source"], list)
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_links_of_the_notebook_lead_somewhere():
    text = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert links
    for link in links:
        assert (NOTEBOOK.parent / link).exists(), link


@pytest.mark.parametrize("word", ["fit", "release", "audit", "decode", "Pulses", "Batches"])
def test_the_tour_goes_where_it_says(word):
    assert any(word in "".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
