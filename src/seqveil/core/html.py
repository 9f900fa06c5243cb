"""How objects show themselves in a notebook: small tables of what is public about them.

A model and a kernel are public, so the names of their symbols stand in their tables; of a stream only its account is
shown, never a symbol that went into it or came out of it. All text is escaped; large objects are cut to a few rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW = 12  # rows and columns that a table of symbols shows
MANY = 60  # rows of any other table
SHADE = "11, 110, 153"
CELL = "padding:2px 8px;text-align:right"
NAME = "padding:2px 8px;text-align:left"

Cell = str | tuple[float, str]  # text, or a share in 0..1 that shades the cell and its text


def model(shown: Any) -> str:
    """Prior and transitions of the likeliest symbols; the size alone for orders above one and mixtures."""
    facts = [
        ("order", str(shown.order)),
        *([("types", str(shown.types))] if shown.types > 1 else []),
        ("symbols", str(shown.n)),
        ("transitions", str(shown.transitions)),
        ("fingerprint", shown.fingerprint[:12]),
    ]
    kept = _likeliest(shown.prior)
    names = _names(shown.alphabet, kept)
    prior = table("prior", ["", *names], [["", *_shares(shown.prior[kept])]])
    parts = [prior, _left_out(len(kept), shown.n, "likeliest symbols")]
    if shown.order == 1 and shown.types == 1:
        state_of = {int(symbol): state for state, symbol in enumerate(shown.newest)}
        begin = [symbol for symbol in kept.tolist() if symbol in state_of]
        ones = np.zeros((len(begin), shown.size))
        ones[np.arange(len(begin)), [state_of[symbol] for symbol in begin]] = 1.0
        moved = shown.advance(ones)
        distributions = np.stack([np.bincount(shown.newest, row, minlength=shown.n)[kept] for row in moved])
        rows = _rows(_names(shown.alphabet, begin), distributions)
        parts.append(table("transitions, from the row to the column", ["", *names], rows))
    return page("MarkovModel", facts, *parts)


def kernel(shown: Any, alphabet: Any, n: int) -> str:
    """The distribution of the release for each symbol, and what it leaks at most under any belief."""
    codes = shown.codes
    places = np.arange(codes.size)[:FEW]
    symbols = np.arange(n) if n <= FEW else codes[places]
    columns = [shown.column(int(place))[symbols] / float(shown.denominator) for place in places]
    facts = [
        ("symbols", str(n)),
        ("outputs", str(codes.size)),
        ("LDP level: its leakage under any belief is at most", number(shown.ldp())),
    ]
    distributions = np.stack(columns, axis=1)
    rows = _rows(_names(alphabet, symbols), distributions)
    drawn = table("released (column) when the truth is (row)", ["", *_names(alphabet, codes[places])], rows)
    cut = _left_out(len(symbols), n, "symbols"), _left_out(len(places), codes.size, "outputs")
    return page("Kernel", facts, drawn, *cut)


def session(setting: Any, account: Any, unfinished: Sequence[bool] = ()) -> str:
    """The account of a stream; `unfinished`: of which secrets the window is not over."""
    what, total = f"batch of {setting.batch}" if setting.in_batches else "release", setting.budget.exact_total
    facts = [
        ("mechanism", setting.mechanism.name),
        (f"ε a {what}", number(setting.epsilon)),
        *(("promised", sentence) for sentence in setting.policy.sentences),
        ("symbols released", str(account.releases)),
        *(("means", sentence) for sentence in account.sentences),
        ("exact leakage", f"{number(account.leakage)} (up {number(account.most)}, down {number(account.least)})"),
        ("by composition, Σε", number(account.epsilon_spent)),
        ("without trust in the model", f"{number(account.ldp)}-LDP"),
        *((f"secret {place}", _secret(*each)) for place, each in
          enumerate(zip(account.secrets, unfinished, strict=True), 1)),
        *([] if total is None else [("budget", f"{number(total)}, of which {number(account.budget_left)} left")]),
        ("randomness", "operating system" if account.private else "seeded: not private"),
    ]  # fmt: skip
    of, limit = ("Σε", account.epsilon_spent) if total is None else ("the budget", total)
    drawn = limit and math.isfinite(limit) and math.isfinite(account.leakage)
    return page("Session", facts, _bar(account.leakage / limit, f"of {of}") if drawn else "")


def _secret(account: Any, unfinished: bool) -> str:
    span = f"between {number(account.lowest)} and {number(account.highest)} so far"
    within = "; inside a window, about which nothing is promised before it is over" * unfinished
    return f"{account.name}: log odds {number(account.log_odds)}, {span}{within}"


def page(title: str, facts: Sequence[tuple[str, str]], *more: str) -> str:
    """What an object says, a row for each of its facts, and tables or paragraphs after them.

    >>> "<td" in page("Release", [("released", "3 of 3 events")])
    True
    """
    cells = [f'{_row_name(name, 400)}<td style="padding:2px 8px">{escape(text)}</td>' for name, text in facts]
    rows = "".join(f"<tr>{cell}</tr>" for cell in cells)
    head = f"<p><strong>{escape(title)}</strong></p><table><tbody>{rows}</tbody></table>"
    return f'<div class="seqveil">{head}{"".join(more)}</div>'


def records(caption: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of any values, cut to so many rows."""
    shown = [[number(cell) if isinstance(cell, float) else str(cell) for cell in row] for row in rows[:MANY]]
    return table(caption, headings, shown) + _left_out(len(shown), len(rows), "rows")


