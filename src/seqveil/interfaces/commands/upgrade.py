"""`seqveil upgrade`: a cold start for state files, and so for `release --state`, `serve` and `bridge`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.core.errors import InputError
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines

if TYPE_CHECKING:
    from seqveil.receive.coldstart import Version, Versions


@dataclass(frozen=True)
class UpgradeOptions:
    """The versions of a cold start: where they are, how the first one is made, and what the next one uses."""

    versions: Annotated[Path, typer.Option(metavar="FILE", help="All versions so far; made where it is not there.")]
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="Where to write the model now in force.")]
    alphabet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="To begin: the values, one a line, or a model that has them.")
    ] = None
    epsilon: o.Epsilon = None
    every: o.Every = None
    distortion: o.DistortionName = None
    budget: o.TotalBudget = None
    ldp_budget: o.LdpBudget = None
    mechanism: Annotated[str, typer.Option(metavar="NAME", help="Of the version to come.")] = "optimal"

    def load(self) -> Versions | None:
        """The versions so far, or None where there are none; options that begin do not go with versions."""
        from seqveil.receive.coldstart import Versions

        if not self.versions.exists():
            return None
        beginning = (self.alphabet, self.epsilon, self.every, self.distortion, self.budget, self.ldp_budget)
        if any(option is not None for option in beginning):
            raise InputError(f"{self.versions.name} says how it began; leave --alphabet, --epsilon and the rest out")
        return Versions.load(self.versions)

    def begin(self) -> Versions:
        """Version 0, saved."""
        from seqveil.interfaces.files.fit import named_alphabet
        from seqveil.receive.coldstart import Versions, first_version
        from seqveil.release.accounting import Budget

        if self.alphabet is None or self.epsilon is None:
            raise InputError("there are no versions yet: to begin, pass --alphabet and --epsilon")
        rule = (named_alphabet(self.alphabet), "randomized_response", self.epsilon, self.distortion or "hamming")
        budget = Budget(self.budget, ldp_total=self.ldp_budget)
        begun = Versions([first_version(*rule, schedule=self.every, budget=budget)])
        begun.save(self.versions)
        return begun

    def finish(self, known: Versions, said: str, json: bool, more: str = "") -> None:
        """Write the model now in force and say how to use it; `more` are further options to use it with."""
        now = known.last
        now.setting.model.save(self.out)
        use = _options_to_use(now, self.out) + more
        facts = {"version": now.number, "said": said, "use": use, "versions": known.describe()}
        emit_json(facts) if json else lines([("version", f"{now.number}, {said}"), ("use", use)])


@o.option_groups
def upgrade(
    state: Annotated[Path, typer.Argument(metavar="STATE", help="The state file; no other process may have it open.")],
    *,
    options: UpgradeOptions,
    json: o.Json = False,
) -> None:
    """Begin without a model, and move a state file on to one learned from its own releases.

    First, with --alphabet and --epsilon, it makes version 0 and its model: release or serve with that and
    --mechanism randomized_response. Later, with the process stopped, it learns from the releases in STATE; a chain that
    foretells held-out users beyond chance becomes the next version, and every user goes on under it at its next event.

    Example: seqveil upgrade clicks.db --versions clicks.versions -o clicks.model --alphabet pages.txt --epsilon 1

    Example: seqveil upgrade clicks.db --versions clicks.versions -o clicks.model
    """
    known, said = options.load(), "begun"
    if known is None:
        known = options.begin()
    else:
        said = _next(state, known, options.versions, options.mechanism)
    options.finish(known, said, json)


def _next(state: Path, known: Versions, file: Path, mechanism: str) -> str:
    """Learn from the state file and move it on where that is earned; what came of it."""
    from seqveil.receive.coldstart.versions import next_version
    from seqveil.receive.learn import learn
    from seqveil.receive.upgrade import begun_with, evidence_of, upgrade

    if not state.exists():
        raise InputError(f"{state.name}: no such state file; release something with version 0 first")
    settings = [version.setting for version in known]
    if begun_with(state) == len(settings) - 1:  # the run before this one was killed half-way
        done = upgrade(state, settings[:-1], settings[-1])
        return f"put in force for {done.users} users, as the run before had begun to"
    evidence = evidence_of(state, settings)
    rival = None if len(settings) == 1 else settings[-1].model
    learned = learn(evidence, known.alphabet, rival=rival)
    told = learned.held_out
    if told is None or not told.earned:
        return f"kept: nothing learned from {evidence.events} releases foretells others beyond chance"
    version = next_version(known.last, learned, mechanism, known.last.setting.schedule, evidence.events)
    known.add(version)
    known.save(file)  # first: a state file under a model that nobody has would be lost
    done = upgrade(state, settings, version.setting)
    gain = f"gains {told.gain:.4f} ± {told.error:.4f} nats an event"
    return f"learned from {evidence.events} releases of {evidence.people} users, {gain}; {done.users} users moved"


def _options_to_use(version: Version, out: Path) -> str:
    setting = version.setting
    parts = [f"--model {out.name}", f"--mechanism {setting.mechanism.name}", f"--epsilon {setting.epsilon:g}"]
    parts += [f"--every {setting.schedule.period}"] if setting.schedule.period > 1 else []
    parts += [f"--distortion {setting.distortion.name}"] if setting.distortion.name != "hamming" else []
    parts += [f"--budget {setting.budget.total:g}"] if setting.budget.total is not None else []
    parts += [f"--ldp-budget {setting.budget.ldp_total:g}"] if setting.budget.ldp_total is not None else []
    return " ".join(parts)
