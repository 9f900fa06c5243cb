"""Mutants of the code that keeps the promise: which of them the tests notice.

    python scripts/mutants.py tests/core tests/engine tests/receiver --count 300 --out mutants.tsv

A mutant is the package with one change: a comparison flipped, a bound swapped, a number off by one, a sign turned, a
check dropped, a charge or another statement removed. Each file of tests runs once as it is, to learn which tests run
which line; then each mutant is given the tests that run its line, the quickest first. One that none of them fails has
survived. Everything runs as plain Python, which is what numba would compile, in children of a process that has loaded
what tests need beside the package.
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
from collections.abc import Iterator
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
PATIENCE = 1500.0  # seconds that a file of tests may take as it is
LONGEST = 120.0  # seconds that the tests of one mutant may take
ENOUGH = 20.0  # seconds of tests, as they were traced, that one mutant is given
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
Running = dict[str, dict[int, set[str]]]  # the tests that run each line of each file


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
    os.environ |= {"SEQVEIL_COMPILED": "0", "SEQVEIL_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def traced(file: str) -> tuple[Running, dict[str, float], int]:
    """Which quick tests of a file run each line, how long each takes, and how many fail as they are."""
    kept = HERE / "trace"
    kept.unlink(missing_ok=True)
    os.environ["COVERAGE_FILE"] = str(kept)
    timed = "-m", QUICK, "-vv", "--durations=0", "--durations-min=0"
    code, text = run(PATIENCE, *timed, "--cov=seqveil", "--cov-context=test", "--cov-report=", file)
    if code is None or not kept.exists():
        return {}, {}, 1
    seconds = {test: float(took) for took, test in re.findall(r"^([\d.]+)s call +(\S.*)$", text, re.MULTILINE)}
    failed = set(re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", text, re.MULTILINE))
    seconds = {test: took for test, took in seconds.items() if test not in failed}
    data = coverage.CoverageData(str(kept))
    data.read()
    running: Running = {}
    for path in data.measured_files():
        lines = running.setdefault(str(Path(path).relative_to(HERE)), {})
        for line, contexts in data.contexts_by_lineno(path).items():
            lines[line] = {test for test in (c.removesuffix("|run") for c in contexts) if test in seconds}
    return running, seconds, len(failed)


def given(mutant: Mutant, running: Running, seconds: dict[str, float]) -> list[str]:
    """The quickest of the tests that run a mutant's line, as many as one mutant is given, one at least."""
    chosen, total = [], 0.0
    for test in sorted(running[mutant.path][mutant.line], key=lambda test: (seconds[test], test)):
        total += seconds[test]
        if chosen and (total > ENOUGH or len(chosen) == 400):
            break
        chosen.append(test)
    return chosen


def judged(asked: tuple[Mutant, list[str]]) -> str:
    """Whether tests notice a mutant."""
    mutant, tests = asked
    if not tests:
        return "no test"
    path, listed = HERE / mutant.path, HERE / "tests.txt"
    source = path.read_bytes()
    path.write_bytes(mutant.of(source))
    listed.write_text("\n".join(tests), encoding="utf-8")
    code, _ = run(LONGEST, "-x", f"@{listed}")
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
    files = sorted({str(f) for path in asked.tests for f in ([path] if path.is_file() else path.rglob("test_*.py"))})
    running: Running = defaultdict(lambda: defaultdict(set))
    seconds: dict[str, float] = {}
    failed, copies, ignored = 0, Queue(), shutil.ignore_patterns(".*", "kit", "out", "__pycache__")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.jobs):
            copies.put(Path(shutil.copytree(ROOT, Path(folder) / str(number), ignore=ignored)))
        with Pool(asked.jobs, take_copy, (copies,)) as pool:
            for found, took, wrong in pool.imap_unordered(traced, files):
                seconds |= took
                failed += wrong
                for path, lines in found.items():
                    for line, tests in lines.items():
                        running[path][line] |= tests
            print(f"{len(seconds)} tests in {len(files)} files; {failed} left out, which fail as they are", flush=True)
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
