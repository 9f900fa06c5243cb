"""Who attacks: classifiers that learn from what was counted of people."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from seqveil.core.errors import needs_extra
from seqveil.core.kernel import Floats, Ints

STRONGEST = 100  # columns that boosted trees look at

Attackers = dict[str, Callable[[], Any]]


def classifiers(seed: int, columns: int = STRONGEST) -> Attackers:
    """The attackers that learn from people, made new for each use; `columns` is how many there are to look at."""
    with needs_extra("the attack", "attack"):
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.feature_selection import SelectKBest
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler

    def strongest(most: int) -> Any:
        """Keeps the columns that go most with the labels."""
        return SelectKBest(_correlation, k=min(most, columns))

    def linear(most: int) -> Any:
        """Logistic regression on so many columns."""
        return make_pipeline(strongest(most), MaxAbsScaler(), LogisticRegression(C=0.3, max_iter=500))

    def boosted() -> Any:
        """Gradient boosting, which needs a dense table."""
        trees = HistGradientBoostingClassifier(max_iter=80, learning_rate=0.08, max_leaf_nodes=15, random_state=seed)
        dense = FunctionTransformer(methodcaller("toarray"), accept_sparse=True)
        return make_pipeline(strongest(STRONGEST), dense, trees)

    return {
        "logistic regression": partial(linear, columns),
        "logistic regression on a few columns": partial(linear, 20),
        "the strongest column": partial(linear, 1),
        "gradient boosting": boosted,
    }


def _correlation(found: Any, labels: Ints) -> Floats:
    """How strongly each column goes with the labels; columns that never vary not at all."""
    apart = labels - labels.mean()
    mean = np.asarray(found.mean(0)).ravel()
    spread = np.asarray(found.multiply(found).mean(0)).ravel() - mean**2
    return np.abs(found.T @ apart) / np.sqrt(np.maximum(spread, 1e-300)) * (spread > 1e-12)
