"""The site of the docs: its navigation, its reference of names, and a strict build that loads nothing from afar."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import seqveil

ROOT = Path(__file__).parent.parent
LISTED = re.findall(r"^- `([\w.]+)`", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
LOADED = re.compile(r"""<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=["'](?:https?:)?//""")


def test_the_reference_lists_every_public_name():
    public = {*seqveil.__all__, "client"}
    public |= {"datasets", "planning", "spark"}
    inside = {  # names that their module documents
        "core.alphabet": {"Alphabet", "Bins", "Grid"},
        "core.geography": {"Cells"},
        "kernel": {"Kernel"},
        "errors": {"SeqveilError"},
    }
    named = {name.removeprefix("seqveil.") for name in LISTED}
    assert public <= named.union(*inside.values())
    assert set(inside) <= named


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "-d", folder / "trees"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    how = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": path}, "capture_output": True, "text": True}
    done = subprocess.run([*map(str, command), ".", str(folder / "html")], **how)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_has_search_and_names(site):
    assert (site / "index.html").is_file()
    assert (site / "searchindex.js").stat().st_size > 100_000
    names = (site / "docs" / "api.html").read_text(encoding="utf-8")
    for name in ("seqveil.Session.release", "seqveil.MarkovModel.fit", "seqveil.core.secrets.ever"):
        assert f'id="{name}"' in names
    assert "&gt;&gt;&gt;" in names


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assert LOADED.findall(page.read_text(encoding="utf-8")) == [], page.name
    for sheet in site.rglob("*.css"):
        style = sheet.read_text(encoding="utf-8")
        assert re.findall(r"""@import|url\(["']?(?:https?:)?//""", style) == [], sheet.name
