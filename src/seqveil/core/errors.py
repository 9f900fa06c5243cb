"""The exceptions. Every message says what was expected, what came, and what to do; none holds a raw symbol."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from numbers import Integral
from typing import Any


class SeqveilError(Exception):
    """Base of everything seqveil raises on purpose.

    `made` is what a call of several events had released, for good, when it had to stop; None: nothing.
    """

    made: Any = None


class InputError(SeqveilError, ValueError):
    """What the caller passed cannot be used as it is; `position` is that of the event it is about, or None."""

    def __init__(self, message: str = "", position: int | None = None) -> None:
        super().__init__(message)
        self.position: Any = position


class UnknownSymbol(InputError):
    """A value outside the alphabet. The message gives its position, never the value."""


class ModelError(InputError):
    """A model that is malformed, or that belongs to another alphabet."""


class DataError(InputError):
    """A file or frame that cannot be read as streams of (user, value)."""


class GuaranteeError(SeqveilError):
    """A kernel failed the check of its own guarantee; nothing was released."""


def whole_number(name: str, value: object, least: int = 1, kind: type[InputError] = InputError) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise kind(f"expected {name} to be a whole number ≥ {least}, got {value}")


def unknown_setting(name: str, known: Collection[str]) -> str:
    """What to say of a setting of a policy, whose names are public, that does not exist.

    >>> unknown_setting("epsilom", ["batch", "epsilon"])
    "unknown setting 'epsilom'; did you mean epsilon?"
    """
    near = [f"did you mean {each}?" for each in get_close_matches(name, known, 1)]
    return f"unknown setting {name[:40]!r}; {near[0] if near else 'expected one of ' + ', '.join(sorted(known))}"


FILES = "reading files and frames", "files"  # for `needs_extra`


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Where an import in the block finds a package missing, say which extra of seqveil brings it.

    The command is one for a clone: while the name seqveil is nobody's on an index, installing it from there would run
    whatever a stranger put under it.

    >>> with needs_extra("the service", "serve"):
    ...     raise ModuleNotFoundError(name="starlette")
    Traceback (most recent call last):
    seqveil.core.errors.InputError: the service needs starlette; in the clone of seqveil run: pip install -e '.[serve]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "another package").partition(".")[0]
        if package == "seqveil":
            raise
        raise InputError(f"{what} needs {package}; in the clone of seqveil run: pip install -e '.[{extra}]'") from None


_COLUMNS = ("user", "value", "time")
TYPED: ContextVar[bool] = ContextVar("typed", default=False)  # whether messages name options as the command line does


def option(name: str, value: object = None) -> str:
    """An option as whoever reads a message would write it: in Python, or at the command line.

    >>> option("user"), option("missing", "drop")
    ('user=', "missing='drop'")
    """
    if not TYPED.get():
        return f"{name}=" if value is None else f"{name}={value!r}"
    dashed = "--" + name.replace("_", "-") + "-column" * (name in _COLUMNS)
    return dashed if value in (None, True) else f"{dashed} {value}"
