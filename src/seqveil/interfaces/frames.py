"""The commands as functions: frames of polars, pandas and Arrow (or paths) in, the same kind out.

`fit`, `release`, `audit`, `decode` and `stats` take the words of the command line, with underscores, and call the
functions behind its commands (`sv.attack` does the same in `seqveil.evaluate.attack_files`). Rows stay in memory:
nothing is written to a disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from seqveil.core import html
from seqveil.core.alphabet import OnMissing, OnUnknown
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret
from seqveil.engine.stream import Terms
from seqveil.interfaces.commands.options import ColumnOptions, SettingOptions, fit_words
from seqveil.interfaces.files.audit import audit_file
from seqveil.interfaces.files.columns import Columns
from seqveil.interfaces.files.estimates import Counted, Decoded, decode_file, summarise_file
from seqveil.interfaces.files.fit import fit_file
from seqveil.interfaces.files.in_memory import HeldRelease, as_kind, as_polars, release_rows
from seqveil.interfaces.files.ordering import goes_back, in_order
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.release import Released
from seqveil.interfaces.files.rows import columns_for, symbol_columns
from seqveil.interfaces.files.writing import Held, Meta, load_release_meta, stored_columns
from seqveil.receiver.audit import Report

if TYPE_CHECKING:
    import polars as pl

Lines = list[tuple[str, str]]


class ColumnWords(TypedDict, total=False):
    """What the columns are called; by default user, value, and seq or a name of times where there is one."""

    user_column: str | None  # or several that name a person together: "firm,badge"
    value_column: str | None  # "x,y" for places
    time_column: str | None
    latitude: str | None  # of places on the map, with longitude; columns that are called so need no name
    longitude: str | None


class FitKeywords(ColumnWords, total=False):
    """What a fit is told, as the options of `seqveil fit` spell it, and what the columns are called."""

    order: int
    smoothing: float
    prior: str
    context: str | None
    bins: float | str | None
    levels: int | None
    grid: str | None
    cell_metres: float | None
    other: int | None
    on_unknown: OnUnknown | None
    alphabet: Any  # the values there are: a list, an `Alphabet`, or a file of them
    range: str | None  # "LO,HI", "X0,X1,Y0,Y1" or "SOUTH,NORTH,WEST,EAST", where it is not taken from the data
    private: float | None  # fit with differential privacy at this ε for each user
    contribution: int | None  # with `private`, and so is the seed
    seed: int | None
    missing: OnMissing | None
    every_seconds: float | None
    slot: str | None
    pad: bool
    empty: str | None
    utc_offset: float | None  # hours by which the clock of `during` and of days is ahead of UTC
    format: str | None


class SettingWords(ColumnWords, total=False):
    """How a release is made, as the options of `seqveil release` spell it, and what its columns are called."""

    epsilon: float | None
    mechanism: str | None
    batch: int | None
    distortion: str | Distortion | None
    every: int | None
    budget: float | None
    window: float | None
    window_releases: int | None
    window_seconds: float | None
    ldp_budget: float | None
    when_spent: str | None
    secret: str | Sequence[str] | None  # in words: "ever:health"
    secret_epsilon: float | None
    secret_window: str | int | None
    secret_sides: str | None
    secrets: Secret | Sequence[Secret] | FilePath | None  # as they are, or a TOML file of them
    secret_withhold: bool | None
    observer: Any  # a model, the path of one, or several of either


@dataclass(frozen=True)
class _Words(SettingOptions):
    """The options of a setting, with secrets and models of observers as objects beside those in files."""

    secret_objects: tuple[Secret, ...] | None = None
    models: tuple[MarkovModel, ...] = ()

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> _Words:
        """What was given, each word checked to be one."""
        known = {each.name for each in fields(SettingOptions)}
        strange = next((name for name in words if name not in known), None)
        if strange is not None:
            raise InputError(f"{strange!r} is no word of a release; expected one of {', '.join(sorted(known))}")
        given = {name: value for name, value in words.items() if value is not None}
        if isinstance(given.get("secret"), str):
            given["secret"] = [given["secret"]]
        if "secret_window" in given:
            given["secret_window"] = str(given["secret_window"])
        declared = given.pop("secrets", None)
        if isinstance(declared, str | os.PathLike):
            from pathlib import Path

            given["secrets"] = Path(declared)
        elif declared is not None:
            given["secret_objects"] = (declared,) if isinstance(declared, Secret) else tuple(declared)
            if not all(isinstance(each, Secret) for each in given["secret_objects"]):
                raise InputError(
                    'expected secrets as sv.secrets makes them, or a TOML file; words go into secret="..."'
                )
        if "observer" in given:
            found = given.pop("observer")
            several = found if isinstance(found, list | tuple) else [found]
            given["models"] = tuple(chain_of(each) for each in several)
        return cls(**given)

    def declared(self) -> list[Secret]:
        """All secrets, in words, in files and as objects."""
        return [*super().declared(), *(self.secret_objects or ())]

    def observers(self) -> tuple[MarkovModel, ...]:
        """The models of further observers."""
        return self.models

    def refuse_idle(self) -> None:
        """Refuse what says how a secret is kept where there is none."""
        super().refuse_idle()
        if self.models:
            raise InputError("observer= says whom a secret is kept from, and there is none; add secrets=")

    @property
    def given(self) -> bool:
        """Whether any word was given; models of observers alone are no setting."""
        return _Words(**(vars(self) | {"models": ()})) != _Words()

    def setting(self, model: MarkovModel) -> Terms:
        """The setting that the words spell out; without a bound, and without secrets, there is none."""
        secrets = bool(self.secret or self.secrets or self.secret_objects)
        if self.epsilon is None and not secrets:
            raise InputError("expected epsilon=E, the bound for one release, or secrets= to keep; got neither")
        if self.secret_objects and self.mechanism is None:
            return _Words(**(vars(self) | {"mechanism": "guarded"})).setting(model)
        return super().setting(model)


class _Told:
    """Shows itself as the lines that the command prints: as text, and as a table in a notebook."""

    def lines(self) -> Lines:
        """What there is to say, line by line."""
        raise NotImplementedError

    def _tables(self) -> list[str]:
        return []

    def __str__(self) -> str:
        return "\n".join(f"{name:<10} {text}" for name, text in self.lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.told(type(self).__name__, self.lines(), *self._tables())


@dataclass(frozen=True, eq=False, repr=False)
class Release(_Told):
    """Released rows, and all that is public about them.

    `frame` has a row for each release: by time or number where there is one, then by user, else user by user. Its order
    and its types come from public things, so nothing of the rows that came is in it but users and order. `account` is
    what was spent and leaked; `meta` is what stands in the side file of
    a released file, and what a receiver needs beside the frame and the model.
    """

    frame: Any
    account: Released
    meta: Meta = field(default_factory=dict)

    def lines(self) -> Lines:
        """The account, line by line."""
        from seqveil.interfaces.commands.release import told

        return told(self.account)


@dataclass(frozen=True, eq=False, repr=False)
class Audited(_Told):
    """What an audit found."""

    report: Report
    model: MarkovModel

    @property
    def passed(self) -> bool:
        """Whether nothing was found that breaks a promise."""
        return self.report.passed

    def lines(self) -> Lines:
        """What was found, line by line."""
        from seqveil.interfaces.commands.receive import audit_told

        return audit_told(self.report, self.model)


@dataclass(frozen=True, eq=False, repr=False)
class Estimates(_Told):
    """The best estimate of each row's true value with its probability (`frame`), and how good they are (`decoded`)."""

    frame: Any
    decoded: Decoded

    def lines(self) -> Lines:
        """How much was decoded, line by line."""
        from seqveil.interfaces.commands.receive import decode_told

        return decode_told(self.decoded)


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(_Told):
    """How often each value occurred, with intervals, and how long it lasted (`frame`); all else in `counted`."""

    frame: Any
    counted: Counted
    table: pl.DataFrame

    def lines(self) -> Lines:
        """What the figures rest on, line by line."""
        from seqveil.interfaces.commands.receive import stats_told

        return stats_told(self.counted)

    def _tables(self) -> list[str]:
        rows = [
            [str(cell) if not isinstance(cell, float) else html.number(cell) for cell in row]
            for row in self.table.rows()
        ]
        return [html.table("values", self.table.columns, rows[: html.MANY])]


