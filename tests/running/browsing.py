"""The page in a real browser, for tests: a tab, what it waits for, and what axe-core finds in it."""

import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
in_a_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]

AXE = Path(__file__).parents[1] / "vendor" / "axe.min.js"


@contextmanager
def chromium():
    """The browser, until the tests of a file are done."""
    with sync_api.sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield opened
        opened.close()


@contextmanager
def visit(browser, url, scheme="light", width=1440, expected=None, **options):
    """A fresh tab; whatever the console complains of fails the test, but for a refusal that is `expected`."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, **options)
    page, complaints = context.new_page(), []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if "127.0.0.1" not in request.url
            and not request.url.startswith(("data:", "blob:")) else None)  # fmt: skip
    page.goto(url)
    try:
        yield page
        assert [each for each in complaints if expected is None or expected not in each] == []
    finally:
        context.close()


def until(page, expression, seconds=300):
    """Wait for an expression; the page's own policy forbids the strings that Playwright would evaluate inside it."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        time.sleep(0.02)


def ready(page):
    return int(page.evaluate("document.body.dataset.ready ?? 0"))


def after(page, act):
    """Do something and wait for the picture that it brings."""
    before = ready(page)
    act()
    until(page, f"(document.body.dataset.ready ?? 0) > {before}")


def figure(page, name):
    return page.locator("#figures div", has_text=name).locator("dd").inner_text().splitlines()[0]


def violations(page):
    """What axe-core finds that a visitor would stumble over, however little."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [(each["id"], each["impact"], each["nodes"][0]["html"][:120]) for each in found]
