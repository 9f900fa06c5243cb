"""Mutants of the code that keeps the promise: which of them the tests notice.

    python scripts/mutants.py tests/core tests/engine tests/receiver --count 300 --out mutants.tsv

A mutant is the package with one change: a comparison flipped, a bound swapped, a number off by one, a sign turned, a
check dropped, a charge or another statement removed. The tests run once as they are, a few at a time, to learn which
of them run which line. Then each mutant is given the tests that run its line, the quickest first; it has survived if
none of them fails. Everything runs as plain Python, which is what numba would compile, in children of a process that
has loaded what tests need beside the package.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import Pool, Queue
from pathlib import Path

import coverage
import hypothesis.stateful
import numpy as np
import polars as pl
import pytest
import scipy.optimize
import scipy.stats

LOADED = (hypothesis.stateful, np, pl, scipy.optimize, scipy.stats)

ROOT = Path(__file__).parent.parent
LAYERS = ("core", "engine", "receiver")
QUICK = "not slow and not java and not browser and not broker"
PATIENCE = 120.0  # seconds that a few tests may take as they are
LONGEST = 45.0  # seconds that the tests of one mutant may take
ENOUGH = 12.0  # seconds of tests, as they were traced, that one mutant is given
TOGETHER = 5  # tests that are traced together
FLIPPED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
TURNED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
SWAPPED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "floor": "ceil", "ceil": "floor"}
HERE = ROOT  # the copy that this process works in
PLAIN = (
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-p",
    "no:benchmark",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)
VERDICTS = ("killed", "too slow", "survived", "no test")
Tests = tuple[str, ...]
Lines = dict[str, list[int]]  # of each file
Running = dict[str, dict[int, set[Tests]]]  # the tests that run each line of each file


@dataclass(frozen=True)
class Mutant:
    """One change of one file: what stands between two positions is replaced."""

    path: str
    kind: str
    line: int
    start: int
    end: int
    text: str

    def of(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants(path: Path) -> Iterator[Mutant]:
    """All changes of a file."""
    source = path.read_bytes()
    begins = [0, *(found.end() for found in re.finditer(rb"\n", source))]

    def change(kind: str, node: ast.expr | ast.stmt, text: str) -> Mutant:
        start = begins[node.lineno - 1] + node.col_offset
        end = begins[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return Mutant(str(path.relative_to(ROOT)), kind, node.lineno, start, end, text)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in FLIPPED:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield change("comparison flipped", node, f"({left} {FLIPPED[type(node.ops[0])]} {right})")
        elif isinstance(node, ast.BinOp) and type(node.op) in TURNED:
            yield change(
                "sign turned", node, f"(({ast.unparse(node.left)}) {TURNED[type(node.op)]} ({ast.unparse(node.right)}))"
            )
        elif isinstance(node, ast.Call) and (name := ast.unparse(node.func).split(".")[-1]) in SWAPPED:
            yield change("bound swapped", node.func, ast.unparse(node.func).removesuffix(name) + SWAPPED[name])
        elif isinstance(node, ast.Constant) and type(node.value) is int and node.value < 100:
            yield change("off by one", node, f"({node.value} + 1)")
        elif isinstance(node, ast.Raise):
            yield change("check dropped", node, "pass")
        elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            yield change("statement dropped", node, "pass")


def sample(count: int, seed: int) -> list[Mutant]:
    """Some of all mutants, as many of each kind as there can be."""
    kinds: dict[str, list[Mutant]] = defaultdict(list)
    for path in sorted(path for layer in LAYERS for path in (ROOT / "src/seqveil" / layer).rglob("*.py")):
        for mutant in mutants(path):
            kinds[mutant.kind].append(mutant)
    chosen, draw = [], random.Random(seed)
    for position, kind in enumerate(sorted(kinds, key=lambda kind: len(kinds[kind]))):
        share = (count - len(chosen)) // (len(kinds) - position)
        chosen += draw.sample(kinds[kind], min(share, len(kinds[kind])))
    return chosen


def run(longest: float, *arguments: str) -> tuple[int | None, str]:
    """Tests in a child of this process, in its copy of the repository: the exit code, or None where they take too long,
    and what they print."""
    log = HERE / "log"
    child = os.fork()
    if not child:
        code = 99
        try:
            os.setpgid(0, 0)
            written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(written, 1)
            os.dup2(written, 2)
            code = int(pytest.main([*PLAIN, *arguments]))
        finally:
            sys.stdout.flush()
            os._exit(code)
    end = time.monotonic() + longest
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None, ""
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(done[1]), log.read_text(encoding="utf-8", errors="replace")


def take_copy(copies: Queue[Path]) -> None:
    """Have this process work in a copy of its own, as plain Python."""
    global HERE
    HERE = copies.get()
    os.chdir(HERE)
    os.environ |= {"SEQVEIL_COMPILED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def collected(paths: Iterable[Path]) -> list[Tests]:
    """The quick tests, a few of one file together."""
    _, text = run(PATIENCE, "--collect-only", "-m", QUICK, *map(str, paths))
    files: dict[str, list[str]] = defaultdict(list)
    for test in re.findall(r"^(\S+?::.*)$", text, re.MULTILINE):
        files[test.split("::")[0]].append(test)
    return [tuple(tests[at : at + TOGETHER]) for tests in files.values() for at in range(0, len(tests), TOGETHER)]


def traced(tests: Tests) -> tuple[Tests, Lines | None, float]:
    """Which lines some tests run, and how long they take; no lines where one of them fails as it is."""
    kept = HERE / "trace"
    kept.unlink(missing_ok=True)
    os.environ["COVERAGE_FILE"] = str(kept)
    if sys.version_info >= (3, 12):
        os.environ["COVERAGE_CORE"] = "sysmon"  # which hardly slows them
    begun = time.monotonic()
    code, _ = run(PATIENCE, "--cov=seqveil", "--cov-report=", listed(tests))
    took = time.monotonic() - begun
    if code or not kept.exists():
        return tests, None, took
    data = coverage.CoverageData(str(kept))
    data.read()
    return tests, {str(Path(path).relative_to(HERE)): data.lines(path) or [] for path in data.measured_files()}, took


def listed(tests: Iterable[str]) -> str:
    """An argument that stands for these tests."""
    path = HERE / "tests.txt"
    path.write_text("\n".join(tests), encoding="utf-8")
    return f"@{path}"


def given(mutant: Mutant, running: Running, seconds: dict[Tests, float]) -> list[str]:
    """The quickest of the tests that run a mutant's line, as many as one mutant is given, one group at least."""
    chosen, total = [], 0.0
    for tests in sorted(running[mutant.path][mutant.line], key=lambda tests: (seconds[tests], tests)):
        total += seconds[tests]
        if chosen and total > ENOUGH:
            break
        chosen += tests
    return chosen


