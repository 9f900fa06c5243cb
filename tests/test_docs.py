"""What README and docs say is run: code blocks, commands, links, and the command reference."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
sys.path.insert(0, str(ROOT / "scripts"))
import cli_reference  # noqa: E402


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    if page.name == "README.md":
        assert names["session"].leakage <= 3.0
        assert names["laws"].shape == (3, 3)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


def test_the_command_reference_is_current():
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == cli_reference.reference()


def test_readme_shows_every_command_benchmark_and_mechanism():
    from benchmarks.__main__ import NAMES
    from seqveil import mechanisms

    readme, table = PAGES[0].read_text(encoding="utf-8"), (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    assert "make demo" in readme
    assert "make test" in readme
    for name in NAMES:
        assert f"python -m benchmarks {name}" in readme
    for name in mechanisms.names():
        assert f"`{name}`" in table
    for name in ("fit", "release", "audit", "decode", "mechanisms"):
        assert f"seqveil {name}" in readme


def test_mechanism_names_in_the_docs_exist():
    from seqveil import mechanisms

    rows = re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) == set(mechanisms.names())
