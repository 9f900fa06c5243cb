"""Commands that look at raw data and make models: `seqveil inspect`, `fit`, and `learn` from what was released."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seqveil.core.model import SMOOTHING
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import progress, show


def inspect(data: o.Data, *, columns: o.ColumnOptions, format: o.Format = None, json: o.Json = False) -> None:
    """Say what a file holds, and what to type next.

    Shows how each column is interpreted, and why; how many people and events there are; how rows are ordered;
    missing and rare values; and a `fit` command to paste. It prints only values that at least 10
    people share. It reads the raw file, so show its output only to people who may see that file.

    Example: seqveil inspect clicks.csv
    """
    from seqveil.interfaces.files.inspection import inspect as look

    show(look(data, format=format, **vars(columns)), json)


@dataclass(frozen=True)
class FitOptions:
    """What a model is like, and how values and times become its symbols; by the words of `fit_table`."""

    context: str | None = o.opt(
        "auto|order:2|types:16", "What the next symbol depends on, checked on held-out people; auto compares several."
    )
    trait: str | None = o.opt("COLUMN", "Column with one label per user, for --secret trait:COLUMN.")
    smoothing: o.Smoothing = SMOOTHING
    bins: str | None = o.opt("WIDTH|auto", "Cut numbers into bins of this width; auto: about 20 bins.")
    grid: str | None = o.opt("10x10|auto", "Cut points (--value-column x,y) into a grid; auto: covering most points.")
    cell_metres: float | None = o.opt("M", "Cut the map into cells of this size, over the area where most points lie.")
    other: int | None = o.opt("N", "Pool values that fewer than N people share into one symbol, other.")
    on_unknown: str | None = o.opt(
        "error|hide|nearest|other", "Later values outside the alphabet  [default: error; bins and cells: nearest]"
    )
    private: float | None = o.opt("EPSILON", "Fit with user-level differential privacy at this ε.")
    contribution: int | None = o.opt("M", "With --private: the most transitions of one user to count  [default: 20]")
    alphabet: Path | None = o.opt("FILE", "The allowed values: one per line, or a model that has them.")
    range: str | None = o.opt(
        "LO,HI", "The range, not from the data: X0,X1,Y0,Y1 for --grid; SOUTH,NORTH,WEST,EAST for --cell-metres."
    )
    missing: str | None = o.opt(
        "drop|hold|symbol", "Rows without a value: drop, repeat the last, make a symbol  [default: refuse the file]"
    )
    every_seconds: float | None = o.opt("S", "One symbol for each slot of S seconds, whatever happened in it.")
    slot: str | None = o.opt(
        "last|mean|most",
        "How several events in a slot become one. Append ,pad to make all streams begin and end together, and "
        ",hold or ,nothing for empty slots, as in last,pad,hold  [default: last]",
    )
    utc_offset: float | None = o.opt("H", "Clock of `during`, day and week: hours ahead of UTC  [default: 0]")


def fit(
    data: o.Data,
    out: o.ModelOut,
    *,
    wanted: FitOptions,
    columns: o.ColumnOptions,
    format: o.Format = None,
    json: o.Json = False,
) -> None:
    """Fit a model of how events within a stream are correlated.

    A plain fit reads raw data and is not private. Use only the data of people who agreed to the publication
    of such a model, and treat it as public. With --private, adding or removing any one user changes the probability of
    any resulting model by a factor of at most e^EPSILON (user-level ε-DP). A private fit takes its alphabet from
    --alphabet, or from --bins or --grid with --range, never from the data.

    With --context some people are held out of the fit, and the table of how well each candidate predicts them is
    printed and kept in the model file. types:16 is a mixture of 16 chains, one for each type of person.

    The model remembers columns, slots and the treatment of missing values; later commands need those options only for
    a file that differs from this one. `seqveil inspect DATA` proposes options.

    Example: seqveil fit clicks.csv -o clicks.model --context auto
    """
    from seqveil.interfaces.files.fit import fit_table

    o.check_model_out(out, data)
    how = {"format": format, **vars(columns), **vars(wanted)}
    with progress("fitting") as meter:
        fitted = fit_table(data, progress=partial(meter.turn, "comparing contexts"), **how)
    fitted.model.save(out)
    show(fitted, json, model=out)


def learn(
    released: o.ReleasedFile, model: o.ModelFile, out: o.ModelOut, *, meta: o.Meta = None, json: o.Json = False
) -> None:
    """Learn how streams are correlated, from releases alone.

    This costs no privacy. --model names the model that the release was made with. The command says whether the
    learned model predicts held-out releases.

    Example: seqveil learn released.csv --model pages.model -o learned.model
    """
    from seqveil.interfaces.files.receive import learn_released

    o.check_model_out(out, released, model)
    with progress("learning"):
        found = learn_released(released, model, meta=meta)
    found.model.save(out)
    show(found, json, to_stderr=not json, out=out)
