"""`seqveil compare`: every mechanism on the same held-out users, with what each really leaks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.core.fitting import SMOOTHING
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.plan import check_picture, parse_batches, parse_epsilons
from seqveil.interfaces.commands.terminal import INTERRUPTIONS, Interrupted, emit_json, steps

if TYPE_CHECKING:
    from seqveil.core.distortion import Distortion
    from seqveil.core.model import MarkovModel
    from seqveil.evaluate.comparison import Arena, ComparisonRow
    from seqveil.evaluate.comparison.files import Division, PeopleSplit, RowBook, RowJob


@dataclass(frozen=True)
class SplitOptions:
    """Who is released, and how much of them."""

    batched_users: Annotated[int | None, o.option("N", "Users that those who take batches release  [default: all]")] = (
        None
    )
    first: Annotated[int | None, o.option("N", "Events of a stream that are released  [default: all]")] = None
    test_share: Annotated[float, o.option("S", "Share of the users who are released.")] = 0.5
    test_users: Annotated[int | None, o.option("N", "Users who are released, instead of a share.")] = None


@o.option_groups
def compare(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file, - for standard input, or a data set by name.")],
    *,
    epsilon: Annotated[str, o.option("E,E,…", "What an event may cost on average.", "--epsilon", "-e")] = "0.5,1,2,5",
    mechanisms: Annotated[str, o.option("NAME,…", "all, or names that `seqveil mechanisms` lists.")] = "all",
    policy: Annotated[
        Path | None, o.option("FILE", "Compare ways to keep the secrets of this policy; its distortion.", "--policy")
    ] = None,
    batch: Annotated[str, o.option("W,W,…", "Sizes for those that take batches, each with W·ε.")] = "1,5",
    split: SplitOptions,
    order: o.Order = 1,
    context: Annotated[
        str | None, o.option("auto|order:2|types:16", "What the next symbol depends on, as in `seqveil fit`.")
    ] = None,
    smoothing: o.Smoothing = SMOOTHING,
    attack: Annotated[bool, o.flag("--attack", "Attack each secret on the people released, without a model.")] = False,
    cuts: o.CutOptions,
    sets: Annotated[Path | None, o.option("DIR", "Where the data sets are  [default: $SEQVEIL_DATA]", "--data")] = None,
    streams: Annotated[
        int | None, o.option("N", "Streams of a named set that are released at most  [default: all]")
    ] = None,
    out: Annotated[
        Path | None, o.option("DIR", "Keep finished rows here; a second run goes on.", "--out", "-o")
    ] = None,
    plot: Annotated[Path | None, o.option("FILE.png", "Draw error and leakage against ε.")] = None,
    seed: Annotated[int, o.option("N", "Seed of the split and of the randomness.")] = 0,
    markdown: Annotated[bool, o.flag("--markdown", "Print one Markdown table.")] = False,
    columns: o.ColumnOptions,
    missing: o.MissingValues = None,
    jobs: o.Jobs = None,
    json: o.Json = False,
) -> None:
    """Compare mechanisms on your data: error, true leakage, attack.

    Fits the chain on some of the users and releases the others with every mechanism at the same cost an event. It is an
    evaluation of data that you hold: it looks at the truth and its randomness is seeded, so nothing it makes is
    private.

    Leakage is measured, not believed: a mechanism that passes what it claims stays in the table, marked. With --out a
    run that was interrupted goes on where it ended.

    With a policy that keeps secrets every row says what it promises about each and the most that was disclosed about
    it (the exact account under the model). The ways to keep a secret run too: guarded, total, halving,
    utility_optimised and suppression, or those of them that --mechanisms names. With --attack classifiers learn from
    half of the released people to guess the secret, and the other half gives a lower bound on the realised ε, and a
    verdict.

    DATA may be a set that seqveil knows: msnbc, gaze_vr:side=10, heart_rate, electricity and others, found in --data.

    Example: seqveil compare clicks.csv --epsilon 0.5,1,2 --out race --plot race.png

    Example: seqveil compare clicks.csv --epsilon 1 --policy policy.toml --attack
    """
    from seqveil.engine.policy import Policy
    from seqveil.evaluate.comparison import line_up, line_up_for_secrets, picture, tables
    from seqveil.evaluate.comparison.files import Division
    from seqveil.evaluate.comparison.files import jobs as rows_to_make

    promised = None if policy is None else Policy.load(policy)
    secrets = () if promised is None else tuple(promised.secrets)
    check_together(order, context, attack, bool(secrets))
    who = line_up_for_secrets if secrets else line_up
    bounds, contestants = parse_epsilons(epsilon), who(parse_names(mechanisms, bool(secrets)), parse_batches(batch))
    check_picture(plot)
    divided = Division(
        order,
        smoothing,
        **asdict(split),
        seed=seed,
        context=context,
        secrets=secrets,
        attack=attack,
        observers=() if promised is None else promised.loaded_observers(),
    )
    arena, counts = _arena(
        data,
        sets,
        streams,
        divided,
        None if promised is None else promised.distortion,
        cuts,
        columns.given | {"missing": missing},
    )
    rows, resumed = run(rows_to_make(arena, bounds, contestants), out)
    if plot is not None:
        picture(rows, arena.distortion.name, plot)
    about = _about(arena, divided, resumed) | asdict(counts) | {"plot": None if plot is None else str(plot)}
    if json:
        emit_json(about | {"rows": [row.to_json() for row in rows]})
    elif markdown:
        print(tables.markdown(rows))
        if secrets:
            print("\n" + tables.secret_markdown(rows))
    else:
        print(
            f"{called(arena.model)} of {about['symbols']} symbols fitted on {counts.fit_events} events of "
            f"{counts.fit_users} users; "
            f"released: {counts.test_events} events of {counts.test_users} others (seeded, not private)"
        )
        tables.tables(rows, arena.distortion.name)
        if secrets:
            tables.secret_tables(rows)


def _arena(
    data: str,
    sets: Path | None,
    streams: int | None,
    divided: Division,
    distortion: str | Distortion | None,
    cuts: o.CutOptions,
    how: dict[str, Any],
) -> tuple[Arena, PeopleSplit]:
    """The named set or the file as an arena, and who is on which side."""
    from seqveil.evaluate.comparison.files import read_arena, set_arena

    if is_set(data):
        refuse_cuts(**vars(cuts), user_column=how["user"], value_column=how["value"])
        natural = None if distortion == "hamming" else distortion  # a named set has its own
        return set_arena(data, sets, divided, distortion=natural, streams=streams)
    refuse_unknown_set(data)
    return read_arena(data, divided, distortion=distortion or "hamming", **vars(cuts), **how)


def _about(arena: Arena, divided: Division, resumed: int) -> dict[str, Any]:
    """What the rows were made with."""
    model = arena.model
    facts = {"model": model.fingerprint, "order": divided.order, "smoothing": divided.smoothing, "symbols": model.n}
    if divided.context is not None:
        facts |= {"order": model.order, "context": divided.context, "types": model.types}
    if arena.secrets:
        facts |= {"secrets": [secret.to_dict() for secret in arena.secrets], "attack": arena.attack}
    if arena.observers:
        facts |= {"observers": [observer.fingerprint for observer in arena.observers]}
    return facts | {"distortion": arena.distortion.name, "seed": divided.seed, "private": False, "resumed": resumed}


def called(model: MarkovModel) -> str:
    """What was fitted, in a word or two."""
    return "chain" if model.types == 1 else f"{model.types} types"


def check_together(order: int, context: str | None, attack: bool, secrets: bool) -> None:
    """Refuse options that do not go together."""
    from seqveil.core.errors import InputError
    from seqveil.interfaces.choosing import Context

    if context is not None and order != 1:
        raise InputError("--context says what --order says; pass --context order:2, or leave it out")
    if context not in (None, "auto"):
        Context.parse(context)
    if attack and not secrets:
        raise InputError(
            "--attack is on a declared secret, and there is none; name a policy that keeps one by --policy"
        )


def is_set(data: str) -> bool:
    """Whether DATA names a set rather than a file.

    >>> is_set("msnbc"), is_set("gaze_vr:side=10"), is_set("clicks.csv")
    (True, True, False)
    """
    from seqveil.interfaces import datasets

    return data.partition(":")[0] in datasets.names() and not Path(data).exists()


def refuse_unknown_set(data: str) -> None:
    """A word without an extension that is no file was meant as the name of a set."""
    from seqveil.core.errors import InputError
    from seqveil.interfaces import datasets

    if data != "-" and not Path(data).suffix and not Path(data).exists():
        sets = ", ".join(datasets.names())
        raise InputError(f"expected a file such as clicks.csv, or a data set among {sets}; got neither")


def refuse_cuts(**given: object) -> None:
    """A named set comes with its alphabet and columns."""
    from seqveil.core.errors import InputError

    for name in (name for name, value in given.items() if value is not None):
        option = "--" + name.replace("_", "-")
        raise InputError(f"{option} is for files; a named set has its own alphabet, see its options (gaze_vr:side=10)")


def parse_names(text: str, secrets: bool = False) -> list[str]:
    """Names of mechanisms between commas, each of which exists; with declared secrets also of who keeps them.

    >>> parse_names("optimal, crr")
    ['optimal', 'crr']
    """
    from seqveil.core import mechanisms
    from seqveil.evaluate.comparison import KEEPERS

    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name != "all" and not (secrets and name in KEEPERS):
            mechanisms.find(name)
    return names


def run(jobs: Sequence[RowJob], folder: Path | None) -> tuple[list[ComparisonRow], int]:
    """Make the rows that the folder does not hold, each kept there as soon as it is done; and how many it held."""
    from seqveil.evaluate.comparison.files import RowBook

    book = RowBook(folder)
    todo = [job for job in jobs if book.find(job) is None]
    resumed = len(jobs) - len(todo)
    if resumed:
        rest = "the others are made now" if todo else "nothing is left to do"
        print(f"{resumed} of {len(jobs)} rows stand in {folder}; {rest}", file=sys.stderr)
    try:
        _make(todo, book)
    except INTERRUPTIONS:
        stands = RowBook(folder)  # a row may have been on its way
        made = sum(stands.find(job) is not None for job in jobs)
        if not made:
            raise
        where = f"{made} of {len(jobs)} rows stand in {folder}"
        raise Interrupted(f"interrupted; {where}: the same command goes on from there") from None
    rows = [book.find(job) for job in jobs]
    return [row for row in rows if row is not None], resumed


def _make(todo: Sequence[RowJob], book: RowBook) -> None:
    """Make the rows on as many cores as --jobs says; a row that is kept is whole."""
    from seqveil.core.compiled import threads
    from seqveil.evaluate.comparison.workers import RowWorkers

    with steps(len(todo), "rows") as show, RowWorkers(todo, threads(), book.keep, show) as rows:
        rows.make()
