"""Released rows as their receiver sees them: the setting, and every release in order, those left out included.

Whoever holds the raw file too sees both beside each other, event by event (`paired`): by user and by the order of each
user's events, by time where rows have one. The order of users in either file does not matter, and an event without a
release moves no other one: the columns `event` and `batch` of a release say which event a row is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import polars as pl

from seqveil.core.errors import DataError, InputError, ModelError, option
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel, Reading
from seqveil.engine.batches import decode_path, encode_path
from seqveil.engine.blocks import HELD
from seqveil.engine.policy import OTHER_MODEL, Terms, policy_of, saved_terms
from seqveil.engine.stream import NOTHING
from seqveil.interfaces.files import writing
from seqveil.interfaces.files.events import OTHER_RELEASE, Events, ranks, read_events, value_type_of
from seqveil.interfaces.files.release import gaps, loaded_policy
from seqveil.interfaces.files.table import FilePath, as_polars, file_name
from seqveil.interfaces.files.writing import BATCH, EPSILON, EVENT, PATH, SAME_PATH, Meta, ReleasedRows
from seqveil.receiver.drift import Drift

ADOPTED = (
    "the release went on with another model after `seqveil state adopt`, so no one model says how it was drawn; its "
    "account is in the state file: run `seqveil state account`"
)
MOST_LEFT_OUT = 1_000_000  # events of one user that one row may skip


@dataclass(frozen=True, eq=False)
class Log:
    """The events of releases one by one, those that went without a release included."""

    users: list[Any]
    who: Ints  # the number of each event's user
    codes: Ints
    times: Floats | None
    epsilons: Floats | None  # that the rows claim; NaN where an event has no row
    rows: Ints  # the row of each event among all, -1 where it has none


@dataclass(frozen=True, eq=False)
class ReleasedBatch:
    """One batch of a user; one that went without a release has no path, and as many rows -1 as it had events."""

    user: Any
    path: tuple[int, ...] | None
    rows: Ints  # places among all rows
    time: float | None  # of the last row; of the user's last release before it, where nothing was released


@dataclass(frozen=True, eq=False)
class Received:
    """Released rows, the setting they were made with, and their side file where there is one."""

    events: Events
    setting: Terms
    meta: Meta | None
    codes: Ints  # of each row
    clock: bool = False  # whether times are asked for that the setting does not need

    @cached_property
    def epsilons(self) -> Floats | None:
        """The ε of each row, where the file has them."""
        return self._numbers(EPSILON)

    def _numbers(self, name: str) -> Floats | None:
        """A further column of the release."""
        if name not in self.events.frame.columns:
            return None
        column = self.events.frame[name].cast(pl.Float64, strict=False)
        wrong = ~column.is_finite().fill_null(False)
        if wrong.any():
            row = self.events.row(int(wrong.arg_max() or 0))
            raise DataError(f"{self.events.name}: row {row}: column {name!r} must hold finite numbers; mend the row")
        return np.asarray(column.to_numpy(), np.float64)

    @cached_property
    def times(self) -> Floats | None:
        """When each row was, where that is needed."""
        return self.events.seconds() if self.setting.timed or self.clock else None

    @contextmanager
    def naming(self, where: str = "") -> Iterator[None]:
        """Say in a refusal which file it is about, and where in it."""
        try:
            yield
        except DataError as error:
            raise DataError(f"{self.events.name}: {where}{error}") from None

    def unchanged(self, used: Floats | None = None) -> bool | None:
        """Whether the rows are those that the side file is about; None where it does not say.

        Where the file lacks ε they had what was `used`.
        """
        claimed = self.epsilons if self.epsilons is not None else used
        if claimed is None:
            claimed = np.full(self.codes.size, self.setting.epsilon)
        batches = [self.events.frame[name] for name in (BATCH, PATH) if self.setting.in_batches]
        said = None if self.meta is None else self.meta.get("digest")
        return None if said is None else said == writing.digest(self.events.users, self.codes, claimed, *batches)

    @property
    def symbols(self) -> tuple[Ints, Ints, Floats | None, Floats | None]:
        """Users as numbers, codes and times of all events that were released one by one; of batches none.

        Of blocks also the ε of the record, which says where one was cut.
        """
        none = np.zeros(0, np.int64)
        if self.setting.in_batches:
            return none, none, None, None
        return self.log.who, self.log.codes, self.log.times, self.log.epsilons if self.setting.in_blocks else None

    def drift(self) -> Drift | None:
        """Bets against the model, for releases one by one by a sound mechanism."""
        asked = not self.setting.in_batches and self.setting.mechanism.sound
        return Drift(self.setting, len(self.events.people[0])) if asked else None

    @cached_property
    def log(self) -> Log:
        """The events of a release one by one."""
        who, rows = self.events.people[1], np.arange(self.codes.size)
        if not gaps(self.setting):
            return Log(self.events.users.to_list(), who, self.codes, self.times, self.epsilons, rows)
        counted = self._numbers(EVENT)
        if counted is None or self.epsilons is None:
            raise DataError(
                f'{self.events.name}: the policy "stop" leaves rows out, which only the column {EVENT!r} beside '
                f"{EPSILON!r} reveals; keep both columns of the release"
            )
        return self._filled(who, counted)

    def _filled(self, who: Ints, counted: Floats) -> Log:
        """The log with the events that went without a release back where they were."""
        times = self.times
        own = pl.DataFrame({"user": who, "event": counted, "time": np.zeros(who.size) if times is None else times})
        before, last = (
            own.select(pl.col(name).shift(1, fill_value=first).over("user")).to_series().to_numpy()
            for name, first in (("event", -1.0), ("time", -np.inf))
        )
        skipped = counted - before - 1
        wrong = ~((skipped >= 0) & (skipped <= MOST_LEFT_OUT) & (skipped == np.floor(skipped)))
        if wrong.any():
            row = self.events.row(int(wrong.argmax()))
            raise DataError(f"{self.events.name}: row {row}: column {EVENT!r} does not count its user's events")
        missed = skipped.astype(np.int64)
        owner = np.repeat(np.arange(counted.size), missed + 1)
        at = np.cumsum(missed + 1) - 1
        codes, rows = np.full(owner.size, NOTHING), np.full(owner.size, -1)
        epsilons = np.full(owner.size, HELD if self.setting.in_blocks else np.nan)
        codes[at], rows[at], epsilons[at] = self.codes, np.arange(counted.size), self.epsilons
        if times is not None:
            # an event without a release came after its user's last one: at that time the budget was gone already
            times = np.where(rows >= 0, times[owner], last[owner])
        return Log(self.events.users.gather(owner).to_list(), who[owner], codes, times, epsilons, rows)

    @cached_property
    def batches(self) -> list[ReleasedBatch]:
        """The batches of a release, each user's in order; refuses what `release` does not write."""
        frame = self.events.frame
        if self._numbers(BATCH) is None or self.epsilons is None or PATH not in frame.columns:
            raise DataError(
                f"{self.events.name}: a release in batches has the columns {EPSILON!r}, {BATCH!r} and {PATH!r}; keep "
                "all columns of the release"
            )
        numbered = frame.select("user", pl.Series(BATCH, self._numbers(BATCH)), pl.col(PATH).cast(pl.String))
        numbered = numbered.with_columns(at=pl.int_range(pl.len(), dtype=pl.Int64))
        found: list[ReleasedBatch] = []
        following: dict[Any, tuple[int, float | None, bool]] = {}  # of each user: number, last time, whether it ended
        for user, number, paths, places in numbered.group_by("user", BATCH, maintain_order=True).all().iter_rows():
            upcoming, before, ended = following.get(user, (0, None, False))
            row, gap, size = self.events.row(places[0]), number - upcoming, self.setting.batch
            if ended or any(path != SAME_PATH for path in paths[1:]) or len(paths) > size:
                self._refuse(row, f"no batch of its user has room for it, with {size} rows to a batch")
            if not (0 <= gap <= MOST_LEFT_OUT and gap == int(gap)) or (gap and not gaps(self.setting)):
                self._refuse(row, f"column {BATCH!r} does not count its user's batches")
            found += [ReleasedBatch(user, None, np.full(size, -1, np.int64), before)] * int(gap)
            time = None if self.times is None else float(self.times[places[-1]])
            found.append(ReleasedBatch(user, self._path(paths[0], row), np.array(places, np.int64), time))
            following[user] = (int(number) + 1, time, len(paths) < size)
        return found

    def _path(self, text: str, row: int) -> tuple[int, ...]:
        try:
            path = decode_path(text)
        except DataError:
            path = None
        if path is None or encode_path(path) != text:
            self._refuse(row, f"column {PATH!r} holds no path as `release` writes it")
        return path

    def _refuse(self, row: int, problem: str) -> NoReturn:
        raise DataError(
            f"{self.events.name}: row {row}: {problem}; check that the policy is that of the release, and that no row "
            "was changed or lost"
        )


