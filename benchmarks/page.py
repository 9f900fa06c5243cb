"""The page: what a moved slider costs the processor, and on loopback how soon a browser shows a page and a picture.

A change of ε makes as many events of the picture as a moment allows; the count says how many of those asked for.
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
import polars as pl

from seqveil.core.errors import InputError
from seqveil.interfaces.files.table import Table
from seqveil.interfaces.studio.answers import Studio
from seqveil.interfaces.studio.source import SAMPLES, StudioSource, sample
from seqveil.interfaces.studio.upload import Upload, UploadChoice, loaded

EVENTS = 1000
MOVES = 6
CASES = (("clicks", "none"), ("clicks", "ever"), ("gaze", "none"), ("power", "none"))

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
    processor = [moved(*case) for case in settings()]
    browser = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        browser = None
    if browser is None:
        print("in a browser: skipped, needs playwright and Debian's chromium")
        return {"processor": processor}
    with studio() as address, sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=browser, args=options)
        starts = [usable(opened, address) for _ in range(4)]
        print(f"address to a page one can use: first {starts[0]:.2f} s, then {min(starts[1:]):.2f} s (1 asked)")
        print(f"slider to picture in a browser, ms over {MOVES} moves, {EVENTS} events asked for, each ε new")
        rows = [measure(opened, address, *case) for case in CASES]
        opened.close()
    return {"processor": processor, "usable": starts, "slider": rows}


def settings() -> Iterator[tuple[StudioSource, str, dict[str, Any]]]:
    """Every sample and two files, under what the page proposes, a secret, blocks and batches."""
    drawn = np.random.default_rng(0)
    who, steps = np.repeat(np.arange(50), EVENTS), drawn.normal(0, 1, (2, 50 * EVENTS))
    walk = {"user": who, "lat": 48.85 + 0.02 * np.sin(steps[0]), "lon": 2.35 + 0.03 * np.sin(steps[1])}
    beats = {"user": who, "value": (70 + 9 * np.sin(np.cumsum(steps[0]) / 9)).round(1)}
    files = [loaded(Upload("f.csv", Table("f.csv", "a frame", pl.DataFrame(each))), UploadChoice(), name)
             for name, each in (("map file", walk), ("rates file", beats))]  # fmt: skip
    for source in (*map(sample, SAMPLES), *files):
        costs = {"distortion": source.start["distortion"]}
        secret = {"ever": [source.values[source.rare]], "window": 50}
        yield source, "as proposed", dict(source.start)
        yield source, "a secret", costs | {"secret": [secret]}
        yield source, "blocks of 10", costs | {"block": 10}
        yield source, "batches of 5", costs | {"batch": 5}


def moved(source: StudioSource, name: str, policy: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the processor for a new ε, and how many events they make; the least of three, the first left out."""
    answers, times, done = Studio(), list[float](), list[int]()
    answers._loaded = source
    for k in range(4):
        epsilon = (0.5 + 0.1 * k) * policy.get("block", policy.get("batch", 1))
        chosen = {**policy, "epsilon": epsilon}
        if "secret" in policy:
            chosen = {**policy, "secret": [{**policy["secret"][0], "epsilon": epsilon}]}
        asked = {"source": source.name, "policy": chosen, "person": None, "events": source.most, "seed": 1}
        begin = time.process_time()
        try:
            shown = answers.show(**asked)
        except InputError as refusal:
            print(f"  {source.name:<12}{name:<15}{source.model.n:>5}  refused: {str(refusal)[:60]}", flush=True)
            return {"source": source.name, "setting": name, "refused": str(refusal)}
        times.append(time.process_time() - begin)
        done.append(shown["done"])
    mechanism = shown["mechanism"]
    spent = f"{times[0]:.2f} s first, {min(times[1:]):.2f} to {max(times[1:]):.2f} s then, {min(done[1:])} events"
    print(f"  {source.name:<12}{name:<15}{source.model.n:>5}  {mechanism:<10}{spent}", flush=True)
    return {"source": source.name, "setting": name, "mechanism": mechanism, "seconds": times, "events": done}


@contextmanager
def studio() -> Iterator[str]:
    """`seqveil studio` in a process of its own: its address."""
    command = [sys.executable, "-m", "seqveil", "studio", "--port", "0"]
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


def measure(browser: Any, address: str, source: str, kind: str) -> dict[str, Any]:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    page.wait_for_selector("body[data-ready]", state="attached")
    for field, value in (("source", source), ("events", str(EVENTS))):
        if page.input_value(f"#{field}") != value:
            settled(page, lambda field=field, value=value: page.select_option(f"#{field}", value))
    if kind != "none":
        settled(page, lambda: page.check(f"#secret-kind input[value={kind}]"))
    # distinct ε from about .4 to 1.2, so that nothing comes from a picture made before
    times = np.array([page.evaluate(MOVE, 100 + 3 * k) for k in range(MOVES)])
    page.close()
    print(f"  {source:<12}{kind:<6} median {np.median(times[:, 1]):>5.0f}, most {times[:, 1].max():>5.0f}", flush=True)
    return {"source": source, "secret": kind, "milliseconds": times[:, 1].tolist()}


def settled(page: Any, act: Any) -> None:
    """Do something and wait until its picture is whole."""
    before = page.evaluate("document.body.dataset.ready")
    act()
    while page.evaluate("document.body.dataset.ready") == before:
        time.sleep(0.05)


if __name__ == "__main__":
    run(None)
