"""Several secrets under several models at once: every observer has a belief of their own, and a promise each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from numpy.typing import ArrayLike

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats
from seqveil.core.model import MarkovModel
from seqveil.core.secrets.declared import Secret
from seqveil.core.secrets.guarded import Guarded
from seqveil.core.secrets.watch import LONGEST, Watch


class Watches:
    """The accounts of secrets under the models of several observers: one row a model, one column a secret.

    A promise that holds under one model may fail under another; a kernel that keeps all rows keeps it for every
    observer who believes one of the models. The models share one alphabet; `longest` and `exact` are as in
    `Watch.start`.

    >>> from seqveil.core.secrets.declared import ever
    >>> models = [MarkovModel([0.5, 0.5], [[p, 1 - p], [1 - p, p]]) for p in (0.9, 0.6)]
    >>> watches = Watches(models, [ever(1, window="first 3", epsilon=0.5)])
    >>> [(belief.tolist(), guarded[0].sigma.round(2).tolist()) for belief, guarded in watches.weights()]
    [([0.5, 0.5], [[0.19, 1.0]]), ([0.5, 0.5], [[0.64, 1.0]])]
    """

    rows: tuple[tuple[Watch, ...], ...]

    def __init__(
        self,
        models: MarkovModel | Sequence[MarkovModel],
        secrets: Secret | Sequence[Secret],
        longest: int = LONGEST,
        exact: bool = False,
    ) -> None:
        chains = [models] if isinstance(models, MarkovModel) else list(models)
        wanted = [secrets] if isinstance(secrets, Secret) else list(secrets)
        if not chains or not wanted or not all(isinstance(one, Secret) for one in wanted):
            raise InputError("give at least one model and one secret, made for instance with secrets.ever; got others")
        if any(chain.alphabet != chains[0].alphabet for chain in chains):
            raise InputError("the models of several observers must share one alphabet; fit them with the same one")
        self.rows = tuple(tuple(Watch.start(chain, one, longest, exact) for one in wanted) for chain in chains)

    def weights(self, epsilon: float | None = None, every: bool = False) -> list[tuple[Floats, list[Guarded]]]:
        """For every model its belief β (n,) and what the next kernel has to keep for each secret (`Watch.weights`)."""
        return [(row[0].belief, [watch.weights(epsilon, every) for watch in row]) for row in self.rows]

    def observe(self, column: ArrayLike) -> Self:
        """The accounts after a release with `column` = Q(y|·); these stay as they are."""
        after = object.__new__(type(self))
        after.rows = tuple(tuple(watch.observe(column) for watch in row) for row in self.rows)
        return after

    def check_room(self) -> None:
        """Refuse one event more than the promises were made for, before a coin is thrown."""
        for row in self.rows:
            for watch in row:
                watch.check_room()

    @property
    def limit(self) -> int | None:
        """The number of events that the promises were made for; None for no limit."""
        limits = [watch.ahead.limit for row in self.rows for watch in row]
        return min((limit for limit in limits if limit is not None), default=None)

    def worst(self) -> list[Watch]:
        """For every secret, the watch of the observer who learned most about it."""
        columns = zip(*self.rows, strict=True)
        return [max(column, key=lambda one: one.worst.worst(one.secret.sides)) for column in columns]