def fit(data: Any, *, sort: bool | None = None, **words: Unpack[FitKeywords]) -> MarkovModel:
    """Fit a model to a frame or a file, as `seqveil fit` does. A plain fit is not itself private.

    Parameters:
        data: a polars, pandas or Arrow frame, or a path.
        sort: whether to put rows in order first; left out, that is done where they go back in time.
        words: the options of `seqveil fit`, all of them in `FitKeywords`, and the columns.

    >>> import polars as pl
    >>> fit(pl.DataFrame({"user": ["ann"] * 4, "value": ["home", "home", "work", "home"]})).n
    2
    """
    table, told = table_of(data), fit_words(**words)
    if sort is None:
        settled = told.settled(table)
        sort = goes_back(table, settled.columns, told.format)
    return fit_file(table, told, sort=sort).model


def release(
    data: Any,
    model: MarkovModel | FilePath,
    *,
    seed: int | None = None,
    sort: bool | None = None,
    missing: OnMissing | None = None,
    on_unknown: OnUnknown | None = None,
    format: str | None = None,
    **words: Unpack[SettingWords],
) -> Release:
    """Release every row of a frame or a file, as `seqveil release` does, into a frame of the kind that came.

    *Guarantee*: that of `seqveil release`: each user's stream is released as by a `Session` of its own, with the same
    draws from the same seed. Columns other than user, order and value are dropped. Where an error comes after draws
    were made, what was drawn is in its `made`.

    Parameters:
        data: a polars, pandas or Arrow frame, or a path.
        model: the model, or the path of one.
        seed: for research; it marks the release as not private.
        sort: whether to release rows in the order of their times; left out, that is done where they go back in time.
        missing: what to do with rows without a value, where that is not what the model says.
        on_unknown: what to do with values outside the alphabet, where that is not what the model says.
        words: epsilon, mechanism, batch, budget, secrets and all others of `SettingWords`, and the columns. There is no
            default for the bound: epsilon or secrets must be given.
    """
    options, names = split_words(words)
    chain, table = chain_of(model), table_of(data)
    setting = options.setting(chain)
    how: dict[str, Any] = {"seed": seed, "sort": sort, "missing": missing, "on_unknown": on_unknown, "format": format}
    try:
        held = release_rows(table, setting, columns=names, **how)
    except SeqveilError as error:
        if isinstance(error.made, HeldRelease):
            error.made = Release(as_kind(data, error.made.frame), error.made.account, error.made.meta)
        raise
    return Release(as_kind(data, held.frame), held.account, held.meta)


