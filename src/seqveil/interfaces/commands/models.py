"""Commands that make models: `seqveil fit` from raw data, `learn` from what was released."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from seqveil.core.errors import DataError
from seqveil.core.fitting import SMOOTHING
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines, stages


@dataclass(frozen=True)
class PrivateFitOptions:
    """A fit with differential privacy, and an alphabet that does not come from the data."""

    private: Annotated[float | None, o.option("EPSILON", "Fit with differential privacy at this ε for each user.")] = (
        None
    )
    contribution: Annotated[
        int | None, o.option("M", "With --private: the most transitions of one user to count  [default: 20]")
    ] = None
    alphabet: Annotated[
        Path | None, o.option("FILE", "The allowed values: one per line, a JSON list, or a model that has them.")
    ] = None
    range: Annotated[
        str | None,
        o.option(
            "LO,HI",
            "Range not taken from data, of --bins (of --grid X0,X1,Y0,Y1, of --cell-metres SOUTH,NORTH,WEST,EAST).",
            "--range",
        ),
    ] = None


@o.option_groups
def fit(
    data: o.Data,
    out: o.ModelOut,
    *,
    context: Annotated[
        str | None,
        o.option(
            "auto|order:2|types:16",
            "What the next symbol depends on, checked on held-out people; auto compares several.",
        ),
    ] = None,
    trait: Annotated[
        str | None, o.option("COLUMN", "One label for each user: each label gets types of its own, for --secret trait:")
    ] = None,
    smoothing: o.Smoothing = SMOOTHING,
    cuts: o.CutOptions,
    other: Annotated[
        int | None, o.option("N", "Pool values that fewer than N people share into one symbol, other.")
    ] = None,
    on_unknown: Annotated[
        str | None,
        o.option(
            "error|hide|nearest|other",
            "What later commands do with values outside the alphabet  [default: error; other; nearest for cells]",
        ),
    ] = None,
    privacy: PrivateFitOptions,
    columns: o.ColumnOptions,
    format: o.Format = None,
    missing: o.MissingValues = None,
    timing: o.SlotOptions,
    json: o.Json = False,
) -> None:
    """Fit a model of how the streams are correlated.

    A plain fit reads raw data and is not itself private: fit on public or consented data, and treat the model as
    public. With --private noise is added to the counts: adding or removing any one user changes the probability of
    any model by a factor of at most e^EPSILON, and the model records that. A private fit takes its alphabet from
    --alphabet, or from --bins or --grid with --range, never from the data.

    With --context some people are held out of the fit, and the table of how well each candidate predicts them is
    printed and kept in the model file. types:16 is a mixture of 16 chains, one for each type of person; types with
    fewer than 50 people are merged into others.

    The model remembers the columns, slots and what is done with missing values: later commands need them only where a
    file differs. `seqveil inspect DATA` proposes options.

    Example: seqveil fit clicks.csv -o clicks.model

    Example: seqveil fit clicks.csv -o clicks.model --context auto

    Example: seqveil fit meters.csv -o meters.model --levels 8 --trait heating

    Example: seqveil fit clicks.csv -o clicks.model --private 1 --alphabet pages.txt
    """
    from seqveil.interfaces.files.fit import fit_table

    _check_out(out, data)
    words: dict[str, Any] = {
        "format": format,
        "missing": missing,
        "other": other,
        "on_unknown": on_unknown,
    }
    with stages(data, "fitting", 1, "comparing contexts") as (advance, done):
        fitted = fit_table(
            data, context=context, trait=trait, smoothing=smoothing, progress=advance, working=done, **words,
            **columns.given, **vars(cuts), **vars(privacy), **vars(timing),
        )  # fmt: skip
    fitted.model.save(out)
    if json:
        emit_json({"model": str(out), **fitted.to_dict()})
    else:
        lines(fitted.lines(str(out)))


@o.option_groups
def learn(
    released: o.ReleasedFile,
    model: o.ModelFile,
    out: Annotated[Path, o.option("MODEL", "Where to write the learned model.", "--out", "-o")],
    *,
    order: o.Order = 1,
    strength: Annotated[
        float | None, o.option("W", "Pseudo-transitions added to each row  [default: tried on held-out users]")
    ] = None,
    confidence: Annotated[float, o.option("C", "Confidence of the region for the rows.")] = 0.95,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Learn how streams are correlated from what was released of them.

    It looks at releases only, so it costs no privacy. --model is what the release was made with. It prints how
    certain the learned transitions are.

    Example: seqveil learn released.csv --model pages.model -o learned.model
    """
    from seqveil.interfaces.files.receive import learn_released

    _check_out(out, released, model)
    found = learn_released(released, model, order=order, strength=strength, confidence=confidence, meta=meta)
    found.learned.model.save(out)
    if json:
        emit_json({**found.to_dict(), "out": str(out)})
    else:
        lines([*found.lines(), ("written", out.name)], to_stderr=True)


def _check_out(out: Path, *read: str | Path) -> None:
    """Refuse to write the model over what it is made from, or where no file can be, before anything is read."""
    from seqveil.interfaces.files.writing import same_file

    if any(same_file(each, out) for each in read):
        raise DataError(f"{out.name}: is read and written at once; choose another output")
    o.check_model_out(out)
