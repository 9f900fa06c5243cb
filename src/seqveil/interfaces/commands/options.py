"""Options that several commands share: each is spelled and explained once, alone or in a group.

A group is a frozen dataclass whose fields are options. A command decorated with `option_groups` asks for a group by a
parameter of that type; its options then stand in the command's help where the parameter stands in the signature:

    @option_groups
    def audit(released: ReleasedFile, *, chosen: SettingOptions, json: Json = False) -> None: ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, get_type_hints

import typer

from seqveil.core.bulk import use_threads
from seqveil.core.errors import InputError

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel
    from seqveil.core.secrets import Secret
    from seqveil.core.slots import Slots
    from seqveil.engine.accounting import Budget
    from seqveil.engine.stream import Terms
    from seqveil.interfaces.files import Columns
    from seqveil.interfaces.files.words import FitWords


_configured: ContextVar[typer.Context | None] = ContextVar("configured", default=None)  # that --config was read for


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each parameter whose type is a dataclass replaced by that dataclass's fields, for typer to read.

    A field that its class keeps out of the constructor (`init=False`) is no option of that group.

    >>> @option_groups
    ... def show(data: Data, *, columns: ColumnOptions, json: Json = False) -> None:
    ...     print(columns.columns)
    >>> list(inspect.signature(show).parameters)
    ['data', 'user_column', 'value_column', 'time_column', 'latitude', 'longitude', 'json']
    >>> places = {"value_column": None, "latitude": None, "longitude": None}
    >>> show(data="clicks.csv", user_column="who", time_column=None, json=False, **places)
    Columns(user='who', value='value', time=None, clock=False)
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, dict[str, inspect.Parameter]] = {}
    taken: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = _parameters(hints[name])
            taken |= groups[name]
        else:
            taken[name] = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)

    @functools.wraps(command)
    def grouped(**given: Any) -> None:
        _command_line_wins(given)
        built = {name: hints[name](**{each: given.pop(each) for each in group}) for name, group in groups.items()}
        command(**given, **built)

    grouped.__signature__ = inspect.Signature(list(taken.values()))  # type: ignore[attr-defined]
    grouped.__annotations__ = {name: parameter.annotation for name, parameter in taken.items()}
    return grouped


def _parameters(group: type[Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a group's constructor, with their annotations as objects."""
    hints = get_type_hints(group, include_extras=True)
    return {
        name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(group).parameters.items()
    }


def _command_line_wins(given: dict[str, Any]) -> None:
    """Secrets come by two options, so where the command line has one of them the file's other one goes."""
    context = _configured.get()
    if given.get("config") is None or context is None:
        return
    source = {name: str(context.get_parameter_source(name)) for name in ("secret", "secrets")}
    for one, other in (("secret", "secrets"), ("secrets", "secret")):
        if source[one].endswith("COMMANDLINE") and source[other].endswith("DEFAULT_MAP"):
            given[other] = None


def _from_file(context: typer.Context, file: Path | None) -> Path | None:
    """What the configuration file says stands in for options that the command line leaves out."""
    if file is not None:
        from seqveil.interfaces.commands.configuration import configuration

        names = [each.name for each in context.command.params if each.name and each.param_type_name == "option"]
        _configured.set(context)
        context.default_map = configuration(file, [name for name in names if name != "config"])
    return file


def option(metavar: str, help: str, *names: str) -> Any:
    """An option with a value; it is called what its parameter is called, unless `names` are given."""
    return typer.Option(*names, metavar=metavar, help=help)


