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
from seqveil.interfaces.commands.inspect import inspect
from seqveil.interfaces.commands.mechanisms import mechanisms
from seqveil.interfaces.commands.models import fit, learn
from seqveil.interfaces.commands.plan import plan
from seqveil.interfaces.commands.receive import audit, decode, stats
from seqveil.interfaces.commands.release import release
from seqveil.interfaces.commands.serve import serve
from seqveil.interfaces.commands.spark import spark
from seqveil.interfaces.commands.state import state
from seqveil.interfaces.commands.studio import studio
from seqveil.interfaces.commands.terminal import INTERRUPTIONS, Interrupted, interruptible

OK, FAILED, BAD_INPUT = 0, 1, 2
GROUPS = {  # the sections of `seqveil --help`; the first are what a newcomer needs, in this order
    "First": ("inspect", "fit", "plan", "release", "audit", "attack"),
    "For the receiver of releases": ("decode", "stats", "learn"),
    "To choose and compare": ("compare", "mechanisms", "studio"),
    "Around the clock": ("serve", "bridge", "spark", "state"),
}


class _Commands(TyperGroup):
    """The commands in sections. A KeyboardInterrupt is passed on: typer would answer it with a code and not a word."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in GROUPS.values() for name in names if name in self.commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in GROUPS.items():
            there = [(name, self.commands[name]) for name in names if name in self.commands]
            with formatter.section(title):
                formatter.write_dl([(name, each.get_short_help_str(formatter.width - 16)) for name, each in there])

    def invoke(self, ctx: Any) -> Any:
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
    help="Release a personal data stream as it happens, with a privacy guarantee that holds even against someone who "
    "knows how the data is correlated.",
)
for command in (inspect, fit, plan, release, audit, decode, stats, learn, mechanisms, studio):
    app.command()(command)
for offered in entry_points(group="seqveil.commands"):  # of layers above this one: attack and compare
    app.command()(offered.load())
for name, group in {"serve": serve, "bridge": bridge, "spark": spark, "state": state}.items():
    app.add_typer(group, name=name)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"seqveil {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks, which may show data; or set SEQVEIL_DEBUG=1.")
    ] = False,
) -> None:
    """See `--debug` in `main`: it is taken out before the commands see their arguments."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    args = [arg for arg in given if arg != "--debug"]
    debug = len(args) < len(given) or os.environ.get("SEQVEIL_DEBUG", "") not in ("", "0")
    try:
        with interruptible(), typed_options():
            code = _run(args)
    except INTERRUPTIONS as stop:
        left = "rows already on standard output stand" if _piped(args) else "nothing was written"
        code = _fail(str(stop) or f"interrupted; {left}", FAILED, "")
    except BrokenPipeError:
        code = FAILED
    except Exception as error:
        if debug:
            traceback.print_exc()
        code = _report(error)
    return _flush(code)


def _run(args: list[str]) -> int:
    try:
        code = typer.main.get_command(app)(args, prog_name="seqveil", standalone_mode=False)
    except SystemExit as end:
        code = end.code
    return code if isinstance(code, int) else OK


def _report(error: Exception) -> int:
    """One line for whatever went wrong. Only our own messages are passed on: they hold no data."""
    if isinstance(error, SeqveilError):
        return _fail(str(error), FAILED if isinstance(error, GuaranteeError) else BAD_INPUT)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # what typer says about the arguments
        return _misused(error)
    kind = type(error).__name__
    said = {
        # Ctrl-C ends a run by itself, so this is the end of the input
        "Abort": "the input ended before a question was answered; pass the answers as options (see --help)",
        "MemoryError": "out of memory; use a smaller alphabet, or decode with --online",
    }
    if isinstance(error, ModuleNotFoundError) and error.name == "polars":
        said[kind] = "this command reads or writes files, which needs polars; in the clone of seqveil run: "
        said[kind] += "pip install -e '.[files]'"
    if isinstance(error, OSError):
        where = f": {os.path.basename(str(error.filename))}" if error.filename else ""
        said[kind] = f"{error.strerror or 'input or output failed'}{where}"
    if kind in said:
        return _fail(said[kind], BAD_INPUT)
    return _fail(f"{kind} (no data shown); run with --debug for the traceback", FAILED, "internal error: ")


def _misused(error: Any) -> int:
    """What typer says about the arguments, with the command's own example to go by; its help where it had none."""
    path = error.ctx.command_path if getattr(error, "ctx", None) else "seqveil"
    command = error.ctx.command if getattr(error, "ctx", None) else None
    if path == "seqveil" and type(error).__name__ == "NoArgsIsHelpError":
        print(error.ctx.get_help(), file=sys.stderr)
        return BAD_INPUT
    below = getattr(command, "commands", None)
    if below and ("Missing command" in error.format_message() or type(error).__name__ == "NoArgsIsHelpError"):
        return _fail(f"expected a command after {path}: {', '.join(below)}; see {path} --help", BAD_INPUT)
    said = error.format_message().rstrip(". ")
    shown = re.search(r"Example: (.+?)(?:\n\s*\n|$)", getattr(command, "help", None) or "", re.DOTALL)
    example = f"for example: {shown[1]} (options: {path} --help)" if shown else f"see {path} --help"
    return _fail(said + (" " if said.endswith("?") else "; ") + example, BAD_INPUT)


def _fail(text: str, code: int, before: str = "error: ") -> int:
    print(before + " ".join(text.split()), file=sys.stderr)
    return code


def _piped(args: list[str]) -> bool:
    return "--out=-" in args or any(name in ("--out", "-o") and to == "-" for name, to in itertools.pairwise(args))


def _flush(code: int) -> int:
    """Flush standard output; a reader that has gone away is no error worth a word."""
    try:
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    return code
