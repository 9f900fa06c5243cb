"""The page on loopback: from the address to a page one can use, and from a moved slider to the new picture.

Times are taken in the browser: a picture is new when it is drawn, a whole one when all its events are. A mechanism that
takes longer than a glance shows what it has made so far first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

EVENTS = 1000
MOVES = 6
CASES = (
    ("clicks", 17, "optimal"),
    ("clicks", 17, "guarded"),
    ("clicks", 17, "crr"),
    ("clicks", 17, "balanced"),
    ("gaze", 100, "randomized_response"),
    ("gaze", 100, "crr"),
    ("gaze", 100, "balanced"),
    ("gaze", 100, "tree"),
    ("power", 10, "optimal"),
)

# moves the slider and waits: milliseconds until a first picture of the new ε is drawn, and one with all events
MOVE = """async at => {
  const slider = document.getElementById("epsilon-slider");
  const begun = performance.now(), ready = document.body.dataset.ready;
  let first = null;
  const drawn = new MutationObserver(() => {
    first ??= performance.now() - begun;
  });
  drawn.observe(document.getElementById("odds-chart"), { childList: true });
  slider.value = at;
  slider.dispatchEvent(new Event("input"));
  while (document.body.dataset.ready === ready) await new Promise(requestAnimationFrame);
  drawn.disconnect();
  return [first, performance.now() - begun];
}"""


def run(data: Path | None) -> dict[str, Any] | None:
    browser = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        browser = None
    if browser is None:
        print("skipped: needs playwright and Debian's chromium")
        return None
    with studio() as address, sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=browser, args=options)
        starts = [usable(opened, address) for _ in range(4)]
        time.sleep(3)  # the compiled path is loaded by then
        print(f"address to a page one can use: first {starts[0]:.2f} s, then {min(starts[1:]):.2f} s (1 asked)")
        print(f"slider to picture, ms over {MOVES} moves, {EVENTS} events, each ε new to the server")
        heads = "".join(f"{name:>11}{'max':>7}" for name in ("first p50", "whole p50"))
        print(f"  {'stream':<10}{'n':>5}  {'mechanism':<21}{heads}")
        rows = [measure(opened, address, *case) for case in CASES]
        opened.close()
    return {"usable": starts, "slider": rows}


@contextmanager
def studio() -> Iterator[str]:
    """`seqveil studio` in a process of its own: its address."""
    command = [sys.executable, "-m", "seqveil", "studio", "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        if found is None:
            raise RuntimeError("the page did not start")
        yield found[0]
    finally:
        server.terminate()
        server.wait(30)


def usable(browser: Any, address: str) -> float:
    page = browser.new_page()
    begin = time.perf_counter()
    page.goto(address)
    page.wait_for_selector("body[data-ready]", state="attached")
    seconds = time.perf_counter() - begin
    page.close()
    return seconds


def measure(browser: Any, address: str, source: str, symbols: int, mechanism: str) -> dict[str, Any]:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    page.wait_for_selector("body[data-ready]", state="attached")
    page.click("#more > summary")
    for field, value in (("source", source), ("events", str(EVENTS)), ("mechanism", mechanism)):
        if page.input_value(f"#{field}") != value and value != "guarded":
            settled(page, lambda field=field, value=value: page.select_option(f"#{field}", value))
    if mechanism == "guarded":  # whether a rare category occurs in each run of 50 events
        settled(page, lambda: page.check("#secret-kind input[value=ever]"))
    # distinct ε from about .4 to 1.2, so that nothing comes from a picture made before
    times = np.array([page.evaluate(MOVE, 100 + 3 * k) for k in range(MOVES)])
    page.close()
    cells = "".join(f"{np.median(part):>11.0f}{part.max():>7.0f}" for part in times.T)
    print(f"  {source:<10}{symbols:>5}  {mechanism:<21}{cells}", flush=True)
    names = ("first", "whole")
    return {"source": source, "n": symbols, "mechanism": mechanism, **dict(zip(names, times.T.tolist(), strict=True))}


def settled(page: Any, act: Any) -> None:
    """Do something and wait until its picture is whole."""
    before = page.evaluate("document.body.dataset.ready")
    act()
    while page.evaluate("document.body.dataset.ready") == before:
        time.sleep(0.05)


if __name__ == "__main__":
    run(None)
