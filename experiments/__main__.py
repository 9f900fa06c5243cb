"""Rerun the paper's experiments and judge its claims: `python -m experiments all --synthetic --quick --out out/paper`.

Numbers go to OUT/NAME.json, pictures to OUT/NAME.png, all of it to OUT/report.html. Finished parts are kept in
OUT/parts: a run that was stopped goes on from there, and the same seed gives the same numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import runner
from experiments.context import Context
from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.words import ResultTable


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiments named and return the exit code: 0 done, 1 interrupted, 2 bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="fig3, fig4, …, or all")
    parser.add_argument("--out", "-o", type=Path, default=Path("out/report"), help="folder of the figures")
    parser.add_argument("--data", type=Path, help="folder of the real data sets (SEQVEIL_DATA)")
    parser.add_argument("--synthetic", action="store_true", help="generated streams instead of real ones")
    parser.add_argument("--quick", action="store_true", help="fewer streams and fewer ε: minutes, not an hour")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random")
    given = parser.parse_args(argv)
    try:
        results = _run(given)
    except SeqveilError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; finished parts stay in {given.out / 'parts'}, run it again to go on", file=sys.stderr)
        return 1
    rows = [(result["name"], claim["claim"], claim["verdict"]) for result in results for claim in result["claims"]]
    if rows:
        print(ResultTable("", ("", "claim", "verdict"), rows))
    print(f"numbers, pictures and reasons: {given.out / 'report.html'}")
    return 0


def _run(given: argparse.Namespace) -> list[dict[str, Any]]:
    if given.seed < 0:
        raise InputError(f"expected a seed that is a whole number ≥ 0, got {given.seed}")
    options = {"data": given.data, "synthetic": given.synthetic, "quick": given.quick, "seed": given.seed}
    return runner.reproduce(
        runner.chosen(given.names), Context(given.out, **options), lambda name: print(f"{name} done", file=sys.stderr)
    )


if __name__ == "__main__":
    sys.exit(main())
