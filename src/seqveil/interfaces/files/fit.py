"""Fit a model to a file in two passes: what values there are, then how they follow one another.

A private fit takes a public alphabet, bounds what each user gives, and counts with noise.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.alphabet import Bins, Grid, Symbols
from seqveil.core.bulk import numbered
from seqveil.core.errors import InputError
from seqveil.core.kernel import Ints
from seqveil.core.mixture import SWITCH, fit_trait, one_answer_each
from seqveil.core.model import Counts, MarkovModel
from seqveil.core.places import Cells
from seqveil.core.private import CONTRIBUTION, BoundedCounts
from seqveil.core.randomness import randomness
from seqveil.interfaces.files.columns import Taken, ValueType
from seqveil.interfaces.files.reading import Chunk, FilePath, read
from seqveil.interfaces.files.rows import Progress, Source, encode, value_type_of
from seqveil.interfaces.files.scanning import Distinct, scanner
from seqveil.interfaces.files.words import FitWords, in_slots

if TYPE_CHECKING:
    import polars as pl

    from seqveil.interfaces.choosing import Choice

FOR_FIT = "check the value column, or add the value to the alphabet"
FOR_CELLS = "it lies outside --range: widen that, or pass --on-unknown nearest to count it to the cell at the edge"


@dataclass(frozen=True)
class Fitted:
    """A model and how much it was fitted on."""

    model: MarkovModel
    events: int
    users: int
    choice: Choice | None = None  # where contexts were compared
    pooled: int = 0  # values that were taken together as "other"
    smoothing: float | None = None  # pseudo-events of each context; None for a private fit, which has noise
    clamped: int = 0  # events outside the range that "auto" found, counted to the cells at its edge
    reading: Taken = field(default_factory=Taken)  # how the rows were read and ordered


def fit_file(
    data: FilePath | pl.DataFrame,
    words: FitWords | None = None,
    *,
    progress: Progress | None = None,
    working: Callable[[float], None] | None = None,
    **more: Any,
) -> Fitted:
    """Fit a model to a file of streams, chunk by chunk. Without `FitWords.private` the fit itself is **not** private.

    Standard input, slots and sorted files are held in memory, other files are read twice. Of a private fit
    (`BoundedCounts`) `Fitted.users` and `Fitted.events` are noisy too: nothing that comes back tells more
    than the model does.

    Parameters:
        data: the file, ``-`` for standard input, or a polars frame.
        words: how to read it, how values become symbols, and what the next one depends on.
        progress: called with the number of rows done.
        working: called with the share that is done where contexts are compared (`receive.choosing.choose`).
        more: fields of `FitWords`, in place of those of `words`.
    """
    disclosed = replace(words or FitWords(), **more).settled(data)
    source = disclosed.source(data)
    if disclosed.private is not None:
        return _fit_private(source, disclosed, progress)
    alphabet, pooled, rows = read_values(source, disclosed, progress)
    code = _Coder(alphabet, source.name, disclosed.clamps)
    if disclosed.trait is not None:
        found = _with_trait(rows, code, answers_of(source, disclosed.trait), disclosed, working)
    elif disclosed.context is not None:
        found = _with_context(rows, code, disclosed, working)
    else:
        found = _count(rows, code, disclosed)
    return replace(found, pooled=pooled, smoothing=disclosed.smoothing, clamped=code.clamped, reading=source.taken)


def read_values(
    source: Source, words: FitWords, progress: Progress | None = None
) -> tuple[Symbols, int, Iterable[Chunk]]:
    """The alphabet, how many values were taken together in it, and the rows to count with it."""
    pooled, alphabet = 0, words.alphabet
    if alphabet is None:
        scan = scanner(source, words)
        names: ValueType = "auto" if words.other is None and words.slots is None else "text"
        first, rows = _two_readings(source, names if isinstance(scan, Distinct) else "number", progress)
        for part in first:
            scan.add(part)
        alphabet = scan.alphabet()
        pooled = scan.pooled if isinstance(scan, Distinct) else 0
    else:
        if words.other is not None:
            raise InputError("--other pools values that occur, and the alphabet names all; leave one out")
        alphabet = in_slots(alphabet, words.slots)
        source.check_width(alphabet)
        rows = source.chunks(value_type_of(alphabet), progress)
    alphabet = alphabet.with_policy(words.policy(alphabet)).with_missing(words.missing).with_slots(words.slots)
    return alphabet, pooled, rows


class _Coder:
    """Codes of rows as a fit counts them: what is outside is refused, pooled, or clamped to the edge and counted."""

    def __init__(self, alphabet: Symbols, file: str, clamps: bool) -> None:
        self.alphabet, self._file, self._clamps = alphabet, file, clamps
        self._counted = alphabet if alphabet.on_unknown == "other" else alphabet.strict
        if clamps:
            self._counted, self._inner = alphabet.with_policy("nearest"), alphabet.with_policy("hide")
        self.clamped = 0
        self._remedy = FOR_CELLS if isinstance(alphabet, Bins | Grid | Cells) else FOR_FIT

    def __call__(self, part: Chunk) -> Ints:
        if self._clamps:
            self.clamped += int((self._inner.encode(part.values) < 0).sum())
        return encode(part, self._counted, self._file, self._remedy)


def _count(rows: Iterable[Chunk], code: _Coder, words: FitWords) -> Fitted:
    """The chain of all streams."""
    counts, users = Counts(code.alphabet.n, words.order), set[Hashable]()
    for part in rows:
        counts.add(part.users, code(part))
        users.update(part.users.unique().to_list())
    return Fitted(counts.model(code.alphabet, words.smoothing, words.prior), counts.events, len(users))


def _with_context(
    rows: Iterable[Chunk], code: _Coder, words: FitWords, working: Callable[[float], None] | None
) -> Fitted:
    """The context chosen for the streams of a file, fitted to everyone.

    The codes of all events are held in memory, since some people are held out and predicted one event after another.
    """
    from seqveil.interfaces.choosing import CodedEvents, choose

    people, users, events = _in_memory(rows, code)
    more: dict[str, Any] = {"smoothing": words.smoothing, "prior": words.prior, "progress": working}
    choice = choose(CodedEvents.of(users, events), code.alphabet, words.context or "auto", **more)
    return Fitted(choice.model, events.size, len(people), choice)


def _with_trait(
    rows: Iterable[Chunk],
    code: _Coder,
    answers: dict[Hashable, Any],
    words: FitWords,
    working: Callable[[float], None] | None,
) -> Fitted:
    """A mixture whose types answer a question about people; the codes of all events are held in memory."""
    from seqveil.interfaces.choosing import Context

    people, users, events = _in_memory(rows, code)
    wanted = None if words.context in (None, "auto") else Context.parse(str(words.context))
    order, types, switch = (
        (words.order, None, SWITCH) if wanted is None else (wanted.order, wanted.types, wanted.switch)
    )
    labels = [answers.get(name) for name in people]
    how: dict[str, Any] = {"smoothing": words.smoothing, "prior": words.prior, "progress": working}
    model = fit_trait(str(words.trait), labels, users, events, order, switch, types, code.alphabet, **how)
    return Fitted(model, events.size, len(people))


def answers_of(source: Source, column: str) -> dict[Hashable, Any]:
    """Each user's label in a column of a file, None where there is none; somebody with two labels is refused."""
    if source.piped:
        raise InputError("a trait is read from a column of a file, beside the values; got a pipe, name the file")
    found: list[tuple[Hashable, Any]] = []
    for part in read(
        source.path, replace(source.columns, value=column), source.chunk, source.format, "text", holes="empty"
    ):
        labels = [label or None for label in part.values.to_list()]  # type: ignore[union-attr]
        found += zip(part.users.to_list(), labels, strict=True)
    return one_answer_each(*zip(*found, strict=True)) if found else {}


