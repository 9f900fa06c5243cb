"""`seqveil spark`: fit, release and account on Apache Spark."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.core.errors import DataError, InputError
from seqveil.core.fitting import SMOOTHING
from seqveil.core.words import Risk
from seqveil.engine.releases import left_of
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import ARRIVAL, INTERRUPTIONS, Interrupted, emit_json, lines, show, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from seqveil.interfaces.spark import FrameColumns

spark = typer.Typer(help="The same on Apache Spark, for users who do not fit one machine.", rich_markup_mode=None)

Frame = Annotated[str, typer.Argument(metavar="DATA", help="File or folder: Parquet, CSV or JSON lines.")]
FrameFormat = Annotated[str | None, o.option("parquet|csv|json", "Format of DATA, and of what is written.", "--format")]


@dataclass(frozen=True)
class ClusterOptions:
    """Where Spark runs."""

    master: Annotated[str | None, o.option("URL", "Where to run  [default: spark-submit's, else local[*]]")] = None
    log: Annotated[Path | None, o.option("FILE", "Where Spark's own log goes  [default: nowhere]")] = None

    def session(self) -> AbstractContextManager[SparkSession]:
        """A Spark session on the cluster that was asked for, closed when the block ends."""
        from seqveil.interfaces.spark import session

        return session(self.master, log=self.log)


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
    context: Annotated[str, o.option("order:2|types:16", "What the next symbol depends on.")] = "order:1",
    smoothing: o.Smoothing = SMOOTHING,
    frames: FrameOptions,
    format: FrameFormat = None,
    cluster: ClusterOptions,
    json: o.Json = False,
) -> None:
    """Fit a model by counting on Spark: the same model as `seqveil fit` makes. The fit itself is not private.

    With types:16 each person's runs of symbols are counted, and the driver finds the types. To choose a context,
    run `seqveil fit --context auto` on a sample of the people.

    Example: seqveil spark fit clicks/ -o clicks.model --context types:16
    """
    from seqveil.interfaces.choosing import Context
    from seqveil.interfaces.spark.counting import fitted
    from seqveil.interfaces.spark.frames import format_of, read

    o.check_model_out(out)
    if context == "auto":
        raise InputError("contexts are compared by `seqveil fit --context auto`, on some of the people; name one here")
    chosen, names, kind = Context.parse(context), frames.columns(), format_of(data, format)
    if isinstance(chosen.switch, str):
        raise InputError("`seqveil fit` estimates how often people switch types; name a number here")
    with cluster.session() as session:
        found = fitted(read(session, data, kind, names, None, False), names, **vars(chosen), smoothing=smoothing)
    found.model.save(out)
    show(found, json)


@spark.command()
@o.option_groups
def release(
    data: Frame,
    model: o.ModelFile,
    policy: o.PolicyFile,
    key: Annotated[Path, o.option("FILE", "The secret key, made if missing. Anyone with it can undo the release.")],
    out: Annotated[str, o.option("DIR", "Folder for the released rows.", "--out", "-o")],
    *,
    checkpoint: Annotated[
        str | None, o.option("DIR", "Record releases here: the same command continues, with new files only.")
    ] = None,
    follow: Annotated[bool, o.flag("--follow", "With --checkpoint: stay, and release files as they arrive.")] = False,
    frames: FrameOptions,
    time_column: Annotated[str | None, o.option("NAME", "Column of the time, in seconds.")] = None,
    format: FrameFormat = None,
    cluster: ClusterOptions,
    json: o.Json = False,
) -> None:
    """Release the rows of files on Spark: the releases of `seqveil release --state --key`.

    Without --checkpoint all rows are released at once. With it the run can be stopped or killed at any point: the
    same command continues without losing or repeating a row, and takes the files that arrived since. Read DIR with
    Spark.

    Example: seqveil spark release clicks/ -m clicks.model --policy policy.toml --key clicks.key --checkpoint state/
    --out released/
    """
    from seqveil.core.model import MarkovModel
    from seqveil.core.randomness import key_file
    from seqveil.engine.policy import Policy
    from seqveil.interfaces import spark as on_spark
    from seqveil.interfaces.spark.frames import format_of, headed, read

    known, promised, names = MarkovModel.load(model), Policy.load(policy), frames.columns(time_column)
    if checkpoint is None and follow:
        raise InputError("--follow needs --checkpoint, which says what was released before; name a folder for it")
    kind, how = format_of(data, format), {"key": key_file(key, create=True), "columns": names}
    with cluster.session() as session:
        frame = read(session, data, kind, names, known.alphabet, checkpoint is not None)
        if checkpoint is None:
            facts = _at_once(on_spark.release(frame, known, promised, **how), out, kind)  # type: ignore[arg-type]
        else:
            _refuse_mixed(session, checkpoint, out)
            writer = on_spark.stream(frame, known, promised, checkpoint=checkpoint, **how)  # type: ignore[arg-type]
            _stream(writer.format(kind).options(**headed(kind)).option("path", out), follow)
            facts = asdict(on_spark.total(session, checkpoint))
    facts = {"setting": promised.on(known).to_dict()} | facts | {"out": out}
    emit_json(facts) if json else _say(facts, known.rules_out)


@spark.command()
@o.option_groups
def account(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint of a release.")],
    *,
    user: Annotated[str | None, o.option("NAME", "Only this user.")] = None,
    limit: Annotated[int, o.option("N", "How many users to show, those with the largest account first.")] = 20,
    cluster: ClusterOptions,
    json: o.Json = False,
) -> None:
    """Show the accounts of the users of a checkpoint: releases, leakage, Σε, budget left.

    Example: seqveil spark account state/ --json
    """
    from pyspark.sql import functions as F

    from seqveil.interfaces import spark as on_spark
    from seqveil.interfaces.spark.failures import driver_errors

    if "://" not in checkpoint and not os.path.isdir(os.path.join(checkpoint, "state")):
        raise DataError(
            f"{os.path.basename(checkpoint.rstrip('/'))}: is not the checkpoint of a release; check the path"
        )
    with cluster.session() as session, driver_errors():
        everyone, rows = on_spark.total(session, checkpoint), on_spark.account(session, checkpoint)
        found = rows if user is None else rows.where(F.col("user") == user)
        shown = [row.asDict() for row in found.orderBy(F.desc("leakage"), "user").limit(limit).collect()]
    if user is not None and not shown:
        raise DataError("the checkpoint holds nothing of this user; check the name")
    budget = None if everyone.budget_left is None else everyone.budget_left + everyone.leakage
    for each in shown:
        each |= {"epsilon_spent": each.pop("spent"), "budget_left": left_of(budget, each["leakage"])}
    if json:
        emit_json(asdict(everyone) | {"shown": shown})
        return
    whole = asdict(everyone) | {"user": f"all {everyone.users}"}
    figures = ("leakage", "epsilon_spent", "budget_left")
    cells = [
        [*(str(each[name]) for name in ("user", "events", "releases")), *(_figure(each[name]) for name in figures)]
        for each in (*shown, whole)
    ]
    table(("user", "events", "releases", "leakage", "sum of epsilon", "budget left"), cells)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _at_once(released: DataFrame, out: str, format: str) -> dict[str, Any]:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    from seqveil.interfaces.spark.failures import driver_errors
    from seqveil.interfaces.spark.frames import headed

    if os.path.exists(out):
        raise DataError(
            f"{os.path.basename(out.rstrip('/'))}: is there already, and a second release is a second spend; "
            "name a new folder"
        )
    seen = Observation()
    with driver_errors():
        writer = released.observe(seen, F.count(F.lit(1)).alias("rows"), F.sum("epsilon").alias("epsilon"))
        writer.write.format(format).options(**headed(format)).save(out)
        counted = seen.get
    return {"rows": counted["rows"], "epsilon_spent_of_all": counted["epsilon"] or 0.0}


def _refuse_mixed(session: SparkSession, checkpoint: str, out: str) -> None:
    """Refuse a new checkpoint that would write into the output of another one."""
    from seqveil.interfaces.spark.checkpoint import LISTED, PLANNED, names_in

    if not names_in(session, checkpoint, PLANNED) and names_in(session, out, LISTED):
        name = os.path.basename(out.rstrip("/"))
        raise DataError(f"{name}: holds what another checkpoint released; Spark would skip rows, so name a new folder")


def _stream(writer: DataStreamWriter, follow: bool) -> None:
    from seqveil.interfaces.spark.failures import driver_errors

    try:
        with driver_errors():
            query = (writer if follow else writer.trigger(availableNow=True)).start()
            lines([("order", ARRIVAL)], to_stderr=True)
            try:
                while _undisturbed(lambda: query.isActive):
                    time.sleep(0.2)
            except INTERRUPTIONS:
                query.stop()
                raise Interrupted(
                    "interrupted; what was released stands, and the same command goes on with it"
                ) from None
            query.awaitTermination()  # raises what ended it
    except (DataError, InputError) as error:  # raised by a worker, before the sink lists anything
        remedy = "nothing of this micro-batch was published; put the files right, and run the same command again"
        error.args = (f"{error}; {remedy}",)
        raise


def _undisturbed(ask: Callable[[], Any]) -> Any:
    """What the driver says; a signal waits for the answer, as half of one would spoil the next."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return ask()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _say(facts: dict[str, Any], rules_out: bool) -> None:
    """What was released; `rules_out`: whether the model calls something impossible."""
    if "users" not in facts:
        lines([("released", f"{facts['rows']} rows into {facts['out']}")], to_stderr=True)
        return
    left = "" if facts["budget_left"] is None else f", at least {facts['budget_left']:.4g} of each budget left"
    said = f"{facts['releases']} of {facts['events']} events, {facts['users']} users, into {facts['out']}"
    worst = f"worst total over a stream {facts['leakage']:.4g} (composition charges {facts['epsilon_spent']:.4g}){left}"
    means = Risk(facts["leakage"], ldp=facts["ldp"] if rules_out else None).sentences
    lines([("released", said), *(("means", each) for each in means), ("realised", worst)], to_stderr=True)
