"""Options that several commands share: each is spelled and explained once, alone or in a group.

A group is a frozen dataclass whose fields are options. A command decorated with `option_groups` asks for a group by a
parameter of that type; its options then stand in the command's help where the parameter stands in the signature:

    @option_groups
    def audit(released: ReleasedFile, *, asked: SecretOptions, json: Json = False) -> None: ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from seqveil.core.compiled import use_threads
from seqveil.core.errors import InputError

if TYPE_CHECKING:
    from seqveil.core.secrets import Secret
    from seqveil.engine.policy import Policy


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each parameter whose type is a dataclass replaced by that dataclass's fields, for typer to read.

    A field that its class keeps out of the constructor (`init=False`) is no option of that group.

    >>> @option_groups
    ... def show(data: Data, *, columns: ColumnOptions, json: Json = False) -> None:
    ...     print(columns.given)
    >>> list(inspect.signature(show).parameters)
    ['data', 'user_column', 'value_column', 'time_column', 'json']
    >>> show(data="clicks.csv", user_column="who", value_column=None, time_column=None, json=False)
    {'user': 'who', 'value': None, 'time': None}
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
Format = Annotated[str | None, option("csv|jsonl", "Format of standard input and output; of files, by their name.")]
Meta = Annotated[Path | None, option("FILE", "The side file, where it is not FILE.meta.json.")]
UserColumn = Annotated[str | None, option("NAME", "Column of the user, or several as in a,b  [default: user]")]
ValueColumn = Annotated[str | None, option("NAME", "Column of the value, or two as in x,y  [default: value]")]
MissingValues = Annotated[
    str | None, option("drop|hold|symbol", "Rows without a value  [default: the model's, or they are refused]")
]

Order = Annotated[int, option("M", "How many past symbols the next one depends on.")]
Smoothing = Annotated[
    float, option("A", "Pseudo-events added to each context; with 0, what nobody did counts as impossible.")
]
Prior = Annotated[str, option("data|uniform", "Distribution of a stream's first symbol.")]

Epsilon = Annotated[float | None, option("E", "Bound for one release or batch.", "--epsilon", "-e")]
Mechanism = Annotated[str | None, option("NAME", "See `seqveil mechanisms`  [default: optimal; auto for batches]")]
DistortionName = Annotated[
    str | None, option("hamming|absolute|squared|euclidean|metres", "Cost of a wrong release  [default: hamming]")
]
PolicyFile = Annotated[Path, option("FILE", "What is promised: the policy, as `seqveil plan` writes it.", "--policy")]
PolicyOfRelease = Annotated[
    Path | None, option("FILE", "The policy of the release, where no side file has it.", "--policy")
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
        "What must stay secret, such as ever:health, count:health:3 or followed_by:home>clinic; may be repeated.",
    ),
]
SecretWindow = Annotated[
    str | None,
    option("N|first N|day|week|event|stream", "Events that a --secret is about  [default: the whole stream]"),
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


PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class ShortSecrets:
    """What must stay secret, in words of the command line."""

    secret: SecretOption = None
    secret_epsilon: Annotated[
        float | None, option("E", "The most that the log odds of each --secret may move, in total for its window.")
    ] = None
    secret_window: SecretWindow = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret", self.secret or None)  # an option that may be repeated comes as an empty list

    def declared(self) -> list[Secret]:
        """The secrets that the options name; one without an ε can be asked about, and not be kept."""
        from seqveil.interfaces.commands.secrets import parse

        window = _window(self.secret_window)
        return [parse(text, window=window, epsilon=self.secret_epsilon) for text in self.secret or ()]

    def promised(self) -> list[Secret]:
        """The secrets that the options name, where each needs a total."""
        if self.secret and self.secret_epsilon is None:
            raise InputError("--secret has no total; add --secret-epsilon E, for instance --secret-epsilon 0.5")
        if not self.secret and (self.secret_epsilon, self.secret_window) != (None, None):
            raise InputError("--secret-epsilon and the like came without a secret; add --secret ever:VALUE")
        return self.declared()


@dataclass(frozen=True)
class SecretOptions(ShortSecrets):
    """What is asked about, in words or in a file."""

    secrets: Annotated[Path | None, option("FILE", "TOML with a table [[secret]] for each secret, as in a policy.")] = (
        None
    )

    def declared(self) -> list[Secret]:
        """The secrets that the options name; one without an ε can be asked about, and not be kept."""
        from seqveil.interfaces.commands.secrets import from_toml

        if self.secrets is None:
            return super().declared()
        try:
            return [*super().declared(), *from_toml(self.secrets.read_text(encoding="utf-8"))]
        except (OSError, UnicodeDecodeError):
            raise InputError(f"{self.secrets.name}: cannot be read; name a TOML file of secrets") from None


@dataclass(frozen=True)
class PromiseOptions(ShortSecrets):
    """What is promised: a policy in a file, or the most usual fields of one."""

    policy: Annotated[
        Path | None, option("FILE", "What is promised, as `seqveil plan` writes it; replaces the options below.")
    ] = None
    epsilon: Epsilon = None
    batch: Annotated[
        int | None, option("W", "Release W events of a user at a time: less error, more delay  [default: 1]")
    ] = None
    block: Annotated[
        int | None, option("W", "W events share one ε, each is answered at once: less error, no delay  [default: 1]")
    ] = None
    budget: Annotated[float | None, option("TOTAL", "The most that a user's whole stream may leak.")] = None
    mechanism: Mechanism = None

    def made(self) -> Policy:
        """The policy that the options spell out, or that the file holds."""
        from seqveil.engine.budget import Budget
        from seqveil.engine.policy import Policy

        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "policy"}
        given = {name: value for name, value in given.items() if value is not None}
        if self.policy is not None:
            if given:
                named = ", ".join("--" + name.replace("_", "-") for name in given)
                raise InputError(f"--policy says what is promised; leave out {named}, or write it into the policy")
            return Policy.load(self.policy)
        if not given:
            raise InputError(
                "expected what is promised, got nothing; pass --epsilon E, --secret ever:VALUE with --secret-epsilon "
                "E, or --policy FILE"
            )
        plain = {name: given[name] for name in ("epsilon", "batch", "block", "mechanism") if name in given}
        return Policy(secrets=self.promised(), budget=Budget(self.budget), **plain)


def _window(text: str | None) -> int | str | None:
    """The window of a secret as it is typed: a number of events, a word, or "stream"."""
    if text is None or text == "stream":
        return None
    return int(text) if text.isascii() and text.isdigit() else text


@dataclass(frozen=True)
class ColumnOptions:
    """What the columns of a file are called."""

    user_column: UserColumn = None
    value_column: ValueColumn = None
    time_column: Annotated[
        str | None,
        option("NAME", "Column of the order, or several as in week,hour  [default: seq, time, timestamp, ts or date]"),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The columns as the functions take them that read files."""
        return {"user": self.user_column, "value": self.value_column, "time": self.time_column}


