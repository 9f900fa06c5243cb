"""Commands to choose with, before anything is released: `seqveil mechanisms` and `seqveil plan`."""

from __future__ import annotations

from dataclasses import asdict, fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.core.words import Risk
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, progress, table

if TYPE_CHECKING:
    from seqveil.core.mechanisms import BatchMechanism, Mechanism
    from seqveil.core.model import MarkovModel
    from seqveil.receive.planning import Plan, Row
    from seqveil.release.stream import Setting

HOLDS = "under the model: all errors and shares are those of people who follow it"
PICTURES = (".png", ".svg", ".pdf")


def mechanisms(json: o.Json = False) -> None:
    """List the mechanisms and what each promises.

    Example: seqveil mechanisms --json
    """
    from seqveil.core import mechanisms as registry

    if json:
        emit_json([_mechanism_facts(registry.find(name)) for name in registry.names()])
        return
    headings = ("name", "what it does", "guarantee", "trusts", "LDP", "cost", "sound")
    print("one symbol at a time (seqveil release)")
    table(headings, [_row(registry.find(name)) for name in registry.instantaneous()])
    print("batches of W symbols (seqveil release --batch W); ε is that of a batch")
    table(headings, [_row(registry.find(name)) for name in registry.batched()])
    print("declared secrets (seqveil release --secret …); ε is that of a secret, for the whole stream")
    table(headings, [_row(registry.find(name)) for name in registry.for_secrets()])


def _mechanism_facts(mechanism: Mechanism | BatchMechanism) -> dict[str, object]:
    plain = {f.name: getattr(mechanism, f.name) for f in fields(mechanism)}
    shown: dict[str, object] = {name: value for name, value in plain.items() if not callable(value)}
    return shown | {"batched": hasattr(mechanism, "draw")}


def _row(m: Mechanism | BatchMechanism) -> tuple[str, ...]:
    ldp = f"{m.ldp:g}ε" if isfinite(m.ldp) else "none"
    return m.name, m.summary, m.guarantee, m.trusts, ldp, m.cost, "yes" if m.sound else "NO"


@o.option_groups
def plan(
    source: Annotated[str, typer.Argument(metavar="DATA_OR_MODEL", help="A model, or data to fit one to first.")],
    *,
    epsilon: Annotated[
        str, o.option("E,E,…", "Bounds for one release to compare.", "--epsilon", "-e")
    ] = "0.25,0.5,1,2",
    mechanism: o.Mechanism = None,
    batch: Annotated[str, o.option("W,W,…", "Compare batches of these sizes, each with W·ε: equal ε an event.")] = "1",
    distortion: o.DistortionName = None,
    length: Annotated[int, o.option("T", "Releases in a simulated stream.")] = 50,
    users: Annotated[
        int | None,
        o.option("N", "Simulated streams  [default: 200; 20 for costs that need a program, 8 to 40 for batches]"),
    ] = None,
    every: Annotated[int, o.option("M", "Spend M·ε at every M-th release.")] = 1,
    find_period: Annotated[bool, o.flag("--find-period", "Find the best M for each ε.")] = False,
    plot: Annotated[Path | None, o.option("FILE.png", "Draw the trade-off.")] = None,
    seed: Annotated[int, o.option("N", "Seed of the simulation.")] = 0,
    order: o.Order = 1,
    smoothing: o.Smoothing = 0.0,
    cuts: o.CutOptions,
    columns: o.ColumnOptions,
    sort: o.Sort = False,
    json: o.Json = False,
) -> None:
    """Show the error to expect at each ε.

    It simulates streams from the model, so its figures hold under the model: people who follow another one fare worse.
    No private data is released.

    Example: seqveil plan clicks.model --epsilon 0.5,1,2 --find-period --plot plan.png
    """
    from seqveil.receive import planning

    bounds = parse_epsilons(epsilon)
    sizes = [size for size in parse_batches(batch) if size > 1]  # 1 is always shown
    check_picture(plot)
    model = _model(source, columns=columns.columns, order=order, smoothing=smoothing, sort=sort, **asdict(cuts))
    name, batched = _mechanisms(mechanism, sizes)
    costs = distortion or "hamming"
    simulated = (length, users if users is not None else 200 if costs == "hamming" else 20, seed)
    in_batches = {"batch_sizes": sizes, "batch_mechanism": batched, "batch_users": users}
    period = None if find_period else every
    made = planning.plan(model, bounds, name, costs, *simulated, period=period, **in_batches)  # type: ignore[arg-type]
    if plot is not None:
        from seqveil.interfaces import plots

        plots.tradeoff(made, plot)
    sentences = [_sentence(made, model, name, bound) for bound in bounds]
    sentences += [_batch_sentence(made, model, batched, bound, size) for bound in bounds for size in sizes]
    (_emit if json else _say)(made, sentences, plot)


def check_picture(plot: Path | None) -> None:
    """Refuse a picture that could not be saved, before anything is computed for it."""
    from seqveil.core.errors import InputError

    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise InputError(f"expected a picture named {', '.join(PICTURES)}; got another extension")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise InputError("expected the picture in a folder that exists; make it, or name another")


