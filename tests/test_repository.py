"""The repository around the package: what its pages and files name is there."""

import contextlib
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
THEORY = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
SECTIONS = {int(number) for number in re.findall(r"^## (\d+)\. ", THEORY, re.MULTILINE)}
TESTS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py")}


def test_the_sections_of_the_theory_are_numbered_without_a_gap():
    assert re.findall(r"^## (\d+)\. ", THEORY, re.MULTILINE) == [str(k) for k in range(1, len(SECTIONS) + 1)]


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
