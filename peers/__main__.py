"""Run the cross-checks against the peers named on the command line, or all of them, and print one table.

Ends with 0 where nothing failed, 1 where a check failed, 2 where nothing could be checked.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from peers import auditors, optimum, response, totals
from peers.environments import ACCOUNTING, ESTIMATES, MULTI_FREQ, OPENDP, PEERS, PURE, QIF, Peer, Unavailable, set_up
from peers.judge import FAILS, FALSE_ALARMS, PEER, Row, table

CHECKS: dict[Peer, Callable[[], list[Row]]] = {
    MULTI_FREQ: partial(response.check_grr, MULTI_FREQ),
    PURE: partial(response.check_grr, PURE),
    OPENDP: response.check_opendp,
    QIF: optimum.check,
    ACCOUNTING: totals.check,
    ESTIMATES: auditors.check,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m peers", description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("names", nargs="*", metavar="PEER", help=f"any of {', '.join(names)}; all by default")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(names):
        parser.error(f"no peer called {', '.join(sorted(unknown))}; choose from {', '.join(names)}")
    rows: list[Row] = []
    for peer in PEERS:
        if not chosen.names or peer.name in chosen.names:
            rows += check(peer)
    report(rows, chosen.json)
    if any(row.verdict == FAILS for row in rows):
        return 1
    return 0 if rows else 2


def check(peer: Peer) -> list[Row]:
    """The peer's rows; none, and a line that says why, where it cannot be installed."""
    try:
        set_up(peer)
    except Unavailable as reason:
        print(f"skipped {peer.name}: it could not be installed ({reason})", file=sys.stderr, flush=True)
        return []
    start = time.perf_counter()
    try:
        rows = CHECKS[peer]()
    except RuntimeError as problem:
        print(problem, file=sys.stderr)
        rows = [Row(peer.name, "?", "its script", "", "", "did not run to its end", FAILS)]
    print(f"checked {peer.name} in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return rows


def report(rows: list[Row], as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False))
        return
    if not rows:
        print("nothing was checked: no peer could be installed")
        return
    failed, wrong = (sum(row.verdict == kind for row in rows) for kind in (FAILS, PEER))
    print(table(rows))
    print(
        f"\n{len(rows)} checks, {failed} failed, {wrong} where the peer is wrong; "
        f"a run with nothing wrong fails a χ² test with chance {FALSE_ALARMS:g} ({response.tests()} tests)"
    )


if __name__ == "__main__":
    sys.exit(main())