def flag(name: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(name, help=help)


Data = Annotated[
    str,
    typer.Argument(metavar="DATA", help="CSV, TSV, JSONL, JSON or Parquet, text also as .gz; - for standard input."),
]
ReleasedFile = Annotated[Path, typer.Argument(metavar="RELEASED", help="A file that `seqveil release` wrote.")]
ModelFile = Annotated[Path, option("MODEL", "The model file.", "--model", "-m")]
ModelOrNone = Annotated[Path | None, option("MODEL", "The model file.", "--model", "-m")]
ModelOut = Annotated[Path, option("MODEL", "Where to write the model.", "--out", "-o")]
Out = Annotated[str, option("FILE", "Where to write; - for standard output.", "--out", "-o")]
Format = Annotated[str | None, option("csv|jsonl", "Format of standard input and output; files tell by their name.")]
Meta = Annotated[Path | None, option("FILE", "The side file, where it is not FILE.meta.json.")]
UserColumn = Annotated[str | None, option("NAME", "Column of the user, or several as in a,b  [default: user]")]
ValueColumn = Annotated[str | None, option("NAME", "Column of the value, or two as in x,y  [default: value]")]
Sort = Annotated[bool, flag("--sort", "Sort the rows by the order column first (in memory); ties keep their order.")]
MissingValues = Annotated[
    str | None, option("drop|hold|symbol", "Rows without a value  [default: the model's, or they are refused]")
]

Order = Annotated[int, option("M", "How many past symbols the next one depends on.")]
Smoothing = Annotated[float, option("A", "Pseudo-events of each context; with 0 what nobody did counts as impossible.")]
Prior = Annotated[str, option("data|uniform", "Law of a stream's first symbol.")]

Epsilon = Annotated[
    float | None, option("E", "Bound for one release or batch (on average, with --every).", "--epsilon", "-e")
]
Mechanism = Annotated[str | None, option("NAME", "See `seqveil mechanisms`  [default: optimal; auto for batches]")]
DistortionName = Annotated[
    str | None, option("hamming|absolute|squared|euclidean|metres", "Cost of a wrong release  [default: hamming]")
]
Every = Annotated[int | None, option("M", "Spend M·ε at every M-th release, nothing in between.")]
TotalBudget = Annotated[float | None, option("TOTAL", "Most that a user's whole stream may leak.")]
LdpBudget = Annotated[
    float | None, option("X", "Most that a user's whole stream may leak whatever the truth is: needs no model.")
]
OnUnknown = Annotated[
    str | None, option("error|hide|nearest|other", "Values outside the alphabet  [default: the model's]")
]
OnUnknownLive = Annotated[
    str | None, option("hide|nearest|other", "Values outside the alphabet  [default: the model's, hide for error]")
]
SecretOption = Annotated[
    list[str] | None,
    option(
        "KIND:VALUES",
        "What must stay secret, such as ever:health, count:health:3 or visit:home>clinic; may be repeated.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Options as lines of TOML, such as epsilon = 1.0; the command line wins. `seqveil plan` writes one.",
        is_eager=True,
        callback=_from_file,
    ),
]
Json = Annotated[bool, flag("--json", "Print the result as JSON.")]


def _use_jobs(count: int | None) -> int | None:
    """Let compiled work use so many cores; the results are the same to the last bit whatever their number."""
    if count is not None:
        if count < 1:
            raise InputError(f"expected --jobs as a number of cores, 1 or more; got {count}")
        use_threads(count)
    return count


Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Cores for compiled work; the output is the same  [default: all]", callback=_use_jobs
    ),
]


CHECK_ON_PEOPLE = "`seqveil attack RELEASED --truth RAW` tries to break the promise for real people"


@dataclass(frozen=True)
class SecretOptions:
    """What must stay secret."""

    secret: SecretOption = None
    secret_epsilon: Annotated[
        float | None, option("E", "Most that the log odds of each --secret may move, in total for its window.")
    ] = None
    secret_window: Annotated[
        str | None, option("N|first N|day|event|stream", "Events that a --secret is about  [default: the whole stream]")
    ] = None
    secret_sides: Annotated[str | None, option("both|up", "up: only growing suspicion is bounded  [default: both]")] = (
        None
    )
    secrets: Annotated[Path | None, option("FILE", "TOML with a table [[secret]] for each declared secret.")] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret", self.secret or None)  # an option that may be repeated comes as an empty list

    def declared(self) -> list[Secret]:
        """The secrets that the options name; one without an ε can be asked about, and not be kept."""
        from seqveil.core.secrets import from_toml, parse

        window = _window(self.secret_window)
        shared = {"epsilon": self.secret_epsilon, "one_sided": self.secret_sides == "up"}
        found = [parse(text, window=window, **shared) for text in self.secret or ()]
        if self.secrets is None:
            return found
        try:
            return [*found, *from_toml(self.secrets.read_text(encoding="utf-8"))]
        except (OSError, UnicodeDecodeError):
            raise InputError(f"{self.secrets.name}: cannot be read; name a TOML file of secrets") from None

    def promised(self) -> list[Secret]:
        """The secrets that the options name, where each needs a total."""
        self._check_totals()
        return self.declared()

    def _check_totals(self) -> None:
        if self.secret and self.secret_epsilon is None:
            raise InputError("--secret has no total; add --secret-epsilon E, for instance --secret-epsilon 0.5")
        options = (self.secret_epsilon, self.secret_window, self.secret_sides)
        if not self.secret and any(option is not None for option in options):
            raise InputError("--secret-epsilon and the like came without a secret; add --secret ever:VALUE")


