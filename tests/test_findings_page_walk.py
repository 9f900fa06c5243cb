"""What a first visitor of the page stumbled over, in a real browser: files in a row, late answers, and a reload."""

from browsing import after, in_a_browser, until, visit
from test_findings_page import CLEAN, HOLES

pytestmark = in_a_browser
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
