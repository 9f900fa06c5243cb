"""`seqveil attack`: is the promise broken for the people in a file?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines, stages

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel
    from seqveil.evaluate.attack import Finding


@o.option_groups
def attack(
    released: o.ReleasedFile,
    *,
    truth: Annotated[Path, o.option("RAW", "The raw file that the release was made from.")],
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", metavar="MODEL", help="The release's model: how values become symbols."),
    ] = None,
    with_model: Annotated[
        list[Path] | None,
        o.option("M2", "Attack by Bayes' rule with this model of other people too; may be repeated.", "--with-model"),
    ] = None,
    asked: o.SecretOptions,
    who: Annotated[bool, typer.Option("--who", help="Also try to recognise people by their past.")] = False,
    false_alarm: Annotated[
        float, typer.Option(metavar="P", help="How likely a promise that holds may be called broken.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed that splits the people.")] = 0,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw what the attack found.")] = None,
    missing: o.MissingValues = None,
    meta: o.Meta = None,
    jobs: o.Jobs = None,
    json: o.Json = False,
) -> None:
    """Attack a release: is the promise broken for real people?

    Half of the people teach classifiers to guess the secret in every window from releases alone, those of the window
    and all others of its person; the other half scores them. They know no model of ours. It prints what the best guess
    shows of the realised ε, a lower bound, and a verdict: broken; not refuted, with the leak that would have been
    noticed; or not decided, with the number of people it would take.

    With --with-model somebody who believes another model, such as a mixture of types or a chain of order 2, guesses as
    well, by the exact probability of the secret given all releases. Fit it to people who are not attacked, and name the
    release's own model by --model.

    It looks at the truth, so it is for whoever holds the raw data, best before a stream goes live, with people who had
    no part in fitting the model. Exit code 1: a promise is broken.

    Example: seqveil attack released.csv --truth clicks.csv --secret ever:health --secret-window 20

    Example: seqveil attack released.csv --truth clicks.csv -m clicks.model --with-model types.model
    """
    from seqveil.core.model import MarkovModel
    from seqveil.evaluate.attack import worst
    from seqveil.evaluate.attack_files import attack_file, disclosed

    chain = None if model is None else MarkovModel.load(model)
    with stages(released, "reading", passes=2, work="attacking") as (_, working):
        findings = attack_file(
            released,
            truth,
            chain,
            asked.declared(),
            claimed=asked.secret_epsilon,
            who=who,
            seed=seed,
            false_alarm=false_alarm,
            missing=missing,  # type: ignore[arg-type]
            working=working,
            with_models=_named(with_model or ()),
            meta=meta,
        )
    if plot is not None:
        draw([(one.about, one) for one in findings], plot)
    if json:
        emit_json({**_facts(worst(findings)), "attacks": [_facts(one) for one in findings]})
    else:
        lines(disclosed(findings))
    if any(one.verdict == "broken" for one in findings):
        raise typer.Exit(1)


def _named(paths: Sequence[Path]) -> dict[str, MarkovModel]:
    """Models by the name of their file, or by their path where two files have one name."""
    from seqveil.core.model import MarkovModel

    names = [path.name for path in paths]
    return {str(path) if names.count(path.name) > 1 else path.name: MarkovModel.load(path) for path in paths}


def _facts(one: Finding) -> dict[str, Any]:
    facts = asdict(one)
    facts.pop("curve")
    if one.guess is not None:
        facts["guess"]["likelihood_ratio"] = one.guess.likelihood_ratio
    return facts | {"sentence": one.sentence}


def draw(findings: Sequence[tuple[str, Finding]], plot: Path) -> None:
    """Each tenth of the scored people, from the least suspected to the most, against what was promised; titled."""
    from seqveil.interfaces.plots import DECODED, LIMIT, RELEASED, blank, finish

    drawn = [(title, one) for title, one in findings if one.curve]
    figure = blank((6.4, 1.2 + 2.2 * max(len(drawn), 1)))
    tenths = range(1, 11)
    for place, (title, one) in enumerate(drawn, 1):
        axes = figure.add_subplot(len(drawn), 1, place)
        seen, low, high = (np.clip(column, -4, 4) for column in zip(*one.curve, strict=True))
        axes.vlines(tenths, low, high, color=DECODED)
        axes.plot(tenths, seen, "o", color=RELEASED)
        if one.epsilon_claimed is not None:
            axes.axhspan(-one.epsilon_claimed, one.epsilon_claimed, color=LIMIT, alpha=0.1, lw=0)
        axes.set(title=f"{title}: {one.verdict}", ylabel="log of the factor")
        axes.set_xticks(tenths)
        if place == len(drawn):
            axes.set_xlabel("tenth of the windows, by how strongly the attacker suspects them")
    finish(figure, plot)
