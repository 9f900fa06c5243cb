"""What objects show in a notebook: well-formed, escaped, small, true to the object, and free of raw symbols."""

import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqveil as sv


class Shown(HTMLParser):
    """Checks that tags close in order, and keeps the cells of every table."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.tags = [], [], set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data


def chain(n=3, alphabet=None, stay=0.8):
    rows = np.full((n, n), (1 - stay) / max(n - 1, 1))
    np.fill_diagonal(rows, stay)
    return sv.MarkovModel(np.full(n, 1 / n), rows, alphabet=alphabet)


def facts(shown):
    return dict(row for row in shown.tables[0] if len(row) == 2)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 12), st.integers(0, 1000))
def test_a_model_shows_its_prior_and_transitions(n, seed):
    rng = np.random.default_rng(seed)
    prior, rows = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(n), n)
    shown = Shown(sv.MarkovModel(prior, rows)._repr_html_())
    _, first, transitions = shown.tables
    assert np.allclose([float(cell) for cell in first[1][1:]], prior, atol=6e-4)
    drawn = np.array([[float(cell) for cell in row[1:]] for row in transitions[1:]])
    assert np.allclose(drawn, rows, atol=6e-4)
    assert [row[0] for row in transitions[1:]] == [str(code) for code in range(n)]


def test_a_kernel_shows_its_table_and_its_level():
    session = sv.Session(chain(4), epsilon=1.0, seed=1)
    kernel = session.kernel()
    shown = Shown(kernel._repr_html_())
    drawn = np.array([[float(cell) for cell in row[1:]] for row in shown.tables[1][1:]])
    assert np.allclose(drawn, kernel.probabilities, atol=6e-4)
    assert f"{kernel.ldp():.4g}" in facts(shown).values()
    assert kernel.leakage(session.belief) <= kernel.ldp()


NASTY = ["<script>alert(1)</script>", '"onmouseover="x', "a & b", "</table>"]


def test_text_is_escaped():
    model = chain(4, alphabet=NASTY)
    for shown in (model, sv.Session(model, mechanism="randomized_response", epsilon=1.0, seed=1).kernel()):
        text = shown._repr_html_()
        parsed = Shown(text)
        assert parsed.tags <= {"div", "p", "strong", "small", "table", "caption", "thead", "tbody", "tr", "th", "td"}
        assert "<script" not in text
        heads = [unescape(cell) for cell in parsed.tables[1][0][1:]]
        assert heads[1:] == NASTY[1:]
        assert heads[0].startswith("<script>alert(1)")


@pytest.mark.parametrize(
    "options", [{}, {"budget": 3.0}, {"budget": sv.Budget(per_window=2.0, releases=5)}, {"block": 3}]
)
def test_a_session_shows_its_account_and_no_symbol(options):
    names = [f"planted-{k}" for k in range(4)]
    session = sv.Session(chain(4, names), epsilon=0.5, seed=2, **options)
    for name in [*names, *names]:
        session.release(name)
    text = session._repr_html_()
    shown = facts(Shown(text))
    standing = session.account
    assert "planted" not in text
    assert shown["symbols released"] == "8"
    assert shown["exact leakage"].split()[0] == f"{standing.leakage:.4g}"
    assert shown["by composition, Σε"] == f"{standing.epsilon_spent:.4g}"
    assert "not private" in shown["randomness"]
    assert ("budget" in shown) == (options.get("budget") == 3.0)
    value = float(re.search(r'value="([\d.]+)"', text).group(1))
    assert value == pytest.approx(
        standing.leakage / (3.0 if options.get("budget") == 3.0 else standing.epsilon_spent), abs=1e-3
    )


def test_batches_that_wait_are_not_shown():
    session = sv.Session(chain(3, ["planted-a", "planted-b", "planted-c"]), epsilon=2.0, batch=3, seed=2)
    session.push("planted-b")
    assert "planted" not in session._repr_html_()
    session.push("planted-b")
    session.push("planted-a")
    assert "planted" not in session._repr_html_()
    assert facts(Shown(session._repr_html_()))["ε a batch of 3"] == "2"
