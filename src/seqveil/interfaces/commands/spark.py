"""`seqveil spark`: fit, release and account on Apache Spark."""

from __future__ import annotations

import os
import signal
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.core.errors import DataError, InputError
from seqveil.core.model import SMOOTHING
from seqveil.core.words import Risk, aligned, count
from seqveil.engine.store import left_of
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import ARRIVAL, INTERRUPTIONS, Interrupted, Section, accounts, show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from seqveil.interfaces.spark import FrameColumns

spark = Section(
    help="Fit and release on Apache Spark, for very many users.", no_args_is_help=True, rich_markup_mode=None
)
Frame = Annotated[str, typer.Argument(metavar="DATA", help="File or folder: Parquet, CSV or JSON lines.")]
FrameFormat = Annotated[str | None, o.opt("parquet|csv|json", "Format of DATA, and of what is written.")]


@dataclass(frozen=True)
class ClusterOptions:
    """Where Spark runs."""

    master: str | None = o.opt("URL", "Where to run  [default: spark-submit's, else local[*]]")
    log: Path | None = o.opt("FILE", "Where Spark's own log goes  [default: off]")

    def session(self) -> AbstractContextManager[SparkSession]:
        """A Spark session on the cluster that was asked for, closed when the block ends."""
        from seqveil.interfaces.spark import session

        return session(self.master, log=self.log)


@dataclass(frozen=True)
class FrameOptions:
    """What the columns of a frame are called."""

    user_column: str = o.opt("NAME", "Column that names the user.", default="user")
    value_column: str = o.opt("NAME", "Column of the value, or two: x,y", default="value")
    seq_column: str = o.opt("NAME", "Column that orders a user's events (0, 1, 2, …).", default="seq")

    def columns(self, time: str | None = None) -> FrameColumns:
        """The columns that were asked for, with the usual names for those that were not."""
        from seqveil.interfaces.spark import FrameColumns

        return FrameColumns(self.user_column, self.value_column, self.seq_column, time)


@spark.command()
def fit(
    data: Frame,
    out: o.ModelOut,
    *,
    order: int = o.opt("M", "How many past symbols the next one depends on.", default=1),
    smoothing: o.Smoothing = SMOOTHING,
    frames: FrameOptions,
    format: FrameFormat = None,
    cluster: ClusterOptions,
    json: o.Json = False,
) -> None:
    """Fit a model by counting on Spark.

    The result is the model that `seqveil fit` would make of the same rows. The fit is not private. To compare contexts,
    or for a model with types or a trait, run `seqveil fit` on a sample of the people.

    Example: seqveil spark fit clicks/ -o clicks.model --order 2
    """
    from seqveil.interfaces.spark.counting import fitted
    from seqveil.interfaces.spark.frames import format_of, read

    o.check_model_out(out)
    names, kind = frames.columns(), format_of(data, format)
    with cluster.session() as session:
        found = fitted(read(session, data, kind, names, None, False), names, order=order, smoothing=smoothing)
    found.model.save(out)
    show(found, json)


