"""The mechanisms, and the table a reader chooses from (`seqveil mechanisms`).

Each module holds how some of them release; here stands what each promises. Those that release batches take one symbol
as a batch of one.
"""

from __future__ import annotations

from functools import partial

from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.mechanisms import blocks, closed_form, codebook, published, responses, trees
from seqveil.core.mechanisms.base import (
    LARGEST,
    Batch,
    BatchMechanism,
    Mechanism,
    Sent,
    batched,
    check_epsilon,
    constant,
    find,
    get,
    instantaneous,
    names,
    register,
    rules_kept,
)

_TRUSTS = "model for ε-SIP; nothing for 2ε-LDP"
_sound = partial(Mechanism, guarantee="ε-SIP, both sides", trusts=_TRUSTS, sound=True, ldp=2.0)
_sound_batches = partial(BatchMechanism, guarantee="ε-SIP, both sides, per batch", trusts=_TRUSTS, sound=True, ldp=2.0)

optimal = _sound(
    name="optimal",
    summary="least expected distortion of all sound kernels",
    build=closed_form.optimal,
    quick=closed_form.release,
)
balanced = _sound(
    name="balanced",
    summary="true cell of a partition into cells of mass ≥ 1/(1+e^ε)",
    build=responses.balanced,
)
randomized_response = Mechanism(
    name="randomized_response",
    summary="k-ary randomised response",
    guarantee="ε-LDP, hence ε-SIP for every model",
    trusts="nothing",
    sound=True,
    ldp=1.0,
    build=responses.randomized_response,
    quick=responses.respond,
)
crr = Mechanism(
    name="crr",
    summary="the paper's Algorithm 1, as published; to compare with",
    guarantee="none: y leaks log(e^-ε + (1-e^-ε)/β(y)), more than ε where β(y) < 1/(1+e^ε)",
    trusts="model",
    build=published.crr,
)
guarded = _sound(
    name="guarded",
    summary="the least error that keeps declared secrets",
    guarantee="the odds of every declared secret move by at most e^ε in total; nothing else without an ε of its own",
    trusts="the model",
    build=responses.apart,
)
in_blocks = _sound(
    name="blocks",
    summary="one hidden bit for w events: the true cells of a public schedule, or draws from the belief",
    guarantee="ε-SIP, both sides, per block of w events; one release alone may reveal all of ε",
    largest=blocks.LARGEST,
    build=responses.apart,
)

auto = _sound_batches(
    name="auto",
    summary="batch_lp where the possible batches are few, else tree",
    rule=rules_kept(lambda batch: choose(batch).rule(batch)),
    largest=trees.LARGEST_BATCH,
)
tree = _sound_batches(
    name="tree",
    summary="true cell of the batch in a public tree, no cell below 1/(1+e^ε)",
    rule=trees.tree,
    largest=trees.LARGEST_BATCH,
)
batch_lp = _sound_batches(
    name="batch_lp",
    summary="least expected distortion of all sound kernels over whole batches",
    rule=codebook.batch_lp,
)
batch_descent = BatchMechanism(
    name="batch_descent",
    summary="the paper's Algorithm 2 in our reading: small moves until each breaks the bound; to compare with",
    guarantee="none is declared: ε a batch in our reading, up to rounding; as printed it is not defined",
    trusts="model",
    rule=published.batch_descent,
)

register(optimal, balanced, randomized_response, crr, guarded, in_blocks)
register(auto, tree, batch_lp, batch_descent)

EXACT = 128  # possible batches up to which the exact program takes some hundredths of a second


def one_by_one(n: int, distortion: Distortion, epsilon: float | None) -> str:
    """What `auto` takes for single symbols: the exact optimum where it is quick, else the tree over the alphabet.

    >>> from seqveil.core.distortion import absolute, hamming
    >>> one_by_one(43_097, hamming(), 1.0), one_by_one(300, absolute(range(300)), 1.0)
    ('optimal', 'tree')
    """
    if distortion.is_hamming:
        quick = closed_form.columns(n, epsilon or LARGEST) <= closed_form.WIDEST
    else:
        quick = n <= closed_form.QUICK
    return "optimal" if quick else "tree"


def choose(batch: Batch) -> BatchMechanism:
    """What `auto` takes for this batch: the exact optimum where the possible batches are few, else `tree`.

    The choice follows from public things only, so it leaks nothing.

    *Guarantee*: that of its choice, which is ε-SIP per batch on both sides.
    """
    try:
        codebook.support(batch, EXACT)
    except InputError:
        return tree
    return batch_lp if batch.epsilon <= batch_lp.largest else tree


__all__ = [
    "LARGEST",
    "Batch",
    "BatchMechanism",
    "Mechanism",
    "Sent",
    "auto",
    "balanced",
    "batch_descent",
    "batch_lp",
    "batched",
    "check_epsilon",
    "choose",
    "constant",
    "crr",
    "find",
    "get",
    "guarded",
    "in_blocks",
    "instantaneous",
    "names",
    "one_by_one",
    "optimal",
    "randomized_response",
    "tree",
]
