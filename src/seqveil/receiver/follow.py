"""Streams of many users as anyone who has the releases can follow them: one row of public state a user.

Audits, drift, statistics and learning all go through releases in this way. Nothing private is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.engine.state import Rows, State, rounds
from seqveil.engine.stream import Released, Terms, observe


class Followed:
    """Streams of users, numbered from 0, under one setting.

    >>> import numpy as np
    >>> from seqveil.core.model import MarkovModel
    >>> from seqveil.engine.policy import Policy
    >>> followed = Followed(Policy(epsilon=1.0).on(MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])))
    >>> [turn.tolist() for turn, _ in followed.observe(np.array([0, 1, 0]), np.array([0, 1, 0]))]
    [[0, 1], [2]]
    >>> followed.state.steps.tolist()
    [2, 1]
    """

    def __init__(self, setting: Terms) -> None:
        if setting.in_blocks:
            raise InputError("a release in a block tells of its symbol only with the others of the block; use `decode`")
        self.setting, self.state = setting, State.start(setting, 0)

    def observe(self, users: Rows, codes: Ints, times: Floats | None = None) -> Iterator[tuple[Rows, Released]]:
        """Take in releases in the order they were made, NOTHING where there was none.

        They go in rounds that hold each user once: the places of a round in the call, and what an observer sees.
        """
        needed = int(users.max(initial=-1)) + 1
        if needed > len(self.state):  # room is made ahead of need, so that most calls copy nothing
            self.state = self.state.grown(self.setting, max(needed, 2 * len(self.state)))
        for turn in rounds(users):

            def act(part: State, at: Rows = turn) -> tuple[Released, State]:
                return observe(self.setting, part, codes[at], None if times is None else times[at])

            seen, self.state = self.state.move(users[turn], act)
            yield turn, seen