@dataclass(frozen=True)
class CutOptions:
    """How numbers and points become symbols."""

    bins: Annotated[str | None, option("WIDTH|auto", "Cut numbers into bins of this width; auto: about 20 bins.")] = (
        None
    )
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
        float | None, option("S", "One symbol for each slot of S seconds, something or nothing in it.")
    ] = None
    slot: Annotated[
        str | None,
        option(
            "last|mean|most",
            "What stands for several events of a slot; ,pad lets all streams begin and end together, ,hold or "
            ",nothing says what an empty slot is  [default: last]",
        ),
    ] = None
    utc_offset: Annotated[
        float | None, option("H", "Hours by which the clock of `during` and of days is ahead of UTC  [default: 0]")
    ] = None


def parse_epsilons(text: str, name: str = "epsilon") -> list[float]:
    """The ε between commas; `name` is the option that they are for.

    >>> parse_epsilons("0.5, 1")
    [0.5, 1.0]
    """
    from seqveil.core.mechanisms import check_epsilon

    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"expected numbers between commas for --{name}, as in 0.5,1,2; got {text!r}") from None
    return [check_epsilon(number) for number in numbers]


def parse_batches(text: str, name: str = "batch") -> list[int]:
    """Numbers of events between commas, in their order.

    >>> parse_batches("10,1, 5")
    [1, 5, 10]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"expected whole numbers ≥ 1 between commas for --{name}, as in 1,5,10; got {text!r}")
    return sorted({int(part) for part in parts})


def check_picture(plot: Path | None) -> None:
    """Refuse a picture that could not be saved, before anything is computed for it."""
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise InputError(f"expected a picture named {', '.join(PICTURES)}; got another extension")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise InputError("expected the picture in a folder that exists; make it, or name another")


def check_model_out(out: Path) -> None:
    """Refuse a place where no model can be written, before anything is read for it."""
    from seqveil.core.errors import DataError

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise DataError(f"{out.name}: is a folder, or lies in none; name a file in a folder that exists")
