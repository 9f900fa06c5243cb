"""The commands as functions: frames of polars, pandas and Arrow (or paths) in, the same kind out.

`fit`, `release`, `audit`, `decode` and `stats` call the functions behind the commands of these names (`sv.attack` does
the same in `seqveil.evaluate.attack.files`). Rows stay in memory: nothing is written to a disk but the `out` of
`release`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from seqveil.core import html
from seqveil.core.alphabet import OnMissing, OnUnknown
from seqveil.core.distortion import Distortion
from seqveil.core.errors import InputError, SeqveilError
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret
from seqveil.engine.policy import Policy, policy_of
from seqveil.engine.terms import Terms
from seqveil.interfaces.commands.options import ColumnOptions, fit_words
from seqveil.interfaces.files.audit import audit_file
from seqveil.interfaces.files.columns import Columns
from seqveil.interfaces.files.estimates import Counted, Decoded, decode_file, summarise_file
from seqveil.interfaces.files.fit import fit_file
from seqveil.interfaces.files.in_memory import HeldRelease, as_kind, as_polars, release_rows
from seqveil.interfaces.files.ordering import goes_back, in_order
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.release import ReleasedFile, release_file
from seqveil.interfaces.files.rows import columns_for, symbol_columns
from seqveil.interfaces.files.writing import Held, Meta, load_release_meta, stored_columns
from seqveil.receiver.audit import Report

if TYPE_CHECKING:
    import polars as pl

Lines = list[tuple[str, str]]


class ColumnWords(TypedDict, total=False):
    """What the columns are called; by default user, value, and seq or a name of times where there is one."""

    user: str | None  # or several that name a person together: "firm,badge"
    value: str | None  # "x,y" for places
    time: str | None
    latitude: str | None  # of places on the map, with longitude; columns that are called so need no name
    longitude: str | None


class FitKeywords(ColumnWords, total=False):
    """What a fit takes, as the options of `seqveil fit` spell it, and what the columns are called."""

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
        return html.page(type(self).__name__, self.lines(), *self._tables())


@dataclass(frozen=True, eq=False, repr=False)
class ReleasedRows(_Told):
    """Released rows, and all that is public about them.

    `frame` has a row for each release, or is the path of the file that has them: by time or number where there is one,
    then by user, else user by user. Its order and its types come from public things, so nothing of the rows that came
    is in it but users and order. `account` is what was spent and leaked; `meta` is what stands in the side file of a
    released file, and what a receiver needs beside the frame and the model.
    """

    frame: Any
    account: ReleasedFile
    meta: Meta = field(default_factory=dict)

    def lines(self) -> Lines:
        """The account, line by line."""
        from seqveil.interfaces.commands.release import disclosed

        return disclosed(self.account)


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
        from seqveil.interfaces.commands.receive import audit_disclosed

        return audit_disclosed(self.report, self.model)


@dataclass(frozen=True, eq=False, repr=False)
class Estimates(_Told):
    """The best estimate of each row's true value with its probability (`frame`), and how good they are (`decoded`)."""

    frame: Any
    decoded: Decoded

    def lines(self) -> Lines:
        """How much was decoded, line by line."""
        from seqveil.interfaces.commands.receive import decode_disclosed

        return decode_disclosed(self.decoded)


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(_Told):
    """How often each value occurred, with intervals, and how long it lasted (`frame`); all else in `counted`."""

    frame: Any
    counted: Counted
    table: pl.DataFrame

    def lines(self) -> Lines:
        """What the figures rest on, line by line."""
        from seqveil.interfaces.commands.receive import stats_disclosed

        return stats_disclosed(self.counted)

    def _tables(self) -> list[str]:
        return [html.records("values", self.table.columns, self.table.rows())]


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
    columns = {name: words.pop(name) for name in _COLUMNS if name in words}  # type: ignore[misc]
    table, disclosed = table_of(data), fit_words(**_as_options(columns), **words)
    if sort is None:
        settled = disclosed.settled(table)
        sort = goes_back(table, settled.columns, disclosed.format)
    return fit_file(table, disclosed, sort=sort).model


