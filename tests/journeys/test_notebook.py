"""The notebook: its cells run in order in one namespace, and what is stored below them is what they show."""

import base64
import json
import re
import struct
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import notebook_outputs  # noqa: E402

NOTEBOOK = ROOT / "examples" / "tour.ipynb"
STORED = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
CELLS = STORED["cells"]


def size(picture):
    """Width and height of a PNG, from its header."""
    content = base64.b64decode(picture)
    assert content[:4] == b"\x89PNG"
    return struct.unpack(">II", content[16:24])


def test_the_stored_outputs_are_what_the_cells_show():
    """Texts and tables to the last letter; of pictures their size, since their bytes depend on matplotlib's version."""
    names = {"__name__": "tour"}
    again = notebook_outputs.with_outputs(STORED, names)
    pictures, tables = 0, 0
    for was, now in zip(CELLS, again["cells"], strict=True):
        for old, new in zip(was.get("outputs", []), now.get("outputs", []), strict=True):
            before, after = (dict(each.get("data", {})) for each in (old, new))
            if "image/png" in before:
                pictures += 1
                assert size(before.pop("image/png")) == size(after.pop("image/png")), was["id"]
            tables += "text/html" in before
            assert before == after, f"{was['id']}: run scripts/notebook_outputs.py"
            assert old.get("text") == new.get("text"), f"{was['id']}: run scripts/notebook_outputs.py"
    assert pictures >= 2
    assert tables >= 1
    assert names["tight"].leakage <= 15.0
    assert abs(names["guarded"].account.secrets[0].log_odds) <= 1.0
    assert (names["viewer"].account.releases, len(names["disclosed"])) == (24, 120)
    assert {row.status for row in names["found"].rows} == {"sound", "unsound", "limit"}


def test_links_of_the_notebook_lead_somewhere():
    text = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert links
    for link in links:
        assert (NOTEBOOK.parent / link).exists(), link
