"""`seqveil compare`: every way to release on the same people, with what each really leaks."""

from __future__ import annotations

from pathlib import Path

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import progress, show


def compare(
    data: o.Data,
    *,
    model: o.ModelFile,
    policy: Path | None = o.opt("FILE", "What is promised: its secrets, distortion, ε, batch or block."),
    epsilon: str | None = o.opt("E,E,…", "ε per event, averaged over a batch or block  [default: the policy's]", "-e"),
    mechanisms: str = o.opt("NAME,…", "all, or names that `seqveil mechanisms` lists.", default="all"),
    batch: str = o.opt("W,W,…", "Batch sizes, where mechanisms take batches; each gets W·ε.", default="5"),
    block: str = o.opt("W,W,…", "Block sizes; each gets W·ε and releases events at once.", default="5,20"),
    people: int | None = o.opt("N", "Number of people whose streams are released  [default: all]"),
    first: int | None = o.opt("N", "Release only the first N events of each stream  [default: all]"),
    attack: bool = o.switch("Attack each secret, without a model."),
    seed: int = o.opt("N", "Seed of the choice of people and of the randomness.", default=0),
    json: o.Json = False,
) -> None:
    """Compare mechanisms on your data: error, leakage, attack.

    Releases the streams of people in DATA with every mechanism at the same ε per event, under a model, ideally one
    fitted to other people. It is an evaluation of data that you hold: it looks at the truth and its randomness is
    seeded, so nothing it makes is private. Leakage is measured: a mechanism that exceeds its claim, or moves the odds
    of a secret beyond its declared ε, is marked.

    If the policy declares secrets, every row shows what the mechanism promises about each secret and the most that it
    disclosed about it. Ways to keep secrets take part too: guarded and total, which bound what is disclosed, and
    suppression, which does not. With --attack, each secret is attacked as by `seqveil attack`.

    Example: seqveil compare today.csv -m clicks.model --epsilon 0.5,1,2
    """
    from seqveil.core.model import MarkovModel
    from seqveil.engine.policy import Policy
    from seqveil.evaluate.compare.comparison import compare as made
    from seqveil.evaluate.compare.comparison import read_streams

    promised, chain = None if policy is None else Policy.load(policy), MarkovModel.load(model)
    with progress("reading") as meter:
        found = made(
            read_streams(data, chain, people, first, seed),
            chain,
            promised,
            epsilons=[] if epsilon is None else o.parse_numbers(epsilon, "epsilon"),
            names=[part.strip() for part in mechanisms.split(",") if part.strip()],
            batches=o.parse_numbers(batch, "batch", int),
            blocks=o.parse_numbers(block, "block", int),
            attack=attack,
            seed=seed,
            show=meter.turn,
        )
    show(found, json)
