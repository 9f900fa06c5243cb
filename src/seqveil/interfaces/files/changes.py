"""What a release changed, for the operator alone: it follows from raw data, so a terminal shows it and no file does.

A share of wrong releases says little by itself: 5 % of all events can be 80 % of those of one value. Whoever releases
sees here which values became useless, and how the errors fall on people with a declared secret and without it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from seqveil.core.kernel import Ints
from seqveil.core.secrets import Secret
from seqveil.core.words import percent
from seqveil.engine.stream import NOTHING, UNKNOWN, Terms

SHOWN = 6  # values, those changed most often first


class Changes:
    """Raw events beside what came of them, one by one or in batches; events that were left out do not count.

    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.core.secrets import ever
    >>> model = MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], alphabet=["home", "clinic"])
    >>> from seqveil.engine.policy import Policy
    >>> changes = Changes(Policy(secrets=[ever("clinic", epsilon=1.0, window=2)], mechanism="guarded").on(model))
    >>> changes.take(["ann", "bob", "ann", "bob"], np.array([0, 0, 1, 0]), np.array([0, 0, 0, 0]))
    >>> for name, text in changes.lines():
    ...     print(name, text)
    changed 25 % of the events: clinic 100 % of 1, home 0 % of 3
    changed ever:clinic holds for 1 of 2 people; 50 % of their events changed, 0 % of the others'
    """

    def __init__(self, setting: Terms) -> None:
        self._setting = setting
        self._raw: dict[Hashable, list[int]] = {}
        self._wrong: dict[Hashable, int] = {}
        self._events, self._changed = (np.zeros(setting.model.n, np.int64) for _ in range(2))
        self._hidden = 0
        self.holes = ""  # how many rows had no value, in words

    def take(self, users: Sequence[Hashable], raw: Ints, released: Ints) -> None:
        """Events with the codes that came and those that went out; values outside the alphabet are only counted."""
        self._hidden += int((raw == UNKNOWN).sum())
        for user, came, went in zip(users, raw.tolist(), released.tolist(), strict=True):
            if came < 0 or went == NOTHING:
                continue
            self._raw.setdefault(user, []).append(came)
            self._wrong[user] = self._wrong.get(user, 0) + (came != went)
            self._events[came] += 1
            self._changed[came] += came != went

    def lines(self) -> list[tuple[str, str]]:
        """What there is to say: what had no value or none of the alphabet, then by value, then for each secret."""
        said = [("missing", self.holes)] if self.holes else []
        said += [("hidden", f"{self._hidden:,} values outside the alphabet")] if self._hidden else []
        total = int(self._events.sum())
        if not total:
            return said
        shares = self._changed / np.maximum(self._events, 1)
        order = sorted(np.flatnonzero(self._events).tolist(), key=lambda code: (-shares[code], -self._events[code]))
        alphabet = self._setting.model.alphabet
        named = alphabet.decode(np.array(order[:SHOWN], np.int64))
        each = ", ".join(
            f"{name} {percent(shares[code])} of {self._events[code]:,}"
            for name, code in zip(named, order[:SHOWN], strict=True)
        )
        said += [("changed", f"{percent(self._changed.sum() / total)} of the events: {each}")]
        plain = (secret for secret in self._setting.secrets if self._setting.guards and not secret.follows_clock)
        return said + [("changed", self._about(secret)) for secret in plain]

    def _about(self, secret: Secret) -> str:
        """How many people have the secret, in any of its windows, and how much of theirs was changed."""
        compiled = secret.over(self._setting.model.alphabet)
        sums = {True: np.zeros(2), False: np.zeros(2)}
        people = 0
        for user, codes in self._raw.items():
            size = compiled.length or len(codes)
            windows = [codes[k : k + size] for k in range(0, len(codes), size)] if secret.repeats else [codes[:size]]
            has = any(compiled.read(window) for window in windows)
            people += has
            sums[has] += (self._wrong[user], len(codes))
        with_it, without = (percent(found[0] / max(found[1], 1)) for found in (sums[True], sums[False]))
        who = f"{secret.name} holds for {people:,} of {len(self._raw):,} people"
        return f"{who}; {with_it} of their events changed, {without} of the others'"
