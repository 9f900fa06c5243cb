"""The exact optimum of one batch, by a linear program over every batch that can occur. For small X^w."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seqveil.core.coins import Coins
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, Kernels, usable
from seqveil.core.mechanisms import _filling, _program
from seqveil.core.mechanisms._batch import Batch, BatchMechanism
from seqveil.core.mechanisms._hamming import columns
from seqveil.core.mechanisms._support import Codebook, Support, TabledSent, remembered, support

LARGEST = 400  # possible batches: seconds where symbols are correlated, up to minutes where they hardly are
LARGEST_CLOSED_FORM = 100_000  # w = 1 and Hamming, where no program is needed
WIDEST = 1024  # outputs of the closed form
GAIN = 1e-9  # relabelling stops when a round gains less, relative to the cost
ROUNDS = 20


@remembered
def codebook(batch: Batch) -> Codebook:
    """The kernel of least expected cost among all that are sound at ε, one batch at a time.

        minimise Σ_o,r β(o) Q(r|o) Σ_t D(o_t, r_t)   over row-stochastic Q with  e^-ε p(r) ≤ Q(r|o) ≤ e^ε p(r)

    o runs over the batches that can occur. r runs over all of X^w where the program stays within its size, and the
    optimum is then certified; else over the batches that can occur, and labels are improved as in `with_best_labels`.
    With w = 1 and Hamming distortion the answer is in closed form, for large alphabets too.

    *Guarantee*: |log lift| ≤ ε for every batch in X^w, from the integers: a batch that the model rules out is
    released like the possible batch nearest to it, so it has that batch's lifts. Hence BIL ≤ ε, SIL ≤ Σ ε, and 2ε-LDP
    whatever the truth's law is. The paper lets a kernel depend on the last L raw batches; ours depends on the present
    one only (L = 1), which is what makes leakages add up over the stream (docs/theory.md, section 1). Each program is
    solved from scratch: an optimum need not be unique, and one found from an earlier batch's basis would depend on what
    else the process has solved, so that a receiver could not find it again. Equal contexts are solved once.

    Reference: the paper's problem (eq:batch); docs/theory.md, sections 3 to 5.
    """
    closed_form = batch.length == 1 and batch.distortion.is_hamming
    found = support(batch, LARGEST_CLOSED_FORM if closed_form else LARGEST)
    count = len(found.batches)
    limit = batch.epsilon - found.drift
    aim = usable(limit, count)
    if aim == 0.0 or count == 1:
        return constant(found, batch)
    belief = found.belief[None]
    if closed_form:
        labels, kernels = _closed_form(found, aim)
    else:
        labels, kernels = _program_over(found, batch.distortion, aim)
    return Codebook(found, labels, kernels.made_sound(belief, limit, 2 * limit), batch.distortion)


def _program_over(found: Support, distortion: Distortion, aim: float) -> tuple[Ints, Kernels]:
    def costs(labels: Ints) -> Floats:
        return found.costs(labels, distortion)

    def guesses(weights: Floats) -> Ints:
        return distortion.best_guess(found.laws(weights))

    optimum, labels = with_best_labels(found.belief, aim, first_labels(found), costs, guesses)
    places = np.arange(len(labels))[None]
    return labels, Kernels.from_tables(places, optimum.table[None], None, found.belief[None])


def with_best_labels(
    mass: Floats,
    epsilon: float,
    labels: Ints,
    costs: Callable[[Ints], Floats],
    guesses: Callable[[Floats], Ints],
) -> tuple[_program.Optimum, Ints]:
    """The optimum over the given labels, then over better ones as long as there are any: (optimum, labels it uses).

    Each round replaces nothing and adds, for every output, the best reproduction under its posterior; so the cost
    never rises, and at the end each output's label is its own best reproduction.

    mass: (N,) of the rows. labels: (M, w). costs: labels (M, w) → (N, M). guesses: weights (K, N) → (K, w).
    """
    best = _program.solve(mass, epsilon, costs(labels))
    used = labels[best.outputs]
    for _ in range(ROUNDS):
        proposed = np.unique(guesses((mass[:, None] * best.table).T), axis=0)
        known = (proposed[:, None, :] == used[None]).all(2).any(1)
        if known.all():
            break
        candidates = np.concatenate((used, proposed[~known]))
        again = _program.solve(mass, epsilon, costs(candidates))
        if again.error >= best.error - GAIN * max(best.error, GAIN):
            break
        best, used = again, candidates[again.outputs]
    return best, used


def first_labels(found: Support) -> Ints:
    """All of X^w where a program with as many labels may be solved, else the batches that can occur."""
    n, length = found.model.n, found.batches.shape[1]
    if len(found.batches) == n**length or n**length * len(found.batches) > _program.CELLS_AT_MOST:
        return found.batches
    return np.indices((n,) * length).reshape(length, -1).T.astype(np.int64)


def constant(found: Support, batch: Batch) -> Codebook:
    """The best guess whatever the truth is: leaks nothing."""
    label = batch.distortion.best_guess(found.laws(found.belief[None]))
    whole = np.full((1, 1), DENOMINATOR, np.int64)
    one_class = np.zeros((1, len(found.batches)), np.int64)
    kernels = Kernels(len(found.batches), np.zeros((1, 1), np.int64), whole, 0 * whole[None], None, one_class)
    return Codebook(found, label, kernels, batch.distortion)


def _closed_form(found: Support, aim: float) -> tuple[Ints, Kernels]:
    needed = columns(len(found.batches), aim)
    if needed > WIDEST:
        raise InputError(
            f"the optimum over {len(found.batches)} symbols at ε={aim:.3g} needs a table of {needed} columns, more "
            f'than {WIDEST}; use mechanism="tree" or a smaller epsilon'
        )
    solution = _filling.solve(found.belief[None], aim)
    kernels = Kernels.from_tables(solution.outputs, solution.table, solution.rows, found.belief[None])
    return found.batches[solution.outputs[0]], kernels


def draw(batch: Batch, codes: Ints, coins: Coins) -> TabledSent:
    """Release one batch.

    >>> from seqveil.core.coins import coins
    >>> from seqveil.core.distortion import hamming
    >>> from seqveil.core.model import MarkovModel
    >>> sticky = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> context = Batch(sticky, sticky.initial, 6, 5.0, hamming())
    >>> sent = draw(context, np.array([0, 0, 1, 1, 1, 1]), coins(seed=1))
    >>> sent.codes.tolist(), sent.most <= 5.0, round(expected(context) / 6, 4)
    ([0, 0, 1, 1, 1, 1], True, 0.01)
    """
    return codebook(batch).draw(codes, coins)


def read(batch: Batch, path: tuple[int, ...]) -> TabledSent:
    """The release with this path, as anyone with the model reads it."""
    return codebook(batch).read(path)


def expected(batch: Batch) -> float:
    """Expected cost of the whole batch under the belief."""
    return codebook(batch).expected


MECHANISM = BatchMechanism(
    name="batch_lp",
    summary="least expected distortion of all sound kernels over whole batches",
    guarantee="ε-SIP, both sides, per batch",
    trusts="model for ε-SIP; nothing for 2ε-LDP",
    cost=f"an LP over the batches that can occur, at most {LARGEST}",
    reference="docs/theory.md, sections 5 and 17",
    sound=True,
    ldp=2.0,
    draw=draw,
    read=read,
    expected=expected,
)
