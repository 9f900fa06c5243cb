"""Commands at the terminal: how typer reads one, how it is run, what it prints, how far it is, and what ends it."""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from types import FrameType
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from seqveil import __version__
from seqveil.core.bulk import heard
from seqveil.core.errors import TYPED, GuaranteeError, SeqveilError
from seqveil.core.words import ResultTable, count, duration, to_json
from seqveil.interfaces.commands.options import spelled

OK, FAILED, BAD_INPUT = 0, 1, 2  # exit codes; an interrupted run has failed
GROUPS = {  # the sections of `seqveil --help`; the first are what a newcomer needs, in this order
    "Getting started": ("inspect", "fit", "plan", "release", "audit", "attack"),
    "For the receiver of releases": ("decode", "stats", "learn"),
    "To choose and compare": ("compare", "mechanisms", "studio"),
    "Running continuously": ("serve", "bridge", "spark", "state"),
}
REFRESH = 0.1  # seconds between two states of a line on a terminal
LOGGED = 10.0  # seconds between two lines in a log
ARRIVAL = "releases are written in the order in which events arrive, and whoever reads them sees it"


class Interrupted(BaseException):
    """Somebody asked the run to end: it unwinds every open file, and no library catches it by mistake."""


INTERRUPTIONS = (Interrupted, KeyboardInterrupt)  # at Ctrl-C polars raises Python's own, whatever the handler does


_requested = threading.Event()


