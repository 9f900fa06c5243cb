"""Commands at the terminal: how one is run, what it prints, how far it is, and how Ctrl-C or SIGTERM ends it.

Exit codes: 0 done; 1 a check failed, or the run was interrupted; 2 the input cannot be used.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import Field, fields, is_dataclass
from types import FrameType
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from seqveil import __version__
from seqveil.core.bulk import heard
from seqveil.core.errors import TYPED, GuaranteeError, SeqveilError
from seqveil.core.words import ResultTable, count, duration, to_json

OK, FAILED, BAD_INPUT = 0, 1, 2
GROUPS = {  # the sections of `seqveil --help`; the first are what a newcomer needs, in this order
    "Getting started": ("inspect", "fit", "plan", "release", "audit", "attack"),
    "For the receiver of releases": ("decode", "stats", "learn"),
    "To choose and compare": ("compare", "mechanisms", "studio"),
    "Running continuously": ("serve", "bridge", "spark", "state"),
}
REFRESH = 0.1  # seconds between two states of a line on a terminal
LOGGED, FOREVER = 10.0, 1e6  # seconds between two lines in a log, and the most that a thread can wait
ARRIVAL = "releases are written in the order in which events arrive, and whoever reads them sees it"
AGAIN = 1.0  # seconds until an interruption that Python dropped is raised again


class Interrupted(BaseException):
    """Somebody asked the run to end: it unwinds every open file, and no library catches it by mistake."""


INTERRUPTIONS = (Interrupted, KeyboardInterrupt)  # at Ctrl-C polars raises Python's own, whatever the handler does


class _Request:
    made = False


def check_interrupted() -> None:
    """Raise where the run was asked to end, and Python dropped the exception that said so."""
    if _Request.made:
        raise Interrupted


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into `Interrupted` while the block runs.

    A signal may come while Python runs a finaliser, such as that of a generator nobody needs any more, and exceptions
    there are dropped. The request is remembered: `check_interrupted` sees it at the next rows, and a run that waits for
    rows is interrupted again after `AGAIN` seconds. Not at once: a KeyboardInterrupt of polars may be on its way
    already, and closing what it leaves takes time.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        """Raise, and remember that the run was asked to end."""
        _Request.made = True
        raise Interrupted

    def dropped(lost: sys.UnraisableHookArgs) -> None:
        """Ask again later, where Python drops an interruption; else do as before."""
        if not issubclass(lost.exc_type, Interrupted):
            hook(lost)
            return
        before.setdefault(signal.SIGALRM, signal.signal(signal.SIGALRM, stop))
        signal.setitimer(signal.ITIMER_REAL, AGAIN)

    _Request.made = False
    before: dict[int, Any] = {}
    hook = sys.unraisablehook
    try:
        before |= {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        sys.unraisablehook = dropped
    except ValueError:  # not the main thread: whoever runs it owns the signals
        pass
    try:
        yield
    except Exception:  # what a library made of the interruption, as numba's compiler does
        check_interrupted()
        raise
    finally:
        _Request.made = False  # the request was for this run; the next one in the same process begins without it
        if signal.SIGALRM in before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        if before:
            sys.unraisablehook = hook


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each parameter whose type is a dataclass replaced by that dataclass's fields, for typer to read.

    >>> from seqveil.interfaces.commands.options import ColumnOptions, Data, Json
    >>> @option_groups
    ... def show(data: Data, *, columns: ColumnOptions, json: Json = False) -> None:
    ...     print(vars(columns))
    >>> list(inspect.signature(show).parameters)
    ['data', 'user', 'value', 'time', 'json']
    >>> show(data="clicks.csv", user="who", value=None, time=None, json=False)
    {'user': 'who', 'value': None, 'time': None}
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, list[str]] = {}
    taken: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        own, types, group = {name: (parameter, parameter.default)}, hints, hints[name]
        if isinstance(group, type) and is_dataclass(group):
            declared = inspect.signature(group).parameters
            own = {each.name: (declared[each.name], each) for each in fields(group)}
            types, groups[name] = get_type_hints(group, include_extras=True), list(own)
        for each, (one, said) in own.items():
            kind, default = types[each], one.default
            if isinstance(said, Field) and "option" in said.metadata:
                kind, default = Annotated[kind, said.metadata["option"](each)], said.default
            taken[each] = one.replace(annotation=kind, default=default, kind=inspect.Parameter.KEYWORD_ONLY)

    @functools.wraps(command)
    def grouped(**given: Any) -> None:
        """The command, given the options of each group as one object."""
        built = {name: hints[name](**{each: given.pop(each) for each in group}) for name, group in groups.items()}
        command(**given, **built)

    grouped.__signature__ = inspect.Signature(list(taken.values()))  # type: ignore[attr-defined]
    grouped.__annotations__ = {name: parameter.annotation for name, parameter in taken.items()}
    return grouped


class Commands(TyperGroup):
    """The commands in sections. A KeyboardInterrupt is passed on: typer would answer it with a code and not a word."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of their sections."""
        return [name for names in GROUPS.values() for name in names if name in self.commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands in the help, section by section."""
        for title, names in GROUPS.items():
            there = [(name, self.commands[name]) for name in names if name in self.commands]
            with formatter.section(title):
                formatter.write_dl([(name, each.get_short_help_str(formatter.width - 16)) for name, each in there])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C ends it as every interruption does."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None


def common_options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Show the version and exit.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks, which may contain raw data; or set SEQVEIL_DEBUG=1.")
    ] = False,
) -> None:
    """Options for every command; `main` takes them out before the commands see their arguments."""


def run(app: typer.Typer, argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    An error is one line on standard error, and a file that could not be finished is not there.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    args = [arg for arg in given if arg != "--debug"]
    if args[:1] == ["--version"]:
        print(f"seqveil {__version__}")
        return OK
    debug = len(args) < len(given) or os.environ.get("SEQVEIL_DEBUG", "") not in ("", "0")
    token = TYPED.set(True)
    try:
        with interruptible():
            code = typer.main.get_command(app)(args, prog_name="seqveil", standalone_mode=False) or OK
    except INTERRUPTIONS as stop:
        piped = "--out=-" in args or any(pair in (("--out", "-"), ("-o", "-")) for pair in itertools.pairwise(args))
        left = "rows already on standard output stand" if piped else "nothing was written"
        code = _fail(str(stop) or f"interrupted; {left}", FAILED, "")
    except SystemExit as end:  # of a server that could not begin
        code = end.code if isinstance(end.code, int) else FAILED
    except BrokenPipeError:
        code = FAILED
    except Exception as error:
        if debug:
            traceback.print_exc()
        code = _report(error)
    finally:
        TYPED.reset(token)
    try:
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):  # a reader that has gone away is no error worth a word
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    return code


def _report(error: Exception) -> int:
    """One line for whatever went wrong. Only our own messages are passed on: they hold no data."""
    if isinstance(error, SeqveilError):
        return _fail(str(error), FAILED if isinstance(error, GuaranteeError) else BAD_INPUT)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # what typer says about the arguments
        return _misused(error)
    if isinstance(error, MemoryError):
        said = "out of memory; use a smaller alphabet, or decode with --online"
    elif isinstance(error, OSError):
        where = f": {os.path.basename(str(error.filename))}" if error.filename else ""
        said = f"{error.strerror or 'input or output failed'}{where}"
    else:
        kind = type(error).__name__
        return _fail(f"{kind} (no data shown); run with --debug for the traceback", FAILED, "internal error: ")
    return _fail(said, BAD_INPUT)


def _misused(error: Any) -> int:
    """What typer says about the arguments, with the command's own example to go by; its help where it had none."""
    context: Any = getattr(error, "ctx", None)
    path, command = (context.command_path, context.command) if context else ("seqveil", None)
    empty = type(error).__name__ == "NoArgsIsHelpError"
    if path == "seqveil" and empty:
        print(context.get_help(), file=sys.stderr)
        return BAD_INPUT
    below = getattr(command, "commands", None)
    if below and (empty or "Missing command" in error.format_message()):
        return _fail(f"expected a command after {path}: {', '.join(below)}; see {path} --help", BAD_INPUT)
    said = error.format_message().rstrip(". ")
    shown = re.search(r"Example: (.+?)(?:\n\s*\n|$)", getattr(command, "help", None) or "", re.DOTALL)
    example = f"for example: {shown[1]} (options: {path} --help)" if shown else f"see {path} --help"
    return _fail(said + (" " if said.endswith("?") else "; ") + example, BAD_INPUT)


def _fail(text: str, code: int, before: str = "error: ") -> int:
    print(before + " ".join(text.split()), file=sys.stderr)
    return code


def show(found: Any, json: bool = False, to_stderr: bool = False) -> None:
    """Print what a command found, in words or as JSON."""
    print(to_json(found) if json else found, file=sys.stderr if to_stderr else sys.stdout)


def note(text: str) -> None:
    """Say on standard error what somebody who looks at the result has to know beside it."""
    print(f"note: {text}", file=sys.stderr)


def accounts(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Accounts of users, and beside them how far the log odds of each secret have moved, of its ε."""
    declared = next(([each.name for each in row["secrets"]] for row in rows if "secrets" in row), [])
    cells = []
    for row in rows:
        moved = [f"{each.worst:.6g} of {each.epsilon:.6g}" for each in row.get("secrets", ())]
        cells.append([*(row.get(name, "damaged") for name in names), *(moved or [""] * len(declared))])
    return ResultTable("", (*names, *declared), cells)


def tell_hidden(values: int) -> None:
    """Say how many values were outside the alphabet, on an interactive terminal alone: it follows from raw data."""
    if values and sys.stderr.isatty():
        note(f"{count(values, 'value')} outside the model's alphabet came in hidden; check the senders")


class Meter:
    """How far a run is: one line that is rewritten on a terminal, one line every ten seconds in a log.

    A thread of its own shows it, so that a step which takes minutes does not leave anybody in the dark. `at` also looks
    for interruptions, so every long loop calls it.
    """

    def __init__(self, label: str, total: float | None, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._done = self._most = 0.0  # what was shown is never taken back
        self.steps: list[int] = []  # how many streams took each step since, within a chunk or in a check after the last

    def at(self, done: float, label: str | None = None) -> None:
        """So much is done; `label` says what is under way."""
        check_interrupted()
        self.steps.clear()
        self._label, self._done = label or self._label, done

    def advance(self, rows: int, total: int | None = None) -> None:
        """A chunk of rows is done, of so many that there are."""
        self._total = self._total if total is None else total
        self.at(self._done + rows)

    def turn(self, label: str, share: float) -> None:
        """What was counted is over; from now on it is the share that is done of something else, 0 to 1."""
        if self._unit != "%":
            self._label, self._total, self._unit, self._most, self._begun = label, 100, "%", 0.0, time.monotonic()
        self.at(100 * share)

    def text(self, seconds: float) -> str:
        """The line after so many seconds, with no more rows than there are.

        >>> meter = Meter("releasing", None, "rows")
        >>> meter.advance(0, 2000)
        >>> meter.text(20.0)
        'releasing: 0 of 2,000 rows, for 20 seconds'
        >>> meter.steps.append(500)
        >>> meter.text(10.0)
        'releasing: 500 of 2,000 rows, 50 a second, 30 seconds left'
        >>> meter.steps.append(2500)
        >>> meter.text(50.0)
        'releasing: all 2,000 rows, finishing, for 50 seconds'
        """
        total, done = self._total, self._done
        if total is not None:
            done = min(total, done + sum(self.steps))
        self._most = done = max(self._most, done)
        if self._unit == "rows" and total == done:
            return f"{self._label}: all {total:,.0f} rows, finishing, for {duration(seconds)}"
        rate = done / max(seconds, 1e-3)
        parts = [f"{done:,.0f}{'' if total is None else f' of {total:,.0f}'} {self._unit}"]
        parts.append(f"{rate:,.0f} a second" if rate >= 1 and self._unit != "%" else f"for {duration(seconds)}")
        if rate > 0 and total is not None and self._unit != "%":  # of a share nobody knows how long the rest takes
            parts.append(f"{duration(max(total - done, 0.0) / rate)} left")
        return f"{self._label}: {', '.join(parts)}"

    def __enter__(self) -> Meter:
        threading.Thread(target=self._show, daemon=True).start()
        return self

    def _show(self) -> None:
        begin, end = ("\r", "\x1b[K") if self._terminal else ("", "\n")
        while not self._over.wait(REFRESH if self._terminal else min(LOGGED, FOREVER)):
            with suppress(OSError, ValueError):  # whoever read it has gone
                print(begin + self.text(time.monotonic() - self._begun), end=end, file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        check_interrupted()
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def steps(total: int | None, unit: str = "steps") -> Iterator[Callable[[str, float], None]]:
    """Progress over so many steps: a function to call with what is under way and how many are done, parts included."""
    with Meter("starting", total, unit) as meter:
        yield lambda label, done: meter.at(done, label)


@contextmanager
def rows(label: str) -> Iterator[Meter]:
    """Progress over the rows of a file: `advance` is to be called with how many more are done, and of how many."""

    def stepped(streams: int) -> None:
        """Count a step; with 0 streams, code is compiled from here on."""
        meter.steps.append(streams)
        if not streams:
            note("compiling, once; later runs find the code kept")

    with Meter(label, None, "rows") as meter, heard(stepped):
        yield meter
