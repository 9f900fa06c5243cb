"""The chooser: the best batched mechanism that runs at this size, with the reason.

*Guarantee*: that of its choice, which is ε-SIP per batch on both sides; choosing looks at public things only.
"""

from __future__ import annotations

import math

import numpy as np

from seqveil.core.coins import Coins
from seqveil.core.kernel import Ints
from seqveil.core.mechanisms import batch_lp, tree, tree_refined
from seqveil.core.mechanisms._batch import Batch, BatchMechanism, Sent

EXACT = 128  # possible batches up to which the exact program takes some hundredths of a second
REFINED = 40.0  # cells up to which a program over leaves takes some tenths of a second


def choose(batch: Batch) -> tuple[BatchMechanism, str]:
    """The mechanism for this batch and why: from public things only, so the choice leaks nothing.

    `batch_lp` is the exact optimum and is taken wherever its support is small enough to write out. Else `tree_refined`,
    which itself keeps the cheaper of program and lazy tree by exact expected cost, while the cells are few; else
    `tree`.
    """
    walks = possible(batch)
    if walks <= EXACT and batch.epsilon <= batch_lp.MECHANISM.largest:
        return batch_lp.MECHANISM, f"{walks} possible batches, so the exact optimum can be had"
    cells = 1.0 + math.exp(batch.epsilon)
    if cells <= REFINED:
        return tree_refined.MECHANISM, f"more than {EXACT} possible batches but at most {cells:.0f} cells to tell apart"
    if walks <= EXACT:
        return tree.TREE, f"ε above {batch_lp.MECHANISM.largest:g}, which is more than the exact program takes"
    return tree.TREE, f"more than {EXACT} possible batches and up to {cells:.0f} cells to tell apart"


def possible(batch: Batch) -> int:
    """How many walks a batch may be (no fewer than the possible batches), counted until they pass EXACT."""
    model, reached = batch.model, (batch.states > 0).astype(np.float64)
    step = None
    for _ in range(batch.length - 1):
        if reached.sum() > EXACT:
            break
        step = model.chain.T.astype(bool).astype(np.float64) if step is None else step
        jumps = float(reached[model.backoff > 0].sum())
        reached = step @ reached
        reached[model.base_state[model.base > 0]] += jumps
    return int(min(reached.sum(), EXACT + 1))


def draw(batch: Batch, codes: Ints, coins: Coins) -> Sent:
    return choose(batch)[0].draw(batch, codes, coins)


def read(batch: Batch, path: tuple[int, ...]) -> Sent:
    return choose(batch)[0].read(batch, path)


def expected(batch: Batch) -> float | None:
    return choose(batch)[0].expected(batch)


MECHANISM = BatchMechanism(
    name="auto",
    summary="the best of batch_lp, tree_refined and tree that runs at this size",
    guarantee="ε-SIP, both sides, per batch",
    trusts="model for ε-SIP; nothing for 2ε-LDP",
    cost="that of its choice",
    reference="docs/theory.md, sections 13 to 17",
    sound=True,
    ldp=2.0,
    draw=draw,
    read=read,
    expected=expected,
    largest=tree.LARGEST_BATCH,
)
