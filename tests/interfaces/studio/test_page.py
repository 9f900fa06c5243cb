"""The page in a real browser: two journeys from a file to a policy, by mouse and by keyboard, wide and narrow."""

import tomllib

import numpy as np

from browsing import after, figure, in_a_browser, until, violations, visit
from seqveil.core.words import moved

pytestmark = in_a_browser
TILES = ["clinic" if k % 41 == 7 else f"Travel and public transport {(k * k * 31) % 97 % 3}" for k in range(400)]
WEEKS = "person,week,hour,tile\n" + "".join(f"p{k // 40},{k % 40 // 4},{k % 4},{TILES[k]}\n" for k in range(400))
DRAWN = np.random.default_rng(1)
WALKS = "user,lat,lon\n" + "".join(
    f"u{k // 20},{48.85 + x:.5f},{2.35 + y:.5f}\n" for k, (x, y) in enumerate(DRAWN.normal(0, 0.01, (400, 2)))
)
TEXT = "document.getElementById('{}').textContent"
OUTSIDE = """width => [...document.querySelectorAll("svg text")].filter((each) => {
  const box = each.getBoundingClientRect();
  return box.width && (box.left < 0 || box.right > width + 1);
}).map((each) => each.textContent)"""


def upload(page, name, text):
    page.set_input_files("#file", {"name": name, "mimeType": "text/csv", "buffer": text.encode()})


def opened(page):
    for details in page.locator("details").all():
        details.evaluate("each => each.open = true")


def test_a_visitor_walks_from_a_file_to_a_policy(browser, page_server, tmp_path):
    with visit(browser, page_server.url, expected="status of 400") as page:
        until(page, "document.body.dataset.ready >= 1")
        assert page.get_attribute("#verdict-top", "class") == "verdict red"
        before = {name: figure(page, name) for name in ("Error as released", "Leakage, exact")}
        after(page, lambda: page.fill("#epsilon", "3"))
        assert float(figure(page, "Error as released")[:-2]) < float(before["Error as released"][:-2])
        assert float(figure(page, "Leakage, exact")) > float(before["Leakage, exact"])
        upload(page, "bad.csv", "user,value\na,secret-77\na\n")
        until(page, f"{TEXT.format('load-problem')} !== ''")
        assert "row 2" in page.inner_text("#load-problem")
        assert "secret" not in page.inner_text("#load-problem")
        upload(page, "own.csv", WEEKS)
        until(page, "!document.getElementById('columns').hidden")
        chosen = [page.input_value(f"#{part}-column") for part in ("user", "value", "second", "time")]
        assert chosen == ["person", "tile", "", ""]
        assert "10 people, 400 events" in page.inner_text("#found")
        page.select_option("#value-column", "person")
        until(page, f"{TEXT.format('look-problem')} !== ''")  # it is the user already
        assert page.is_disabled("#load")
        page.select_option("#value-column", "tile")
        until(page, f"{TEXT.format('look-problem')} === ''")
        after(page, lambda: page.click("#load"))
        assert "fitted to 8 people; the others are shown" in page.inner_text("#about")
        after(page, lambda: page.check("#secret-kind input[value=count]"))
        page.fill("#secret-count", "41")  # of 40 events
        until(page, f"{TEXT.format('problem')} !== ''")
        assert "certain or impossible" in page.inner_text("#secret-about")
        assert page.is_hidden("#verdict-top")
        after(page, lambda: page.fill("#secret-count", "2"))
        assert "whether clinic occurs at least 2 times in a run of 40 events" in page.inner_text("#secret-about")
        after(page, lambda: page.click("#seen-by button:has-text('everybody')"))
        assert "one of 10 % at most 15 %" in page.inner_text("#risks")
        assert page.input_value("#epsilon") == "0.462"
        opened(page)
        assert violations(page) == []
        with page.expect_download() as download:
            page.click("#save-toml")
        download.value.save_as(tmp_path / "policy.toml")
        [secret] = tomllib.loads((tmp_path / "policy.toml").read_text())["secret"]
        assert (secret["count"], secret["epsilon"], secret["at_least"], secret["window"]) == (["clinic"], 0.462, 2, 40)
        assert "seqveil fit own.csv -o own.model --user-column person --value-column tile" in page.inner_text("#steps")
        for kind in ("svg", "png"):
            with page.expect_download() as download:
                page.click(f"#save-{kind}")
            assert download.value.suggested_filename == f"seqveil-page.{kind}"
        page.reload()  # the key is still in the address
        until(page, "document.body.dataset.ready >= 1")


