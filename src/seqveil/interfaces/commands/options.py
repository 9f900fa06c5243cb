"""Options of commands: each is declared once, with `opt`, `required` or `switch`, and named after its parameter.

A command's own option is the default of its parameter; one that several commands share is in an annotation. A frozen
dataclass of options is a group, and a command asks for it by a parameter of that type.
"""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.core.errors import InputError

if TYPE_CHECKING:
    from seqveil.core.secrets import Secret


def opt(metavar: str, help: str, *names: str, default: Any = None) -> Any:
    """An option with a value; `names` are a letter for it, or the whole spelling where it is not the parameter's."""
    return field(default=default, metadata={"names": names, "metavar": metavar, "help": help})


def required(metavar: str, help: str, *names: str) -> Any:
    """The same where there is no default."""
    return opt(metavar, help, *names, default=MISSING)


def switch(help: str) -> Any:
    """An option without a value."""
    return field(default=False, metadata={"names": (), "metavar": None, "help": help})


def spelled(name: str) -> str:
    """The option of a parameter as it is typed."""
    return "--" + name.replace("_", "-")


Data = Annotated[
    str,
    typer.Argument(metavar="DATA", help="CSV, TSV, JSON lines or Parquet, text also as .gz; - for standard input."),
]
ReleasedFile = Annotated[Path, typer.Argument(metavar="RELEASED", help="A file that `seqveil release` wrote.")]
ModelFile = Annotated[Path, required("MODEL", "The model file.", "-m")]
ModelOut = Annotated[Path, required("MODEL", "Where to write the model.", "-o")]
Out = Annotated[str, required("FILE", "Where to write; - for standard output.", "-o")]
Format = Annotated[
    str | None, opt("csv|jsonl", "Format of standard input and output; that of a file is taken from its name.")
]
Meta = Annotated[Path | None, opt("FILE", "The side file that describes the release  [default: RELEASED.meta.json]")]
Smoothing = Annotated[
    float, opt("A", "Pseudo-count added to each context; with 0, transitions that nobody made get probability zero.")
]
PolicyFile = Annotated[Path, required("FILE", "What is promised: the policy, as `seqveil plan` writes it.")]
PolicyOfRelease = Annotated[Path | None, opt("FILE", "The policy of the release, where no side file has it.")]
SecretOption = Annotated[
    list[str] | None,
    opt("KIND:VALUES", "What must stay secret, as ever:health or count:health:3; may be repeated."),
]
SecretWindow = Annotated[
    str | None, opt("N|first N|day|week|event|stream", "Events of a --secret  [default: the stream, 1,000 at most]")
]
Key = Annotated[
    Path | None, opt("FILE", "Derive the randomness from the secret key in this file (created if missing).")
]
Begin = Annotated[
    bool, switch("Begin a state file that is missing or empty; only for the first start, or a lost one goes unnoticed.")
]
Gaps = Annotated[
    str, opt("refuse|skip", "If earlier sequence numbers are missing: refuse the event, or skip those for good.")
]
Json = Annotated[bool, switch("Print the result as JSON.")]
USER_COLUMN = "Column that names the user, or several: a,b  [default: user]"
VALUE_COLUMN = "Column of the value, or two: x,y  [default: value]"
TIME_COLUMN = "Column that orders a user's events  [default: seq, time, timestamp, ts or date]"


@dataclass(frozen=True)
class ColumnOptions:
    """What the columns of a file are called, by the words of the functions that read files."""

    user: str | None = opt("NAME", USER_COLUMN, "--user-column")
    value: str | None = opt("NAME", VALUE_COLUMN, "--value-column")
    time: str | None = opt("NAME", TIME_COLUMN, "--time-column")


@dataclass(frozen=True)
class SecretOptions:
    """What must stay secret, or is asked about, in words of the command line."""

    secret: SecretOption = None
    secret_epsilon: float | None = opt(
        "E", "ε of each --secret: its odds change by at most a factor of e^E over its window (0.5: 1.65; 1: 2.72)."
    )
    secret_window: SecretWindow = None

    def check(self) -> None:
        """Refuse an ε or a window of no secret."""
        if not self.secret and (self.secret_epsilon, self.secret_window) != (None, None):
            raise InputError("--secret-epsilon and --secret-window came without a secret; add --secret ever:VALUE")

    def declared(self) -> list[Secret]:
        """The secrets that the options name; one without an ε can be asked about, and not be kept."""
        from seqveil.interfaces.commands.secrets import parse

        typed = self.secret_window
        window = None if typed == "stream" else int(typed) if typed and re.fullmatch("[0-9]+", typed) else typed
        return [parse(text, window=window, epsilon=self.secret_epsilon) for text in self.secret or ()]


def parse_numbers(text: str, name: str, kind: type[float] = float) -> list[Any]:
    """The numbers between commas, of a kind; `name` is the option that they are for."""
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < math.inf for number in numbers):
        whole = "whole " * (kind is int)
        raise InputError(f"expected {whole}numbers above 0 between commas for --{name}, as in 1,2,5; got {text!r}")
    return numbers


def check_model_out(out: Path, *read: str | Path) -> None:
    """Refuse to write the model over what it is made from, or where no file can be, before anything is read."""
    from seqveil.core.model import target_of
    from seqveil.interfaces.files.writing import refuse_read

    refuse_read(out, read)
    target_of(out)
