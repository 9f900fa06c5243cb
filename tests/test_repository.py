"""The repository around the package: what its pages and files name is there."""

import contextlib
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
THEORY = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
SECTIONS = {int(number) for number in re.findall(r"^## (\d+)\. ", THEORY, re.MULTILINE)}
FOLDERS = ("src", "tests", "benchmarks", "experiments", "examples", "peers", "scripts", "docs")
ASIDE = r"(?: ?\((?:[^()]|\([^()]*\))*\))?"  # as in 3(c), or 4 (repair by mixing)
CITED = re.compile(rf"docs/theory\.md, sections? ((?:\d+{ASIDE}(?:, | and | to )?)+)")
TESTS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py")}


def test_the_sections_of_the_theory_are_numbered_without_a_gap():
    assert re.findall(r"^## (\d+)\. ", THEORY, re.MULTILINE) == [str(k) for k in range(1, len(SECTIONS) + 1)]


def cited(text):
    """Numbers of the sections that a text refers to, those between two ends of a range included."""
    found = set()
    for some in CITED.findall(re.sub(r"\s+(?:# )?", " ", text)):
        plain = re.sub(ASIDE, "", some)
        found |= {int(number) for number in re.findall(r"\d+", plain)}
        for first, last in re.findall(r"(\d+) to (\d+)", plain):
            found |= set(range(int(first), int(last) + 1))
    return found


def test_references_are_read_in_every_form():
    assert cited("docs/theory.md, section 3(c), with 7 more") == {3}
    assert cited("(docs/theory.md,\n    section 11): 12") == {11}
    assert cited("# docs/theory.md, sections\n    # 3 (Pr(Y=X) ≤ 8), 7 and 9.") == {3, 7, 9}
    assert cited('reference="docs/theory.md, sections 13 to 16"') == {13, 14, 15, 16}


def test_every_section_that_code_refers_to_exists():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    used = {path: cited(path.read_text(encoding="utf-8")) for path in files if path != Path(__file__)}
    assert {number for numbers in used.values() for number in numbers} >= {1, 3, 5, 7, 12, 13}
    assert {path.name: numbers - SECTIONS for path, numbers in used.items() if numbers - SECTIONS} == {}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)(?:…)?`", THEORY))))
def test_every_test_that_the_theory_names_exists(name):
    defined = "\n".join(TESTS.values())
    whole = f"`{name}`" in THEORY
    assert re.search(rf"^def {name}{'' if whole else '.*'}\(", defined, re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(tests/\w+\.py)`", THEORY))))
def test_every_test_file_that_the_theory_names_exists(path):
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("dotted", sorted(set(re.findall(r"`([a-z]\w*(?:\.\w+)+)`", THEORY))))
def test_every_name_of_code_in_the_theory_exists(dotted):
    """The longest part that is a module is imported; what follows are its attributes."""
    parts = ["seqveil", *dotted.removeprefix("seqveil.").split(".")]
    for count in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.import_module(".".join(parts[:count]))
            break
    for part in parts[count:]:
        found = getattr(found, part)