@dataclass(frozen=True)
class _Received:
    """A release to read: rows in the order of their release, and where each one stood in the frame that came."""

    data: Any
    whole: FilePath | pl.DataFrame  # the same as it came
    table: FilePath | pl.DataFrame
    places: Ints | None
    setting: Terms | None
    columns: Columns
    where: dict[str, Any]

    @classmethod
    def of(cls, released: Any, model: MarkovModel, words: Mapping[str, Any], meta: Any, asks: bool) -> _Received:
        """Of what `release` gave back, a frame, or a path; with `asks`, secrets are what is asked about."""
        if isinstance(released, Release):
            released, meta = released.frame, released.meta if meta is None else meta
        options, names = split_words(words)
        named = names if any(name in words for name in ColumnWords.__annotations__) else None
        chosen = options if options.mechanism == "guarded" or not asks else options.without_secrets
        setting = chosen.setting_if_given(model)
        table = whole = table_of(released)
        found = load_release_meta(table, meta)
        read = named or stored_columns(found)
        if setting is not None:
            read = columns_for(setting, read)
        places = None
        if not isinstance(table, str | os.PathLike) and goes_back(table, read):
            places = in_order(table, read)
            table = table[places]
        where = {"meta": found if meta is not None else None, "columns": named, "observers": options.observers()}
        return cls(released, whole, table, places, setting, read, where)


def audit(
    released: Any,
    model: MarkovModel | FilePath,
    *,
    meta: Any = None,
    delta: float = 1e-6,
    **words: Unpack[SettingWords],
) -> Audited:
    """Check what releases leaked, exactly, as `seqveil audit` does.

    Parameters:
        released: what `release` gave back, or a frame or path of released rows.
        model: the model that it was released with, or the path of one.
        meta: `Release.meta`, or the path of a side file, where `released` has none with it.
        delta: failure probability of the (ε, δ) total.
        words: how the release was made, where no side file says it; `secret` or `secrets` to ask about.
    """
    chain = chain_of(model)
    read = _Received.of(released, chain, words, meta, asks=True)
    options, _ = split_words(words)
    secrets = options.declared()
    report = audit_file(read.table, chain, read.setting, delta=delta, secrets=secrets, **read.where)
    return Audited(report, chain)


