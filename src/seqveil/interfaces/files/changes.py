"""What a release changed, for the operator alone: it follows from raw data, so a terminal shows it and no file does.

A share of wrong releases says little by itself: 5 % of all events can be 80 % of those of one value. Whoever releases
sees here which values became useless, and how the errors fall on people with a declared secret and without it.
"""

from __future__ import annotations

import numpy as np

from seqveil.core.alphabet import UNKNOWN
from seqveil.core.kernel import Ints
from seqveil.core.results import Line
from seqveil.core.secrets import Secret
from seqveil.core.words import percent
from seqveil.engine.stream import NOTHING, Terms

SHOWN = 6  # values, those changed most often first


def changed(setting: Terms, people: int, who: Ints, raw: Ints, released: Ints) -> list[Line]:
    """What came of raw events: how many had no code, then by value, then for each secret.

    Parameters:
        people: how many there are.
        who: the number of the person of each event, each person's events in order.
        raw: codes that came; UNKNOWN outside the alphabet, which is only counted.
        released: codes that went out; events that were left out do not count.

    >>> from seqveil import MarkovModel, Policy, secrets
    >>> model = MarkovModel([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], alphabet=["home", "clinic"])
    >>> terms = Policy(secrets=[secrets.ever("clinic", epsilon=1.0, window=2)]).on(model)
    >>> for name, text in changed(terms, 2, np.array([0, 1, 0, 1]), np.array([0, 0, 1, 0]), np.array([0, 0, 0, 0])):
    ...     print(name, text)
    changed 25 % of the events: clinic 100 % of 1, home 0 % of 3
    changed ever:clinic holds for 1 of 2 people; 50 % of their events changed, 0 % of the others'
    """
    hidden = int((raw == UNKNOWN).sum())
    said = [("hidden", f"{hidden:,} values outside the alphabet")] if hidden else []
    kept = (raw >= 0) & (released != NOTHING)
    who, raw, wrong = who[kept], raw[kept], (raw != released)[kept]
    if not raw.size:
        return said
    events = np.bincount(raw, minlength=setting.model.n)
    shares = np.bincount(raw, wrong, minlength=setting.model.n) / np.maximum(events, 1)
    order = sorted(np.flatnonzero(events).tolist(), key=lambda code: (-shares[code], -events[code]))[:SHOWN]
    named = setting.model.alphabet.decode(np.array(order, np.int64))
    each = ", ".join(
        f"{name} {percent(shares[code])} of {events[code]:,}" for name, code in zip(named, order, strict=True)
    )
    said.append(("changed", f"{percent(float(wrong.mean()))} of the events: {each}"))
    plain = [secret for secret in setting.secrets if setting.guards and not secret.follows_clock]
    places = np.argsort(who, kind="stable")
    streams = np.split(raw[places], np.cumsum(np.bincount(who, minlength=people))[:-1])
    errors = np.bincount(who, wrong, minlength=people)
    return said + [("changed", _about(secret, setting, streams, errors)) for secret in plain]


def _about(secret: Secret, setting: Terms, streams: list[Ints], errors: Ints) -> str:
    """How many people have the secret, in any of its windows, and how much of theirs was changed."""
    compiled = secret.over(setting.model.alphabet)
    sums = {True: np.zeros(2), False: np.zeros(2)}
    people = 0
    for codes, wrong in zip(streams, errors.tolist(), strict=True):
        size = compiled.length or max(len(codes), 1)
        windows = [codes[k : k + size] for k in range(0, len(codes), size)] if secret.repeats else [codes[:size]]
        has = any(compiled.read(window.tolist()) for window in windows)
        people += has
        sums[has] += (wrong, len(codes))
    with_it, without = (percent(found[0] / max(found[1], 1)) for found in (sums[True], sums[False]))
    who = f"{secret.name} holds for {people:,} of {len(streams):,} people"
    return f"{who}; {with_it} of their events changed, {without} of the others'"