def judged(asked: tuple[Mutant, list[str]]) -> str:
    """Whether tests notice a mutant."""
    mutant, tests = asked
    if not tests:
        return "no test"
    path = HERE / mutant.path
    source = path.read_bytes()
    path.write_bytes(mutant.of(source))
    code, _ = run(LONGEST, "-x", listed(tests))
    path.write_bytes(source)
    return "too slow" if code is None else "survived" if code == 0 else "killed"


def main() -> None:
    """Make the mutants, give each its tests, and print what survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="+", type=Path, help="files or folders of tests")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, required=True, help="a table of all mutants and what became of them")
    asked = parser.parse_args()
    running: Running = defaultdict(lambda: defaultdict(set))
    seconds: dict[Tests, float] = {}
    copies, ignored = Queue(), shutil.ignore_patterns(".*", "kit", "out", "__pycache__")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.jobs):
            copies.put(Path(shutil.copytree(ROOT, Path(folder) / str(number), ignore=ignored)))
        with Pool(asked.jobs, take_copy, (copies,)) as pool:
            groups = pool.apply(collected, (asked.tests,))
            for tests, found, took in pool.imap_unordered(traced, groups):
                if found is None:
                    continue
                seconds[tests] = took
                for path, lines in found.items():
                    for line in lines:
                        running[path][line].add(tests)
            left_out = len(groups) - len(seconds)
            print(f"{len(groups)} groups of tests; {left_out} left out, which fail as they are", flush=True)
            chosen, counts = sample(asked.count, asked.seed), Counter[tuple[str, str]]()
            work = [(mutant, given(mutant, running, seconds)) for mutant in chosen]
            with asked.out.open("w", encoding="utf-8") as table:
                for mutant, found in zip(chosen, pool.imap(judged, work), strict=True):
                    counts[mutant.kind, found] += 1
                    text = json.dumps(" ".join(mutant.text.split())[:120], ensure_ascii=False)
                    print(found, f"{mutant.path}:{mutant.line}", mutant.kind, text, sep="\t", file=table, flush=True)
    print(f"{'':20}", *(f"{column:>10}" for column in VERDICTS))
    for kind in (*sorted({mutant.kind for mutant in chosen}), "together"):
        every = [
            sum(n for (k, v), n in counts.items() if v == column and kind in (k, "together")) for column in VERDICTS
        ]
        print(f"{kind:20}", *(f"{count:>10}" for count in every))


if __name__ == "__main__":
    main()
