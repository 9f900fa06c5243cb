"""Other ways to keep a declared secret, to compare with `guarded`: all release one symbol at a time.

- `utility_optimised`: randomised response that protects the sensitive symbols alone, without a model;
- `suppression`: the sensitive symbols are never released, something else stands in for them;
- `Halving`: randomised response whose ε is halved until the secret is kept.

The first two are mechanisms, made for the secrets at hand; the third is a step that looks at their account.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from seqveil.core import filtering
from seqveil.core.alphabet import Symbols
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError
from seqveil.core.kernel import DENOMINATOR, Floats, Ints, Kernels, to_weights, usable
from seqveil.core.mechanisms import Mechanism, randomized_response
from seqveil.core.mechanisms.base import full_tables
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import Randomness
from seqveil.core.secrets import Secret, SecretTrackers
from seqveil.core.secrets.tables import Bounds
from seqveil.engine.state import Private, State
from seqveil.engine.stream import Released, take_in
from seqveil.engine.terms import Terms

BEGINS = 4.0  # the ε that a release begins with where it is halved
HALVINGS = 40  # after so many a release tells nothing worth the name, and one that tells nothing at all is made


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
        cost="O(n)",
        reference="Murakami, Kawamoto 2019",
        sound=False,
        ldp=math.inf,
        build=build,
        wide=True,
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
        cost="O(n)",
        reference="",
        sound=False,
        ldp=math.inf,
        build=build,
        wide=True,
    )


class Halving:
    """Randomised response whose ε is halved until no label moves the odds of a secret further than promised.

    *Guarantee*: that of `guarded`, for the same secrets under the same model: the account is the same, and a release
    that keeps no label within the promise, however small its ε, is replaced by one that tells nothing.

    Parameters: the model, the secrets, and the ε that every release begins with.

    Reference: Cao, Xiao, Xiong, Bai, *PriSTE: from location privacy to spatiotemporal event privacy*, ICDE 2019,
    Algorithm 2, with randomised response as the mechanism that is tuned.
    """

    def __init__(self, model: MarkovModel, secrets: Secret | Sequence[Secret], epsilon: float = BEGINS) -> None:
        self.model, self.epsilon = model, epsilon
        self.start = SecretTrackers(model, secrets, kept=True)
        self._made: dict[float, tuple[Ints, Ints]] = {}

    def _response(self, epsilon: float) -> tuple[Ints, Ints]:
        """The weights (n, n) of randomised response, and their running sums."""
        if epsilon not in self._made:
            n = self.model.n
            kernel = randomized_response.kernels(np.full((1, n), 1.0 / n), epsilon).one(0)
            weights = np.zeros((n, n), np.int64)
            weights[:, kernel.codes] = kernel.weights
            self._made[epsilon] = weights, np.cumsum(weights, axis=1)
        return self._made[epsilon]

    def choose(self, trackers: SecretTrackers) -> tuple[float, Ints, Ints]:
        """The ε that keeps every promise, with the weights and their running sums; 0 where none does."""
        bounds, epsilon = Bounds.of(trackers.users.take([trackers.row])), self.epsilon
        for _ in range(HALVINGS):
            weights, sums = self._response(epsilon)
            if not len(bounds.promised) or bool((bounds.promised @ weights.astype(np.float64) <= 0.0).all()):
                return epsilon, weights, sums
            epsilon /= 2
        weights = np.zeros((self.model.n, self.model.n), np.int64)
        weights[:, int(bounds.belief.argmax())] = DENOMINATOR
        return 0.0, weights, np.cumsum(weights, axis=1)

    def step(
        self, setting: Terms, state: State, private: Private, codes: Ints, randomness: Randomness
    ) -> tuple[Released, State, Private]:
        """One release for each user of a state that holds the accounts of the secrets."""
        if state.trackers is None:
            raise InputError("halving looks at the account of declared secrets; pass secrets to the setting")
        alike = {id(each): each for each in state.trackers}  # whose accounts are one object share a table
        made = {key: self.choose(each) for key, each in alike.items()}
        chosen = [made[id(each)] for each in state.trackers]
        places = zip(chosen, codes.tolist(), randomness.draw(len(state)).tolist(), strict=True)
        drawn = [int(np.searchsorted(sums[code], uniform, side="right")) for (_, _, sums), code, uniform in places]
        columns = np.stack([weights[:, y] for (_, weights, _), y in zip(chosen, drawn, strict=True)])
        beliefs = filtering.symbols(self.model, state.states)
        epsilons = np.array([epsilon for epsilon, _, _ in chosen])
        weighed, after = take_in(setting, state, columns, epsilons)
        return Released(np.array(drawn, np.int64), epsilons, columns, beliefs, weighed, columns), after, private
