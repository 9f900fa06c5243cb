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
MANY = 60  # rows of a plan
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
    parts = [_facts("MarkovModel", facts), prior, _left_out(len(kept), shown.n, "likeliest symbols")]
    if shown.order == 1 and shown.types == 1:
        state_of = {int(symbol): state for state, symbol in enumerate(shown.newest)}
        begin = [symbol for symbol in kept.tolist() if symbol in state_of]
        ones = np.zeros((len(begin), shown.size))
        ones[np.arange(len(begin)), [state_of[symbol] for symbol in begin]] = 1.0
        moved = shown.advance(ones)
        distributions = np.stack([np.bincount(shown.newest, row, minlength=shown.n)[kept] for row in moved])
        rows = [
            [name, *_shares(distribution)]
            for name, distribution in zip(_names(shown.alphabet, begin), distributions, strict=True)
        ]
        parts.append(table("transitions, from the row to the column", ["", *names], rows))
    return _page(*parts)


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
    rows = [
        [name, *_shares(distribution)]
        for name, distribution in zip(_names(alphabet, symbols), distributions, strict=True)
    ]
    drawn = table("released (column) when the truth is (row)", ["", *_names(alphabet, codes[places])], rows)
    cut = _left_out(len(symbols), n, "symbols"), _left_out(len(places), codes.size, "outputs")
    return _page(_facts("Kernel", facts), drawn, *cut)


def session(setting: Any, account: Any, unfinished: Sequence[bool] = ()) -> str:
    """The account of a stream; `unfinished`: of which secrets the window is not over."""
    what = f"batch of {setting.batch}" if setting.in_batches else "release"
    period, budget = setting.schedule, setting.budget
    pulsed = f" on average, {number(setting.epsilon * period)} at one of every {period}" if period > 1 else ""
    facts = [
        ("mechanism", setting.mechanism.name + ("" if setting.mechanism.sound else " (does not keep to its ε)")),
        (f"ε a {what}", number(setting.epsilon) + pulsed),
        ("symbols released", str(account.releases)),
        *(("means", sentence) for sentence in account.sentences),
        ("exact leakage", f"{number(account.leakage)} (up {number(account.most)}, down {number(account.least)})"),
        ("by composition, Σε", number(account.epsilon_spent)),
        ("without trust in the model", f"{number(account.ldp)}-LDP"),
    ]
    if account.whole_sequence:
        facts.append(("about the whole sequence", account.whole_sequence))
    for number_of, (tracker, within_window) in enumerate(zip(account.secrets, unfinished, strict=True), 1):
        span = f"between {number(tracker.lowest)} and {number(tracker.highest)} so far"
        disclosed = f"log odds {number(tracker.log_odds)}, {span}"
        within = "; inside a window, about which nothing is promised before it is over" * within_window
        facts.append((f"secret {number_of}", f"{tracker.sentence}; disclosed: {disclosed}{within}"))
    if budget.exact_total is not None:
        facts.append(("budget", f"{number(budget.exact_total)}, of which {number(account.budget_left)} left"))
    if budget.per_window is not None:
        length = f"{budget.releases} releases" if budget.releases else f"{number(budget.seconds)} seconds"
        facts.append(("budget of a window", f"{number(budget.per_window)} in {length}"))
    if budget.ldp_total is not None:
        facts.append(("budget without a model", f"{number(budget.ldp_total)}-LDP"))
    facts.append(("randomness", "operating system" if account.private else "seeded: not private"))
    bar = ""
    limit = budget.exact_total if budget.exact_total is not None else account.epsilon_spent
    if limit and math.isfinite(limit) and math.isfinite(account.leakage):
        of = "of the budget" if budget.exact_total is not None else "of Σε"
        bar = _bar(account.leakage / limit, f"leakage: {account.leakage / limit:.0%} {of}")
    return _page(_facts("Session", facts), bar)


