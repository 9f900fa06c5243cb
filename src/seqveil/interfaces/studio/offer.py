"""Which mechanisms the page offers for a source and a setting, and why not the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from seqveil.core import mechanisms
from seqveil.core.errors import InputError
from seqveil.core.mechanisms import BatchMechanism
from seqveil.interfaces.studio.ask import Ask
from seqveil.interfaces.studio.source import Source

WALKS = 128  # possible batches that an exact program takes some hundredths of a second for
CELLS = 40.0  # cells that a refined tree can tell apart in some tenths of a second


@dataclass(frozen=True)
class Offer:
    """A mechanism with what it promises; `why_not` is empty where it fits."""

    name: str
    summary: str
    guarantee: str
    sound: bool
    batched: bool
    why_not: str = ""


def offers(source: Source, ask: Ask) -> list[Offer]:
    """Every mechanism, and why it does not fit where it does not.

    >>> from seqveil.interfaces.studio.source import builtin
    >>> [each.name for each in offers(builtin("clicks"), Ask("clicks", batch=3)) if not each.why_not]
    ['auto', 'tree', 'tree_ldp']
    """
    return [_offer(name, source, ask) for name in mechanisms.names()]


def _offer(name: str, source: Source, ask: Ask) -> Offer:
    found = mechanisms.find(name)
    try:
        replace(ask, mechanism=name).setting(source.model)
        why = _slow(name, source.model.n, ask)
    except InputError as refusal:
        limited = ask.budget is not None or ask.window is not None
        why = "it keeps to no ε, so no budget can hold" if limited and not found.sound else str(refusal)
        if ask.batch > 1 and not isinstance(found, BatchMechanism):
            why = "it releases one event at a time"
    return Offer(name, found.summary, found.guarantee, found.sound, isinstance(found, BatchMechanism), why)


def _slow(name: str, n: int, ask: Ask) -> str:
    """Why it would take too long to look at, if it would."""
    if name == "auto" and ask.batch == 1:
        return "for single events it is one of the others"
    limit = _LARGEST.get(name)
    if limit is not None and not limit(n, ask):
        size = f" in batches of {ask.batch}" if ask.batch > 1 else ""
        return f"with {n} symbols{size} a release takes too long to watch"
    return ""


_LARGEST: dict[str, Callable[[int, Ask], bool]] = {
    "optimal": lambda n, ask: ask.distortion == "hamming" or n <= 120,
    "optimal_ldp": lambda n, ask: ask.distortion == "hamming" or n <= 40,
    "mutual_information": lambda n, ask: ask.distortion == "hamming" and n <= 24,
    "tree_refined": lambda n, ask: n**ask.batch <= 40 and ask.epsilon * ask.batch * ask.every < 3.6,
    "batch_lp": lambda n, ask: n**ask.batch <= WALKS,
    "batch_descent": lambda n, ask: n**ask.batch <= 32,
}
