"""The distribution of a Markov model, written as a chain on states, and how it is built and checked.

A state is a context: the last 1..m symbols of a stream. Short contexts occur at the start and after a back-off. With S
states, `chain` is S×S and may be incomplete; what a row lacks goes back to the base distribution of single symbols:

    P(s' | s) = chain[s, s'] + backoff[s] * Σ_{x: base_state[x] = s'} base[x].

Additive smoothing and contexts that never continue thus cost one number a row instead of a dense row.

A mixture of K chains has the contexts of every type side by side: `chain` is block-diagonal, and what a row lacks goes
to a base distribution over all types, so `base` and `base_state` have K·n entries, those of type 0 first. Where the
types answer a question about the person (`Trait`) no answer changes: `base` is a distribution within each answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqveil.core.alphabet import Codes, Floats
from seqveil.core.bulk import row_entries
from seqveil.core.errors import ModelError, whole_number

ROW_TOLERANCE = 1e-6
_LARGEST_CODE = 2**62


@dataclass(frozen=True)
class Trait:
    """A question about a person that the type answers: its name, the answers, and how many types each has, in order."""

    name: str
    answers: tuple[str, ...]
    types: tuple[int, ...]

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) and text for text in (self.name, *self.answers)):
            raise ModelError("a trait and its answers are texts, none of them empty; got something else")
        if len(set(self.answers)) < 2 or len(self.types) != len(self.answers) or min(self.types) < 1:
            raise ModelError("a trait has two or more different answers, each given by at least one type")


@dataclass(frozen=True, eq=False)
class States:
    """The arrays of a model; see the module's formula. `chain` is a scipy CSR array with sorted indices."""

    order: int
    n: int
    initial: Floats
    chain: Any
    backoff: Floats
    base: Floats
    base_state: Codes
    newest: Codes
    types: int = 1
    trait: Trait | None = None


def label_of(given: object) -> str:
    """A label as text, "" where it is missing: None, not a number, or pandas' NA."""
    text = "" if given is None else str(given).strip()
    return "" if text.lower() in ("nan", "<na>") else text


def named_labels(trait: Any) -> tuple[str, list[str]]:
    """The name of a trait, and its labels by `label_of`.

    >>> named_labels(("heating", ["gas", None, "electric"]))
    ('heating', ['gas', '', 'electric'])
    """
    try:
        name, labels = trait
        texts = list(map(label_of, labels))
    except (TypeError, ValueError):
        name, texts = None, []
    if not isinstance(name, str) or not name.strip():
        raise ModelError("expected a trait as its name and the labels, as in trait=('heating', ['gas', 'electric', …])")
    return name, texts


def checked_order(order: int, n: int) -> int:
    """`order` where contexts of that length can be numbered in 64 bits."""
    whole_number("order", order, kind=ModelError)
    if n ** (int(order) + 1) > _LARGEST_CODE:
        raise ModelError(f"order {order} over {n} symbols has too many contexts to number; lower the order")
    return int(order)


def _checked_prior(prior: Floats, size: int) -> Floats:
    """The prior as a flat probability distribution, renormalised."""
    if prior.size != size:
        raise ModelError(f"prior must hold {size} probabilities; got {prior.size}")
    wrong = ~(np.isfinite(prior) & (prior >= 0)).ravel()
    if wrong.any():
        raise ModelError(f"prior must be finite and not negative; entry {int(wrong.argmax())} is not")
    total = float(prior.ravel().sum())
    if abs(total - 1) > ROW_TOLERANCE:
        raise ModelError(f"prior must sum to one; it sums to {total:.9g}, divide by that to normalise")
    return prior.ravel() / total


def _float_array(values: Any, name: str) -> Floats:
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ModelError(f"{name} must be an array of numbers; got ragged lists or other objects") from None