def check_interrupted() -> None:
    """Raise where the run was asked to end, and Python dropped the exception that said so."""
    if _requested.is_set():
        raise Interrupted


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into `Interrupted` while the block runs.

    A signal may come while Python runs a finaliser, such as that of a generator nobody needs any more, and exceptions
    there are dropped. The request is remembered: `check_interrupted` sees it at the next rows.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        """Raise, and remember that the run was asked to end."""
        _requested.set()
        raise Interrupted

    before: dict[int, Any] = {}
    with suppress(ValueError):  # not the main thread: whoever runs it owns the signals
        before |= {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Exception:  # what a library made of the interruption, as numba's compiler does
        check_interrupted()
        raise
    finally:
        _requested.clear()  # the request was for this run; the next one in the same process begins without it
        for number, handler in before.items():
            signal.signal(number, handler)


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: a parameter for each option, those of its groups included."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, list[str]] = {}
    taken: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        own, types, group = [parameter], hints, hints[name]
        if isinstance(group, type) and is_dataclass(group):
            own = [inspect.Parameter(each.name, parameter.kind, default=each) for each in fields(group)]
            types, groups[name] = get_type_hints(group, include_extras=True), [each.name for each in own]
        for each in own:
            taken[each.name] = _as_typer_reads(each, types[each.name])

    @functools.wraps(command)
    def grouped(**given: Any) -> None:
        """The command, given the options of each group as one object."""
        built = {name: hints[name](**{each: given.pop(each) for each in group}) for name, group in groups.items()}
        command(**given, **built)

    grouped.__signature__ = inspect.Signature(list(taken.values()))  # type: ignore[attr-defined]
    grouped.__annotations__ = {name: parameter.annotation for name, parameter in taken.items()}
    return grouped


def _as_typer_reads(parameter: inspect.Parameter, kind: Any) -> inspect.Parameter:
    """A parameter with the option that its default or its annotation declares."""
    default, shared = parameter.default, getattr(kind, "__metadata__", ())
    said = [each for each in (default, *shared) if isinstance(each, Field) and each.metadata]
    if said:
        names, shown = said[0].metadata["names"], {name: said[0].metadata[name] for name in ("metavar", "help")}
        whole = () if any(name.startswith("--") for name in names) else (spelled(parameter.name),)
        kind = Annotated[kind.__origin__ if shared else kind, typer.Option(*whole, *names, **shown)]
    if isinstance(default, Field):
        default = parameter.empty if default.default is MISSING else default.default
    return parameter.replace(annotation=kind, default=default, kind=parameter.KEYWORD_ONLY)


class Section(typer.Typer):
    """Commands below a name, whose parameters are read by `option_groups`."""

    def command(self, name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:  # type: ignore[override]
        """Add a command."""
        return lambda function: super(Section, self).command(name)(option_groups(function))


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
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks, which may contain raw data.")] = False,
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
    token = TYPED.set(True)
    try:
        with interruptible():
            code = typer.main.get_command(app)(args, prog_name="seqveil", standalone_mode=False) or OK
    except INTERRUPTIONS as stop:
        code = _fail(str(stop) or "interrupted; no file was written", FAILED, "")
    except SystemExit as end:  # of a server that could not begin
        code = end.code if isinstance(end.code, int) else FAILED
    except BrokenPipeError:
        code = FAILED
    except Exception as error:
        if len(args) < len(given):
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
        said = (
            f"{error.strerror or 'input or output failed; look for space and rights where it was to be written'}{where}"
        )
    else:
        kind = type(error).__name__
        return _fail(f"{kind} (no data shown); run with --debug for the traceback", FAILED, "internal error: ")
    return _fail(said, BAD_INPUT)


def _misused(error: Any) -> int:
    """What typer says about the arguments; the help where there were none."""
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help(), file=sys.stderr)
        return BAD_INPUT
    said = error.format_message().rstrip(". ")
    return _fail(f"{said}; see {context.command_path if context else 'seqveil'} --help", BAD_INPUT)


def _fail(text: str, code: int, before: str = "error: ") -> int:
    print(before + " ".join(text.split()), file=sys.stderr)
    return code


def show(found: Any, json: bool = False, to_stderr: bool = False, **beside: Any) -> None:
    """Print what a command found, in words or as JSON; `beside` is what else the JSON says."""
    facts = found.to_dict() | beside if json and beside else found
    print(to_json(facts) if json else found, file=sys.stderr if to_stderr else sys.stdout)


def note(text: str) -> None:
    """Say on standard error what somebody who looks at the result has to know beside it."""
    print(f"note: {text}", file=sys.stderr)


def accounts(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Accounts of users, and beside them how far the log odds of each secret have moved, of its ε."""
    declared = next(([each.name for each in row["secrets"]] for row in rows if row.get("secrets")), [])
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
    """How far a run is: rows of a file, or a share of the work. Every long loop calls it, to see interruptions too."""

    def __init__(self, label: str, unit: str = "rows") -> None:
        self._label, self._unit = label, unit
        self._total: int | None = None
        self._begun = time.monotonic()
        self._done = self._most = 0.0  # what was shown is never taken back
        self.steps: list[int] = []  # how many streams took each step since, within a chunk or in a check after the last
        self._compiling: list[float] = []  # when that began, and what is compiled within: no part of any estimate

    def at(self, label: str, done: float) -> None:
        """So much is done, and this is under way."""
        check_interrupted()
        self.steps.clear()
        self._label, self._done = label, done

    def advance(self, rows: int, total: int | None = None) -> None:
        """A chunk of rows is done, of so many that there are."""
        self._total = total or self._total
        self.at(self._label, self._done + rows)

    def turn(self, label: str, share: float) -> None:
        """From now on it is the share that is done of something, 0 to 1."""
        if self._unit != "%":
            self._total, self._unit, self._most, self._begun = None, "%", 0.0, time.monotonic()
        self.at(label, 100 * share)

    def step(self, streams: int) -> None:
        """Count a step of so many streams; 0 where compiling begins, -1 where it is over."""
        check_interrupted()  # a library may have dropped the request
        if streams > 0:
            self.steps.append(streams)
        elif streams == 0:
            self._compiling.append(time.monotonic())
        elif len(self._compiling) > 1:
            self._compiling.pop()
        elif self._compiling:
            self._begun += time.monotonic() - self._compiling.pop()

    def text(self, seconds: float) -> str:
        """The line after so many seconds, with no more rows than there are.

        >>> meter = Meter("releasing")
        >>> meter.advance(0, 2000)
        >>> meter.steps.append(500)
        >>> meter.text(10.0)
        'releasing: 500 of 2,000 rows, for 10 seconds, 30 seconds left'
        """
        total, done = self._total, self._done
        if self._compiling:
            return f"{self._label}: compiling"
        if total is not None:
            done = min(total, done + sum(self.steps))
        self._most = done = max(self._most, done)
        if total is None and not done:
            return f"{self._label}, for {duration(seconds)}"
        of = "" if total is None else f" of {total:,}"
        left = f", {duration(seconds * (total / done - 1))} left" if total is not None and done else ""
        left = ", finishing" if done == total else left  # what is checked after the last row has no end to foresee
        return f"{self._label}: {done:,.0f}{of} {self._unit}, for {duration(seconds)}{left}"

    def show(self, over: threading.Event) -> None:
        """Rewrite one line on a terminal, or write one every ten seconds into a log, until it is over."""
        terminal = sys.stderr.isatty()
        begin, end = ("\r", "\x1b[K") if terminal else ("", "\n")
        while not over.wait(REFRESH if terminal else LOGGED):
            with suppress(OSError, ValueError):  # whoever read it has gone
                print(begin + self.text(time.monotonic() - self._begun), end=end, file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, unit: str = "rows") -> Iterator[Meter]:
    """Show how far the block is, from a thread of its own: a step that takes minutes leaves nobody in the dark."""

    def stepped(streams: int) -> None:
        """Count a step; where code is compiled for the first time, say so."""
        meter.step(streams)
        if not streams and not compiling:
            compiling.append(True)
            note("compiling once what was not needed before, for up to a minute; later runs find the code kept")

    meter, over, compiling = Meter(label, unit), threading.Event(), list[bool]()
    threading.Thread(target=meter.show, args=(over,), daemon=True).start()
    try:
        with heard(stepped):
            yield meter
    finally:
        over.set()
        check_interrupted()
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