def received(
    released: Any,
    model: MarkovModel,
    policy: Any = None,
    meta: FilePath | Mapping[str, Any] | None = None,
    **columns: str | None,
) -> Received:
    """What `release` gave back, a frame or a path of released rows, with the setting that the side file gives.

    `policy` is for rows that have no side file, and brings the models of further observers.
    """
    if isinstance(released, ReleasedRows):
        released, meta = released.frame, released.meta if meta is None else meta
    table, given = as_polars(released), loaded_policy(policy)
    found = writing.load_meta(table, meta)
    setting = None if given is None else policy_of(given, {}).on(model)
    reading = model.reading or Reading()
    if found is not None:
        setting, reading = _setting(found, setting, model), writing.stored_reading(found)
    elif setting is None:
        raise InputError(
            f"{file_name(table)}: no side file says how it was released; pass what `release` gave back, or name its "
            f"side file by {option('meta')} or its policy by {option('policy')}"
        )
    alphabet = setting.model.alphabet.with_policy("error")
    try:
        events = read_events(
            table,
            reading.but(**columns),
            value_type_of(alphabet),
            clock=setting.timed,
            holes="empty" if setting.withhold else "none",
            beside=(EPSILON, EVENT, BATCH, PATH),
        )
    except DataError as error:
        problem = str(error).rpartition("; ")[0]  # what else to do is for who has raw rows
        raise DataError(f"{problem}; pass the file as `release` wrote it, with all of its columns") from None
    codes = events.codes_or_withheld(alphabet) if setting.withhold else events.codes(alphabet, OTHER_RELEASE)
    if not setting.in_batches and {BATCH, PATH} <= set(events.frame.columns):
        raise InputError(f"{events.name} was released in batches; pass the policy of the release")
    return Received(events, setting, found, codes)


