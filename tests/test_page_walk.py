"""The walk of the page in a real browser: one's own file, the odds, some ways side by side, what to take along."""

import tomllib

import pytest

from browsing import after, in_a_browser, until, violations, visit
from seqveil.core.words import moved
from test_studio_files import CLEAN, HOLES

pytestmark = in_a_browser
TILES = ["clinic" if k % 41 == 7 else f"t{(k * k * 31) % 97 % 3}" for k in range(400)]
WEEKS = "person,week,hour,tile\n" + "".join(f"p{k // 40},{k % 40 // 4},{k % 4},{TILES[k]}\n" for k in range(400))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_a_visitor_walks_from_a_file_to_a_setting(browser, page_server, tmp_path, scheme, width):
    (tmp_path / "own.csv").write_text(WEEKS)
    with visit(browser, page_server.url, scheme, width, expected="status of 400") as page:
        until(page, "document.body.dataset.ready >= 1")
        assert "stays on this machine" in page.inner_text("#stays")
        page.set_input_files("#file", tmp_path / "own.csv")
        until(page, "!document.getElementById('columns').hidden")
        chosen = [page.input_value(f"#{part}-column") for part in ("user", "value", "second", "time")]
        assert chosen == ["person", "tile", "", "week,hour"]
        assert "10 people, 400 events" in page.inner_text("#found")
        page.select_option("#value-column", "week")
        until(page, "document.getElementById('load-problem').textContent !== ''")  # it is the time already
        page.select_option("#value-column", "tile")
        until(page, "document.getElementById('load-problem').textContent === ''")
        after(page, lambda: page.click("#load"))
        assert "400 events in 10 streams, 4 symbols" in page.inner_text("#about")
        after(page, lambda: page.check("#secret-kind input[value=count]"))
        page.fill("#secret-count", "41")  # of 40 events
        until(page, "document.getElementById('problem').textContent !== ''")
        assert "certain or impossible" in page.inner_text("#secret-about")
        assert page.is_hidden("#verdict-top")
        after(page, lambda: page.fill("#secret-count", "3"))
        assert "whether clinic occurs at least 3 times among the first 40 events" in page.inner_text("#secret-about")
        after(page, lambda: page.click("#seen-by button:has-text('everybody')"))
        assert "one of 10 % at most 15 %" in page.inner_text("#risks")
        assert page.input_value("#epsilon") == "0.462"
        until(page, "document.getElementById('compare').dataset.complete === 'true'")
        ways = page.locator("#compare tbody tr").all_inner_texts()
        assert len(ways) == 5
        assert "guarded, as chosen" in ways[0]
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        with page.expect_download() as download:
            page.click("#save-toml")
        download.value.save_as(tmp_path / "policy.toml")
        said = tomllib.loads((tmp_path / "policy.toml").read_text())
        [secret] = said["secret"]
        assert (secret["epsilon"], secret["at_least"], secret["window"]) == (0.462, 3, "first 40")
        assert (
            "--user-column person --value-column tile --time-column week,hour --policy policy.toml --sort"
            in page.inner_text("#steps")
        )


def leaked(suspicion, epsilon):
    return moved(suspicion, 2 * epsilon)


