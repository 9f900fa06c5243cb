"""The repository around the package: what its pages and files name is there."""

import ast
import contextlib
import importlib
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

import seqveil

ROOT = Path(__file__).parent.parent
SOURCE = Path(seqveil.__file__).parent
THEORY = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
SECTIONS = {int(number) for number in re.findall(r"^## (\d+)\. ", THEORY, re.MULTILINE)}
FOLDERS = ("src", "tests", "benchmarks", "experiments", "examples", "peers", "scripts", "docs")
ASIDE = r"(?: ?\((?:[^()]|\([^()]*\))*\))?"  # as in 3(c), or 4 (repair by mixing)
CITED = re.compile(rf"docs/theory\.md, sections? ((?:\d+{ASIDE}(?:, | and | to )?)+)")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}
TESTS = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}


@cache
def trees():
    return {path: ast.parse(text) for path, text in SOURCES.items()}


def test_the_sections_of_the_theory_are_numbered_without_a_gap():
    assert re.findall(r"^## (\d+)\. ", THEORY, re.MULTILINE) == [str(k) for k in range(1, len(SECTIONS) + 1)]


def test_no_class_name_stands_twice():
    names = [node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert len(names) > 100
    assert sorted({name for name in names if names.count(name) > 1}) == []


MOST = {"lines": 32_000, "files": 147, "functions": 2_000, "lines of tests": 26_000, "words": 42_000}


def test_nothing_grows_unnoticed():
    """Whoever lets one of these grow raises its number in the same commit, and says why there; a drop lowers it."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    functions = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    found = {
        "lines": sum(text.count("\n") for text in SOURCES.values()),
        "files": len(SOURCES),
        "functions": len(functions),
        "lines of tests": sum(path.read_text(encoding="utf-8").count("\n") for path in (ROOT / "tests").rglob("*.py")),
        "words": sum(len(path.read_text(encoding="utf-8").split()) for path in pages),
    }
    assert {name: count for name, count in found.items() if count > MOST[name]} == {}
    assert all(count > 0.95 * MOST[name] for name, count in found.items())


def cited(text):
    """Numbers of the sections that a text refers to, those between two ends of a range included."""
    found = set()
    for some in CITED.findall(re.sub(r"\s+(?:# )?", " ", text)):
        plain = re.sub(ASIDE, "", some)
        found |= {int(number) for number in re.findall(r"\d+", plain)}
        for first, last in re.findall(r"(\d+) to (\d+)", plain):
            found |= set(range(int(first), int(last) + 1))
    return found


@pytest.mark.slow
def test_every_section_that_code_refers_to_exists():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    used = {path: cited(path.read_text(encoding="utf-8")) for path in files if path != Path(__file__)}
    assert {number for numbers in used.values() for number in numbers} >= {3, 5, 7, 12, 13, 19}
    assert {path.name: numbers - SECTIONS for path, numbers in used.items() if numbers - SECTIONS} == {}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)(?:…)?`", THEORY))))
def test_every_test_that_the_theory_names_exists(name):
    defined = "\n".join(TESTS.values())
    whole = f"`{name}`" in THEORY
    assert re.search(rf"^def {name}{'' if whole else '.*'}\(", defined, re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", THEORY))))
def test_every_test_file_that_the_theory_names_exists(path):
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("dotted", sorted(set(re.findall(r"`([a-z]\w*(?:\.\w+)+)`", THEORY))))
def test_every_name_of_code_in_the_theory_exists(dotted):
    """In the package itself or in one of its layers; the theory names a module without its layer."""
    layers = ("", "core.", "engine.", "receiver.", "interfaces.", "evaluate.", "evaluate.baselines.")
    assert any(exists(f"seqveil.{layer}{dotted.removeprefix('seqveil.')}") for layer in layers)


def exists(dotted):
    """Whether the longest part that is a module has what follows as its attributes."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.import_module(".".join(parts[:count]))
            return all((found := getattr(found, part, None)) is not None for part in parts[count:])
    return False


def test_every_name_that_the_folders_around_the_package_import_from_it_exists():
    """Peers and experiments, which few tests run, are left behind by a name that moves."""
    paths = [path for folder in FOLDERS[2:-1] for path in (ROOT / folder).rglob("*.py")]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("seqveil")]
    names = {f"{node.module}.{each.name}" for node in imports for each in node.names}
    assert len(names) > 100
    assert sorted(name for name in names if not exists(name)) == []


def test_every_file_that_the_page_about_the_paper_names_exists():
    """Below the package, unless the name begins with another folder."""
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+(?:/\w+)*/(?:\w+\.py)?)`", page))
    assert len(named) > 15
    assert [name for name in named if not ((SOURCE / name).exists() or (ROOT / name).exists())] == []


def load(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version_and_has_all_that_its_format_asks_for():
    citation = load("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == "seqveil"
    assert citation["version"] == seqveil.__version__
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    assert citation["message"]
    assert all(citation["authors"])
    for source in citation["references"]:
        assert source["type"]
        assert source["title"]
        assert all(person["family-names"] and person["given-names"] for person in source["authors"])
        assert source["title"] in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_nothing_tells_users_to_install_from_an_index():
    """The name is not published there: whoever takes it could harm those who follow the advice."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    pages = [*ROOT.glob("*.md"), *(path for path in files if path.suffix in (".py", ".md", ".ipynb"))]
    advice = re.compile(r"pip install\s+(?:-U\s+)?['\"]?seqveil")
    disclosed = [
        path.name for path in pages if path != Path(__file__) and advice.search(path.read_text(encoding="utf-8"))
    ]
    assert disclosed == []


def test_messages_of_the_inner_layers_name_no_option_of_a_command():
    """Only those who type commands know them; docstrings may say what a command does."""
    for path in (file for layer in ("core", "engine") for file in (SOURCE / layer).rglob("*.py")):
        tree = trees()[path]
        aside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in aside]
        assert [text for text in texts if isinstance(text, str) and re.search(r"(?<![\w-])--[a-z]", text)] == [], path


def printed(name, *arguments):
    command = [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_trace_has_a_row_for_each_interface():
    pytest.importorskip("pyspark")
    heading, *rows = printed("trace_release.py")
    assert heading.split() == ["one", "event", "takes", "files", "calls", "depth", "one", "more:", "files", "calls"]
    counts = {row[:32].strip(): [int(number) for number in row[32:].split()] for row in rows}
    assert len(counts) == 7
    assert counts["seqveil release"][0] <= 20
    files, calls, depth, more_files, more = counts.pop("Session.release")
    assert 3 <= files == more_files <= calls
    assert 3 <= depth <= calls == more  # each release of a session takes the same
    for others in counts.values():
        assert others[0] >= files  # all of them release by the session's own step
        assert others[0] >= others[3] > 0
        assert others[1] > others[4] > 0
