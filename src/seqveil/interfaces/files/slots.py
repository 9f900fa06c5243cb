"""Rows at irregular times as one row for each slot of time.

What is in a slot depends on the events of its stream alone, and a slot without any is a row like the others: from the
first slot of a stream to its last, nobody can see from the rows when events happened, or how many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core import times as clock
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.slots import MICRO, NOTHING, Slots
from seqveil.interfaces.files.reading import Chunk

if TYPE_CHECKING:
    import polars as pl

MOST_ROWS = 50_000_000  # slots of all streams together: they are held in memory
NO_MEAN = "the mean of a slot needs numbers that are cut (--bins, --levels or --grid); pass --slot last or --slot most"
NO_STATE = (
    "slots need the whole file, since its last slot may go on later: a release in slots cannot be gone on with; leave "
    "--state out"
)


def resampled(parts: Iterable[tuple[Chunk, Floats]], slots: Slots, name: str, chunk: int) -> Iterator[Chunk]:
    """One row for each slot of each stream, in the order of time; all of it is held in memory.

    Within a slot users go by their names: the order of their events does not show. A slot without events says
    `NOTHING`, or where values are numbers, or are to be held, goes on with the last one (before the first one of a
    padded stream: with the first).

    Parameters:
        parts: rows in their order, with their times in seconds.
        slots: how long they are, and what stands for several events.
        name: what messages call the file.
        chunk: rows to give at a time.
    """
    import polars as pl

    held = list(parts)
    if not held:
        return
    like, table = held[0][0], _table(held, slots)
    found = _disclosed(table, slots.rule, name).sort("user", "slot")
    whole = _all_slots(found, slots, name)
    rows = whole.join(found, on=["user", "slot"], how="left", maintain_order="left")
    values = [column for column in rows.columns if column.startswith("value")]
    if rows[values[0]].dtype == pl.String and slots.empty != "hold":
        rows = rows.with_columns(pl.col(values[0]).fill_null(NOTHING))
    else:
        rows = rows.with_columns(pl.col(*values).forward_fill().backward_fill().over("user"))
    rows = rows.with_columns(pl.col("row").forward_fill().backward_fill().over("user"))
    rows = rows.sort("slot", "user")
    assert like.order is not None  # it was read as times
    order = stamps(np.asarray(rows["slot"].to_numpy(), np.int64) * slots.step, held)
    for at in range(0, rows.height, chunk):
        some = rows[at : at + chunk]
        yield Chunk(
            some["user"].rename(like.users.name),
            some.select(values).to_numpy() if len(values) == 2 else some[values[0]].rename("value"),
            order[at : at + chunk],
            some["row"].to_numpy(),
        )


def _table(held: list[tuple[Chunk, Floats]], slots: Slots) -> pl.DataFrame:
    """All events with their slots: user, slot, row and value(s)."""
    import polars as pl

    frames = []
    for part, times in held:
        micros = np.round(times * MICRO).astype(np.int64)
        pairs = isinstance(part.values, np.ndarray)
        own: dict[str, Any] = {"value": part.values}
        if pairs:
            own = {f"value{axis}": np.asarray(part.values)[:, axis] for axis in (0, 1)}
        frames.append(pl.DataFrame({"user": part.users, "slot": micros // slots.step, **own, "row": part.rows}))
    return pl.concat(frames, how="vertical_relaxed")


def _disclosed(table: pl.DataFrame, rule: str, name: str) -> pl.DataFrame:
    """What stands for the events of each slot that has some."""
    import polars as pl

    values = [column for column in table.columns if column.startswith("value")]
    numbers = all(table[value].dtype.is_numeric() for value in values)
    place = ["user", "slot"]
    if rule == "mean":
        if not numbers:
            raise DataError(f"{name}: {NO_MEAN}")
        return table.group_by(place).agg(pl.col(*values).mean(), pl.col("row").last())
    if rule == "most":  # of several that are as frequent the one that came last
        often = table.group_by([*place, *values]).agg(pl.len().alias("often"), pl.col("row").last())
        index = table.with_row_index("at").group_by([*place, *values]).agg(pl.col("at").max())
        both = often.join(index, on=[*place, *values], nulls_equal=True).sort("often", "at")
        return both.group_by(place, maintain_order=True).agg(pl.col(*values, "row").last())
    return table.group_by(place, maintain_order=True).agg(pl.col(*values, "row").last())


def _all_slots(found: pl.DataFrame, slots: Slots, name: str) -> pl.DataFrame:
    """Every slot of every stream from its first to its last, or with `pad` from the first of all to the last of all."""
    import polars as pl

    spans = found.group_by("user", maintain_order=True).agg(
        pl.col("slot").min().alias("first"), pl.col("slot").max().alias("last")
    )
    if slots.pad:
        spans = spans.with_columns(pl.col("first").min(), pl.col("last").max())
    lengths = np.asarray((spans["last"] - spans["first"] + 1).to_numpy(), np.int64)
    total = float(lengths.astype(np.float64).sum())
    if total > MOST_ROWS:
        raise InputError(
            f"{name}: slots of {slots.seconds:g} s would be {total:,.0f} rows, more than {MOST_ROWS:,}; take longer "
            "slots, or check that times are in seconds"
        )
    who = np.repeat(np.arange(spans.height), lengths)
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    first: Ints = np.asarray(spans["first"].to_numpy(), np.int64)
    return pl.DataFrame({"user": spans["user"].gather(who), "slot": first[who] + within})


def stamps(micros: NDArray[np.int64], held: list[tuple[Chunk, Floats]]) -> pl.Series:
    """The beginnings of slots in the form in which the times of the file came."""
    import polars as pl

    order = held[0][0].order
    assert order is not None
    times = pl.Series(order.name, micros)
    if order.dtype == pl.String:
        return times.cast(pl.Datetime("us")).dt.strftime("%Y-%m-%dT%H:%M:%S%.fZ")
    if order.dtype == pl.Date:
        return times.cast(pl.Datetime("us"))
    if order.dtype.is_temporal():
        unit = getattr(order.dtype, "time_unit", "ns")
        parts = {"ns": times * 1000, "us": times, "ms": times // 1000}
        return parts[unit].cast(order.dtype)
    largest = max(float(np.abs(np.asarray(part.order, np.float64)).max()) for part, _ in held)
    power = 3 * int(clock.powers(np.array([largest]))[0])
    if power >= 6:
        return times * 10 ** (power - 6)
    if not (micros % 10 ** (6 - power)).any():
        return times // 10 ** (6 - power)
    return times / 10 ** (6 - power)


__all__ = ["NO_MEAN", "NO_STATE", "resampled", "stamps"]