def test_the_dial_says_in_odds_what_the_library_says(browser, page_server):
    with visit(browser, page_server.url) as page:
        until(page, "document.body.dataset.ready >= 1")
        after(page, lambda: page.select_option("#events", "50"))
        for kind, becomes in (("none", leaked), ("whole", leaked), ("ever", moved)):
            if kind != "none":
                after(page, lambda kind=kind: page.check(f"#secret-kind input[value={kind}]"))
            for epsilon in (0.1, 1.3):
                after(page, lambda epsilon=epsilon: page.fill("#epsilon", str(epsilon)))
                shown = float(page.input_value("#odds"))
                assert 0 <= shown - 100 * becomes(0.1, epsilon) < 0.1001
            after(page, lambda: page.fill("#odds", "30"))
            assert 0.29 < becomes(0.1, float(page.input_value("#epsilon"))) <= 0.3
            assert f"ε {page.input_value('#epsilon')}" in page.get_attribute("#epsilon-slider", "aria-valuetext")
        after(page, lambda: page.check("#secret-kind input[value=none]"))
        page.click("#more > summary")
        after(page, lambda: page.fill("#epsilon", "0.5"))
        after(page, lambda: page.fill("#every", "2"))
        assert float(page.input_value("#odds")) == pytest.approx(45.1)  # one release carries the ε of two
        page.fill("#wrong", "40")
        after(page, lambda: page.click("#solve"))
        assert page.inner_text("#solved") == "found"
        assert float(page.input_value("#epsilon")) > 0.5


def test_a_total_for_the_whole_stream_is_small_and_spread_over_it(browser, page_server):
    with visit(browser, page_server.url) as page:
        until(page, "document.body.dataset.ready >= 1")
        assert page.get_attribute("#verdict-top", "class") == "verdict red"
        after(page, lambda: page.check("#secret-kind input[value=whole]"))
        assert page.get_attribute("#verdict-top", "class") == "verdict unchecked"
        assert "budget = { total = 1.0 }" in page.inner_text("#toml")
        assert "epsilon = 0.005" in page.inner_text("#toml")
        assert "All releases" not in page.inner_text("#problem")


OTHER = CLEAN.replace("user,value", "person,page")
TEXT = "document.getElementById('{}').textContent"


class Held:
    """The first request to a path waits until it is let go."""

    def __init__(self, page, path):
        self.first = None
        page.route(f"**{path}", self._one)

    def _one(self, route):
        if self.first is None:
            self.first = route
        else:
            route.continue_()


def upload(page, name, text):
    page.set_input_files("#file", {"name": name, "mimeType": "text/csv", "buffer": text.encode()})


def test_the_second_of_two_files_in_a_row_is_the_one_that_counts(browser, page_server):
    with visit(browser, page_server.url) as page:
        until(page, "document.body.dataset.ready >= 1")
        held = Held(page, "/v1/page/inspect")
        upload(page, "first.csv", CLEAN)
        until(page, f"{TEXT.format('loading')} === 'Looking at first.csv …'")
        upload(page, "second.csv", OTHER)
        until(page, "!document.getElementById('columns').hidden")
        with page.expect_response("**/v1/page/inspect"):
            held.first.continue_()
        page.wait_for_timeout(100)
        assert page.input_value("#user-column") == "person"
        assert "second.csv" in page.inner_text("#file-name")
        assert page.inner_text("#loading") == ""


def test_a_sample_chosen_while_a_file_is_fitted_stays(browser, page_server):
    with visit(browser, page_server.url) as page:
        until(page, "document.body.dataset.ready >= 1")
        upload(page, "holes.csv", HOLES)
        until(page, "!document.getElementById('columns').hidden")
        held = Held(page, "/v1/page/load")
        page.click("#load")
        until(page, f"{TEXT.format('loading')} === 'Fitting a model to holes.csv …'")
        after(page, lambda: page.select_option("#source", "power"))
        with page.expect_response("**/v1/page/load"):
            held.first.continue_()
        page.wait_for_timeout(100)
        assert page.input_value("#source") == "power"
        assert page.inner_text("#loading") == ""


def test_a_reload_after_going_to_a_step_needs_no_key_again(browser, page_server):
    with visit(browser, page_server.url) as page:
        until(page, "document.body.dataset.ready >= 1")
        assert page.is_hidden("#waiting")
        page.click("nav.walk a[href='#step-take']")
        assert page.evaluate("document.activeElement.id") == "step-take"
        assert 0 <= page.evaluate("document.getElementById('step-take').getBoundingClientRect().top") < 900
        page.reload()
        until(page, "document.body.dataset.ready >= 1")
        assert page.is_hidden("#entry")
