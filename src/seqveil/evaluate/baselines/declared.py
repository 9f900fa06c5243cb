"""Other ways to keep a declared secret, to compare with `guarded`: mechanisms made for the secrets at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from seqveil.core.alphabet import Symbols
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, Kernels, to_weights, usable
from seqveil.core.mechanisms import Mechanism
from seqveil.core.mechanisms.base import full_tables
from seqveil.core.secrets import Secret


def sensitive(alphabet: Symbols, secrets: Secret | Sequence[Secret]) -> Ints:
    """Codes of the symbols that the secrets name, where that leaves some."""
    wanted = (secrets,) if isinstance(secrets, Secret) else secrets
    codes = np.unique(np.concatenate([secret.named(alphabet) for secret in wanted]))
    if codes.size == alphabet.n:
        raise InputError("the secrets name every symbol of the alphabet, so none is left that is not sensitive")
    return codes


def utility_optimised(alphabet: Symbols, secrets: Secret | Sequence[Secret]) -> Mechanism:
    """Utility-optimised randomised response: a sensitive symbol is distinguished from no symbol by more than e^ε.

    Over the k sensitive symbols it is randomised response; every other symbol comes out as each of them with
    probability 1/(k+e^ε-1), and else as it is.

    *Guarantee*: utility-optimised ε-LDP at each release, whatever the model. Nothing about a secret in total: over T
    releases its odds may move by Tε, and what symbols that are not sensitive tell about it is not bounded at all.

    >>> from seqveil.core.alphabet import Alphabet
    >>> from seqveil.core.secrets import ever
    >>> made = utility_optimised(Alphabet(["news", "sport", "health"]), ever("health", epsilon=1.0))
    >>> made.kernels(np.full((1, 3), 1 / 3), math.log(4.0)).one(0).probabilities.round(4).tolist()
    [[0.75, 0.0, 0.25], [0.0, 0.75, 0.25], [0.0, 0.0, 1.0]]

    Reference: Murakami, Kawamoto, *Utility-optimized local differential privacy mechanisms for distribution
    estimation*, USENIX Security 2019, section 4.1.
    """
    codes, n = sensitive(alphabet, secrets), alphabet.n
    secret = np.isin(np.arange(n), codes)

    def build(beliefs: Floats, epsilon: float, _distortion: Distortion) -> Kernels:
        """One table for all beliefs: it does not look at them."""
        grown = math.exp(usable(epsilon, n))
        each = 1.0 / (codes.size + grown - 1.0)
        table = np.where(secret[None, :], each, 0.0) * np.ones((n, 1))
        table[np.arange(n), np.arange(n)] = np.where(secret, grown * each, 1.0 - codes.size * each)
        return full_tables(np.tile(to_weights(table), (len(beliefs), 1, 1)))

    return Mechanism(
        name="utility_optimised",
        summary="randomised response that protects the sensitive symbols alone",
        guarantee="utility-optimised ε-LDP at each release, whatever the model",
        trusts="nothing",
        sound=False,
        ldp=math.inf,
        build=build,
    )


def suppression(alphabet: Symbols, secrets: Secret | Sequence[Secret]) -> Mechanism:
    """Sensitive symbols are never released: the likeliest symbol that is not sensitive stands in for them.

    *Guarantee*: none. What comes before and after tells of what is missing; ε is not used.

    >>> from seqveil.core.alphabet import Alphabet
    >>> from seqveil.core.secrets import ever
    >>> made = suppression(Alphabet(["news", "sport", "health"]), ever("health", epsilon=1.0))
    >>> made.kernels(np.array([[0.2, 0.5, 0.3]]), 1.0).one(0).probabilities.tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    codes, n = sensitive(alphabet, secrets), alphabet.n
    others = np.setdiff1d(np.arange(n), codes)

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
        sound=False,
        ldp=math.inf,
        build=build,
    )
