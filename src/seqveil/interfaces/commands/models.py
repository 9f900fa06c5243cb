"""Commands that look at raw data and make models: `seqveil inspect`, `fit`, and `learn` from what was released."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from seqveil.core.model import SMOOTHING
from seqveil.core.words import aligned
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import rows, show


@o.option_groups
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
class PrivateFitOptions:
    """A fit with differential privacy, and an alphabet that does not come from the data."""

    private: float | None = o.opt("EPSILON", "Fit with user-level differential privacy at this ε.")
    contribution: int | None = o.opt("M", "With --private: the most transitions of one user to count  [default: 20]")
    alphabet: Path | None = o.opt("FILE", "The allowed values: one per line, or a model that has them.")
    range: str | None = o.opt(
        "LO,HI",
        "Fixed range instead of that of the data: LO,HI for --bins; X0,X1,Y0,Y1 for --grid; SOUTH,NORTH,WEST,EAST "
        "for --cell-metres.",
    )


@o.option_groups
def fit(
    data: o.Data,
    out: o.ModelOut,
    *,
    context: str | None = o.opt(
        "auto|order:2|types:16", "What the next symbol depends on, checked on held-out people; auto compares several."
    ),
    trait: str | None = o.opt(
        "COLUMN", "Column with one label per user, for --secret trait:COLUMN; each label gets its own types."
    ),
    smoothing: o.Smoothing = SMOOTHING,
    cuts: o.CutOptions,
    other: int | None = o.opt("N", "Pool values that fewer than N people share into one symbol, other."),
    on_unknown: str | None = o.opt(
        "error|hide|nearest|other",
        "What later commands do with values outside the alphabet  [default: error; other with --other; nearest "
        "for bins and cells]",
    ),
    privacy: PrivateFitOptions,
    columns: o.ColumnOptions,
    format: o.Format = None,
    missing: o.MissingValues = None,
    timing: o.SlotOptions,
    json: o.Json = False,
) -> None:
    """Fit a model of how events within a stream are correlated.

    A plain fit reads raw data and is not private. Use only the data of people who agreed to the publication
    of such a model, and treat it as public. With --private noise is added to the counts. This is user-level ε-DP:
    adding or removing any one user changes the probability of any resulting model by a factor of at most e^EPSILON. The
    model file records EPSILON. A private fit takes its alphabet from --alphabet, or from --bins or --grid with --range,
    never from the data.

    With --context some people are held out of the fit, and the table of how well each candidate predicts them is
    printed and kept in the model file. types:16 is a mixture of 16 chains, one for each type of person; types with
    fewer than 50 people are merged into others, which is no privacy guarantee.

    The model remembers columns, slots and the treatment of missing values; give those options to later commands only
    for a file that differs from this one. `seqveil inspect DATA` proposes options.

    Example: seqveil fit clicks.csv -o clicks.model

    Example: seqveil fit clicks.csv -o clicks.model --context auto

    Example: seqveil fit meters.csv -o meters.model --bins auto --trait heating

    Example: seqveil fit clicks.csv -o clicks.model --private 1 --alphabet pages.txt
    """
    from seqveil.interfaces.files.fit import fit_table

    _check_out(out, data)
    words: dict[str, Any] = {"format": format, "missing": missing, "other": other, "on_unknown": on_unknown}
    with rows("fitting") as meter:
        compared = functools.partial(meter.turn, "comparing contexts")
        fitted = fit_table(
            data, context=context, trait=trait, smoothing=smoothing, progress=meter.advance, **words,
            working=compared, **vars(columns), **vars(cuts), **vars(privacy), **vars(timing),
        )  # fmt: skip
    fitted.model.save(out)
    show({"model": str(out), **fitted.to_dict()} if json else aligned(fitted.lines(str(out))), json)


@o.option_groups
def learn(
    released: o.ReleasedFile,
    model: o.ModelFile,
    out: Annotated[Path, o.option("MODEL", "Where to write the learned model.", "--out", "-o")],
    *,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Learn how streams are correlated, from releases alone.

    This costs no privacy. --model names the model that the release was made with. The command says whether the
    learned model predicts held-out releases.

    Example: seqveil learn released.csv --model pages.model -o learned.model
    """
    from seqveil.interfaces.files.receive import learn_released

    _check_out(out, released, model)
    with rows("learning"):
        found = learn_released(released, model, meta=meta)
    found.model.save(out)
    if json:
        show({**found.to_dict(), "out": str(out)}, json)
    else:
        show(aligned([*found.lines(), ("written", out.name)]), to_stderr=True)


def _check_out(out: Path, *read: str | Path) -> None:
    """Refuse to write the model over what it is made from, or where no file can be, before anything is read."""
    from seqveil.interfaces.files.writing import refuse_read

    refuse_read(out, read)
    o.check_model_out(out)