def _in_memory(rows: Iterable[Chunk], code: _Coder) -> tuple[list[Hashable], Ints, Ints]:
    """The names of all users in order, and of all events the number of the user and the code."""
    ids, codes, index = [], [], dict[Hashable, int]()
    for part in rows:
        ids.append(numbered(index, part.users.to_list()))
        codes.append(np.asarray(code(part), np.int64))
    people: list[Any] = sorted(index)
    place = {name: at for at, name in enumerate(people)}  # the same whatever the order of the rows
    by_name = np.array([place[name] for name in index], np.int64)
    return people, by_name[np.concatenate(ids)], np.concatenate(codes)


def _two_readings(
    source: Source, kind: ValueType, progress: Progress | None
) -> tuple[Iterable[Chunk], Iterable[Chunk]]:
    """The rows of a file twice; held in memory where they come from a pipe, or are sorted."""
    rows = source.chunks(kind, progress)
    if source.piped or source.sort or source.slots is not None:
        held = list(rows)
        return held, held
    return rows, source.chunks(kind, progress, again=True)


def _fit_private(source: Source, words: FitWords, progress: Progress | None) -> Fitted:
    """A chain of order 1 that is ε-differentially private for each user; see `BoundedCounts`."""
    assert words.private is not None
    alphabet = in_slots(words.alphabet, words.slots).with_missing(words.missing).with_slots(words.slots)
    source.check_width(alphabet)
    counts = BoundedCounts(alphabet.n, CONTRIBUTION if words.contribution is None else words.contribution)
    first, second = _two_readings(source, value_type_of(alphabet), progress)
    for part in first:
        counts.measure(part.users.to_list())
    for part in second:
        counts.add(part.users.to_list(), encode(part, alphabet.strict, source.name, FOR_FIT))
    noisy = counts.noisy(words.private, randomness(words.seed))
    events = noisy.users + max(0, int(noisy.moves.sum()))
    source.taken.begin()  # counts of raw rows are nobody's business: they have no noise
    return Fitted(noisy.model(alphabet), events, noisy.users, reading=source.taken)


def origin_in_words(origin: Mapping[str, Any]) -> str:
    """A model's record of how it was made, in a sentence."""
    if origin.get("kind") != "private fit":
        return f"{origin.get('kind', 'unknown')}: {origin.get('note', 'see the model file')}"
    if not origin.get("private"):
        return "fitted with seeded noise: NOT private"
    most = origin["contribution"]["transitions"]
    return (
        f"fitted with ε = {origin['epsilon']:g} for each user ({origin['relation']}; at most {most} transitions and "
        f"one start of each; {origin['noise']})"
    )
