"""Options that several commands share: each is spelled and explained once, alone or in a group.

A group is a frozen dataclass whose fields are options. A command decorated with `option_groups` asks for a group by a
parameter of that type; its options then stand in the command's help where the parameter stands in the signature:

    @option_groups
    def audit(released: ReleasedFile, *, asked: SecretOptions, delta: float = opt("D", "…"), json: Json = False): ...
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.commands.terminal import option_groups as option_groups

if TYPE_CHECKING:
    from seqveil.core.secrets import Secret


def opt(metavar: str, help: str, *short: str, default: Any = None) -> Any:
    """An option with a value, as the default of a field or parameter, which gives it its name and type."""
    return field(
        default=default,
        metadata={"option": lambda name: typer.Option(spelled(name), *short, metavar=metavar, help=help)},
    )


def switch(help: str) -> Any:
    """The same for an option without a value."""
    return field(default=False, metadata={"option": lambda name: flag(spelled(name), help)})


def option(metavar: str, help: str, *names: str) -> Any:
    """An option with a value, in an annotation that several commands share, or where it is required."""
    return typer.Option(*names, metavar=metavar, help=help)


def flag(name: str, help: str) -> Any:
    """The same for an option without a value."""
    return typer.Option(name, help=help)


def spelled(name: str) -> str:
    """The option of a parameter as it is typed."""
    return "--" + name.replace("_", "-")


Data = Annotated[
    str,
    typer.Argument(metavar="DATA", help="CSV, TSV, JSON lines or Parquet, text also as .gz; - for standard input."),
]
ReleasedFile = Annotated[Path, typer.Argument(metavar="RELEASED", help="A file that `seqveil release` wrote.")]
ModelFile = Annotated[Path, option("MODEL", "The model file.", "--model", "-m")]
ModelOut = Annotated[Path, option("MODEL", "Where to write the model.", "--out", "-o")]
Out = Annotated[str, option("FILE", "Where to write; - for standard output.", "--out", "-o")]
Format = Annotated[
    str | None, option("csv|jsonl", "Format of standard input and output; that of a file is taken from its name.")
]
Meta = Annotated[Path | None, option("FILE", "The side file that describes the release  [default: RELEASED.meta.json]")]
USER_COLUMN = "Column that names the user, or several: a,b  [default: user]"
VALUE_COLUMN = "Column of the value, or two: x,y  [default: value]"
UserColumn = Annotated[str | None, option("NAME", USER_COLUMN)]
ValueColumn = Annotated[str | None, option("NAME", VALUE_COLUMN)]
MissingValues = Annotated[
    str | None,
    option(
        "drop|hold|symbol",
        "Rows without a value: drop them, repeat the last value, or make them a symbol  [default: refuse the file]",
    ),
]

Order = Annotated[int, option("M", "How many past symbols the next one depends on.")]
Smoothing = Annotated[
    float,
    option("A", "Pseudo-count added to each context; with 0, transitions that nobody made get probability zero."),
]
PolicyFile = Annotated[Path, option("FILE", "What is promised: the policy, as `seqveil plan` writes it.", "--policy")]
PolicyOfRelease = Annotated[
    Path | None, option("FILE", "The policy of the release, where no side file has it.", "--policy")
]
OnUnknown = Annotated[
    str | None, option("error|hide|nearest|other", "Values outside the alphabet  [default: the model's setting]")
]
OnUnknownLive = Annotated[
    str | None,
    option(
        "hide|nearest|other",
        "Values outside the alphabet; hide: draw from the mechanism's output distribution  [default: hide, unless the "
        "model says otherwise]",
    ),
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
    option(
        "N|first N|day|week|event|stream",
        "Events that a --secret is about  [default: the whole stream, at most 1,000 events of a user]",
    ),
]
Begin = Annotated[
    bool,
    flag(
        "--begin",
        "Create a state file that is missing or empty; all accounts start at zero. For the first start only: otherwise "
        "a lost file would go unnoticed.",
    ),
]
Gaps = Annotated[
    str,
    option("refuse|skip", "If earlier sequence numbers are missing: refuse the event, or skip those for good."),
]
Json = Annotated[bool, flag("--json", "Print the result as JSON.")]

PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class SecretOptions:
    """What must stay secret, or is asked about, in words of the command line."""

    secret: SecretOption = None
    secret_epsilon: float | None = opt(
        "E", "ε of each --secret: its odds change by at most a factor of e^E over its window (0.5: 1.65; 1: 2.72)."
    )
    secret_window: SecretWindow = None

    def declared(self) -> list[Secret]:
        """The secrets that the options name; one without an ε can be asked about, and not be kept."""
        from seqveil.interfaces.commands.secrets import parse

        typed = self.secret_window
        window = None if typed == "stream" else int(typed) if typed and re.fullmatch("[0-9]+", typed) else typed
        return [parse(text, window=window, epsilon=self.secret_epsilon) for text in self.secret or ()]

    def promised(self) -> list[Secret]:
        """The secrets that the options name, where each needs a total."""
        if self.secret and self.secret_epsilon is None:
            raise InputError("--secret has no total; add --secret-epsilon E, for instance --secret-epsilon 0.5")
        if not self.secret and (self.secret_epsilon, self.secret_window) != (None, None):
            raise InputError("--secret-epsilon and the like came without a secret; add --secret ever:VALUE")
        return self.declared()


@dataclass(frozen=True)
class ColumnOptions:
    """What the columns of a file are called, by the words of the functions that read files."""

    user: Annotated[str | None, option("NAME", USER_COLUMN, "--user-column")] = None
    value: Annotated[str | None, option("NAME", VALUE_COLUMN, "--value-column")] = None
    time: Annotated[
        str | None,
        option(
            "NAME",
            "Column that orders a user's events  [default: seq, time, timestamp, ts or date]",
            "--time-column",
        ),
    ] = None


@dataclass(frozen=True)
class CutOptions:
    """How numbers and points become symbols."""

    bins: str | None = opt("WIDTH|auto", "Cut numbers into bins of this width; auto: about 20 bins.")
    grid: str | None = opt("10x10|auto", "Cut points (--value-column x,y) into a grid; auto: covering most points.")
    cell_metres: float | None = opt("M", "Cut the map into cells of this size, over the area where most points lie.")


@dataclass(frozen=True)
class SlotOptions:
    """How events at irregular times become one for each slot."""

    every_seconds: float | None = opt(
        "S", "One symbol for each slot of S seconds, whether or not anything happened in it."
    )
    slot: str | None = opt(
        "last|mean|most",
        "How several events in a slot become one. Append ,pad to make all streams begin and end together, and "
        ",hold or ,nothing for empty slots, as in last,pad,hold  [default: last]",
    )
    utc_offset: float | None = opt(
        "H", "Clock of `during`, day and week: hours ahead of UTC, the same all year  [default: 0]"
    )


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


def parse_batches(text: str) -> list[int]:
    """Numbers of events between commas, in their order.

    >>> parse_batches("10,1, 5")
    [1, 5, 10]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"expected whole numbers ≥ 1 between commas, as in 1,5,10; got {text!r}")
    return sorted({int(part) for part in parts})


def check_picture(plot: Path | None) -> None:
    """Refuse a picture that could not be saved, before anything is computed for it."""
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise InputError(f"expected a picture named {', '.join(PICTURES)}; got {plot.name!r}")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise InputError("expected the picture in a folder that exists; make it, or name another")


def check_model_out(out: Path) -> None:
    """Refuse a place where no model can be written, before anything is read for it."""
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise DataError(f"{out.name}: is a folder, or lies in none; name a file in a folder that exists")