def decode(
    released: Any,
    model: MarkovModel | FilePath,
    *,
    meta: Any = None,
    online: bool = False,
    loss: str | Distortion | None = None,
    truth: Any = None,
    **words: Unpack[SettingWords],
) -> Estimates:
    """The best estimate of every row's true value, as `seqveil decode` gives it, in a frame of the kind that came.

    Parameters:
        released: what `release` gave back, or a frame or path of released rows.
        model: the model that it was released with, or the path of one.
        meta: `Release.meta`, or the path of a side file, where `released` has none with it.
        online: use the releases up to each row only.
        loss: what the estimate minimises; by default the distortion of the release.
        truth: the raw rows, to say how many estimates are right.
        words: how the release was made, where no side file says it.
    """
    chain = chain_of(model)
    read = _Received.of(released, chain, words, meta, asks=False)
    raw = None
    if truth is not None:
        raw = table_of(truth)
        if not isinstance(raw, str | os.PathLike) and goes_back(raw, read.columns):
            raw = raw[in_order(raw, read.columns)]
    held = Held()
    how: dict[str, Any] = {"online": online, "distortion": loss, "truth": raw}
    decoded = decode_file(read.table, chain, held, read.setting, **how, **read.where)
    made = held.frame if read.places is None else held.frame[np.argsort(read.places, kind="stable")]
    return Estimates(as_kind(read.data, made), decoded)


def stats(
    released: Any,
    model: MarkovModel | FilePath,
    *,
    meta: Any = None,
    confidence: float = 0.95,
    per: int | None = None,
    top: int = 5,
    method: str = "auto",
    **words: Unpack[SettingWords],
) -> Statistics:
    """How often values occurred and how long they lasted, with intervals, as `seqveil stats` estimates it.

    Parameters:
        released: what `release` gave back, or a frame or path of released rows.
        model: the model that it was released with, or the path of one.
        meta: `Release.meta`, or the path of a side file, where `released` has none with it.
        confidence, per, top, method: as in `seqveil stats`.
        words: how the release was made, where no side file says it.
    """
    import polars as pl

    chain = chain_of(model)
    read = _Received.of(released, chain, words, meta, asks=False)
    figures: dict[str, Any] = {"confidence": confidence, "window": per, "top": top, "method": method}
    counted = summarise_file(read.table, chain, read.setting, **figures, **read.where)
    found = counted.summary
    columns = {"events": found.histogram.value, "low": found.histogram.low, "high": found.histogram.high}
    columns |= {"mean_run": found.dwell.value}
    values = symbol_columns(chain.alphabet, read.columns.value_columns)
    table = pl.DataFrame([*values, *(pl.Series(name, numbers) for name, numbers in columns.items())])
    return Statistics(as_kind(read.data, table), counted, table)


def table_of(data: Any) -> FilePath | pl.DataFrame:
    """A frame as polars has it, or a path; standard input can be read once only, and so is for the commands."""
    if isinstance(data, str) and data == "-":
        raise InputError("expected a frame, or the path of a file; standard input is for the commands")
    return as_polars(data)


def split_words(words: Mapping[str, Any]) -> tuple[_Words, Columns]:
    """The words of a setting, and the columns."""
    columns = {name: value for name, value in words.items() if name in ColumnWords.__annotations__}
    rest = {name: value for name, value in words.items() if name not in columns}
    return _Words.of(rest), columns_of(columns)


def columns_of(words: Mapping[str, Any]) -> Columns:
    """The columns that the words of the command line name."""
    strange = next((name for name in words if name not in ColumnWords.__annotations__), None)
    if strange is not None:
        raise InputError(f"{strange!r} is not known here; columns are named {', '.join(ColumnWords.__annotations__)}")
    return ColumnOptions(**words).columns


def chain_of(model: Any) -> MarkovModel:
    """A model, as it is or from a file."""
    if isinstance(model, MarkovModel):
        return model
    if isinstance(model, str | os.PathLike):
        return MarkovModel.load(model)
    raise InputError(f"expected a model, as fit gives it, or the path of one; got {type(model).__name__}")


__all__ = ["Audited", "Estimates", "Release", "Statistics", "audit", "decode", "fit", "release", "stats"]
