"""Laws of automaton and state that floats alone would lose, kept as `filtering` keeps them: as logarithms below FAINT.

A kind of person that one stretch of releases all but rules out may come back by another, hundreds of nats later, and
with it what its streams say about a secret.
"""

from __future__ import annotations

import numpy as np

from seqveil.core import filtering
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel


def logs(law: Floats) -> Floats:
    """The law as logarithms alone, -inf for what the model rules out.

    >>> logs(np.array([1.0, -800.0, 0.0])).tolist()
    [0.0, -800.0, -inf]
    """
    with np.errstate(divide="ignore"):
        return np.where(law < 0, law, np.log(np.abs(law)))


def onward(model: MarkovModel, laws: Floats, column: Floats) -> Floats:
    """Each row (R, S) times what its symbols give the release, one step of the chain on; nothing is divided."""
    shown = column[model.newest]
    moved: Floats = model.advance(filtering.clear(laws) * shown)
    rows = np.flatnonzero(model.barely | filtering.faint(laws) | filtering.faint(moved))
    if rows.size:
        with np.errstate(divide="ignore"):
            before = logs(laws[rows]) + np.log(shown)
        moved[rows] = filtering._with_faint(moved[rows], filtering._advance_logs(model, before))
    return moved


def gathered(places: Ints, law: Floats, size: int) -> Floats:
    """Sums of a law by place: (size,).

    >>> gathered(np.array([0, 0, 1]), np.array([-800.0, -800.0, 0.5]), 2).round(4).tolist()
    [-799.3069, 0.5]
    """
    sums = np.bincount(places, filtering.clear(law), minlength=size).astype(np.float64, copy=False)
    if law.min(initial=0.0) >= 0.0:
        return sums
    exact = np.full(size, -np.inf)
    np.logaddexp.at(exact, places, logs(law))
    return filtering._with_faint(sums, exact)


def shared(law: Floats, total: Floats | float) -> Floats:
    """The law over a total."""
    if law.min(initial=0.0) >= 0.0:
        return law / total
    return np.where(law < 0, law - np.log(total), law / total)
