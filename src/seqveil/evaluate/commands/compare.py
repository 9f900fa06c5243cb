"""`seqveil compare`: every way to release on the same people, with what each really leaks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.options import parse_batches, parse_epsilons
from seqveil.interfaces.commands.terminal import show, steps


@o.option_groups
def compare(
    data: o.Data,
    *,
    model: o.ModelFile,
    policy: Annotated[
        Path | None, o.option("FILE", "What is promised: its secrets, distortion, ε, batch or block.", "--policy")
    ] = None,
    epsilon: Annotated[
        str | None,
        o.option("E,E,…", "ε per event, averaged over a batch or block  [default: the policy's]", "--epsilon", "-e"),
    ] = None,
    mechanisms: Annotated[str, o.option("NAME,…", "all, or names that `seqveil mechanisms` lists.")] = "all",
    batch: Annotated[str, o.option("W,W,…", "Batch sizes, where mechanisms take batches; each gets W·ε.")] = "5",
    block: Annotated[str, o.option("W,W,…", "Block sizes; each gets W·ε and releases events at once.")] = "5,20",
    people: Annotated[int | None, o.option("N", "Number of people whose streams are released  [default: all]")] = None,
    first: Annotated[
        int | None, o.option("N", "Release only the first N events of each stream  [default: all]")
    ] = None,
    attack: Annotated[bool, o.flag("--attack", "Attack each secret, without a model.")] = False,
    seed: Annotated[int, o.option("N", "Seed of the choice of people and of the randomness.")] = 0,
    json: o.Json = False,
) -> None:
    """Compare mechanisms on your data: error, leakage, attack.

    Releases the streams of people in DATA with every mechanism at the same ε per event, under a model, ideally one
    fitted to other people. It is an evaluation of data that you hold: it looks at the truth and its randomness is
    seeded, so nothing it makes is private. Leakage is measured: a mechanism that exceeds its claim, or moves the odds
    of a secret beyond its declared ε, is marked.

    If the policy declares secrets, every row shows what the mechanism promises about each secret and the most that it
    disclosed about that secret (the exact account under the model). Methods made for secrets take part too, all of
    them or those that --mechanisms names: guarded and total, which bound what is disclosed, and utility_optimised and
    suppression, which do not. With --attack, classifiers are trained on half of the people to guess the secret, and
    the other half gives a lower bound on the effective ε and a verdict.

    Example: seqveil compare today.csv -m clicks.model --epsilon 0.5,1,2

    Example: seqveil compare today.csv -m clicks.model --policy policy.toml --attack
    """
    from seqveil.core.model import MarkovModel
    from seqveil.engine.policy import Policy
    from seqveil.evaluate.compare.comparison import compare as made
    from seqveil.evaluate.compare.comparison import read_streams

    promised, chain = None if policy is None else Policy.load(policy), MarkovModel.load(model)
    bounds = [] if epsilon is None else parse_epsilons(epsilon)
    with steps(100, "%") as under_way:
        under_way("reading", 0)
        streams = read_streams(data, chain, people, first, seed)
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
            show=lambda label, share: under_way(label, 100 * share),
        )
    show(found, json)
