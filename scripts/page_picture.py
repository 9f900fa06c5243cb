"""Make docs/img/page.png, the docs' picture of the page, with a real browser (`python scripts/page_picture.py`)."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

TARGET = Path(__file__).parent.parent / "docs" / "img" / "page.png"
WIDTH = 1360
SECONDS = 180  # for the curves of all mechanisms


def take(address: str, target: Path, source: str, scheme: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        page = browser.new_page(color_scheme=scheme, viewport={"width": WIDTH, "height": 2000})
        page.goto(address)
        page.wait_for_selector("body[data-ready]", state="attached")
        if page.input_value("#source") != source:
            before = page.evaluate("document.body.dataset.ready")
            page.select_option("#source", source)
            wait(page, f"document.body.dataset.ready > {before}")
        wait(page, "document.getElementById('curve').dataset.complete === 'true'")
        bottom = page.evaluate("document.getElementById('curve').closest('section').getBoundingClientRect().bottom")
        page.screenshot(path=target, clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom + 8})
        browser.close()


def wait(page, expression: str) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + SECONDS
    while not page.evaluate(expression):
        if time.monotonic() > end:
            raise SystemExit(f"the page took longer than {SECONDS} s; try again on a quiet machine")
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="clicks", choices=("clicks", "gaze", "heart_rate", "power"))
    parser.add_argument("--scheme", default="light", choices=("light", "dark"))
    parser.add_argument("--out", type=Path, default=TARGET)
    chosen = parser.parse_args()
    if shutil.which("chromium") is None:
        raise SystemExit("needs Debian's chromium (apt-get install chromium) and playwright")
    command = [sys.executable, "-m", "seqveil", "studio", "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[1]
        take(address, chosen.out, chosen.source, chosen.scheme)
    finally:
        server.terminate()
        server.wait(30)
    print(f"wrote {chosen.out}")


if __name__ == "__main__":
    main()
