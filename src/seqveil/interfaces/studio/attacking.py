"""The attack step of the page: people whom the model was not fitted to are released, and `sv.attack` tries them.

What comes back is about all of them together: no event of anybody, and no place in degrees.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import seqveil as sv
from seqveil.core import words
from seqveil.core.errors import FILES, InputError, needs_extra
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness
from seqveil.core.secrets import ever
from seqveil.engine.stream import NOTHING
from seqveil.engine.streams import CodeStreams
from seqveil.engine.terms import Terms
from seqveil.interfaces.sentences import guess_means
from seqveil.interfaces.studio.picture import in_words
from seqveil.interfaces.studio.source import StudioSource

EVENTS, TOGETHER = 100, 20  # events of a person, and people released at a time
FEWEST = 40  # people without whom an attack says nothing
SINGLE = 100  # people who are enough where every event is a case
SECONDS = 15.0  # of the processor for releases, after which those who were released are attacked


def attacked(source: StudioSource, terms: Terms, seed: int) -> dict[str, Any]:
    """What an attacker finds out about the secret, or without one about single events, as JSON values."""
    events = min(EVENTS, terms.secrets[0].length(None) or EVENTS) if terms.secrets else EVENTS
    trait = terms.secrets[0].text if terms.secrets and terms.secrets[0].kind == "trait" else ""
    if trait and not source.answers:
        raise InputError("an attack on a trait needs everybody's label; load the file with its column")
    people = [codes[:events] for codes in source.crowd[: None if terms.secrets else SINGLE]]
    if len(people) < FEWEST:
        raise InputError(f"an attack needs at least {FEWEST} people whom the model was not fitted to; load more data")
    with needs_extra(*FILES):
        import polars  # noqa: F401
    released, charged = _released(terms, people, seed)
    named = source.values[source.usual]
    single = ever(tuple(named) if isinstance(named, list) else named, epsilon=None, window=1)
    secret = terms.secrets[0] if terms.secrets else single
    frames = [_rows(source.model, codes) for codes in (released, people[: len(released)])]
    if trait:
        labels = dict(enumerate(source.answers))
        frames[1] = frames[1].with_columns(frames[1]["user"].replace_strict(labels, default=None).alias(trait))
    value = "x,y" if source.model.alphabet.width == 2 else "value"
    claimed = secret.total if terms.secrets else charged
    [found] = sv.attack(*frames, model=source.model, secrets=secret, epsilon=claimed, seed=seed, value=value)
    lines = [found.sentence]
    if found.guess is not None:
        shares = f"{found.guess.share_true:.1%} of those with it and {found.guess.share_false:.1%} of those without"
        lines.append(f"the best guess, by {found.guess.attacker}, singles out {shares}")
        lines += [text for text in [guess_means(found.guess.likelihood_ratio)] if text]
    about = words.about(in_words(source, secret))
    return {"about": about, "verdict": found.verdict, "people": len(released), "lines": lines}


def _released(terms: Terms, people: Sequence[Ints], seed: int) -> tuple[list[Ints], float]:
    """The releases of as many people as there is time for, and the most that any of them is charged."""
    streams, end = CodeStreams(terms, randomness=SeededRandomness(seed)), time.process_time() + SECONDS
    released: list[Ints] = []
    for at in range(0, len(people), TOGETHER):
        some = people[at : at + TOGETHER]
        parts = [np.split(codes, range(terms.batch, codes.size, terms.batch)) for codes in some]
        owners = [at + k for k, own in enumerate(parts) for _ in own]
        raw = [part for own in parts for part in own]
        made = streams.release(owners, raw if terms.in_batches else np.concatenate(raw))
        codes = made.codes
        if made.sent is not None:
            both = zip(made.sent, raw, strict=True)
            codes = np.concatenate([np.full(own.size, NOTHING) if sent is None else sent[1] for sent, own in both])
        released += np.split(codes, np.cumsum([own.size for own in some])[:-1])
        if time.process_time() > end and len(released) >= FEWEST:
            break
    return released, float(streams.accounts().epsilon_spent.max())


def _rows(model: MarkovModel, people: Sequence[Ints]) -> Any:
    """Codes as the rows of a frame, with the values that they stand for; none where nothing was released."""
    import polars as pl

    who, codes = np.repeat(np.arange(len(people)), [len(own) for own in people]), np.concatenate(people)
    points, made = model.alphabet.points, codes >= 0
    if model.alphabet.width == 2 and points is not None:
        x, y = np.where(made, points[codes].T, np.nan)
        return pl.DataFrame({"user": who, "x": x, "y": y}).with_columns(pl.col("x", "y").fill_nan(None))
    shown = iter(model.alphabet.decode(codes[made]))
    return pl.DataFrame({"user": who, "value": [next(shown) if each else None for each in made.tolist()]})