def release(
    data: Any,
    model: MarkovModel | FilePath,
    policy: Policy | FilePath | None = None,
    *,
    out: FilePath | None = None,
    seed: int | None = None,
    sort: bool | None = None,
    missing: OnMissing | None = None,
    on_unknown: OnUnknown | None = None,
    format: str | None = None,
    **words: Any,
) -> ReleasedRows:
    """Release every row of a frame or a file, as `seqveil release` does, into a frame of the kind that came.

    *Guarantee*: that of `seqveil release`: each user's stream is released as by a `Session` of its own, with the same
    draws from the same seed. Columns other than user, order and value are dropped. Where an error comes after draws
    were made, what was drawn is in its `made`.

    Parameters:
        data: a polars, pandas or Arrow frame, or a path.
        model: the model, or the path of one.
        policy: what is promised, or the path of it.
        out: where to write the released rows of a file, with its side file beside it.
        seed: for research; it marks the release as not private.
        sort: whether to release rows in the order of their times; left out, that is done where they go back in time.
        missing: what to do with rows without a value, where that is not what the model says.
        on_unknown: what to do with values outside the alphabet, where that is not what the model says.
        format: of a file, where its name does not say it.
        words: the columns (`ColumnWords`), and the fields of a `Policy` in place of one.
    """
    columns = {name: words.pop(name) for name in _COLUMNS if name in words}
    chain, table, names = chain_of(model), table_of(data), columns_of(columns)
    terms = policy_of(loaded_policy(policy), words).on(chain)
    how: dict[str, Any] = {"seed": seed, "missing": missing, "on_unknown": on_unknown, "format": format}
    if out is not None:
        if not isinstance(table, str | os.PathLike):
            raise InputError("expected the path of a file where out= names one; got a frame, so save what comes back")
        sorted_ = goes_back(table, columns_for(terms, names), format) if sort is None else sort
        account = release_file(table, terms, out, columns=columns_for(terms, names), sort=sorted_, **how)
        return ReleasedRows(out, account, load_release_meta(out) or {})
    try:
        held = release_rows(table, terms, columns=names, sort=sort, **how)
    except SeqveilError as error:
        if isinstance(error.made, HeldRelease):
            error.made = ReleasedRows(as_kind(data, error.made.frame), error.made.account, error.made.meta)
        raise
    return ReleasedRows(as_kind(data, held.frame), held.account, held.meta)


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
    def of(cls, released: Any, model: MarkovModel, policy: Any, words: Mapping[str, Any], meta: Any) -> _Received:
        """Of what `release` gave back, a frame, or a path; the policy only where no side file has it."""
        if isinstance(released, ReleasedRows):
            released, meta = released.frame, released.meta if meta is None else meta
        named = columns_of(words) if words else None
        given = loaded_policy(policy)
        terms = None if given is None else policy_of(given, {}).on(model)
        table = whole = table_of(released)
        found = load_release_meta(table, meta)
        read = named or stored_columns(found)
        if terms is not None:
            read = columns_for(terms, read)
        places = None
        if not isinstance(table, str | os.PathLike) and goes_back(table, read):
            places = in_order(table, read)
            table = table[places]
        observers = () if terms is None else terms.observers
        where = {"meta": found if meta is not None else None, "columns": named, "observers": observers}
        return cls(released, whole, table, places, terms, read, where)


def audit(
    released: Any,
    model: MarkovModel | FilePath,
    *,
    secrets: Secret | Sequence[Secret] = (),
    policy: Policy | FilePath | None = None,
    meta: Any = None,
    delta: float = 1e-6,
    **columns: Unpack[ColumnWords],
) -> Audited:
    """Check what releases leaked, exactly, as `seqveil audit` does.

    Parameters:
        released: what `release` gave back, or a frame or path of released rows.
        model: the model that it was released with, or the path of one.
        meta: `ReleasedRows.meta`, or the path of a side file, where `released` has none with it.
        secrets: what to ask about besides; it is measured, not promised.
        policy: that of the release, or the path of it, where no side file has it.
        delta: failure probability of the (ε, δ) total.
        columns: what they are called, where no side file says it.
    """
    chain = chain_of(model)
    read = _Received.of(released, chain, policy, columns, meta)
    asked = [secrets] if isinstance(secrets, Secret) else list(secrets)
    report = audit_file(read.table, chain, read.setting, delta=delta, secrets=asked, **read.where)
    return Audited(report, chain)


