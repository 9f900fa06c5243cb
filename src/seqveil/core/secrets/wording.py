"""Secrets as sentences a person can read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqveil.core.secrets.declared import Secret

SUSPICION = 0.25  # that sentences take as their example
_NAMED = 4  # values named in a sentence; the others are counted


def sentence(secret: Secret) -> str:
    """What is kept secret, how well, and on what condition."""
    return f"{about(secret)}; {promise(secret)}"


def promise(secret: Secret) -> str:
    """How well a secret is kept, and on what condition: the second half of its sentence."""
    factor = math.exp(secret.epsilon)
    bound = f"nobody's odds move by more than a factor {factor:.3g}"
    if secret.sides == "up":
        bound = f"nobody becomes surer that it is so by more than a factor {factor:.3g} in the odds"
    return f"{bound} (ε = {secret.epsilon:g}): {example(secret)}, if the stream follows the model"


def example(secret: Secret) -> str:
    """What the promise means for somebody who suspects the secret a little."""
    told = f"a suspicion of {percent(SUSPICION)}"
    low, high = (percent(moved(SUSPICION, bound)) for bound in (-secret.epsilon, secret.epsilon))
    return f"{told} becomes at most {high}" if secret.sides == "up" else f"{told} stays between {low} and {high}"


def about(secret: Secret) -> str:
    """What the secret is about, as the first half of a sentence."""
    if secret.kind == "joint":
        return "any combination of: " + "; ".join(about(part) for part in secret.parts)
    what, where = _list(secret.values), _window(secret)
    if secret.circle:
        *centre, radius = secret.circle
        return (
            f"whether the zone of radius {radius:g} around ({', '.join(f'{c:g}' for c in centre)}) is entered {where}"
        )
    phrases = {
        "ever": f"whether {what} occurs {where}",
        "each": f"whether every event is {what} {where}",
        "count": f"whether {what} occurs at least {secret.at_least} times {where}",
        "visit": f"whether {what} is followed, at once or later, by {_list(secret.then)} {where}",
        "pattern": f"whether the pattern {secret.text.strip()} occurs {where}",
        "zone": f"whether a zone of {len(secret.values)} cells is entered {where}",
        "during": f"whether {what} occurs {_hours(secret)} {where}",
    }
    return phrases[secret.kind]


def name(secret: Secret) -> str:
    """What the secret is about as one word of a command line (`reading.parse` reads it back, but for joint ones)."""
    if secret.kind == "joint":
        return f"joint({', '.join(name(part) for part in secret.parts)})"
    if secret.kind == "pattern":
        return f"pattern:{secret.text}"
    if secret.circle:
        return "zone:" + ",".join(f"{number:g}" for number in secret.circle)
    values, then = (",".join(_spelled(value) for value in some) for some in (secret.values, secret.then))
    ends = {"count": f":{secret.at_least}", "visit": f">{then}"}
    if secret.hours is not None:
        ends["during"] = f":{secret.hours[0]:g}-{secret.hours[1]:g}"
    return f"{secret.kind}:{values}{ends.get(secret.kind, '')}"


def _spelled(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def moved(suspicion: float, log_odds: float) -> float:
    """A suspicion after its odds moved by e^log_odds.

    >>> round(moved(0.25, 0.5), 4), round(moved(0.5, 1.0), 4)
    (0.3547, 0.7311)
    """
    odds = suspicion / (1 - suspicion) * math.exp(log_odds)
    return odds / (1 + odds)


def percent(share: float) -> str:
    """A probability as people say it.

    >>> percent(0.25), percent(0.002)
    ('25 %', '0.2 %')
    """
    return f"{share * 100:.0f} %" if 0.01 <= share <= 0.99 else f"{share * 100:.2g} %"


def _list(values: tuple[Any, ...]) -> str:
    if len(values) == 1 and isinstance(values[0], tuple) and not any(isinstance(v, float) for v in values[0]):
        values = values[0]
    shown = [str(value) for value in values[:_NAMED]]
    if len(values) > _NAMED:
        return f"{', '.join(shown)} or one of {len(values) - _NAMED} others"
    return " or ".join(part for part in (", ".join(shown[:-1]), *shown[-1:]) if part)


def _hours(secret: Secret) -> str:
    return "" if secret.hours is None else f"from {secret.hours[0]:g} to {secret.hours[1]:g} o'clock"


def _window(secret: Secret) -> str:
    window = secret.window
    if window is None:
        return "in the stream, whenever it ends"
    if window == "day":
        return f"on a day ({secret.per_day} events), each day for itself"
    if window == "event" or window == 1:
        return "at an event, each for itself"
    if isinstance(window, str):
        return f"among the first {secret.length} events"
    return f"in a run of {window} events (the first {window}, the next {window} and so on)"
