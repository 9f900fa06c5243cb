"""One batch at a time over every batch that can occur, for small X^w: the exact optimum."""

from __future__ import annotations

import numpy as np

from seqveil.core import programs
from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints, Kernels, usable
from seqveil.core.mechanisms import optimum
from seqveil.core.mechanisms.base import Batch
from seqveil.core.mechanisms.codebook import Codebook, Support, support
from seqveil.core.mechanisms.rule_cache import RuleCache

LARGEST = 400  # possible batches: seconds where symbols are correlated, up to minutes where they hardly are
LARGEST_CLOSED_FORM = 100_000  # w = 1 and Hamming, where no program is needed
GAIN = 1e-9  # relabelling stops when a round gains less, relative to the cost
ROUNDS = 20


def exact(batch: Batch) -> Codebook:
    """The kernel of least expected cost among all that are sound at ε, one batch at a time.

        minimise Σ_o,r β(o) Q(r|o) Σ_t D(o_t, r_t)   over row-stochastic Q with  e^-ε p(r) ≤ Q(r|o) ≤ e^ε p(r)

    o runs over the batches that can occur. r runs over all of X^w where the program stays within its size, and the
    optimum is then certified; else over the batches that can occur, and labels are improved as in `with_best_labels`.
    With w = 1 and Hamming distortion the answer is in closed form, for large alphabets too.

    *Guarantee*: |log lift| ≤ ε for every batch in X^w, from the integers: a batch that the model rules out is
    released like the possible batch nearest to it, so it has that batch's lifts. Hence BIL ≤ ε, SIL ≤ Σ ε, and 2ε-LDP
    whatever the truth's distribution is. The paper lets a kernel depend on the last L raw batches; ours depends on the
    present one only (L = 1), and within one release no other does better (docs/theory.md, section 19). Each program is
    solved from scratch: an optimum need not be unique, and one found from an earlier batch's basis would depend on what
    else the process has solved, so that a receiver could not find it again. Equal contexts are solved once.

    >>> from seqveil.core import mechanisms
    >>> from seqveil.core.randomness import randomness
    >>> from seqveil.core.distortion import hamming
    >>> from seqveil.core.model import MarkovModel
    >>> sticky = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> context = Batch(sticky, sticky.initial, 6, 5.0, hamming())
    >>> sent = mechanisms.batch_lp.draw(context, np.array([0, 0, 1, 1, 1, 1]), randomness(seed=1))
    >>> sent.codes.tolist(), sent.most <= 5.0, round(mechanisms.batch_lp.expected(context) / 6, 4)
    ([0, 0, 1, 1, 1, 1], True, 0.01)

    Reference: the paper's problem (eq:batch); docs/theory.md, sections 3 to 5.
    """
    closed_form = batch.length == 1 and batch.distortion.is_hamming
    found = support(batch, LARGEST_CLOSED_FORM if closed_form else LARGEST)
    limit, mass = batch.epsilon - found.drift, found.mass
    aim = usable(limit, len(mass))
    if aim == 0.0 or len(mass) == 1:  # nothing may be disclosed: the best guess whatever the truth is
        return Codebook(found, found.guesses(mass[None]), found.kernels(np.ones((len(mass), 1))))
    if closed_form:
        labels, kernels = _closed_form(found, aim)
    else:
        best, labels = with_best_labels(found, aim, _first_labels(found))
        kernels = found.kernels(best.table)
    return Codebook(found, labels, kernels.made_sound(mass[None], limit, 2 * limit))


def _closed_form(found: Support, epsilon: float) -> tuple[Ints, Kernels]:
    """The optimum over single symbols for Hamming distortion: labels and kernel."""
    if not optimum.fits(len(found.batches), epsilon):
        raise InputError(
            f"the optimum over {len(found.batches)} symbols at ε={epsilon:.3g} needs a table of more than "
            f'{optimum.WIDEST} columns; use mechanism="tree" or a smaller epsilon'
        )
    solution = optimum.solve(found.mass[None], epsilon)
    return found.batches[solution.outputs[0]], solution.kernels(found.mass[None])


def _first_labels(found: Support) -> Ints:
    """All of X^w where a program with as many labels may be solved, else the batches that can occur."""
    n, length = found.batch.model.n, found.batch.length
    if len(found.batches) == n**length or n**length * len(found.batches) > programs.CELLS_AT_MOST:
        return found.batches
    return np.indices((n,) * length).reshape(length, -1).T.astype(np.int64)  # in lexicographic order


def with_best_labels(rows: Support, epsilon: float, labels: Ints) -> tuple[programs.Solution, Ints]:
    """The optimum over the given labels (K, w), then over better ones as long as there are any, and the labels it uses.

    Each round replaces nothing and adds, for every output, the best reproduction under its posterior; so the cost
    never rises, and at the end each output's label is its own best reproduction.
    """
    mass = rows.mass
    best = programs.sound(mass, epsilon, rows.costs(labels))
    used = labels[best.outputs]
    for _ in range(ROUNDS):
        proposed = np.unique(rows.guesses((mass[:, None] * best.table).T), axis=0)
        known = (proposed[:, None, :] == used[None]).all(2).any(1)
        if known.all():
            break
        candidates = np.concatenate((used, proposed[~known]))
        again = programs.sound(mass, epsilon, rows.costs(candidates))
        if again.error >= best.error - GAIN * max(best.error, GAIN):
            break
        best, used = again, candidates[again.outputs]
    return best, used


def _exact(batch: Batch, kept: bool) -> Codebook:
    return exact(batch)


batch_lp = RuleCache(_exact)