def parse_epsilons(text: str) -> list[float]:
    """Numbers between commas.

    >>> parse_epsilons("0.5, 1")
    [0.5, 1.0]
    """
    from seqveil.core.errors import InputError
    from seqveil.core.mechanisms import check_epsilon

    try:
        return [check_epsilon(float(part)) for part in text.split(",")]
    except InputError:
        raise
    except ValueError:
        raise InputError(f"expected numbers between commas for epsilon, as in 0.5,1,2; got {text!r}") from None


def parse_batches(text: str) -> list[int]:
    """Batch sizes between commas.

    >>> parse_batches("10,1, 5")
    [1, 5, 10]
    """
    from seqveil.core.errors import InputError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"expected whole numbers ≥ 1 between commas for batch, as in 1,5,10; got {text!r}")
    return sorted({int(part) for part in parts})


def _mechanisms(mechanism: str | None, sizes: list[int]) -> tuple[str, str]:
    """The mechanism that releases one by one, and that of the batches: a name stands for its own kind."""
    from seqveil.core import mechanisms

    if mechanism is None or not isinstance(mechanisms.find(mechanism), mechanisms.BatchMechanism):
        return mechanism or "optimal", "auto"
    if not sizes:
        from seqveil.core.errors import InputError

        raise InputError(f'"{mechanism}" releases batches; name their sizes, as in --batch 5,10')
    return "optimal", mechanism


def _model(source: str, **fitting: Any) -> MarkovModel:
    """The model, or one fitted to the data: a data file tells by its extension."""
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.fit import fit_file
    from seqveil.interfaces.files.reading import FORMATS

    if source != "-" and Path(source).suffix.lower() not in FORMATS:
        return MarkovModel.load(source)
    with progress(source, "fitting", passes=2) as advance:
        return fit_file(source, progress=advance, **fitting).model


def _sentence(made: Plan, model: MarkovModel, mechanism: str, epsilon: float) -> str:
    """The guarantee at ε for the schedule that the plan settled on; pulses put more into one release."""
    from seqveil.release.stream import Setting

    row = max(
        (row for row in made.rows if (row.epsilon, row.mechanism, row.batch) == (epsilon, mechanism, 1)),
        key=lambda row: row.period,
    )
    setting = Setting.of(model, mechanism, epsilon, made.distortion, row.period)
    return _meaning(f"at ε = {epsilon:g}", setting, row)


def _batch_sentence(made: Plan, model: MarkovModel, mechanism: str, epsilon: float, size: int) -> str:
    from seqveil.release.stream import Setting

    setting = Setting.of(model, mechanism, epsilon * size, made.distortion, batch=size)
    row = next(row for row in made.rows if (row.epsilon, row.batch) == (epsilon, size))
    return _meaning(f"at ε = {epsilon:g} in batches of {size}", setting, row)


def _meaning(where: str, setting: Setting, row: Row) -> str:
    """What a row of the plan means for a person, and then what is promised."""
    from seqveil.interfaces.files.release import guarantee

    one = setting.epsilon * row.period if setting.mechanism.sound else None
    risk = Risk(row.leakage, one_release=one, truth=row.paid_truth, period=row.period, size=row.batch)
    return f"{where} ({risk.grade.colour}): {'; '.join(risk.sentences)}; {guarantee(setting)}"


def _emit(made: Plan, sentences: list[str], plot: Path | None) -> None:
    rows = [asdict(row) | {"delay": row.delay} for row in made.rows]
    drawn = None if plot is None else str(plot)
    emit_json({**asdict(made), "rows": rows, "guarantees": sentences, "plot": drawn, "holds": HOLDS})


def _say(made: Plan, sentences: list[str], plot: Path | None) -> None:
    batches = any(row.batch > 1 for row in made.rows)
    rate = "ε an event" if batches else "ε"
    headings = [rate, "mechanism", "every", "error", "decoded", "truth", "best guess", "above optimum", "leakage"]
    rows = [
        [
            f"{row.epsilon:g}",
            row.mechanism,
            str(row.period),
            f"{row.error:.4g}",
            f"{row.decoded_error:.4g}",
            f"{row.truth:.1%}",
            f"{row.constant_error:.4g}",
            "" if row.gap is None else f"{max(0.0, row.gap):.2g}",
            f"{row.leakage:.4g}",
        ]
        for row in made.rows
    ]
    if batches:
        headings += ["batch", "delay", "smoothed"]
        for cells, row in zip(rows, made.rows, strict=True):
            late = "" if row.smoothed_error is None else f"{row.smoothed_error:.4g}"
            cells += [str(row.batch), str(row.delay), late]
    table(headings, rows)
    print(
        f"expected {made.distortion} error over {made.length} releases of people who follow the model; decoded: after "
        "the receiver's online filter"
    )
    if batches:
        print(
            "a batch of W spends W·ε, so every row of one ε spends the same on an event; delay: events that one waits "
            "for at most; smoothed: decoded with all releases of the stream"
        )
    for sentence in sentences:
        print(sentence)