def _checked_rows(transitions: Any, order: int) -> Any:
    """Transitions as an (n**order, n) CSR array whose rows sum to one (or, for order > 1, are zero)."""
    from scipy import sparse

    if not sparse.issparse(transitions):
        transitions = _float_array(transitions, "transitions")
        if transitions.ndim == order + 1 and len(set(transitions.shape)) == 1:
            transitions = transitions.reshape(-1, transitions.shape[-1])
    shape = transitions.shape
    n = shape[-1] if shape else 0
    if len(shape) != 2 or n < 1 or shape[0] != n**order:
        wanted = "(n, n)" if order == 1 else f"(n**{order}, n) or (n,)*{order + 1}"
        raise ModelError(f"transitions of order {order} must have shape {wanted}; got {tuple(shape)}")
    rows = sparse.csr_array(transitions, dtype=np.float64, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    wrong = ~(np.isfinite(rows.data) & (rows.data >= 0))
    if wrong.any():
        row = int(np.searchsorted(rows.indptr, wrong.argmax(), side="right") - 1)
        raise ModelError(f"transitions must be finite and not negative; row {row} is not")
    sums = np.asarray(rows.sum(axis=1)).ravel()
    off = np.abs(sums - 1) > ROW_TOLERANCE
    if order > 1:
        off &= sums > 0
    if off.any():
        row = int(off.argmax())
        raise ModelError(f"row {row} of transitions must sum to one; it sums to {sums[row]:.9g}, normalise the row")
    rows.data /= np.repeat(sums, np.diff(rows.indptr))
    return rows


def from_arrays(prior: Any, transitions: Any, order: int) -> States:
    """The states of a model given as a prior and a table of transitions (see `MarkovModel`)."""
    order = checked_order(order, 1)
    rows = _checked_rows(transitions, order)
    n = rows.shape[1]
    order = checked_order(order, n)
    prior = _float_array(prior, "prior")
    first = _checked_prior(prior, n if prior.size == n else n**order)
    if order == 1:
        return States(1, n, first, rows, np.zeros(n), first, np.arange(n), np.arange(n))
    prior, opening = _opening(first, rows, n, order)
    full = fresh = np.unique(opening[-1][3])
    while len(fresh):  # contexts reached from those already known
        _, target, _ = _successors(rows, fresh, n, order)
        fresh = np.setdiff1d(target, full)
        full = np.union1d(full, fresh)
    source, target, weight = _successors(rows, full, n, order)
    edges = [*opening, (order, full[source], order, target, weight)]
    return from_contexts(order, n, edges, prior, prior)


Edges = list[tuple[int, Codes, int, Codes, Floats]]  # from a context (length, number) to another, with probabilities


def _opening(first: Floats, rows: Any, n: int, order: int) -> tuple[Floats, Edges]:
    """The distribution of the first symbol, and how a stream reaches its first full context."""
    if first.size == n:  # missing history = the first symbol repeated
        repeated = sum(n**k for k in range(order))
        symbols = np.flatnonzero(first)
        source, target, weight = _successors(rows, symbols * repeated, n, order)
        return first, [(1, symbols[source], order, target, weight)]
    edges = []
    for length in range(1, order):
        mass = first.reshape(n**length, -1).sum(axis=1)
        longer = first.reshape(n ** (length + 1), -1).sum(axis=1)
        target = np.flatnonzero(longer)
        edges.append((length, target // n, length + 1, target, longer[target] / mass[target // n]))
    return first.reshape(n, -1).sum(axis=1), edges


def _successors(rows: Any, contexts: Codes, n: int, order: int) -> tuple[Codes, Codes, Floats]:
    """For full contexts: index of the source in `contexts`, number of the next context, probability."""
    lengths, entry = row_entries(rows.indptr, contexts)
    if (lengths == 0).any():
        row = int(contexts[(lengths == 0).argmax()])
        raise ModelError(f"row {row} of transitions is all zero, yet that context can occur; give it a distribution")
    source = np.repeat(np.arange(len(contexts)), lengths)
    target = (contexts[source] % n ** (order - 1)) * n + rows.indices[entry]
    return source, target.astype(np.int64), rows.data[entry]


def from_contexts(
    order: int, n: int, edges: Edges, prior: Floats, base: Floats, backoff: Floats | None = None
) -> States:
    """States numbered by length, then by context: all symbols, and whatever the `edges` lead to.

    Without `backoff`, contexts that have no edge restart from `base`, and all others are complete.
    """
    from scipy import sparse

    contexts = {1: np.arange(n)}
    for length in sorted({after for _, _, after, _, _ in edges} - {1}):
        contexts[length] = np.unique(np.concatenate([target for _, _, after, target, _ in edges if after == length]))
    start = dict(zip(contexts, np.cumsum([0, *map(len, contexts.values())]).tolist(), strict=False))
    size = sum(map(len, contexts.values()))
    source = np.concatenate([start[a] + np.searchsorted(contexts[a], c) for a, c, _, _, _ in edges])
    target = np.concatenate([start[b] + np.searchsorted(contexts[b], c) for _, _, b, c, _ in edges])
    weight = np.concatenate([w for *_, w in edges])
    chain = sparse.coo_array((weight, (source, target)), shape=(size, size)).tocsr()
    chain.sort_indices()
    if backoff is None:
        backoff = (np.diff(chain.indptr) == 0).astype(np.float64)
    newest = np.concatenate([numbers % n for numbers in contexts.values()])
    initial = np.concatenate([prior, np.zeros(size - n)])
    return States(order, n, initial, chain, backoff, base, np.arange(n), newest)


def mixture(blocks: list[States], weights: Floats, switch: float) -> States:
    """The states of a mixture: type k is drawn by `weights` at the start, and its chain is followed from then on.

    With probability `switch` a step, and wherever a block backs off, the stream goes on as somebody else: type and
    symbol are drawn anew from the base distributions of the blocks. P is thus block-diagonal plus a term of rank one.
    """
    people = _side_by_side(blocks, weights, None)
    base = weights[:, None] * people.base.reshape(len(blocks), -1)
    backoff = (1 - switch) * people.backoff + switch
    return replace(
        people, chain=(1 - switch) * people.chain, backoff=backoff, base=base.ravel() / sum(base.sum(1).tolist())
    )


def answered(name: str, answers: tuple[str, ...], blocks: list[States], shares: Floats) -> States:
    """The states of people who give one of several answers for good, by `shares`: each has a model of its own."""
    return _side_by_side(blocks, shares, Trait(name, answers, tuple(block.types for block in blocks)))


def _side_by_side(blocks: list[States], weights: Floats, trait: Trait | None) -> States:
    from scipy import sparse

    begins = np.cumsum([0, *(len(block.newest) for block in blocks)])
    chain = sparse.csr_array(sparse.block_diag([block.chain for block in blocks], format="csr"))
    chain.sort_indices()
    return States(
        blocks[0].order,
        blocks[0].n,
        np.concatenate([weight * block.initial for block, weight in zip(blocks, weights.tolist(), strict=True)]),
        chain,
        np.concatenate([block.backoff for block in blocks]),
        np.concatenate([block.base for block in blocks]),
        np.concatenate([begin + block.base_state for begin, block in zip(begins, blocks, strict=False)]),
        np.concatenate([block.newest for block in blocks]),
        sum(block.types for block in blocks),
        trait,
    )
