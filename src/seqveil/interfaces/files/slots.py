"""Events at irregular times as one event for each slot of time.

What is in a slot depends on the events of its stream alone, and a slot without any is a row like the others: from the
first slot of a stream to its last, nobody can see from the rows when events happened, or how many.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from seqveil.core import times as clock
from seqveil.core.errors import DataError, InputError, option
from seqveil.core.kernel import Floats
from seqveil.core.times import NOTHING, Slots

MOST_ROWS = 50_000_000  # slots of all streams together: they are held in memory


def no_mean() -> str:
    """What to do where the mean of a slot is asked of names."""
    return (
        f"the mean of a slot needs numbers that are cut ({option('bins')}, {option('levels')} or {option('grid')}); "
        f"choose {option('slot', 'last')} or {option('slot', 'most')}"
    )


def resampled(events: pl.DataFrame, times: Floats, slots: Slots, name: str) -> pl.DataFrame:
    """One row for each slot of each stream, in the order of time.

    Within a slot users go by their names: the order of their events does not show. A slot without events says
    `NOTHING`, or where values are numbers, or are to be held, goes on with the last one (before the first one of a
    padded stream: with the first).

    Parameters:
        events: user, value (or value0 and value1), order and row, in their order.
        times: of each event, in seconds.
        slots: how long they are, and what stands for several events.
        name: what messages call the file.
    """
    values = [column for column in events.columns if column.startswith("value")]
    table = events.select("user", pl.Series("slot", slots.numbers(times)), *values, "row")
    found = _disclosed(table, values, slots.rule, name).sort("user", "slot")
    rows = _all_slots(found, slots, name).join(found, on=["user", "slot"], how="left", maintain_order="left")
    if rows[values[0]].dtype == pl.String and slots.empty != "hold":
        rows = rows.with_columns(pl.col(values[0]).fill_null(NOTHING))
    else:
        rows = rows.with_columns(pl.col(*values).forward_fill().backward_fill().over("user"))
    rows = rows.with_columns(pl.col("row").forward_fill().backward_fill().over("user")).sort("slot", "user")
    order = stamps(np.asarray(rows["slot"].to_numpy(), np.int64) * slots.step, events["order"])
    return rows.select("user", *values, order.rename("order"), "row")


def _disclosed(table: pl.DataFrame, values: list[str], rule: str, name: str) -> pl.DataFrame:
    """What stands for the events of each slot that has some."""
    place = ["user", "slot"]
    if rule == "mean":
        if not all(table[value].dtype.is_numeric() for value in values):
            raise DataError(f"{name}: {no_mean()}")
        return table.group_by(place).agg(pl.col(*values).mean(), pl.col("row").last())
    if rule == "most":  # of several that are as frequent the one that came last
        often = table.with_row_index("at").group_by([*place, *values])
        table = often.agg(pl.len().alias("often"), pl.col("at").max(), pl.col("row").last()).sort("often", "at")
    return table.group_by(place, maintain_order=True).agg(pl.col(*values, "row").last())


def _all_slots(found: pl.DataFrame, slots: Slots, name: str) -> pl.DataFrame:
    """Every slot of every stream from its first to its last, or with `pad` from the first of all to the last of all."""
    spans = found.group_by("user", maintain_order=True).agg(first=pl.col("slot").min(), last=pl.col("slot").max())
    if slots.pad:
        spans = spans.with_columns(pl.col("first").min(), pl.col("last").max())
    total = float((spans["last"] - spans["first"] + 1).cast(pl.Float64).sum())
    if total > MOST_ROWS:
        raise InputError(
            f"{name}: slots of {slots.seconds:g} s would be {total:,.0f} rows, more than {MOST_ROWS:,}; take longer "
            "slots, or check that times are in seconds"
        )
    return spans.select("user", slot=pl.int_ranges("first", pl.col("last") + 1)).explode("slot")


def stamps(micros: NDArray[np.int64], like: pl.Series) -> pl.Series:
    """The beginnings of slots in the form in which the times of the file came."""
    times = pl.Series(like.name, micros)
    if like.dtype == pl.String:
        return times.cast(pl.Datetime("us")).dt.strftime("%Y-%m-%dT%H:%M:%S%.fZ")
    if like.dtype == pl.Date:
        return times.cast(pl.Datetime("us"))
    if like.dtype.is_temporal():
        parts = {"ns": times * 1000, "us": times, "ms": times // 1000}
        return parts[getattr(like.dtype, "time_unit", "ns")].cast(like.dtype)
    largest = np.abs(like.to_numpy().astype(np.float64)).max()
    power = 3 * int(clock.powers(np.array([largest]))[0])
    if power >= 6:
        return times * 10 ** (power - 6)
    whole = not (micros % 10 ** (6 - power)).any()
    return times // 10 ** (6 - power) if whole else times / 10 ** (6 - power)