def table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table whose first column names its rows.

    >>> "<td" in table("t", ["", "a"], [["row", (0.5, "0.5")]]), "<b>" in table("<b>", [], [])
    (True, False)
    """
    head = "".join(f'<th scope="col" style="{CELL}">{escape(text)}</th>' for text in headings)
    body = "".join(f"<tr>{_row_name(str(row[0]))}{''.join(map(_cell, row[1:]))}</tr>" for row in rows)
    title = f'<caption style="text-align:left;padding-top:8px;white-space:nowrap">{escape(caption)}</caption>'
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def number(value: float) -> str:
    """A number in four figures.

    >>> number(0.25), number(-math.inf), number(-0.0)
    ('0.25', '-∞', '0')
    """
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value + 0.0:.4g}"


def _row_name(text: str, weight: int = 600) -> str:
    return f'<th scope="row" style="{NAME};font-weight:{weight}">{escape(text)}</th>'


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return f'<td style="{CELL}">{escape(cell)}</td>'
    share, text = cell
    shade = 0.6 * min(max(share, 0.0), 1.0)
    return f'<td style="{CELL};background:rgba({SHADE}, {shade:.2f})">{escape(text)}</td>'


def _bar(share: float, said: str) -> str:
    shown = f"leakage: {share:.0%} {said}"
    return f'<p><progress max="1" value="{min(max(share, 0.0), 1.0):.4f}"></progress> {escape(shown)}</p>'


def _left_out(shown: int, of: int, what: str) -> str:
    return "" if shown == of else f"<p><small>{shown} of {of} {escape(what)} shown</small></p>"


def _likeliest(distribution: NDArray[np.float64]) -> NDArray[np.int64]:
    """All symbols in order where they are few, else the likeliest first."""
    if distribution.size <= FEW:
        return np.arange(distribution.size)
    return np.argsort(-distribution, kind="stable")[:FEW].astype(np.int64)


def _names(alphabet: Any, codes: Any) -> list[str]:
    values = list(codes) if alphabet is None else [alphabet.decode_one(code) if code >= 0 else None for code in codes]
    return ["nothing" if value is None else _name(value) for value in values]


def _name(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_name, value))})"
    text = number(value) if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else text[:23] + "…"


def _rows(names: Sequence[str], distributions: NDArray[Any]) -> list[list[Cell]]:
    return [[name, *_shares(distribution)] for name, distribution in zip(names, distributions, strict=True)]


def _shares(distribution: NDArray[np.float64]) -> list[Cell]:
    return [
        (float(share), f"{share:.3f}".removeprefix("0") if 0 < share < 1 else f"{share:g}") for share in distribution
    ]