@dataclass(frozen=True)
class KeptOptions:
    """From whom declared secrets are kept."""

    observer: Annotated[
        list[Path] | None, option("MODEL2", "Another model under which each --secret is kept as well; may be repeated.")
    ] = None

    def observers(self) -> tuple[MarkovModel, ...]:
        """The models of further observers."""
        from seqveil.core.model import MarkovModel

        return tuple(MarkovModel.load(path) for path in self.observer or ())

    def refuse_idle(self) -> None:
        """Refuse what says how a secret is kept where there is none."""
        for name in (name for name, value in self._named().items() if value is not None and value != []):
            raise InputError(f"{name} says how a secret is kept, and there is none; add --secret ever:VALUE")

    def _named(self) -> dict[str, Any]:
        return {"--observer": self.observer}


@dataclass(frozen=True)
class KeepingOptions(KeptOptions):
    """How declared secrets are kept, beside their totals."""

    secret_withhold: Annotated[
        bool | None, flag("--secret-withhold", "The truth or nothing: a row that would be wrong has an empty value.")
    ] = None

    def keeping(self) -> dict[str, Any]:
        """The same as `Terms.of` takes them."""
        return {"observers": self.observers(), "withhold": bool(self.secret_withhold)}

    def _named(self) -> dict[str, Any]:
        return {**super()._named(), "--secret-withhold": self.secret_withhold or None}