@spark.command()
def release(
    data: Frame,
    model: o.ModelFile,
    policy: o.PolicyFile,
    *,
    key: Path = o.required(
        "FILE", "The secret key, created if missing. Anyone with it and the releases can recover the true values."
    ),
    out: str = o.required("DIR", "Folder for the released rows.", "-o"),
    checkpoint: str = o.required(
        "DIR", "Where releases are recorded: the same command continues, with new files only."
    ),
    follow: bool = o.switch("Keep running and release files as they arrive."),
    frames: FrameOptions,
    time_column: str | None = o.opt("NAME", "Column of the time: a timestamp, or seconds, ms, µs or ns since 1970."),
    format: FrameFormat = None,
    cluster: ClusterOptions,
    json: o.Json = False,
) -> None:
    """Release the rows of files on Spark.

    The guarantee and the accounts are the same as with `seqveil release --state --key`; the random draws differ. The
    run can be stopped or killed at any point: the same command continues without losing or repeating a row, and takes
    the files that arrived since. Read the output folder with Spark: its `_spark_metadata` says which files count.

    Example: seqveil spark release clicks/ -m clicks.model --policy policy.toml --key clicks.key --checkpoint state/
    --out released/
    """
    from seqveil.core.model import MarkovModel
    from seqveil.core.randomness import key_file
    from seqveil.engine.policy import Policy
    from seqveil.interfaces import spark as on_spark
    from seqveil.interfaces.spark.checkpoint import LISTED, PLANNED, names_in
    from seqveil.interfaces.spark.frames import format_of, headed, read

    known, promised, names = MarkovModel.load(model), Policy.load(policy), frames.columns(time_column)
    kind, folder = format_of(data, format), os.path.basename(out.rstrip("/"))
    how: dict[str, Any] = {"key": key_file(key, create=True), "columns": names, "checkpoint": checkpoint}
    with cluster.session() as session:
        frame = read(session, data, kind, names, known.alphabet, True)
        rows = [name for name in names_in(session, out) if name[0] not in "._"]  # of a micro-batch that was cut, too
        if not names_in(session, checkpoint, PLANNED) and (rows or names_in(session, out, LISTED)):
            raise DataError(f"{folder}: holds what another checkpoint released; name a new folder")
        writer = on_spark.stream(frame, known, promised, **how)
        _stream(writer.format(kind).options(**headed(kind)).option("path", out), follow)
        found = on_spark.total(session, checkpoint)
    if json:
        show(asdict(found) | {"setting": promised.on(known), "out": out}, json)
        return
    left = "" if found.budget_left is None else f", at least {found.budget_left:.4g} of each budget left"
    released = f"{found.releases:,} of {count(found.events, 'event')}, {count(found.users, 'user')}, into {out}"
    worst = f"worst total over a stream {found.leakage:.4g} (composition charges {found.epsilon_spent:.4g}){left}"
    means = Risk(found.leakage, found.leakage, ldp=found.ldp if known.rules_out else None).sentences
    said = [("released", released), *(("means", each) for each in means), ("realised", worst)]
    show(aligned(said), to_stderr=True)


@spark.command()
def account(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint of a release.")],
    *,
    user: str | None = o.opt("NAME", "Only this user."),
    limit: int = o.opt("N", "How many users to show, those with the largest account first.", default=20),
    cluster: ClusterOptions,
    json: o.Json = False,
) -> None:
    """Show the accounts of the users of a checkpoint: releases, leakage, Σε, budget left.

    For each declared secret it shows the furthest that its log odds have moved, and its ε.

    Example: seqveil spark account state/ --json
    """
    from pyspark.sql import functions as F

    from seqveil.interfaces import spark as on_spark
    from seqveil.interfaces.spark.checkpoint import secrets_of
    from seqveil.interfaces.spark.failures import driver_errors

    if "://" not in checkpoint and not os.path.isdir(os.path.join(checkpoint, "state")):
        name = os.path.basename(checkpoint.rstrip("/"))
        raise DataError(f"{name}: is not the checkpoint of a release; check the path")
    with cluster.session() as session, driver_errors():
        everyone, rows = on_spark.total(session, checkpoint), on_spark.account(session, checkpoint)
        found = rows if user is None else rows.where(F.col("user") == user)
        shown = [row.asDict() for row in found.orderBy(F.desc("leakage"), "user").limit(limit).collect()]
        secrets = secrets_of(session, checkpoint, [each["user"] for each in shown])
    if user is not None and not shown:
        raise DataError("the checkpoint holds nothing of this user; check the name")
    budget = None if everyone.budget_left is None else everyone.budget_left + everyone.leakage
    for each in shown:
        each |= {"epsilon_spent": each.pop("spent"), "budget_left": left_of(budget, each["leakage"])}
        each |= {"secrets": own} if (own := secrets.get(each["user"])) else {}
    if json:
        show(asdict(everyone) | {"shown": shown}, json)
        return
    names = ("user", "events", "releases", "leakage", "epsilon_spent", "budget_left")
    show(accounts(names, [*shown, asdict(everyone) | {"user": f"all {everyone.users}"}]))


def _stream(writer: DataStreamWriter, follow: bool) -> None:
    from seqveil.interfaces.spark.failures import driver_errors

    try:
        with driver_errors():
            query = (writer if follow else writer.trigger(availableNow=True)).start()
            show(f"order  {ARRIVAL}", to_stderr=True)
            try:
                while _active(query):
                    time.sleep(0.2)
            except INTERRUPTIONS:
                query.stop()
                stands = "interrupted; what was released stands, and the same command goes on with it"
                raise Interrupted(stands) from None
            query.awaitTermination()  # raises what ended it
    except (DataError, InputError) as error:  # raised by a worker, before the sink lists anything
        remedy = "nothing of this micro-batch was published; put the files right, and run the same command again"
        error.args = (f"{error}; {remedy}",)
        raise


def _active(query: StreamingQuery) -> bool:
    """Whether it runs; a signal waits for what the driver answers, as half of an answer would spoil the next."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return bool(query.isActive)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