def _setting(meta: Meta, given: Terms | None, model: MarkovModel) -> Terms:
    """The setting of a side file, which a policy that is given must agree with."""
    if meta.get("model") != model.fingerprint:
        raise ModelError(OTHER_MODEL)
    if meta.get("models", 1) > 1:
        raise DataError(ADOPTED)
    if given is None:
        return saved_terms(meta.get("setting", {}), model)
    for terms in (given, given.by_symbol):  # the second as a state file without a key releases
        if meta.get("setting") == terms.to_dict():
            return terms
    raise InputError("the side file gives another setting than the policy; leave the policy out")


@dataclass(frozen=True, eq=False)
class Paired:
    """Released rows and the raw events that they were made from. Users are numbered as the released file has them.

    `truth`, `times`: of each user all raw events, in order; negative codes are outside the alphabet. `users`, `events`:
    of each released row its user, and which of that user's events it was.
    """

    truth: list[Ints]
    times: list[Floats] | None
    users: Ints
    events: Ints

    @property
    def codes(self) -> Ints:
        """The true code of each released row."""
        begins = np.cumsum([0, *(own.size for own in self.truth[:-1])])
        return np.concatenate(self.truth)[begins[self.users] + self.events]

    def aligned(self, codes: Ints) -> list[Ints]:
        """What was released at each event of each user, from the codes of the rows; NOTHING where nothing was."""
        found = [np.full(own.size, NOTHING, np.int64) for own in self.truth]
        order = np.argsort(self.users, kind="stable")
        for user, rows in enumerate(np.split(order, np.cumsum(np.bincount(self.users))[:-1])):
            found[user][self.events[rows]] = codes[rows]
        return found


def paired(released: Events, raw: Events, codes: Ints, batch: int = 1) -> Paired:
    """The rows of both, person by person and event by event; `codes` are of the raw events, `batch` rows are together.

    Released rows have the columns `event` and `batch` beside them.
    """
    (names, ids), (owners, raw_ids) = released.people, raw.people
    place = {str(name): k for k, name in enumerate(names)}
    apart = len(place.keys() ^ {str(name) for name in owners})
    if apart:
        raise DataError(
            f"{released.name} and {raw.name} must hold the same people; {apart} are in one of them only, name the raw "
            "file that the release was made from"
        )
    raw_ids = np.array([place[str(name)] for name in owners], np.int64)[raw_ids]
    sizes = np.bincount(raw_ids)
    name = BATCH if batch > 1 else EVENT
    column = released.frame[name].cast(pl.Int64, strict=False) if name in released.frame.columns else None
    if column is None or column.null_count():  # the release does not say which event of its user each row is
        events = ranks(ids)
        other = int((np.bincount(ids) != sizes).sum())
    else:
        number = np.asarray(column.to_numpy(), np.int64)
        events = number * batch + ranks(ids, number) if batch > 1 else number
        other = int(np.unique(ids[events >= sizes[ids]]).size)
    if other:
        raise DataError(
            f"{released.name} and {raw.name} must hold the same events of the same users, and {other} have others; "
            "name the raw file that was released, and keep all columns of the release"
        )
    order, cuts, times = np.argsort(raw_ids, kind="stable"), np.cumsum(sizes)[:-1], None
    with suppress(InputError):  # the order is no time
        times = np.split(raw.seconds()[order], cuts)
    return Paired(np.split(codes[order], cuts), times, ids, events)