def decode(
    released: Any,
    model: MarkovModel | FilePath,
    *,
    policy: Policy | FilePath | None = None,
    meta: Any = None,
    online: bool = False,
    loss: str | Distortion | None = None,
    truth: Any = None,
    **columns: Unpack[ColumnWords],
) -> Estimates:
    """The best estimate of every row's true value, as `seqveil decode` gives it, in a frame of the kind that came.

    Parameters:
        released: what `release` gave back, or a frame or path of released rows.
        model: the model that it was released with, or the path of one.
        meta: `ReleasedRows.meta`, or the path of a side file, where `released` has none with it.
        online: use the releases up to each row only.
        loss: what the estimate minimises; by default the distortion of the release.
        truth: the raw rows, to say how many estimates are right.
        policy: that of the release, or the path of it, where no side file has it.
        columns: what they are called, where no side file says it.
    """
    chain = chain_of(model)
    read = _Received.of(released, chain, policy, columns, meta)
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
    policy: Policy | FilePath | None = None,
    meta: Any = None,
    confidence: float = 0.95,
    per: int | None = None,
    top: int = 5,
    method: str = "auto",
    **columns: Unpack[ColumnWords],
) -> Statistics:
    """How often values occurred and how long they lasted, with intervals, as `seqveil stats` estimates it.

    Parameters:
        released: what `release` gave back, or a frame or path of released rows.
        model: the model that it was released with, or the path of one.
        meta: `ReleasedRows.meta`, or the path of a side file, where `released` has none with it.
        confidence, per, top, method: as in `seqveil stats`.
        policy: that of the release, or the path of it, where no side file has it.
        columns: what they are called, where no side file says it.
    """
    import polars as pl

    chain = chain_of(model)
    read = _Received.of(released, chain, policy, columns, meta)
    wanted: dict[str, Any] = {"confidence": confidence, "window": per, "top": top, "method": method}
    counted = summarise_file(read.table, chain, read.setting, **wanted, **read.where)
    found = counted.summary
    figures = {"events": found.histogram.value, "low": found.histogram.low, "high": found.histogram.high}
    figures |= {"mean_run": found.dwell.value}
    values = symbol_columns(chain.alphabet, read.columns.value_columns)
    table = pl.DataFrame([*values, *(pl.Series(name, numbers) for name, numbers in figures.items())])
    return Statistics(as_kind(read.data, table), counted, table)


def table_of(data: Any) -> FilePath | pl.DataFrame:
    """A frame as polars has it, or a path; standard input can be read once only, and so is for the commands."""
    if isinstance(data, str) and data == "-":
        raise InputError("expected a frame, or the path of a file; standard input is for the commands")
    return as_polars(data)


_COLUMNS = tuple(ColumnWords.__annotations__)


def columns_of(words: Mapping[str, Any]) -> Columns:
    """The columns that these words name."""
    strange = next((name for name in words if name not in _COLUMNS), None)
    if strange is not None:
        raise InputError(f"{strange!r} is not known here; columns are named {', '.join(_COLUMNS)}")
    return ColumnOptions(**_as_options(words)).columns


def _as_options(words: Mapping[str, Any]) -> dict[str, Any]:
    """The columns as the options of the command line are called."""
    return {f"{name}_column" if name in ("user", "value", "time") else name: value for name, value in words.items()}


def loaded_policy(policy: Any) -> Any:
    """A policy, or anything else, as it is; from a file where a path is given."""
    is_path = isinstance(policy, os.PathLike) or (isinstance(policy, str) and policy.endswith(".toml"))
    return Policy.load(policy) if is_path else policy


def chain_of(model: Any) -> MarkovModel:
    """A model, as it is or from a file."""
    if isinstance(model, MarkovModel):
        return model
    if isinstance(model, str | os.PathLike):
        return MarkovModel.load(model)
    raise InputError(f"expected a model, as fit gives it, or the path of one; got {type(model).__name__}")


__all__ = ["Audited", "Estimates", "ReleasedRows", "Statistics", "audit", "decode", "fit", "release", "stats"]
