"""Released rows as their receiver sees them: the setting, and every release in order, those left out included."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from seqveil.core.errors import DataError, InputError, ModelError, option
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.reading import Reading
from seqveil.engine.batches import decode_path, encode_path
from seqveil.engine.policy import policy_of, saved_terms
from seqveil.engine.stream import NOTHING
from seqveil.engine.terms import OTHER_MODEL, Terms
from seqveil.interfaces.files import writing
from seqveil.interfaces.files.events import OTHER_RELEASE, Events, read_events, value_type_of
from seqveil.interfaces.files.frames import as_polars
from seqveil.interfaces.files.release import ReleasedRows, gaps, loaded_policy
from seqveil.interfaces.files.table import FilePath, file_name
from seqveil.interfaces.files.writing import BATCH, EPSILON, EVENT, PATH, SAME_PATH, Meta

if TYPE_CHECKING:
    pass

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

    @cached_property
    def epsilons(self) -> Floats | None:
        """The ε of each row, where the file has them."""
        return self._numbers(EPSILON)

    def _numbers(self, name: str) -> Floats | None:
        import polars as pl

        if name not in self.events.frame.columns:
            return None
        column = self.events.frame[name].cast(pl.Float64, strict=False)
        wrong = column.is_null() | ~column.is_finite()
        if wrong.any():
            row = self.events.row(int(wrong.arg_max() or 0))
            raise DataError(f"{self.events.name}: row {row}: column {name!r} must hold finite numbers; mend the row")
        return np.asarray(column.to_numpy(), np.float64)

    @cached_property
    def times(self) -> Floats | None:
        """When each row was, where the setting needs it."""
        return self.events.seconds() if self.setting.timed else None

    @contextmanager
    def naming(self, where: str = "") -> Iterator[None]:
        """Say in a refusal which file it is about, and where in it."""
        try:
            yield
        except DataError as error:
            raise DataError(f"{self.events.name}: {where}{error}") from None

    def digest(self, used: Floats | None = None) -> str:
        """Of the rows as the file has them; where it lacks ε, with what was `used`."""
        claimed = self.epsilons if self.epsilons is not None else used
        if claimed is None:
            claimed = np.full(self.codes.size, self.setting.epsilon)
        batches = [self.events.frame[name] for name in (BATCH, PATH) if self.setting.in_batches]
        return writing.released_digest(self.events.users, self.codes, claimed, *batches)

    def unchanged(self, used: Floats | None = None) -> bool | None:
        """Whether the rows are those that the side file is about; None where it does not say."""
        claimed = None if self.meta is None else self.meta.get("digest")
        return None if claimed is None else claimed == self.digest(used)

    @property
    def symbols(self) -> tuple[Ints, Ints, Floats | None]:
        """Users as numbers, codes and times of all events that were released one by one; of batches none."""
        none = np.zeros(0, np.int64)
        return (none, none, None) if self.setting.in_batches else (self.log.who, self.log.codes, self.log.times)

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
        order = np.argsort(who, kind="stable")
        first = np.diff(who[order], prepend=-1) != 0
        before = np.where(first, -1.0, np.roll(counted[order], 1))
        skipped = np.empty(counted.size)
        skipped[order] = counted[order] - before - 1
        wrong = ~((skipped >= 0) & (skipped <= MOST_LEFT_OUT) & (skipped == np.floor(skipped)))
        if wrong.any():
            row = self.events.row(int(wrong.argmax()))
            raise DataError(f"{self.events.name}: row {row}: column {EVENT!r} does not count its user's events")
        missed = skipped.astype(np.int64)
        owner = np.repeat(np.arange(counted.size), missed + 1)
        at = np.cumsum(missed + 1) - 1
        codes, rows, epsilons = np.full(owner.size, NOTHING), np.full(owner.size, -1), np.full(owner.size, np.nan)
        codes[at], rows[at] = self.codes, np.arange(counted.size)
        epsilons[at] = self.epsilons if self.epsilons is not None else np.nan
        times = None
        if self.times is not None:
            # an event without a release came after its user's last one: at that time the budget was gone already
            last = np.empty(counted.size)
            last[order] = np.where(first, -np.inf, np.roll(self.times[order], 1))
            times = last[owner]
            times[at] = self.times
        users = self.events.users.gather(owner).to_list()
        return Log(users, who[owner], codes, times, epsilons, rows)

    @cached_property
    def batches(self) -> list[ReleasedBatch]:
        """The batches of a release, each user's in order; refuses what `release` does not write."""
        import polars as pl

        frame = self.events.frame
        if self._numbers(BATCH) is None or self.epsilons is None or PATH not in frame.columns:
            raise DataError(
                f"{self.events.name}: a release in batches has the columns {EPSILON!r}, {BATCH!r} and {PATH!r}; keep "
                "all columns of the release"
            )
        numbered = frame.select("user", pl.Series(BATCH, self._numbers(BATCH)), pl.col(PATH).cast(pl.String))
        numbered = numbered.with_row_index("at").with_columns(pl.col("at").cast(pl.Int64))
        parts = numbered.group_by("user", BATCH, maintain_order=True).agg("at", pl.col(PATH))
        found: list[ReleasedBatch] = []
        following: dict[Any, tuple[int, float | None, bool]] = {}
        for user, number, places, paths in parts.iter_rows():
            upcoming, before, short = following.get(user, (0, None, False))
            rows, row = np.array(places, np.int64), self.events.row(places[0])
            gap = number - upcoming
            if short or any(path != SAME_PATH for path in paths[1:]) or len(paths) > self.setting.batch:
                self._refuse(row, f"no batch of its user has room for it, with {self.setting.batch} rows to a batch")
            if not (0 <= gap <= MOST_LEFT_OUT and gap == int(gap)) or (gap and not gaps(self.setting)):
                self._refuse(row, f"column {BATCH!r} does not count its user's batches")
            none = np.full(self.setting.batch, -1, np.int64)
            found += [ReleasedBatch(user, None, none, before)] * int(gap)
            time = None if self.times is None else float(self.times[rows[-1]])
            found.append(ReleasedBatch(user, self._path(paths[0], row), rows, time))
            following[user] = (int(number) + 1, time, len(paths) < self.setting.batch)
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
    observers: Sequence[MarkovModel] = (),
    **columns: str | None,
) -> Received:
    """What `release` gave back, a frame or a path of released rows, with the setting that the side file gives.

    `policy` is for rows that have no side file. A release that was made for further `observers` needs their models too.
    """
    if isinstance(released, ReleasedRows):
        released, meta = released.frame, released.meta if meta is None else meta
    table = as_polars(released)
    path = table if isinstance(table, str | os.PathLike) else None
    found, given = writing.load_meta(table, meta), loaded_policy(policy)
    setting = None if given is None else policy_of(given, {}).on(model)
    observers = [*observers, *([] if setting is None else setting.observers)]
    if found is not None:
        if found.get("model") != model.fingerprint:
            raise ModelError(OTHER_MODEL)
        if found.get("models", 1) > 1:
            raise DataError(ADOPTED)
        if setting is not None and found.get("setting") != setting.to_dict():
            raise InputError("the side file gives another setting than the policy; leave the policy out")
        setting = setting or saved_terms(found.get("setting", {}), model, observers)
    elif setting is None:
        _refuse_unknown(path)
    assert setting is not None
    if {each.fingerprint for each in observers} - {each.fingerprint for each in setting.observers}:
        raise InputError("the release was not made for this observer; leave it out")
    stored = writing.stored_reading(found) if found is not None else model.reading or Reading()
    return received_events(table, stored.but(**columns), setting, found)


def _refuse_unknown(path: FilePath | None) -> NoReturn:
    if path is None:
        raise InputError("the frame says nothing of how it was released; pass what `release` gave back, or meta=")
    if not Path(path).exists():
        raise DataError(f"{file_name(path)}: no such file; check the path")
    raise InputError(
        f"{file_name(path)} has no side file; expected a file of `seqveil release` with its .meta.json beside it: name "
        f"it by {option('meta')}, or the policy of the release by {option('policy')}"
    )


def received_events(table: Any, reading: Reading, setting: Terms, meta: Meta | None = None) -> Received:
    """Released rows, read with a setting."""
    alphabet = setting.model.alphabet.with_policy("error")
    events = read_events(
        table,
        reading,
        value_type_of(alphabet),
        clock=setting.timed,
        holes="empty" if setting.withhold else "none",
        beside=(EPSILON, EVENT, BATCH, PATH),
    )
    codes = events.codes_or_withheld(alphabet) if setting.withhold else events.codes(alphabet, OTHER_RELEASE)
    if not setting.in_batches and {BATCH, PATH} <= set(events.frame.columns):
        raise InputError(f"{events.name} was released in batches; pass the policy of the release")
    return Received(events, setting, meta, codes)
