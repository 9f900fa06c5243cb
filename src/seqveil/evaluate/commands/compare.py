"""`seqveil compare`: every way to release on the same people, with what each really leaks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.options import check_picture, parse_batches, parse_epsilons
from seqveil.interfaces.commands.terminal import progress, show, steps


@o.option_groups
def compare(
    data: o.Data,
    *,
    model: o.ModelFile,
    policy: Annotated[
        Path | None, o.option("FILE", "What is promised: its secrets, distortion, ε, batch or block.", "--policy")
    ] = None,
    epsilon: Annotated[
        str | None, o.option("E,E,…", "What an event may cost on average  [default: the policy's]", "--epsilon", "-e")
    ] = None,
    mechanisms: Annotated[str, o.option("NAME,…", "all, or names that `seqveil mechanisms` lists.")] = "all",
    batch: Annotated[str, o.option("W,W,…", "Sizes for those that take batches, each with W·ε.")] = "5",
    block: Annotated[str, o.option("W,W,…", "Sizes of blocks, each with W·ε, answered at once.")] = "5,20",
    people: Annotated[int | None, o.option("N", "People who are released  [default: all]")] = None,
    first: Annotated[int | None, o.option("N", "Events of a stream that are released  [default: all]")] = None,
    attack: Annotated[bool, o.flag("--attack", "Attack each secret on the people released, without a model.")] = False,
    plot: Annotated[Path | None, o.option("FILE.png", "Draw error and leakage against ε.")] = None,
    seed: Annotated[int, o.option("N", "Seed of the choice of people and of the randomness.")] = 0,
    markdown: Annotated[bool, o.flag("--markdown", "Print the table alone, as Markdown.")] = False,
    jobs: o.Jobs = None,
    json: o.Json = False,
) -> None:
    """Compare mechanisms on your data: error, true leakage, attack.

    Releases people of DATA with every mechanism at the same cost an event, under a model, ideally one fitted to
    other people. It is an evaluation of data that you hold: it looks at the truth and its randomness is seeded, so
    nothing it makes is private. Leakage is measured: a mechanism that exceeds its claim is marked.

    With a policy that keeps secrets every row says what it promises about each and the most that was disclosed about
    it (the exact account under the model). The ways to keep a secret run too: guarded, total, halving,
    utility_optimised and suppression, or those of them that --mechanisms names. With --attack classifiers learn from
    half of the released people to guess the secret, and the other half gives a lower bound on the realised ε, and a
    verdict.

    Example: seqveil compare today.csv -m clicks.model --epsilon 0.5,1,2 --plot compare.png

    Example: seqveil compare today.csv -m clicks.model --policy policy.toml --attack
    """
    from seqveil.core.compiled import threads
    from seqveil.core.model import MarkovModel
    from seqveil.engine.policy import Policy
    from seqveil.evaluate.compare import compare as made
    from seqveil.evaluate.compare.files import read_streams

    check_picture(plot)
    promised, chain = None if policy is None else Policy.load(policy), MarkovModel.load(model)
    bounds = [] if epsilon is None else parse_epsilons(epsilon)
    with progress(data, "reading") as advance:
        streams = read_streams(data, chain, people, first, seed, advance)
    with steps(100, "%") as under_way:
        found = made(
            streams,
            chain,
            promised,
            epsilons=bounds,
            names=[part.strip() for part in mechanisms.split(",") if part.strip()],
            batches=parse_batches(batch),
            blocks=parse_batches(block),
            attack=attack,
            seed=seed,
            processes=threads(),
            show=lambda label, share: under_way(label, 100 * share),
        )
    if plot is not None:
        found.picture(plot)
    if markdown:
        typer.echo(found.markdown())
    else:
        show(found, json)
