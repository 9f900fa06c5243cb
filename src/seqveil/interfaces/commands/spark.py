"""`seqveil spark`: fit, release and account on Apache Spark."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.core.errors import DataError, InputError, needs_extra
from seqveil.core.fitting import SMOOTHING
from seqveil.core.words import Risk
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import ARRIVAL, INTERRUPTIONS, Interrupted, emit_json, lines, show, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from seqveil.interfaces.spark import FrameColumns
    from seqveil.interfaces.spark.figures import SparkFigures

spark = typer.Typer(help="The same on Apache Spark, for users who do not fit one machine.", rich_markup_mode=None)

Frame = Annotated[str, typer.Argument(metavar="DATA", help="File or folder: Parquet, CSV, JSON lines or ORC.")]
FrameFormat = Annotated[str | None, o.option("parquet|csv|json|orc", "Format of DATA.", "--format")]


@dataclass(frozen=True)
class ClusterOptions:
    """Where Spark runs."""

    master: Annotated[str | None, o.option("URL", "Where to run  [default: spark-submit's, else local[*]]")] = None
    partitions: Annotated[
        int | None, o.option("N", "Parallel parts  [default: two for each core; 32 on a cluster]")
    ] = None
    log: Annotated[Path | None, o.option("FILE", "Where Spark's own log goes  [default: nowhere]")] = None

    def session(self) -> AbstractContextManager[SparkSession]:
        """A Spark session on the cluster that was asked for, closed when the block ends."""
        from seqveil.interfaces.spark.sessions import quiet_session

        return quiet_session(self.master, self.partitions, self.log)


@dataclass(frozen=True)
class SmallClusterOptions(ClusterOptions):
    """The same for a command whose work is too small to be split by hand."""

    partitions: int | None = field(default=None, init=False)


@dataclass(frozen=True)
class FrameOptions:
    """What the columns of a frame are called."""

    user_column: o.UserColumn = None
    value_column: o.ValueColumn = None
    seq_column: Annotated[str, o.option("NAME", "Column that orders a user's events (0, 1, 2, …).")] = "seq"

    def columns(self, time: str | None = None) -> FrameColumns:
        """The columns that were asked for, with the usual names for those that were not."""
        from seqveil.interfaces.spark import FrameColumns

        parts = tuple((self.value_column or "value").split(","))
        if len(parts) > 2:
            raise InputError(f"expected one value column, or two as in x,y; got {len(parts)}")
        value = parts[0] if len(parts) == 1 else (parts[0], parts[1])
        return FrameColumns(self.user_column or "user", value, self.seq_column, time)


@spark.callback()
def _commands() -> None:
    """One sub-command for each thing to do."""


@spark.command()
@o.option_groups
def fit(
    data: Frame,
    out: o.ModelOut,
    *,
    order: o.Order = 1,
    smoothing: o.Smoothing = SMOOTHING,
    prior: o.Prior = "data",
    context: Annotated[
        str | None,
        o.option("auto|order:2|types:16", "What the next symbol depends on, checked on held-out people."),
    ] = None,
    frames: FrameOptions,
    format: FrameFormat = None,
    cluster: ClusterOptions,
    json: o.Json = False,
) -> None:
    """Fit a model by counting on Spark: the same model as `seqveil fit` makes. The fit itself is not private.

    With --context some people are held out, and a mixture of chains may be fitted, as `seqveil fit` does it. Each
    person's runs of symbols are counted on Spark; the driver holds these counts and finds the types.

    Example: seqveil spark fit clicks/ -o clicks.model

    Example: seqveil spark fit clicks/ -o clicks.model --context types:16
    """
    from seqveil.interfaces.files.fit import Fitted
    from seqveil.interfaces.spark.counting import chosen, counted
    from seqveil.interfaces.spark.frames import format_of, read

    o.check_model_out(out)
    if context is not None and order != 1:
        raise InputError("--context says what --order says; pass --context order:2, or leave it out")
    names, kind = frames.columns(), format_of(data, format)
    with cluster.session() as session:
        frame = read(session, data, kind, names)
        if context is None:
            symbols, counts = counted(frame, order, columns=names)
            fitted = Fitted(counts.model(symbols, smoothing, prior), counts.events, counts.users)
        else:
            choice, people = chosen(frame, context, None, smoothing, prior, names)
            fitted = Fitted(choice.model, people.events, people.count, choice=choice)
    fitted.model.save(out)
    show(replace(fitted, smoothing=smoothing), json)


@spark.command()
@o.option_groups
def release(
    data: Frame,
    model: o.ModelFile,
    policy: o.PolicyFile,
    key: Annotated[Path, o.option("FILE", "The secret key, made if missing. Who has it can undo the release.")],
    out: Annotated[str, o.option("DIR", "Folder for the released rows.", "--out", "-o")],
    *,
    checkpoint: Annotated[
        str | None, o.option("DIR", "Keep what was released here: the same command goes on, with new files alone.")
    ] = None,
    follow: Annotated[bool, o.flag("--follow", "With --checkpoint: stay, and release files as they arrive.")] = False,
    on_unknown: o.OnUnknown = None,
    gaps: Annotated[
        str, o.option("refuse|skip", "An event that leaves others out: stop, or give those up.")
    ] = "refuse",
    frames: FrameOptions,
    time_column: Annotated[str | None, o.option("NAME", "Column of the time, in seconds.")] = None,
    format: FrameFormat = None,
    out_format: Annotated[str, o.option("parquet|csv|json|orc", "Format of the released rows.")] = "parquet",
    files: Annotated[int | None, o.option("N", "With --checkpoint: files taken at a time.")] = None,
    buckets: Annotated[int, o.option("N", "With --checkpoint: groups of users; it keeps its own.")] = 32,
    metrics_file: Annotated[
        Path | None, o.option("FILE.prom", "With --checkpoint: figures for node_exporter's textfile collector.")
    ] = None,
    cluster: ClusterOptions,
    json: o.Json = False,
) -> None:
    """Release the rows of files on Spark: the releases of `seqveil release --state --key`.

    Without --checkpoint all rows are released at once. With it the run can be stopped or killed at any point: the same
    command goes on, no row twice or lost, and takes the files that came since. Read DIR with Spark.

    Example: seqveil spark release clicks/ -m clicks.model --policy policy.toml --key clicks.key --checkpoint state/
    --out released/
    """
    from seqveil.core.model import MarkovModel
    from seqveil.core.randomness import key_file
    from seqveil.engine.calls import OutOfOrder
    from seqveil.engine.policy import Policy
    from seqveil.engine.store import StoreError
    from seqveil.interfaces import spark as sv
    from seqveil.interfaces.spark.checkpoint import with_remedy
    from seqveil.interfaces.spark.frames import FORMATS, format_of, read
    from seqveil.interfaces.spark.job import facts_of_job

    setting, names = Policy.load(policy).on(MarkovModel.load(model)), frames.columns(time_column)
    if out_format not in FORMATS:
        raise InputError(f"expected a format of {', '.join(FORMATS)}, got {out_format!r}")
    if checkpoint is None and (follow or files is not None or metrics_file is not None):
        raise InputError("--follow, --files and --metrics-file need --checkpoint, which says what was released before")
    kind, secret = format_of(data, format), key_file(key, create=True)
    with cluster.session() as session:
        if checkpoint is not None:
            _ready(session, checkpoint, out, facts_of_job(setting, buckets, secret))
        frame = read(session, data, kind, names, setting.model.alphabet, checkpoint is not None, files)
        more = {"columns": names, "gaps": gaps, "on_unknown": on_unknown}
        released = sv.release(frame, setting, secret, buckets=buckets, **more)  # type: ignore[arg-type]
        if checkpoint is None:
            facts = _at_once(released, out, out_format)
        else:
            try:
                _stream(released, out, out_format, checkpoint, follow, metrics_file)
            except (DataError, InputError, StoreError) as error:
                if files is not None and isinstance(error, OutOfOrder):
                    error.args = (f"{error} (files are taken by the time of their last change: see docs/spark.md)",)
                raise with_remedy(session, checkpoint, out, error) from None
            facts = asdict(sv.total(session, checkpoint))
    _say(facts | {"out": out, "setting": setting.to_dict()}, json, setting.model.rules_out)


@spark.command()
@o.option_groups
def account(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint of a release.")],
    *,
    user: Annotated[str | None, o.option("NAME", "One user alone.")] = None,
    limit: Annotated[int, o.option("N", "How many users to show, those with the largest account first.")] = 20,
    cluster: SmallClusterOptions,
    json: o.Json = False,
) -> None:
    """Show where the users of a checkpoint stand: releases, leakage, Σε, budget left.

    Example: seqveil spark account state/ --json
    """
    from seqveil.interfaces import spark as sv
    from seqveil.interfaces.spark.checkpoint import worst_accounts

    if "://" not in checkpoint and not os.path.isdir(os.path.join(checkpoint, "state")):
        raise DataError(
            f"{os.path.basename(checkpoint.rstrip('/'))}: is not the checkpoint of a release; check the path"
        )
    with cluster.session() as session:
        everyone = sv.total(session, checkpoint)
        shown = worst_accounts(session, checkpoint, user, limit)
    if user is not None and not shown:
        raise DataError("the checkpoint holds nothing of this user; check the name")
    if json:
        emit_json(asdict(everyone) | {"shown": [asdict(each) for each in shown]})
        return
    headings = ("user", "events", "releases", "leakage", "sum of epsilon", "budget left")
    rows = [(str(e.user), str(e.events), str(e.releases), *map(_figure, _sums(e))) for e in shown]
    all_of = (f"all {everyone.users}", str(everyone.events), str(everyone.releases))
    table(headings, [*rows, (*all_of, *map(_figure, _sums(everyone)))])


def _sums(each: Any) -> tuple[float | None, ...]:
    return each.leakage, each.epsilon_spent, each.budget_left


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _at_once(released: DataFrame, out: str, format: str) -> dict[str, Any]:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    from seqveil.interfaces.spark.sessions import disclosed

    if os.path.exists(out):
        raise DataError(
            f"{os.path.basename(out.rstrip('/'))}: is there already, and a second release is a second spend; "
            "name a new folder"
        )
    seen = Observation()
    with disclosed():
        writer = released.observe(seen, F.count(F.lit(1)).alias("rows"), F.sum("epsilon").alias("epsilon"))
        writer.write.format(format).options(**_headed(format)).save(out)
        counted = seen.get
    return {"rows": counted["rows"], "epsilon_spent_of_all": counted["epsilon"] or 0.0}


def _ready(session: SparkSession, checkpoint: str, out: str, facts: dict[str, Any]) -> None:
    """Refuse a checkpoint that cannot go on like this."""
    from seqveil.interfaces.spark.checkpoint import DONE, LISTED, PLANNED, begin, joined, last_in, last_name, names_in

    if last_in(session, joined(checkpoint, DONE)) >= 0:
        _same_buckets(session, checkpoint, facts["buckets"])
    if not names_in(session, joined(checkpoint, PLANNED)) and names_in(session, joined(out, LISTED)):
        name = last_name(out)
        raise DataError(f"{name}: holds what another checkpoint released; Spark would skip rows, so name a new folder")
    begin(session, checkpoint, out, facts)


def _same_buckets(session: SparkSession, checkpoint: str, buckets: int) -> None:
    """Users found in other buckets would begin anew; the rest of a setting is looked at in every bucket itself."""
    from seqveil.interfaces.spark.checkpoint import facts_of

    facts = facts_of(session, checkpoint)
    if facts is not None and facts["buckets"] != buckets:
        raise InputError(f"the checkpoint was begun with {facts['buckets']} buckets, not {buckets}; use those")


def _stream(
    released: DataFrame, out: str, format: str, checkpoint: str, follow: bool, metrics: Path | None = None
) -> None:
    from seqveil.interfaces.spark.sessions import disclosed

    with disclosed():
        writer = released.writeStream.format(format).options(**_headed(format)).option("path", out)
        writer = writer.option("checkpointLocation", checkpoint)
        figures = None if metrics is None else _figures(metrics, checkpoint)
        query = (writer if follow else writer.trigger(availableNow=True)).start()
        lines([("order", ARRIVAL)], to_stderr=True)
        try:
            while _undisturbed(lambda: query.isActive):
                if figures is not None and figures.due:
                    figures.take(_undisturbed(lambda: query.recentProgress))
                    figures.write()
                time.sleep(0.2)
        except INTERRUPTIONS:
            query.stop()
            raise Interrupted("interrupted; what was released stands, and the same command goes on with it") from None
        finally:
            if figures is not None:
                figures.take(query.recentProgress)
                figures.running, figures.failed = False, query.exception() is not None
                figures.write()
        query.awaitTermination()  # raises what ended it


def _figures(file: Path, checkpoint: str) -> SparkFigures:
    with needs_extra("--metrics-file", "spark"):
        from seqveil.interfaces.spark.figures import SparkFigures
    figures = SparkFigures(file, checkpoint)
    figures.write()  # refused now rather than after the first batch
    return figures


def _undisturbed(ask: Callable[[], Any]) -> Any:
    """What the driver says; a signal waits for the answer, as half of one would spoil the next."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return ask()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _headed(format: str) -> dict[str, str]:
    return {"header": "true"} if format == "csv" else {}


def _say(facts: dict[str, Any], as_json: bool, rules_out: bool) -> None:
    """What was released; `rules_out`: whether the model calls something impossible."""
    if as_json:
        emit_json(facts)
        return
    if "users" not in facts:
        lines([("released", f"{facts['rows']} rows into {facts['out']}")], to_stderr=True)
        return
    left = "" if facts["budget_left"] is None else f", at least {facts['budget_left']:.4g} of each budget left"
    said = f"{facts['releases']} of {facts['events']} events, {facts['users']} users, into {facts['out']}"
    worst = f"worst total over a stream {facts['leakage']:.4g} (composition charges {facts['epsilon_spent']:.4g}){left}"
    means = Risk(facts["leakage"], ldp=facts["ldp"] if rules_out else None).sentences
    lines([("released", said), *(("means", each) for each in means), ("realised", worst)], to_stderr=True)
