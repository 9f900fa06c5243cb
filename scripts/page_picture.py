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
WIDTH = 1200
SECONDS = 180  # for the picture
SECRET = {"clicks": "category06", "gaze": "cell 5, 5", "power": "8"}  # that is kept


def take(address: str, target: Path, source: str, scheme: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        page = browser.new_page(color_scheme=scheme, viewport={"width": WIDTH, "height": 4000})
        page.goto(address)
        page.wait_for_selector("body[data-ready]", state="attached")
        if page.input_value("#source") != source:
            settled(page, lambda: page.select_option("#source", source))
        settled(page, lambda: page.check("#secret-kind input[value=ever]"))
        settled(page, lambda: page.select_option("#secret-value", label=SECRET[source]))
        settled(page, lambda: page.click("#seen-by button:has-text('a partner')"))
        top, bottom = (page.evaluate(f"document.getElementById('step-{name}').getBoundingClientRect().{edge}")
                       for name, edge in (("secret", "top"), ("see", "bottom")))  # fmt: skip
        page.screenshot(path=target, clip={"x": 0, "y": top - 12, "width": WIDTH, "height": bottom - top + 24})
        browser.close()


def settled(page, act) -> None:  # type: ignore[no-untyped-def]
    """Do something and wait for the picture that it brings."""
    before = page.evaluate("document.body.dataset.ready")
    act()
    wait(page, f"document.body.dataset.ready > {before}")


def wait(page, expression: str) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + SECONDS
    while not page.evaluate(expression):
        if time.monotonic() > end:
            raise SystemExit(f"the page took longer than {SECONDS} s; try again on a quiet machine")
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="clicks", choices=("clicks", "gaze", "power"))
    parser.add_argument("--scheme", default="light", choices=("light", "dark"))
    parser.add_argument("--out", type=Path, default=TARGET)
    chosen = parser.parse_args()
    if shutil.which("chromium") is None:
        raise SystemExit("needs Debian's chromium (apt-get install chromium) and playwright")
    command = [sys.executable, "-m", "seqveil", "studio", "--port", "0"]
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
