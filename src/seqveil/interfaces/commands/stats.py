"""`seqveil stats`: counts behind a released file, with confidence intervals."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines, progress, table

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.estimates import Counted
    from seqveil.receive.statistics import Estimate

SHOWN = 20  # rows of a table on the terminal


@o.option_groups
def stats(
    released: o.ReleasedFile,
    model: o.ModelFile,
    *,
    confidence: Annotated[float, typer.Option(metavar="C", help="Confidence of every interval.")] = 0.95,
    per: Annotated[
        int | None,
        typer.Option("--per", metavar="N", help="Histogram over time: one for every N events of a stream."),
    ] = None,
    top: Annotated[int, typer.Option(metavar="K", help="How many of the most frequent symbols to name.")] = 5,
    method: Annotated[
        str, typer.Option(metavar="auto|design|learned", help="How the counts are estimated; see docs/statistics.md.")
    ] = "auto",
    chosen: o.UnbatchedOptions,
    columns: o.ColumnOptions,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Estimate histograms, transitions, dwell times and top symbols, with intervals.

    It is post-processing and costs no privacy. Where releases can be inverted the intervals assume nothing about the
    data; else a chain is learned from the releases. The output says which.

    The releases are also asked whether they fit the model, as `seqveil drift` does. Where they do not, it is said, and
    intervals that rest on a chain are left out.

    The setting comes from the side file; give the release's options only where there is none.

    Example: seqveil stats released.csv --model clicks.model --top 3
    """
    from seqveil.interfaces.files.estimates import summarise_file

    chain = o.model_in(model)
    with progress(released, "counting", passes=2) as advance:
        found = summarise_file(
            released,
            chain,
            chosen.setting_if_given(chain),
            confidence=confidence,
            window=per,
            top=top,
            method=method,
            meta=meta,
            columns=columns.columns_if_given,
            progress=advance,
        )
    if json:
        emit_json(_facts(found, chain))
    else:
        _say(found, chain, per)


def _facts(counted: Counted, model: MarkovModel) -> dict[str, Any]:
    """The summary as plain values; arrays are in the order of `symbols`."""
    found = counted.summary
    names = model.alphabet.decode(list(range(model.n)))
    tables = {name: _lists(getattr(found, name)) for name in ("histogram", "over_time", "transitions", "dwell")}
    leading = [
        {"symbol": names[each.code], "share": each.share, "low": each.low, "high": each.high, "sure": each.sure}
        for each in found.top
    ]
    told = {name: getattr(found, name) for name in ("users", "events", "confidence", "method", "assumes")}
    more = {"in_window": found.in_window.tolist(), "maybe_top": [names[code] for code in found.maybe_top]}
    more |= {"model": asdict(counted.verdict), "intervals": counted.intervals}
    return {**told, "symbols": names, **tables, "top": leading, **more}


def _lists(estimate: Estimate) -> dict[str, Any]:
    return {part: getattr(estimate, part).tolist() for part in ("value", "error", "low", "high")}


LEFT_OUT = (
    "none: all figures below are read through a chain that these people do not follow, so they are its best guess, and "
    "no interval around them would hold"
)
NOT_MODEL = "they rest on no model: each release is inverted, and only its coins are random"


def _say(counted: Counted, model: MarkovModel, per: int | None) -> None:
    found = counted.summary
    level = f"; intervals of {found.confidence:.0%} each" if counted.intervals else ""
    names = [str(value) for value in model.alphabet.decode(list(range(model.n)))]
    lines(
        [
            ("from", f"{found.events} events of {found.users} users{level}"),
            ("method", f"{found.method}: assumes {found.assumes}"),
            counted.verdict.said,
            *([("intervals", NOT_MODEL if counted.intervals else LEFT_OUT)] if counted.verdict.fits is False else []),
        ]
    )
    counts, stays = found.histogram, found.dwell
    order = sorted(range(model.n), key=lambda code: -counts.value[code])[:SHOWN]
    headings = ("symbol", "events", "share", "mean run")
    size = found.events
    table(
        headings,
        [(names[x], _span(counts, x), _span(counts, x, 1 / size, ".3f"), _span(stays, x, 1.0, ".3g")) for x in order],
    )
    moves = found.transitions
    largest = sorted(((a, b) for a in order for b in order), key=lambda pair: -moves.value[pair])[:SHOWN]
    table(("from", "to", "transitions"), [(names[a], names[b], _span(moves, (a, b))) for a, b in largest])
    if per is not None:
        rows = [
            (
                f"{w * per}",
                *(_span(found.over_time, (w, x), 1 / max(1, int(found.in_window[w])), ".3f") for x in order[:5]),
            )
            for w in range(len(found.in_window))
        ]
        table(("from event", *(names[x] for x in order[:5])), rows[:SHOWN])
    if not counted.intervals:
        lines([("top", f"by these figures {', '.join(names[each.code] for each in found.top)}; none of them surely")])
        return
    sure = [names[each.code] for each in found.top if each.sure]
    open_ = [names[each.code] for each in found.top if not each.sure] + [names[code] for code in found.maybe_top]
    lines([("top", f"surely {', '.join(sure) or 'none'}; maybe {', '.join(open_) or 'no other'}")])


def _span(estimate: Estimate, at: Any, scale: float = 1.0, form: str = ".0f") -> str:
    value, low, high = (float(part[at]) * scale for part in (estimate.value, estimate.low, estimate.high))
    if math.isnan(low):
        return f"{value:{form}}"
    return f"{value:{form}} ({low:{form}} to {high:{form}})"
