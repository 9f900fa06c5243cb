"""The page in a real browser: what a visitor does with it, by mouse and by keyboard, in light, dark and narrow."""

import json
import re

import pytest

from browsing import after, figure, in_a_browser, until, violations, visit
from studios import finish

LOOKS = {"light": ("light", 1440), "dark": ("dark", 1440), "narrow": ("light", 360), "narrow dark": ("dark", 360)}
pytestmark = in_a_browser


def test_a_visitor_changes_epsilon_and_sees_error_account_and_curve_change(browser, page_server):
    with visit(browser, page_server.url) as page:
        until(page, "document.body.dataset.ready >= 1")
        assert "factor 2.72" in page.text_content("#sentence")
        before = {name: figure(page, name) for name in ("Error as released", "Leakage, exact")}
        account = page.inner_html("#account svg")
        after(page, lambda: page.fill("#epsilon", "3"))
        assert "factor 20.1" in page.text_content("#sentence")
        assert float(figure(page, "Error as released")[:-2]) < float(before["Error as released"][:-2])
        assert float(figure(page, "Leakage, exact")) > float(before["Leakage, exact"])
        assert page.inner_html("#account svg") != account
        until(page, "document.querySelectorAll('#curve path').length > 3", 60)
        curve = page.inner_html("#curve svg")
        after(page, lambda: page.evaluate(SLIDE, 40))
        assert float(page.input_value("#epsilon")) < 0.2
        assert page.inner_html("#curve svg") != curve
        asked = finish(page_server.sandbox.show, source="clicks", epsilon=float(page.input_value("#epsilon")))
        assert f"{100 * asked['figures']['error']:.1f} %" == figure(page, "Error as released")


SLIDE = """at => { const slider = document.getElementById('epsilon-slider');
                   slider.value = at; slider.dispatchEvent(new Event('input')); }"""


def test_a_budget_runs_out_and_says_so(browser, page_server):
    with visit(browser, page_server.url) as page:
        until(page, "document.body.dataset.ready >= 1")
        page.click("#more > summary")
        after(page, lambda: page.fill("#budget", "6"))
        assert float(figure(page, "Leakage, exact")) <= 6.0
        assert "budget spent" in page.inner_html("#account svg")
        page.click("text=What exactly is promised")
        assert "The budget is spent at event" in page.inner_text("#notes")
        assert "crr" not in page.eval_on_selector_all("#mechanism option", "all => all.map(each => each.value)")
        after(page, lambda: page.select_option("#when-spent", "stop"))
        assert "nothing more is released" in page.inner_text("#notes")
        page.locator("details[data-table=stage] summary").click()
        assert page.locator("details[data-table=stage] tbody tr").last.locator("td").nth(2).inner_text() == "–"
        after(page, lambda: page.fill("#batch", "3"))  # what cannot go with batches is changed, and can be seen
        assert (page.input_value("#mechanism"), page.input_value("#when-spent")) == ("auto", "hold")
        assert page.inner_text("#problem") == ""
        after(page, lambda: page.fill("#batch", "1"))
        assert page.input_value("#mechanism") == "optimal"


def test_a_visitor_loads_data_and_is_disclosed_what_is_wrong_with_it(browser, page_server, tmp_path):
    good, bad = tmp_path / "own.csv", tmp_path / "bad.csv"
    rows = "".join(f"u{k % 2},{(k * 7) % 5},{k % 3}\n" for k in range(80))
    good.write_text(f"person,x,y\n{rows}")
    bad.write_text("user,value\na,secret-77\na\n")
    with visit(browser, page_server.url, expected="status of 400") as page:
        until(page, "document.body.dataset.ready >= 1")
        page.set_input_files("#file", bad)
        until(page, "document.getElementById('load-problem').textContent !== ''")
        assert "row 2" in page.inner_text("#load-problem")
        assert "secret" not in page.inner_text("#load-problem")
        page.set_input_files("#file", good)
        until(page, "document.getElementById('value-column').value === 'x'")
        assert page.input_value("#user-column") == "person"
        assert page.input_value("#second-column") == "y"
        page.fill("#cells", "5")
        after(page, lambda: page.click("#load"))
        assert "80 events in 2 streams, 25 symbols" in page.inner_text("#about")
        assert page.locator("#stage svg title").first.text_content().startswith("The path")


