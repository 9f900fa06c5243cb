"""The command line: every command, in the sections of its help."""

from __future__ import annotations

from functools import partial
from importlib.metadata import entry_points

from seqveil.interfaces.commands.bridge import bridge
from seqveil.interfaces.commands.models import fit, inspect, learn
from seqveil.interfaces.commands.plan import mechanisms, plan
from seqveil.interfaces.commands.receive import audit, decode, stats
from seqveil.interfaces.commands.release import release
from seqveil.interfaces.commands.serve import serve, studio
from seqveil.interfaces.commands.spark import spark
from seqveil.interfaces.commands.state import state
from seqveil.interfaces.commands.terminal import Commands, Section, common_options, run

app = Section(
    cls=Commands,
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
app.callback()(common_options)

main = partial(run, app)