@dataclass(frozen=True)
class SettingOptions(KeepingOptions, SecretOptions):
    """What is released and how: all that a `Terms` needs beside the model. None stands for an option not given."""

    epsilon: Epsilon = None
    mechanism: Mechanism = None
    batch: Annotated[
        int | None, option("W", "Release W events of a user at a time: less error, more delay  [default: 1]")
    ] = None
    distortion: DistortionName = None
    every: Every = None
    budget: TotalBudget = None
    window: Annotated[float | None, option("EPS", "Most that may leak in any window of the length given next.")] = None
    window_releases: Annotated[int | None, option("N", "Length of the window in events, released or not.")] = None
    window_seconds: Annotated[float | None, option("S", "Length of the window in seconds.")] = None
    ldp_budget: LdpBudget = None
    when_spent: Annotated[
        str | None, option("hold|stop", "What to do when the budget is gone  [default: hold, the best guess]")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "observer", self.observer or None)

    @property
    def given(self) -> bool:
        """Whether any of them was given; models of observers alone are no setting, but go with that of a side file."""
        return replace(self, observer=None) != type(self)()

    def setting(self, model: MarkovModel) -> Terms:
        """The setting that the options spell out; with declared secrets the mechanism is `guarded`."""
        from seqveil.engine.policy import Policy

        self._check_together()
        size, secrets = 1 if self.batch is None else self.batch, self.declared()
        named = self.mechanism or ("guarded" if secrets else "optimal" if size == 1 else "auto")
        self._check_secrets(named, bool(secrets))
        distortion = self.distortion or "hamming"
        plain: dict[str, Any] = {"mechanism": named, "distortion": distortion, "every": self.schedule, "batch": size}
        plain |= {"budget": self.budgets(), "secrets": tuple(secrets), **self.keeping()}
        return Policy(self.epsilon, **plain).on(model)

    @property
    def without_secrets(self) -> Self:
        """The other options alone."""
        return replace(self, **{each.name: None for each in fields(self) if each.name.startswith("secret")})

    def _check_secrets(self, mechanism: str, declared: bool) -> None:
        """Refuse secrets without a total or without what keeps them, in the words of the command line."""
        if mechanism == "guarded" and not declared:
            raise InputError(
                "--mechanism guarded keeps declared secrets and got none; add --secret ever:VALUE --secret-epsilon 0.5"
            )
        if declared and mechanism != "guarded":
            raise InputError(
                f"--mechanism {mechanism} does not keep secrets; leave it out, or ask `seqveil audit --secret` "
                "afterwards what was told"
            )
        self._check_totals()
        if not declared:
            self.refuse_idle()

    def setting_if_given(self, model: MarkovModel) -> Terms | None:
        """The setting, or None where no option of it was given and the side file is to give it."""
        return self.setting(model) if self.given else None

    @property
    def schedule(self) -> int:
        """The period of pulses."""
        return 1 if self.every is None else self.every

    def budgets(self) -> Budget:
        """The most that may be spent, and what happens then."""
        from seqveil.engine.accounting import Budget

        window = (self.window, self.window_releases, self.window_seconds)
        spent: Any = self.when_spent or "hold"
        return Budget(self.budget, *window, spent, self.ldp_budget)

    def _check_together(self) -> None:
        """Refuse options that need another one, in the words of the command line."""
        length = self.window_releases is not None or self.window_seconds is not None
        if self.window is not None and not length:
            raise InputError(f"--window {self.window:g} has no length; add --window-releases N or --window-seconds S")
        if self.window is None and length:
            raise InputError("the length of a window came without its budget; add --window EPS, the most it may leak")
        guarded = self.mechanism == "guarded" or self.secret or self.secrets is not None
        if self.epsilon is None and not guarded:
            raise InputError("expected --epsilon E, the bound for one release, got none; try --epsilon 1")


def _window(text: str | None) -> int | str | None:
    """The window of a secret as it is typed: a number of events, a word, or "stream"."""
    if text is None or text == "stream":
        return None
    return int(text) if text.isascii() and text.isdigit() else text


@dataclass(frozen=True)
class UnbatchedOptions(SettingOptions):
    """The same for commands that read releases made one by one."""

    batch: int | None = field(default=None, init=False)


@dataclass(frozen=True)
class ColumnOptions:
    """What the columns of a file are called."""

    user_column: UserColumn = None
    value_column: ValueColumn = None
    time_column: Annotated[
        str | None,
        option("NAME", "Column of the order, or several as in week,hour  [default: seq, time, timestamp, ts or date]"),
    ] = None
    latitude: Annotated[
        str | None, option("NAME", "Column of the latitude in degrees, where values are places on the map.")
    ] = None
    longitude: Annotated[str | None, option("NAME", "Column of the longitude, with --latitude.")] = None

    @property
    def columns(self) -> Columns:
        """The columns that were asked for, with the usual names for those that were not."""
        from seqveil.interfaces.files import Columns

        return Columns(self.user_column or "user", self._value or "value", self.time_column)

    @property
    def _value(self) -> str | None:
        """The columns of the value: those of a place, or the one that was named."""
        if self.latitude is None and self.longitude is None:
            return self.value_column
        if self.latitude is None or self.longitude is None:
            raise InputError("a place has two columns; pass --latitude and --longitude together")
        if self.value_column is not None:
            raise InputError("--latitude and --longitude name the value already; leave --value-column out")
        return f"{self.latitude},{self.longitude}"

    @property
    def named(self) -> bool:
        """Whether any column was named."""
        return any(getattr(self, each.name) is not None for each in fields(ColumnOptions))


@dataclass(frozen=True)
class ReleasedOptions(ColumnOptions):
    """How a file of released rows is read."""

    meta: Meta = None

    @property
    def where(self) -> dict[str, Any]:
        """The columns and the side file, as the functions take them that read such a file."""
        return {"meta": self.meta, "columns": self.columns if self.named else None}

    def made_with(self, model: MarkovModel, chosen: SettingOptions) -> dict[str, Any]:
        """The same with the setting, where the options give one, and with the models of further observers."""
        setting = chosen.setting_if_given(model)
        return self.where | {"setting": setting, "observers": chosen.observers()}


