"""`seqveil attack`: is the promise broken for the people in a file?"""

from __future__ import annotations

from pathlib import Path

import typer

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import progress, show


def attack(
    released: o.ReleasedFile,
    *,
    truth: Path = o.required("RAW", "The raw file that the release was made from."),
    model: Path | None = o.opt("MODEL", "The model that the release was made with.", "-m"),
    with_model: list[Path] | None = o.opt(
        "M2", "Also attack by Bayes' rule with this model of other people; may be repeated."
    ),
    asked: o.SecretOptions,
    false_alarm: float = o.opt("P", "Highest probability of calling a kept promise broken.", default=0.05),
    seed: int = o.opt("N", "Splits the people.", default=0),
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Try to break the promise for real people.

    Classifiers are trained on half of the people, whose true answers they see, to guess the secret in every window from
    all releases of the same person; they are scored on the other half. They use no model. The command prints a lower
    confidence bound on the effective ε for these people and a verdict: broken; not refuted, with the size of a leak
    that would have been noticed; or not decided, with the number of people it would take.

    With --with-model, an attacker who believes another model, such as a mixture of types or a chain of order 2,
    guesses too, by the exact probability of the secret given all releases. Fit that model to people who are not
    attacked, and name the release's own model with --model.

    Run it before a stream goes live, on people who had no part in fitting the model. Exit code 1: a promise is broken.

    Example: seqveil attack released.csv --truth clicks.csv --secret ever:health --secret-window 20

    Example: seqveil attack released.csv --truth clicks.csv -m clicks.model --with-model types.model
    """
    from seqveil.evaluate.attack.files import attack as found_by

    with progress("attacking"):
        found = found_by(
            released,
            truth,
            model=model,
            secrets=asked.declared(),
            epsilon=asked.secret_epsilon,
            with_model={str(path): path for path in with_model or ()},
            meta=meta,
            seed=seed,
            false_alarm=false_alarm,
        )
    show(found, json)
    if found.worst.verdict == "broken":
        raise typer.Exit(1)
