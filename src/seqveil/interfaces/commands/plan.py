"""Commands to choose with, before anything is released: `seqveil mechanisms` and `seqveil plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from seqveil.core.distortion import error_name
from seqveil.core.errors import InputError
from seqveil.core.fitting import SMOOTHING
from seqveil.core.words import Risk
from seqveil.engine.policy import Policy
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.recommend import WishOptions, recommend
from seqveil.interfaces.commands.terminal import emit_json, progress, table

if TYPE_CHECKING:
    from seqveil.core.kernel import Ints
    from seqveil.core.mechanisms import BatchMechanism, Mechanism
    from seqveil.core.model import MarkovModel
    from seqveil.core.secrets import Secret
    from seqveil.engine.terms import Terms
    from seqveil.interfaces.files.words import FitWords
    from seqveil.receiver.planning import Plan, PlanRow, SecretRow

HOLDS = "under the model: all errors and shares are those of people who follow it"
PICTURES = (".png", ".svg", ".pdf")
EPSILONS = "0.25,0.5,1,2"
SECRET_USERS = 20
LENGTH = 50


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
    print("blocks of W events, each answered at once (sv.Session(model, epsilon=…, block=W)); ε is that of a block")
    table(headings, [_row(registry.find(name)) for name in registry.for_blocks()])


def _mechanism_facts(mechanism: Mechanism | BatchMechanism) -> dict[str, object]:
    plain = {f.name: getattr(mechanism, f.name) for f in fields(mechanism)}
    shown: dict[str, object] = {name: value for name, value in plain.items() if not callable(value)}
    return shown | {"batched": hasattr(mechanism, "draw")}


def _row(m: Mechanism | BatchMechanism) -> tuple[str, ...]:
    ldp = f"{m.ldp:g}ε" if isfinite(m.ldp) else "none"
    return m.name, m.summary, m.guarantee, m.trusts, ldp, m.cost, "yes" if m.sound else "NO"


@dataclass(frozen=True)
class PlannedSecrets(o.SecretOptions):
    """The secrets to plan for, with one total or several to compare."""

    secret_epsilon: Annotated[
        str | None, o.option("E,E,…", "Totals to compare for each --secret, one row for each.")
    ] = None  # type: ignore[assignment]

    def without_totals(self) -> o.SecretOptions:
        """The secrets whose totals are to be found."""
        if self.secret_epsilon is not None:
            raise InputError("--secret-epsilon is what a recommendation finds; leave it out, or plan without --seen-by")
        names = ("secret", "secret_window", "secrets")
        return o.SecretOptions(**{name: getattr(self, name) for name in names})

    def each(self) -> Iterator[list[Secret]]:
        """The secrets with each of the totals; none where there are none."""
        bounds = [None] if self.secret_epsilon is None else parse_epsilons(self.secret_epsilon, "secret-epsilon")
        own = {name: getattr(self, name) for name in ("secret", "secret_window")}
        if not self.secret and any(value is not None for value in (*own.values(), self.secret_epsilon)):
            raise InputError("--secret-epsilon and the like came without a secret; add --secret ever:VALUE")
        if self.secret and self.secret_epsilon is None:
            raise InputError("--secret has no total; add --secret-epsilon E,E,…, for instance --secret-epsilon 0.5,1")
        for bound in bounds:
            found = o.SecretOptions(**own, secret_epsilon=bound, secrets=self.secrets).declared()
            if found:
                yield found


@o.option_groups
def plan(
    source: Annotated[str, typer.Argument(metavar="DATA_OR_MODEL", help="A model, or data to fit one to first.")],
    *,
    epsilon: Annotated[
        str | None,
        o.option("E,E,…", f"Bounds for one release to compare  [default: {EPSILONS}]", "--epsilon", "-e"),
    ] = None,
    mechanism: o.Mechanism = None,
    batch: Annotated[
        str | None, o.option("W,W,…", "Compare batches of these sizes, each with W·ε: equal ε an event.")
    ] = None,
    distortion: o.DistortionName = None,
    length: Annotated[
        int | None, o.option("T", "Releases in a simulated stream  [default: 50; the mean of data to recommend for]")
    ] = None,
    users: Annotated[
        int | None,
        o.option(
            "N", "Simulated streams  [default: 200; 20 for secrets and costs that need a program, 8 to 40 for batches]"
        ),
    ] = None,
    every: Annotated[int | None, o.option("M", "Spend M·ε at every M-th release.")] = None,
    find_period: Annotated[bool, o.flag("--find-period", "Find the best M for each ε.")] = False,
    plot: Annotated[Path | None, o.option("FILE.png", "Draw the trade-off.")] = None,
    data: Annotated[
        str | None, o.option("FILE", "People whom the model was not fitted to: release them, show the real error.")
    ] = None,
    seed: Annotated[int, o.option("N", "Seed of the simulation.")] = 0,
    kept: PlannedSecrets,
    wishes: WishOptions,
    order: o.Order = 1,
    smoothing: o.Smoothing = SMOOTHING,
    cuts: o.CutOptions,
    columns: o.ColumnOptions,
    sort: o.Sort = False,
    json: o.Json = False,
) -> None:
    """Show the error to expect at each ε, or recommend a policy.

    It simulates streams from the model, so its figures hold under the model: people who follow another one fare worse.
    No private data is released.

    With --secret or --secrets it shows the error of releases that keep them, for each total of --secret-epsilon; an
    --epsilon is then one that every release keeps as well.

    Where there is data, the columns "realised" tell what real people get: those of --data, or, where data stand in
    place of a model, a fifth of the people, who are held out and released with a model of the others. Data from a pipe
    (-, as CSV) are read once, so that nobody is held out of them.

    With --seen-by, --odds, --wrong or --wait it recommends: what to promise, what that costs, what it means for a
    person. With --wrong it finds the largest protection whose expected error stays below; else the setting that keeps
    a suspicion under its limit. At a terminal it asks for what the options leave out. It writes policy.toml, which
    release, serve, bridge and spark take by --policy.

    Example: seqveil plan clicks.csv --seen-by partner --secret ever:health --wrong 20%

    Example: seqveil plan clicks.model --epsilon 0.5,1,2 --find-period --plot plan.png

    Example: seqveil plan clicks.model --secret ever:health --secret-epsilon 0.5,1 --secret-window 20
    """

    if wishes.given:
        recommend(source, wishes, kept.without_totals(), length, distortion, columns, cuts, json)
        return
    wishes.refuse_idle()
    check_picture(plot)
    length = LENGTH if length is None else length
    words = o.fit_words(cuts, columns, order=order, smoothing=smoothing, sort=sort)
    shown = _Shown(distortion or "hamming", plot, json)
    declared = list(kept.each())
    if declared:
        idle = {"--batch": batch, "--every": every, "--find-period": find_period or None, "--data": data}
        _refuse_with_secrets(mechanism, idle)
        rates = [None] if epsilon is None else parse_epsilons(epsilon)
        model = _model(source, words)
        settings = [
            Policy(rate, secrets=secrets, distortion=shown.distortion).on(model)
            for secrets in declared
            for rate in rates
        ]
        _plan_secrets(settings, (length, SECRET_USERS if users is None else users, seed), shown)
        return
    bounds = parse_epsilons(EPSILONS if epsilon is None else epsilon)
    sizes = [] if batch is None else [size for size in parse_batches(batch) if size > 1]  # 1 is always shown
    names = _mechanisms(mechanism, sizes)
    period = None if find_period else 1 if every is None else every
    _plan_releases(source, data, words, (bounds, sizes, names, period), (length, users, seed), shown)


@dataclass(frozen=True)
class _Shown:
    """What is simulated, by its cost, and how it is shown."""

    distortion: str
    plot: Path | None
    json: bool


def _plan_releases(
    source: str,
    data: str | None,
    words: FitWords,
    asked: tuple[list[float], list[int], tuple[str, str], int | None],
    simulated: tuple[int, int | None, int],
    shown: _Shown,
) -> None:
    """Simulate releases at each of the bounds, and show the error to expect; with data, beside that of real people."""
    from seqveil.interfaces import plots
    from seqveil.interfaces.files.reading import is_data
    from seqveil.receiver import planning

    bounds, sizes, (name, batched), period = asked
    length, users, seed = simulated
    model, fitted = _model(source, words), source != "-" and is_data(source)  # a pipe cannot be read again
    if fitted and data is not None:
        raise InputError("--data goes with a model; where data stand in its place, people are held out of them")
    people = None if data is None and not fitted else _people(source if data is None else data, model, words)
    most = users if users is not None else 200 if shown.distortion == "hamming" else 20
    in_batches = {"batch_sizes": sizes, "batch_mechanism": batched, "batch_users": users}
    made = planning.plan(model, bounds, name, shown.distortion, length, most, seed, period=period, **in_batches)  # type: ignore[arg-type]
    about = HOLDS
    if people is not None:
        distribution = (words.order, words.smoothing)
        made, about = _realised(made, model, people, fitted, distribution, shown.distortion, most, seed)
    if shown.plot is not None:
        plots.tradeoff(made, shown.plot)
    sentences = [_sentence(made, model, name, bound) for bound in bounds]
    sentences += [_batch_sentence(made, model, batched, bound, size) for bound in bounds for size in sizes]
    (_emit if shown.json else _say)(made, sentences, shown.plot, about)


def _refuse_with_secrets(mechanism: str | None, idle: Mapping[str, object]) -> None:
    """Refuse what a release that keeps secrets cannot have."""
    if mechanism not in (None, "guarded"):
        raise InputError(f"--mechanism {mechanism} does not keep secrets; leave it out, or plan without --secret")
    for name in (name for name, value in idle.items() if value is not None):
        raise InputError(f"{name} does not go with --secret: a secret has one total for its window; leave it out")


def _plan_secrets(settings: list[Terms], simulated: tuple[int, int, int], shown: _Shown) -> None:
    """Simulate releases that keep secrets, and show what that costs."""
    from seqveil.core.secrets.words import made_public
    from seqveil.interfaces import plots
    from seqveil.interfaces.files.release import guarantee
    from seqveil.receiver import planning

    made = [planning.simulate_secrets(setting, *simulated) for setting in settings]
    if shown.plot is not None:
        plots.secret_tradeoff(made, settings[0].distortion.name, shown.plot)
    sentences = [
        f"{'; '.join(Risk.promised(setting, truth=row.truth).sentences)}; {guarantee(setting)}"
        for row, setting in zip(made, settings, strict=True)
    ]
    public = made_public(settings[0].secrets)
    if shown.json:
        drawn = None if shown.plot is None else str(shown.plot)
        shared = {"length": simulated[0], "distortion": settings[0].distortion.name, "plot": drawn, "holds": HOLDS}
        emit_json({"rows": [asdict(row) for row in made], "guarantees": sentences, "made_public": public, **shared})
    else:
        _say_secrets(made, settings, simulated[0], [*sentences, *([public] if public else [])])


def _say_secrets(made: list[SecretRow], settings: list[Terms], length: int, sentences: list[str]) -> None:
    headings = ["total", "ε a release", "error", "decoded", "truth", "empty", "best guess", "disclosed"]
    table(
        headings,
        [
            (
                ", ".join(f"{total:g}" for total in row.totals),
                "no bound" if row.epsilon is None else f"{row.epsilon:g}",
                f"{row.error:.4g}",
                f"{row.decoded_error:.4g}",
                f"{row.truth:.1%}",
                f"{row.withheld:.1%}",
                f"{row.constant_error:.4g}",
                f"{row.disclosed:.4g}",
            )
            for row in made
        ],
    )
    print(
        f"expected {error_name(settings[0].distortion.name)} over {length} releases of people who follow the model; "
        "decoded: after the receiver's online filter; disclosed: the most a simulated stream reveals of a secret (log "
        "odds)"
    )
    for sentence in sentences:
        print(sentence)


def check_picture(plot: Path | None) -> None:
    """Refuse a picture that could not be saved, before anything is computed for it."""
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise InputError(f"expected a picture named {', '.join(PICTURES)}; got another extension")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise InputError("expected the picture in a folder that exists; make it, or name another")


def parse_epsilons(text: str, name: str = "epsilon") -> list[float]:
    """Numbers between commas; `name` is the option they stand for.

    >>> parse_epsilons("0.5, 1")
    [0.5, 1.0]
    """
    from seqveil.core.mechanisms import check_epsilon

    try:
        return [check_epsilon(float(part)) for part in text.split(",")]
    except InputError:
        raise
    except ValueError:
        raise InputError(f"expected numbers between commas for {name}, as in 0.5,1,2; got {text!r}") from None


def parse_batches(text: str) -> list[int]:
    """Batch sizes between commas.

    >>> parse_batches("10,1, 5")
    [1, 5, 10]
    """
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
        raise InputError(f'"{mechanism}" releases batches; name their sizes, as in --batch 5,10')
    return "optimal", mechanism


def _model(source: str, words: FitWords) -> MarkovModel:
    """The model, or one fitted to the data: a data file tells by its extension."""
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.fit import fit_file
    from seqveil.interfaces.files.reading import is_data

    if not is_data(source):
        return MarkovModel.load(source)
    with progress(source, "fitting", passes=2) as advance:
        return fit_file(source, words, progress=advance).model


def _people(data: str, model: MarkovModel, words: FitWords) -> tuple[Ints, Ints]:
    """Which stream each event of a file is in, numbered by name, and its code."""
    from seqveil.interfaces.files.placing import located
    from seqveil.interfaces.files.rows import Source

    users: list[Any] = []
    codes = []
    with progress(data, "reading") as advance:
        alphabet = model.alphabet
        columns = located(data, words.columns) if alphabet.on_map else words.columns
        source = Source(data, columns, None, words.sort, missing=alphabet.missing, slots=alphabet.slots)
        kept = alphabet.on_unknown in ("other", "nearest")
        for part in source.coded(alphabet if kept else alphabet.strict, advance):
            users += part.chunk.users.to_list()
            codes.append(part.codes)
    place = {user: at for at, user in enumerate(sorted(set(users)))}
    return np.array([place[user] for user in users], np.int64), np.concatenate(codes)


def _realised(
    made: Plan,
    model: MarkovModel,
    people: tuple[Ints, Ints],
    fitted: bool,
    distribution: tuple[int, float],
    distortion: str,
    most: int,
    seed: int,
) -> tuple[Plan, str]:
    """The plan with what it costs real people, and a sentence about whom its figures are of.

    Where the model was fitted to these very people, a fifth of them is held out of another fit and released with that.
    """
    from seqveil.core.model import Counts
    from seqveil.receiver.choosing import FEWEST_PEOPLE, held_out
    from seqveil.receiver.planning import realised

    users, codes = people
    whom = "whom --data names; they are held out only if the model was not fitted to them"
    if fitted:
        if int(users.max()) + 1 < FEWEST_PEOPLE:
            few = f"realised errors take {FEWEST_PEOPLE} people or more, of whom some are held out"
            return made, f"{HOLDS}; {few}"
        held = held_out(users, seed)
        counts = Counts(model.n, distribution[0])
        counts.add(users[~held], codes[~held])
        model = counts.model(model.alphabet, distribution[1])
        users, codes = users[held], codes[held]
        whom = "held out of the data, released with a model of the others"
    found = realised(made, model, users, codes, distortion, most, seed)
    return found, f"{HOLDS}, except those called realised: of {found.realised_people} people {whom}"


def _sentence(made: Plan, model: MarkovModel, mechanism: str, epsilon: float) -> str:
    """The guarantee at ε for the schedule that the plan settled on; pulses put more into one release."""

    row = max(
        (row for row in made.rows if (row.epsilon, row.mechanism, row.batch) == (epsilon, mechanism, 1)),
        key=lambda row: row.period,
    )
    setting = Policy(epsilon=epsilon, mechanism=mechanism, distortion=made.distortion, every=row.period).on(model)
    return _meaning(f"at ε = {epsilon:g}", setting, row, made.length)


def _batch_sentence(made: Plan, model: MarkovModel, mechanism: str, epsilon: float, size: int) -> str:

    setting = Policy(epsilon=epsilon * size, batch=size, mechanism=mechanism, distortion=made.distortion).on(model)
    row = next(row for row in made.rows if (row.epsilon, row.batch) == (epsilon, size))
    return _meaning(f"at ε = {epsilon:g} in batches of {size}", setting, row, made.length)


def _meaning(where: str, setting: Terms, row: PlanRow, length: int) -> str:
    """What a row of the plan means for a person with so many events, and then what is promised."""
    from seqveil.interfaces.files.release import guarantee

    one = setting.epsilon * row.period if setting.mechanism.sound else None
    ldp = setting.mechanism.ldp * row.epsilon * length if setting.model.rules_out else None
    risk = Risk(row.leakage, one_release=one, truth=row.paid_truth, period=row.period, size=row.batch, ldp=ldp)
    return f"{where} ({risk.grade.colour}): {'; '.join(risk.sentences)}; {guarantee(setting)}"


def _emit(made: Plan, sentences: list[str], plot: Path | None, about: str) -> None:
    rows = [asdict(row) | {"delay": row.delay} for row in made.rows]
    drawn = None if plot is None else str(plot)
    emit_json({**asdict(made), "rows": rows, "guarantees": sentences, "plot": drawn, "holds": about})


def _say(made: Plan, sentences: list[str], plot: Path | None, about: str) -> None:
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
    if made.realised_people is not None:
        headings[4:4] = ["realised"]
        headings[6:6] = ["realised"]
        for cells, row in zip(rows, made.rows, strict=True):
            cells[4:4] = [f"{row.realised_error:.4g}"]
            cells[6:6] = [f"{row.realised_decoded:.4g}"]
    table(headings, rows)
    print(
        f"expected {error_name(made.distortion)} over {made.length} releases of people who follow the model; decoded: "
        "after the receiver's online filter"
    )
    if batches:
        print(
            "a batch of W spends W·ε, so every row of one ε spends the same on an event; delay: events that one waits "
            "for at most; smoothed: decoded with all releases of the stream"
        )
    if about != HOLDS:
        print(about)
    for sentence in sentences:
        print(sentence)
