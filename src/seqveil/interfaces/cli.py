"""The command line. Exit codes: 0 done; 1 a check failed, or the run was interrupted; 2 the input cannot be used.

An error is one line on standard error, and a file that could not be finished is not there.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from seqveil import __version__
from seqveil.core.errors import GuaranteeError, SeqveilError, typed_options
from seqveil.interfaces.commands.bridge import bridge
from seqveil.interfaces.commands.models import fit, inspect, learn
from seqveil.interfaces.commands.plan import mechanisms, plan
from seqveil.interfaces.commands.receive import audit, decode, stats
from seqveil.interfaces.commands.release import release
from seqveil.interfaces.commands.serve import serve, studio
from seqveil.interfaces.commands.spark import spark
from seqveil.interfaces.commands.state import state
from seqveil.interfaces.commands.terminal import INTERRUPTIONS, Interrupted, interruptible

OK, FAILED, BAD_INPUT = 0, 1, 2
GROUPS = {  # the sections of `seqveil --help`; the first are what a newcomer needs, in this order
    "Getting started": ("inspect", "fit", "plan", "release", "audit", "attack"),
    "For the receiver of releases": ("decode", "stats", "learn"),
    "To choose and compare": ("compare", "mechanisms", "studio"),
    "Running continuously": ("serve", "bridge", "spark", "state"),
}


class _Commands(TyperGroup):
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


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # a traceback with locals would show raw data
    pretty_exceptions_show_locals=False,
    no_args_is_help=True,
    help="Release personal data streams as they happen, with a privacy guarantee against an observer who knows how the "
    "data are correlated.",
)
for command in (inspect, fit, plan, release, audit, decode, stats, learn, mechanisms, studio):
    app.command()(command)
for offered in entry_points(group="seqveil.commands"):  # of layers above this one: attack and compare
    app.command()(offered.load())
for name, group in {"serve": serve, "bridge": bridge, "spark": spark, "state": state}.items():
    app.add_typer(group, name=name)


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Show the version and exit.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks, which may contain raw data; or set SEQVEIL_DEBUG=1.")
    ] = False,
) -> None:
    """Options for every command; `main` takes them out before the commands see their arguments."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    args = [arg for arg in given if arg != "--debug"]
    if args[:1] == ["--version"]:
        print(f"seqveil {__version__}")
        return OK
    debug = len(args) < len(given) or os.environ.get("SEQVEIL_DEBUG", "") not in ("", "0")
    try:
        with interruptible(), typed_options():
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