def test_what_is_exported_is_what_is_shown(browser, page_server, tmp_path):
    with visit(browser, page_server.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        until(page, "document.body.dataset.ready >= 1")
        after(page, lambda: page.fill("#epsilon", "0.75"))
        saved = {}
        for kind in ("toml", "json", "svg", "png"):
            with page.expect_download() as download:
                page.click(f"#save-{kind}")
            saved[kind] = tmp_path / download.value.suggested_filename
            download.value.save_as(saved[kind])
        asked = json.loads(saved["json"].read_text())
        assert (asked["format"], asked["epsilon"], asked["source"]) == ("seqveil-page", 0.75, "clicks")
        again = finish(page_server.sandbox.show, **asked)
        assert again["sentence"] == page.text_content("#sentence")
        assert again["snippets"]["python"] == page.text_content("#python")
        assert again["files"]["toml"] == page.text_content("#toml") == saved["toml"].read_text()
        assert (saved["toml"].name, saved["json"].name) == ("policy.toml", "seqveil-page.json")
        drawn = saved["svg"].read_text()
        assert drawn.startswith("<svg")
        assert "Error against ε" in drawn
        assert "ε = 0.75" in drawn
        assert drawn.count("<svg") == 6
        content = saved["png"].read_bytes()
        assert content.startswith(b"\x89PNG")
        assert int.from_bytes(content[16:20]) > 1000
        page.click("text=Without the file")
        page.click("[data-copy=python]")
        until(page, "document.getElementById('exported').textContent === 'Copied.'")
        assert page.evaluate("navigator.clipboard.readText()") == page.text_content("#python")


@pytest.mark.parametrize(("scheme", "width"), LOOKS.values(), ids=LOOKS.keys())
def test_nobody_is_kept_out(browser, page_server, scheme, width):
    with visit(browser, page_server.url, scheme, width) as page:
        until(page, "document.body.dataset.ready >= 1")
        after(page, lambda: page.select_option("#events", "50"))
        for details in page.locator("details").all():
            details.evaluate("each => each.open = true")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = sum(map(int, re.findall(r"\d+", ground)[:3])) < 200
        assert dark == (scheme == "dark")
        page.select_option("#theme", "light" if dark else "dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground


@pytest.mark.parametrize(("scheme", "width"), [LOOKS["light"], LOOKS["narrow dark"]], ids=["light", "narrow dark"])
def test_two_clicks_keep_a_value_secret(browser, page_server, scheme, width):
    with visit(browser, page_server.url, scheme, width) as page:
        until(page, "document.body.dataset.ready >= 1")
        after(page, lambda: page.select_option("#events", "50"))
        after(page, lambda: page.click("#secret-kind label:has-text('Whether it ever occurs')"))
        after(page, lambda: page.select_option("#secret-value", label="category06"))
        assert "a suspicion of 25 % stays between 10 % and 48 %" in page.text_content("#sentence")
        assert "nothing is promised about the whole sequence" in page.text_content("#sentence")
        assert page.inner_text("#secret-about").startswith("Kept secret: whether category06 occurs among the first 50")
        assert "becomes at most 2.7 %, one of 10 % at most 24 %" in page.inner_text("#risks")
        assert (page.get_attribute("#verdict", "class"), page.is_visible("#verdict-whole")) == (
            "verdict unchecked",
            True,
        )
        assert "green" not in page.get_attribute("#verdict-whole", "class")
        assert figure(page, "Whole sequence") == "no bound"
        assert page.is_hidden("#account-part")
        assert "they stay between ÷ 2.72 and × 2.72" in page.locator("#odds-chart svg title").first.text_content()
        assert "it stays between 3.9 % and 24 % whatever is released" in page.text_content("#summary")
        page.locator("details[data-table=odds] summary").click()
        until(page, "document.querySelectorAll('details[data-table=odds] tbody tr').length === 50")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        after(page, lambda: page.fill("#odds", "25"))
        assert page.input_value("#epsilon") == "1.09"
        assert "one of 10 % at most 25 %" in page.inner_text("#risks")
        page.focus("#secret-kind input:checked")
        after(page, lambda: page.keyboard.press("ArrowRight"))
        assert "at least 2 times" in page.inner_text("#secret-about")
        after(page, lambda: page.click("#secret-kind label:has-text('Nothing in particular')"))
        assert page.is_visible("#account-part")
        assert page.get_attribute("#verdict", "class") == "verdict red"
        assert "may become more likely than not" in page.inner_text("#why")


def test_the_keyboard_is_enough(browser, page_server):
    with visit(browser, page_server.url) as page:
        until(page, "document.body.dataset.ready >= 1")

        def tab_to(wanted):
            for _ in range(80):
                page.keyboard.press("Tab")
                if page.evaluate("document.activeElement.id") == wanted:
                    return
            raise AssertionError(f"no way to {wanted}")

        tab_to("source")
        after(page, lambda: page.keyboard.type("House"))
        assert page.input_value("#source") == "power"
        tab_to("epsilon-slider")
        before = float(page.input_value("#epsilon"))
        after(page, lambda: page.keyboard.press("ArrowRight"))
        assert float(page.input_value("#epsilon")) > before
        page.focus("#more > summary")
        page.keyboard.press("Enter")
        tab_to("budget")
        after(page, lambda: page.keyboard.type("9"))
        assert "budget" in page.inner_text("#summary")
        tab_to("play")
        page.keyboard.press("Space")
        until(page, "document.getElementById('play').getAttribute('aria-pressed') === 'true'")
        page.keyboard.press("Space")
        tab_to("time")
        page.keyboard.press("Home")
        assert page.get_attribute("#time", "aria-valuetext").startswith("Event 1 of 200: raw")
        tab_to("save-toml")
        with page.expect_download() as download:
            page.keyboard.press("Enter")
        assert download.value.suggested_filename == "policy.toml"


def test_without_the_key_the_page_asks_for_it(browser, page_server):
    with visit(browser, page_server.url.partition("#")[0]) as page:
        page.wait_for_selector("#entry:not([hidden])")
        assert violations(page) == []
        page.fill("#entry-key", page_server.url.rpartition("=")[2])
        after(page, lambda: page.click("#entry button"))
        assert page.is_hidden("#entry")