@dataclass(frozen=True)
class FileOptions(ColumnOptions):
    """How a file of raw data is read."""

    sort: Sort = False
    format: Format = None
    missing: MissingValues = None


@dataclass(frozen=True)
class CutOptions:
    """How numbers and points become symbols."""

    bins: Annotated[
        str | None, option("WIDTH|auto", "Cut numbers into bins of this width; auto: some 20 over their bulk.")
    ] = None
    levels: Annotated[int | None, option("N", "Cut numbers into N bins of about equal count.")] = None
    grid: Annotated[
        str | None, option("10x10|auto", "Cut points (--value-column x,y) into a grid; auto: over their bulk.")
    ] = None
    cell_metres: Annotated[
        float | None, option("M", "Cut the map into cells of this size around the bulk of latitudes and longitudes.")
    ] = None


@dataclass(frozen=True)
class SlotOptions:
    """How events at irregular times become one for each slot."""

    every_seconds: Annotated[
        float | None, option("S", "One symbol for each slot of S seconds, something or nothing  [default: the model's]")
    ] = None
    slot: Annotated[
        str | None, option("last|mean|most", "What stands for several events of a slot  [default: last]")
    ] = None
    pad: Annotated[
        bool, flag("--pad", "Let all streams begin and end together, at the file's first and last slot.")
    ] = False
    empty: Annotated[
        str | None, option("nothing|hold", "What an empty slot is  [default: nothing for names; numbers hold]")
    ] = None

    @property
    def slots(self) -> Slots | None:
        """The slots that were asked for."""
        from seqveil.core.slots import Slots

        if self.every_seconds is None:
            if self.slot is not None or self.pad or self.empty is not None:
                raise InputError("--slot, --empty and --pad are about slots of time; pass --every-seconds S with them")
            return None
        return Slots(self.every_seconds, self.slot or "last", self.pad, self.empty)  # type: ignore[arg-type]


@dataclass(frozen=True)
class FitSlotOptions(SlotOptions):
    """The same for a fit, whose model also keeps the clock that secrets go by."""

    utc_offset: Annotated[
        float | None, option("H", "Hours by which the clock of `during` and of days is ahead of UTC  [default: 0]")
    ] = None

    @property
    def slots(self) -> Slots | None:
        """The slots that were asked for."""
        found = super().slots
        if found is None and self.utc_offset is not None:
            raise InputError("--utc-offset is about slots of time; pass --every-seconds S with it")
        return found if found is None else replace(found, utc_offset=self.utc_offset or 0.0)


def fit_words(*groups: Any, **words: Any) -> FitWords:
    """What a fit is told, from groups of options or from words spelled as the options are, with underscores.

    >>> fit_words(ColumnOptions(user_column="who"), bins="5", every_seconds=60.0).slots
    Slots(seconds=60.0, rule='last', pad=False, empty=None, utc_offset=0.0)
    """
    from seqveil.interfaces.files.words import FitWords

    given = {name: value for group in groups for name, value in vars(group).items()} | words
    names = ColumnOptions(**{each.name: given.pop(each.name, None) for each in fields(ColumnOptions)})
    timing = FitSlotOptions(**{each.name: given.pop(each.name, each.default) for each in fields(FitSlotOptions)})
    known = {each.name for each in fields(FitWords)} - {"columns", "slots", "chunk"}
    strange = next((name for name in given if name not in known), None)
    if strange is not None:
        raise InputError(
            f"{strange!r} is not known here; the words of a fit are those of `seqveil fit --help`, with _ for -"
        )
    return FitWords(columns=names.columns, slots=timing.slots, **given)


def check_model_out(out: Path) -> None:
    """Refuse a place where no model can be written, before anything is read for it."""
    from seqveil.core.errors import DataError

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise DataError(f"{out.name}: is a folder, or lies in none; name a file in a folder that exists")
