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
    (found,) = [row for row in rows(SECRETS, "On your own data") if row[0] == name]
    error, shown = found[2 + 3 * table].strip("*"), re.match(r"≥ ([\d.]+)", found[4 + 3 * table])
    return float(error), float(shown[1]) if shown else None


GUARDED = ("`guarded`", moved(0.1, 0.5))
TABLE = {  # a row of the README: the row of docs/secrets.md, what is promised, and with which of its two models
    "**a secret declared": (*GUARDED, 1),
    "the same, without memory": ("`guarded`, no memory", moved(0.1, 0.5), 1),
    "the same, with memory; chain": (*GUARDED, 0),
    "ε = 0.5 about the whole": ("`optimal`, total ε", moved(0.1, 2 * 0.5), 1),
    "ε = 1 for each click": ("`optimal`, ε = 1 per event", moved(0.1, 2 * 20.0), 1),
    "one block, ε = 20": ("`blocks` of 20, ε = 20 for each", moved(0.1, 2 * 20.0), 0),
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
    assert promise.removeprefix("nearly ").startswith("no promise" if up is None else f"{up:g} %")
    assert wrong == percent(math.floor(100 * error + 0.5) / 100)
    got = None if shown is None else math.floor(round(1000 * moved(0.1, shown), 6)) / 10
    assert attacked.startswith("" if got is None else f"{got:g} %")
    assert ("broken" in attacked) == (begins == "the same, with memory; chain")


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_the_primer_says_what_a_suspicion_becomes(epsilon):
    (row,) = [row for row in rows(PRIMER, "What a suspicion becomes") if row[0] == f"{epsilon:g}"]
    assert row[1:] == [percent_up(moved(before, epsilon)) for before in SUSPICIONS]


def test_the_primer_says_how_far_a_majority_of_blurred_reports_comes():
    found = [row for row in rows(PRIMER, "Why the simple remedies fail") if row[0].isdigit()]
    assert len(found) == 4
    for reports, right in found:
        n = int(reports)
        share = sum(math.comb(n, k) * 0.7**k * 0.3 ** (n - k) for k in range(n // 2 + 1, n + 1))
        assert right == percent(share)
