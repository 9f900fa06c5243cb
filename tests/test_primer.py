"""The figures of README and primer: each follows from the words module, or from a table of another page."""

import math
import re
from pathlib import Path

import pytest

from seqveil.core.words import SUSPICIONS, moved, percent, percent_up

ROOT = Path(__file__).parent.parent
README, PRIMER, SECRETS = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/primer.md", "docs/secrets.md")
)


def rows(text, heading):
    """The rows of every table below a heading, as lists of cells."""
    part = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert part, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"]


def measured(name, table):
    """What the attack on MSNBC printed for a mechanism, with a chain (table 0) or with types of people (table 1)."""
    found = [row for row in rows(SECRETS, "On your own data, beside other ways") if row[0] == name and len(row) > 6]
    error, shown = found[table][3].strip("*"), found[table][6].removeprefix("≥ ")
    return float(error), float(shown) if shown else None


GUARDED = ("`guarded`", moved(0.1, 0.5))
TABLE = {  # a row of the README: the row of docs/secrets.md, what is promised, and with which of its two models
    "**seqveil, a secret declared": (*GUARDED, 1),
    "the same, with a model": (*GUARDED, 0),
    "ε = 0.5 about the whole": ("`optimal`, total ε", moved(0.1, 2 * 0.5), 1),
    "randomised response": ("`randomized_response`, halved", moved(0.1, 0.5), 1),
    "ε = 1 for each click": ("`optimal`", moved(0.1, 2 * 20.0), 1),
    "health clicks replaced": ("suppression of the named symbols", None, 1),
    "nothing is released": ("*limit:* best guess, no release", 0.1, 1),
}


@pytest.mark.parametrize("begins", TABLE)
def test_the_table_of_the_readme_says_what_the_attack_printed(begins):
    name, promised, table = TABLE[begins]
    error, shown = measured(name, table)
    (row,) = [row for row in rows(README, "What it costs, and what an attacker got") if row[0].startswith(begins)]
    promise, wrong, attacked = (cell.strip("*") for cell in row[1:])
    up = None if promised is None else math.ceil(round(1000 * promised, 6)) / 10
    assert promise == ("nothing" if up is None else f"{up:g} %")
    assert wrong == percent(math.floor(100 * error + 0.5) / 100)
    got = None if shown is None else math.floor(round(1000 * moved(0.1, shown), 6)) / 10
    assert attacked.startswith("" if got is None else f"{got:g} %")
    assert ("broken" in attacked) == (begins == "the same, with a model")


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_the_primer_says_what_a_suspicion_becomes(epsilon):
    (row,) = [row for row in rows(PRIMER, "What a suspicion becomes") if row[0] == f"{epsilon:g}"]
    assert row[1:] == [percent_up(moved(before, epsilon)) for before in SUSPICIONS]
    assert f"{math.exp(epsilon):.2f}" in PRIMER


def test_the_primer_says_how_far_a_majority_of_blurred_reports_comes():
    found = [row for row in rows(PRIMER, "Why the simple remedies fail") if row[0].isdigit()]
    assert len(found) == 4
    for reports, right in found:
        n = int(reports)
        share = sum(math.comb(n, k) * 0.7**k * 0.3 ** (n - k) for k in range(n // 2 + 1, n + 1))
        assert right == percent(share)


def test_the_other_figures_of_the_primer_are_those_of_the_readme():
    cells = [cell for row in rows(README, "What it costs, and what an attacker got") for cell in row]
    for figure in ("28.1 %", "16.1 %", "15.5 %", "20 %", "81 %"):
        assert any(cell.strip("*").startswith(figure) for cell in cells), figure
    assert all(figure in PRIMER for figure in ("28.1 %", "16.1 %", "15.5 %", "one click in five", "four of five"))
    assert percent_up(moved(0.01, 2 * 20 * 0.5)) == "100 %"  # "after twenty events a suspicion of 1 % may be certainty"
    assert re.search(r"at ε = 0\.5 for each\s+event, after twenty events a suspicion of 1 % may be certainty", PRIMER)
