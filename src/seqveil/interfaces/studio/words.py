"""What the page says: the guarantee with its numbers, what to mind, and lines that do the same elsewhere."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

from seqveil.interfaces.studio.ask import Ask
from seqveil.interfaces.studio.source import PEOPLE, SHOWN, SMOOTHING, Source
from seqveil.release.stream import Setting

FILE = "seqveil-page.json"
SEEDED_COMMAND = "# not private, but these very figures: the same release with --seed {seed}\n"
SEEDED_SCRIPT = "# not private, but these very figures: sv.Session(…, seed={seed})"


def factor(nats: float) -> str:
    """e^ε as a reader takes it in.

    >>> factor(1.0), factor(0.01), factor(50.0), factor(0.0)
    ('2.72', '1.01', 'e^50', '1')
    """
    if math.isinf(nats):
        return "without bound"
    if nats > 9.2:
        return f"e^{nats:.4g}"
    value = math.exp(nats)
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def sentence(setting: Setting, figures: Mapping[str, Any], event: str) -> str:
    """The guarantee in one sentence with the numbers filled in: nothing that does not hold.

    It speaks of the probability of a sequence and not of its odds: lifts bound the first by e^ε, odds by e^2ε.
    """
    what = f"batch of {setting.batch}" if setting.batch > 1 else "release"
    count, many = figures["releases"], "batches" if setting.batch > 1 else "releases"
    realised = f"the {count} {many} shown" if count > 1 else "the one shown"
    total, leaked = figures["composition"], figures["leakage"]
    if not setting.mechanism.sound:
        return _unsound(setting.mechanism.name, what, realised, figures)
    text = (
        "Under the model, no observer who sees every release, however much they compute, changes the probability they "
        f"give to any whole sequence by more than a factor {factor(figures['claimed'])}, up or down, at one {what}"
    )
    budget = setting.budget
    if budget.per_window is not None:
        text += f", or {factor(budget.per_window)} in any {budget.releases} in a row"
    if budget.total is not None:
        text += f", or {factor(budget.total)} over the whole stream"
    text += f"; {realised} changed it by at most a factor {factor(leaked)}"
    if leaked < total * (1 - 1e-6):
        text += f", where adding up their ε allows {factor(total)}"
    return text + "."


def _unsound(name: str, what: str, realised: str, figures: Mapping[str, Any]) -> str:
    """What a mechanism without a guarantee really did, beside what its ε says."""
    worst, leaked, claimed = figures["worst_release"], figures["leakage"], figures["claimed"]
    together = "without any bound" if math.isinf(leaked) else f"by up to a factor {factor(leaked)}"
    if worst <= claimed * (1 + 1e-9):
        return (
            f"“{name}” keeps to its ε here but need not elsewhere: one {what} shown changes the probability that an "
            f"observer gives to a sequence by up to a factor {factor(worst)}, where its ε says {factor(claimed)}, and "
            f"{realised} change it {together}."
        )
    one = "changes it without any bound" if math.isinf(worst) else f"changes it by a factor {factor(worst)}"
    return (
        f"“{name}” does not keep to its ε: that says one {what} changes the probability that an observer gives to any "
        f"sequence by at most a factor {factor(claimed)}, but one shown here {one}, and {realised} change it "
        f"{together}."
    )


def notes(setting: Setting, figures: Mapping[str, Any]) -> list[str]:
    """What else is true and worth knowing, a sentence each."""
    said = []
    if setting.mechanism.sound:
        level = setting.mechanism.ldp * setting.epsilon * setting.schedule.period
        what = "batch" if setting.batch > 1 else "release"
        said.append(
            f"With no trust in the model at all, one {what} is {level:.4g}-locally differentially private: no two "
            f"sequences have their odds changed by more than a factor {factor(level)}."
        )
    if figures["with_delta"] is not None and figures["with_delta"] < figures["composition"] * (1 - 1e-6):
        said.append(
            f"For the true sequence, releases like these stay within a factor {factor(figures['with_delta'])} "
            f"except with a probability of {figures['delta']:g}."
        )
    if figures["spent_at"] is not None:
        after = "nothing more is released" if setting.budget.when_spent == "stop" else "the best guess is released"
        said.append(f"The budget is spent at event {figures['spent_at'] + 1}; where nothing is left, {after}.")
    if setting.in_batches and setting.batch > 1:
        said.append("For batches the account adds up the worst of each, so it is a bound from above.")
    said.append(
        "Coins are seeded here so that figures can be reprinted: nothing this page makes is a private release. The "
        "commands and the script below draw afresh, so their figures differ."
    )
    return said


def commands(setting: Setting, ask: Ask, source: Source) -> str:
    """Commands that release the same stream, privately, and audit it.

    With the page's seed added, which the last line names, they print the figures that the page shows.
    """
    kind = source.origin["kind"]
    data = f" {shlex.quote(source.data_file)}" if kind == "data" else ""
    model = f" --model {shlex.quote(source.model_file)}" if "model" in source.origin else ""
    options = [f"--epsilon {setting.epsilon!r}", f"--mechanism {setting.mechanism.name}"]
    options += [f"--distortion {ask.distortion}"]
    options += [f"--batch {ask.batch}"] if ask.batch > 1 else []
    options += [f"--every {ask.every}"] if ask.every > 1 else []
    options += [f"--budget {ask.budget!r}"] if ask.budget is not None else []
    if ask.window is not None:
        options += [f"--window {ask.window!r} --window-releases {ask.window_releases}"]
    if setting.budget.limited:
        options += [f"--when-spent {ask.when_spent}"]
    columns = " --value-column x,y" if source.describe()["grid"] else ""
    return (
        f"seqveil studio{data}{model} --unpack {shlex.quote(FILE)} --into page\n"
        f"seqveil release page/stream.csv --model page/model.npz{columns} \\\n"
        f"    {' '.join(options)} \\\n"
        "    --out page/released.csv\n"
        "seqveil audit page/released.csv --model page/model.npz\n" + SEEDED_COMMAND.format(seed=ask.seed)
    )


def python(ask: Ask, source: Source) -> str:
    """A script that releases the same stream, privately, and prints its account."""
    if source.origin["kind"] == "synthetic":
        side = ", side=10" if ask.source == "gaze" else ""
        head = (
            "import seqveil as sv\nfrom seqveil.datasets import synthetic\n\n"
            f'data = synthetic("{ask.source}", users={PEOPLE}, length=1000, seed=0{side})\n'
            f"model = data.model(smoothing={SMOOTHING}, people=range({SHOWN}, {PEOPLE}))\n"
            f"raw = model.alphabet.decode(data.arrays()[{ask.stream}][:{ask.events}])\n"
        )
    else:
        value = 'zip(*(table[name] for name in ("x", "y")))' if source.describe()["grid"] else 'table["value"]'
        head = (
            f"# after: seqveil studio --unpack {FILE} --into page (see the commands)\n"
            "import polars as pl\nimport seqveil as sv\n\n"
            'model = sv.MarkovModel.load("page/model.npz")\n'
            'table = pl.read_csv("page/stream.csv")\n'
            f"raw = list({value})\n"
        )
    return head + _session(ask)


def _session(ask: Ask) -> str:
    options = [f'"{ask.mechanism}"', f"epsilon={ask.epsilon * ask.batch!r}", f'distortion="{ask.distortion}"']
    options += [f"batch={ask.batch}"] if ask.batch > 1 else []
    parts = []
    if ask.budget is not None:
        parts.append(f"total={ask.budget!r}")
    if ask.window is not None:
        parts.append(f"per_window={ask.window!r}, releases={ask.window_releases}")
    if parts:
        options.append(f'budget=sv.Budget({", ".join(parts)}, when_spent="{ask.when_spent}")')
    options += [f"schedule={ask.every}"] if ask.every > 1 else []
    lines = [SEEDED_SCRIPT.format(seed=ask.seed), f"session = sv.Session(model, {', '.join(options)})"]
    if ask.batch > 1:
        lines += ["released = [y for x in raw for y in session.push(x)] + session.flush()"]
    else:
        lines += ["released = [session.release(x) for x in raw]"]
    lines += ['print(f"leakage {session.leakage:.6g}, Σε {session.standing().by_composition:.6g}")']
    return "\n".join(lines) + "\n"
