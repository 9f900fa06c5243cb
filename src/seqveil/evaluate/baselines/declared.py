"""What is often done about a secret, to compare with `guarded`: the symbols that name it are left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqveil.core.alphabet import Symbols
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Kernels
from seqveil.core.mechanisms import Mechanism
from seqveil.core.secrets import Secret


def suppression(alphabet: Symbols, secrets: Sequence[Secret]) -> Mechanism:
    """Sensitive symbols are never released: the likeliest symbol that is not sensitive stands in for them.

    *Guarantee*: none. What comes before and after tells of what is missing; ε is not used.

    >>> from seqveil.core.alphabet import Alphabet
    >>> from seqveil.core.secrets import ever
    >>> made = suppression(Alphabet(["news", "sport", "health"]), [ever("health", epsilon=1.0)])
    >>> made.kernels(np.array([[0.2, 0.5, 0.3]]), 1.0).one(0).probabilities.tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    n, codes = alphabet.n, np.unique(np.concatenate([secret.named(alphabet) for secret in secrets]))
    others = np.setdiff1d(np.arange(n), codes)
    if not others.size:
        raise InputError("the secrets name every symbol of the alphabet, so none is left that is not sensitive")

    def build(beliefs: Floats, _epsilon: float, _distortion: Distortion) -> Kernels:
        """Each user's table: the likeliest symbol that is not sensitive stands in."""
        users = len(beliefs)
        stands_in = beliefs[:, others].argmax(1)
        weights = np.zeros((users, n, others.size), np.int64)
        weights[:, others, np.arange(others.size)] = DENOMINATOR
        weights[np.arange(users)[:, None], codes[None, :], stands_in[:, None]] = DENOMINATOR
        outputs = np.tile(others, (users, 1))
        return Kernels(n, outputs, np.zeros_like(outputs), weights)

    return Mechanism(
        name="suppression",
        summary="the sensitive symbols are never released, the likeliest other one stands in",
        guarantee="none",
        trusts="everybody",
        build=build,
    )