def plan(shown: Any) -> str:
    """One line a row: what each ε and mechanism is expected to err."""
    heads = ["ε", "mechanism", "every", "batch", "error", "decoded", "truth", "best guess", "leakage"]
    rows: list[list[Cell]] = [
        [
            number(row.epsilon),
            row.mechanism,
            str(row.period),
            str(row.batch),
            _share_of(row.error, row.constant_error),
            _share_of(row.decoded_error, row.constant_error),
            f"{row.truth:.1%}",
            number(row.constant_error),
            number(row.leakage),
        ]
        for row in shown.rows[:MANY]
    ]
    facts = [("simulated releases a stream", str(shown.length)), ("symbols", str(shown.symbols))]
    head = _facts("Plan", facts)
    drawn = table(f"expected {shown.distortion} error; shaded by its share of the best guess", heads, rows)
    return _page(head, drawn, _left_out(len(rows), len(shown.rows), "rows"))


def result(row: Any) -> str:
    """One mechanism of a comparison: its errors with their intervals, and what it leaked."""
    own = "none" if row.epsilon is None else number(row.epsilon)
    facts = [("mechanism", row.label), ("ε an event", own), ("verdict", row.status)]
    if row.reason:
        facts.append(("reason", row.reason))
    for name in ("error", "filtered", "smoothed"):
        value, half = getattr(row, name), getattr(row, f"{name}_half")
        if value is not None:
            facts.append((_ERRORS[name], number(value) + ("" if half is None else f" ± {number(half)}")))
    if row.lift_most is not None and row.claimed is not None:
        worst = max(row.lift_most, -row.lift_least)
        facts.append(("worst release", f"{number(worst)}, claimed {number(row.claimed)}"))
    if row.leakage_most is not None:
        facts.append(("worst stream", f"up {number(row.leakage_most)}, down {number(row.leakage_least)}"))
    facts += [(f"secret {place}", _disclosed(disclosed)) for place, disclosed in enumerate(row.secrets, 1)]
    if row.events:
        facts.append(("measured on", f"{row.events} events of {row.users} users (seeded, not private)"))
    return _page(_facts("Comparison", facts))


def _disclosed(disclosed: Any) -> str:
    """What one row of a comparison says about one secret."""
    promised = "nothing" if disclosed.promised is None else f"at most {number(disclosed.promised)}"
    most = "no account" if disclosed.log_odds_worst is None else number(disclosed.log_odds_worst)
    said = f"{disclosed.about}, ε = {number(disclosed.epsilon)}: promised {promised}; most disclosed {most}"
    if not disclosed.verdict:
        return said
    least = number(disclosed.epsilon_at_least)
    return f"{said}; attack: {disclosed.verdict}, at least {least} on {disclosed.people} people"


_ERRORS = {"error": "error as released", "filtered": "error, online decoder", "smoothed": "error with hindsight"}


def disclosed(title: str, lines: Sequence[tuple[str, str]], *tables: str) -> str:
    """What a command says, a row for each of its lines, and tables after them.

    >>> "<td" in disclosed("Release", [("released", "3 of 3 events")])
    True
    """
    return _page(_facts(title, lines), *tables)


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


def _facts(title: str, pairs: Sequence[tuple[str, str]]) -> str:
    cells = [f'{_row_name(name, 400)}<td style="padding:2px 8px">{escape(text)}</td>' for name, text in pairs]
    rows = "".join(f"<tr>{cell}</tr>" for cell in cells)
    return f"<p><strong>{escape(title)}</strong></p><table><tbody>{rows}</tbody></table>"


def _bar(share: float, said: str) -> str:
    return f'<p><progress max="1" value="{min(max(share, 0.0), 1.0):.4f}"></progress> {escape(said)}</p>'


def _page(*parts: str) -> str:
    return f'<div class="seqveil">{"".join(parts)}</div>'


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


def _shares(distribution: NDArray[np.float64]) -> list[Cell]:
    return [
        (float(share), f"{share:.3f}".removeprefix("0") if 0 < share < 1 else f"{share:g}") for share in distribution
    ]


def _share_of(value: float, whole: float) -> Cell:
    return (value / whole if whole > 0 else 0.0, number(value))