def test_places_and_long_names_fit_a_telephone_in_the_dark(browser, page_server):
    with visit(browser, page_server.url.partition("#")[0], "dark", 390) as page:
        page.wait_for_selector("#entry:not([hidden])")
        page.fill("#entry-key", page_server.url.rpartition("=")[2])
        after(page, lambda: page.click("#entry button"))
        for name, text, kind in (("names.csv", WEEKS, "ever"), ("walks.csv", WALKS, "zone")):
            upload(page, name, text)
            until(page, "!document.getElementById('columns').hidden")
            after(page, lambda: page.click("#load"))
            after(page, lambda kind=kind: page.check(f"#secret-kind input[value={kind}]"))
            for step in ("look", "secret", "odds", "see"):  # no place in degrees, but in policy.toml
                assert "48.8" not in page.inner_text(f"#step-{step}")
            assert page.evaluate(OUTSIDE, 390) == []
            opened(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            assert violations(page) == []
        assert (
            page.locator("#stage svg title")
            .first.text_content()
            .startswith("The path raw, released and decoded on the map")
        )
        assert "no bound" in figure(page, "Whole sequence")


def test_the_dial_says_in_odds_what_the_library_says_and_the_keyboard_is_enough(browser, page_server):
    def leaked(suspicion, epsilon):
        return moved(suspicion, 2 * epsilon)

    with visit(browser, page_server.url) as page:
        until(page, "document.body.dataset.ready >= 1")
        for kind, becomes in (("none", leaked), ("whole", leaked), ("ever", moved)):
            if kind != "none":
                after(page, lambda kind=kind: page.check(f"#secret-kind input[value={kind}]"))
            after(page, lambda: page.fill("#epsilon", "1.3"))
            assert 0 <= float(page.input_value("#odds")) - 100 * becomes(0.1, 1.3) < 0.1001
            after(page, lambda: page.fill("#odds", "30"))
            assert 0.29 < becomes(0.1, float(page.input_value("#epsilon"))) <= 0.3
        after(page, lambda: page.check("#secret-kind input[value=whole]"))
        assert "budget = { total = 1.0, over = 1000 }" in page.inner_text("#toml")
        after(page, lambda: page.check("#secret-kind input[value=none]"))
        page.focus("#epsilon-slider")
        before = float(page.input_value("#epsilon"))
        after(page, lambda: page.keyboard.press("ArrowRight"))
        assert float(page.input_value("#epsilon")) > before
        page.focus("#more > summary")
        page.keyboard.press("Enter")
        after(page, lambda: page.fill("#budget", "6"))
        assert float(figure(page, "Leakage, exact")) <= 6.0
        assert "budget spent" in page.inner_html("#account svg")
        after(page, lambda: page.select_option("#mechanism", "balanced"))
        after(page, lambda: page.fill("#batch", "3"))  # what cannot go with batches gives way
        assert (page.input_value("#mechanism"), page.inner_text("#problem")) == ("", "")
        page.focus("#play")
        page.keyboard.press("Space")
        until(page, "document.getElementById('play').getAttribute('aria-pressed') === 'true'")
        page.keyboard.press("Space")
        page.focus("#time")
        page.keyboard.press("Home")
        assert page.get_attribute("#time", "aria-valuetext").startswith("Event 1 of ")
