"""What a release gives back and writes, whole or not at all: its rows, its account, and the side file.

The side file (`OUT.meta.json`) holds everything public that a receiver needs besides the model.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqveil.core.alphabet import Bins, Symbols
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import Reading, replacing, target_of
from seqveil.core.words import CHECK_ON_PEOPLE, Line, Result, cell_text, count, plain
from seqveil.engine.policy import Terms
from seqveil.engine.secrets import SecretTotal
from seqveil.interfaces.files.events import parted
from seqveil.interfaces.files.table import FilePath, compressed, file_name, format_of
from seqveil.receiver.drift import BY_ONE, NOT_ASKED, Drift, ModelCheck

FORMAT, EDITION = "seqveil-release", 1
EPSILON, EVENT, CONFIDENCE = "epsilon", "event", "confidence"  # the columns that the commands add
BATCH, PATH = "batch", "path"  # those of a release in batches
SAME_PATH = "-"  # on the rows of a batch after its first: an empty field would look like a damaged one
TOO_FEW = 20  # releases that are not worth asking
FEW = ModelCheck.none(f"fewer than {TOO_FEW} releases are too few to speak against it")

Meta = dict[str, Any]
Shown = Callable[[list[Line]], None]


@dataclass(frozen=True)
class ReleasedFile:
    """The account of a release. Public: it holds nothing but counts and what the releases imply.

    A release is one symbol, or one batch.
    """

    events: int
    users: int
    releases: int
    held: int  # releases that are the best guess, which leaks nothing: at ε = 0, or a batch whose ε buys no cell
    stopped: int  # events that the policy "stop" left out
    leakage: float  # of the user with the most: exact, or, for batches, from above
    composition: float  # Σε of the user with the most
    ldp: float  # without any model, of the user with the most
    private: bool
    guarantee: str
    warnings: tuple[str, ...]
    batch: int = 1
    withheld: int = 0  # rows whose value is empty, because saying nothing kept a secret
    earlier: int = 0  # rows that an earlier run with the same state file had released
    erased: int = 0  # rows of people who were erased from the state file, which are left out
    secrets: tuple[SecretTotal, ...] = ()  # what was disclosed about each declared secret, worst over users
    whole_sequence: str = ""  # says in words where nothing is promised about the whole sequence
    made_public: str = ""  # says what a declaration makes public, where that is a place
    model_check: str = ""  # with declared secrets: whether the model was checked on people held out, in words
    words: tuple[str, ...] = ()  # what all that means for a person, a sentence each
    grade: str = ""  # by what a suspicion of 1 % may become (`seqveil.core.words`)
    grade_why: str = ""
    check: ModelCheck = NOT_ASKED  # whether the releases fit the model
    warning: str = ""  # one line with the remedy, where the grade is not green
    read: str = ""  # how the rows were read and ordered, in words


@dataclass(frozen=True, eq=False, repr=False)
class ReleasedRows(Result):
    """Released rows, and all that is public about them.

    `frame` has a row for each release, or is the path of the file that has them. Its order and its types come from
    public things, so nothing of the rows that came is in it but users and order. `account` is what was spent and
    leaked; `meta` stands in the side file, and is what a receiver needs beside the frame and the model.
    """

    frame: Any
    account: ReleasedFile
    meta: Meta = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The account as plain values, with the setting."""
        return dict(plain(asdict(self.account))) | {"setting": plain(self.meta.get("setting"))}

    def lines(self) -> list[Line]:
        """The account, line by line."""
        account = self.account
        said = [("read", account.read), ("released", _how_much(account)), ("earlier", _earlier(account))]
        said += [("guarantee", account.guarantee), *(("means", sentence) for sentence in account.words)]
        said.append(("realised", _realised(account)))
        for each in account.secrets:
            if each.kept is not None:
                said.append(("secret", f"{each.name}: its log odds moved by at most {each.log_odds_worst:.4g}"))
        said += [("public", account.made_public), ("model", account.model_check)]
        said += [] if account.warning else [("grade", f"{account.grade}: {account.grade_why}")]
        said += [("warning", text) for text in account.warnings]
        said.append(("warning", account.warning))
        said.append(("people", CHECK_ON_PEOPLE if account.secrets else ""))
        return [(name, text) for name, text in said if text]


def _how_much(account: ReleasedFile) -> str:
    what = f"{account.releases:,} of"
    if account.batch > 1:
        what = f"{count(account.releases, 'batch', 'batches')} of at most {account.batch} from"
    parts = {
        f"{what} {count(account.events, 'event')}, {count(account.users, 'user')}": True,
        f"{account.held:,} held at the best guess": account.held,
        f"{account.withheld:,} with an empty value, to keep a secret": account.withheld,
        f"{count(account.stopped, 'event')} left out, the budget being spent": account.stopped,
        f"{count(account.erased, 'row')} of people who were erased left out": account.erased,
    }
    return ", ".join(text for text, there in parts.items() if there)


def _earlier(account: ReleasedFile) -> str:
    """What of it an earlier run with the same state file had released."""
    new = account.events - account.earlier - account.erased
    if not account.earlier:
        return ""
    if new > 0:
        return (
            f"{account.earlier:,} of the rows were released by an earlier run and stand as they were; {new:,} are new"
        )
    return (
        "nothing new: all rows were released by an earlier run, and stand as they were; rows are known by their "
        "users and order alone, so give another input a state file of its own, or add its rows to the end of this one"
    )


def _realised(account: ReleasedFile) -> str:
    """What was leaked, and what holds beside it; empty where the guarantee says it all."""
    if not np.isfinite(account.leakage):
        return ""
    total = f"worst total over a stream at most {account.leakage:.4g}"
    if account.whole_sequence:
        return f"{total}, measured, not promised"
    charged = f"composition charges {account.composition:.4g}"
    return f"{total} ({charged}); without any model {cell_text(account.ldp)}{'-LDP' * bool(np.isfinite(account.ldp))}"


def model_check(
    setting: Terms, who: Ints, codes: Ints, times: Floats | None, epsilons: Floats | None = None
) -> ModelCheck:
    """Whether releases fit the model they were made with; people as numbers, NOTHING where nothing was released."""
    if setting.in_batches or not setting.mechanism.sound:
        return BY_ONE
    if codes.size < TOO_FEW:
        return FEW
    drift = Drift(setting, int(who.max()) + 1)
    drift.update(who.astype(np.intp), codes, times, epsilons)
    return ModelCheck.of(drift)


def same_file(a: FilePath, b: FilePath) -> bool:
    """Whether two paths lead to one file, by name, link or hard link. ``-`` is never a file."""
    if "-" in (os.fspath(a), os.fspath(b)):
        return False
    both = os.path.exists(a) and os.path.exists(b)
    return os.path.samefile(a, b) if both else os.path.realpath(a) == os.path.realpath(b)


def taken(path: FilePath) -> bool:
    """Whether something stands under this name already; an empty file is nothing, and so is ``-``."""
    return os.fspath(path) != "-" and os.path.exists(path) and not (os.path.isfile(path) and not os.path.getsize(path))


def output_format(path: FilePath, format: str | None = None) -> str:
    """The format of a file to write."""
    if os.fspath(path) != "-" and compressed(path):
        raise DataError(f"{file_name(path)}: nothing is written compressed; leave .gz out, and compress the file then")
    return format_of(path, format)


def check_place(path: FilePath, inputs: Sequence[Any] = (), format: str | None = None) -> None:
    """Refuse a place where no file can be written, or where one stands that is read, before anything is done."""
    output_format(path, format)
    refuse_read(path, inputs)
    if os.fspath(path) != "-":
        target_of(path)


def refuse_read(path: FilePath, inputs: Sequence[Any]) -> None:
    """Refuse to write over what is read; inputs that are no files are passed over."""
    if any(same_file(path, other) for other in inputs if isinstance(other, str | os.PathLike)):
        raise DataError(f"{file_name(path)}: is read and written at once; choose another output")


def write_frame(
    path: FilePath,
    frame: pl.DataFrame,
    format: str | None = None,
    meta: Mapping[str, Any] | None = None,
    side: FilePath | None = None,
) -> None:
    """Write a table, and its side file where there is one; both appear whole or not at all. ``-``: standard output.

    *Guarantee.* After any exception, KeyboardInterrupt included, the target is as it was and nothing lies beside it.
    """
    kind = output_format(path, format)
    said = json.dumps(meta, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"

    def write(place: Any) -> None:
        """The rows in their format."""
        if kind == "jsonl":
            frame.write_ndjson(place)
        elif kind == "parquet":
            frame.write_parquet(place)
        else:
            frame.write_csv(place, separator="\t" if kind == "tsv" else ",")

    if os.fspath(path) == "-":
        if meta is not None and side is not None:
            write_text(side, said)
        write(rows := io.BytesIO())  # polars would hide that a reader has left
        sys.stdout.buffer.write(rows.getbuffer())
        sys.stdout.buffer.flush()
        return
    with replacing(target_of(path)) as part:
        write(part)
        if meta is not None:
            write_text(side_of(path, side), said)


def write_text(path: FilePath, text: str) -> None:
    """Write a small file whole or not at all."""
    with replacing(target_of(path)) as part:
        part.write_text(text, encoding="utf-8")


def side_of(out: FilePath, side: FilePath | None = None) -> FilePath:
    """Where the side file of a release is: under its own name, or beside the rows; ``-`` for nowhere."""
    return side if side is not None else out if os.fspath(out) == "-" else f"{os.fspath(out)}.meta.json"


def load_meta(released: Any, named: FilePath | Mapping[str, Any] | None = None) -> Meta | None:
    """The side file of a released file, or None where there is none; another kind of side file is refused."""
    if named is None and not isinstance(released, str | os.PathLike):
        return None  # beside a frame there is nothing
    meta: Any = named
    name = "meta"
    if not isinstance(named, Mapping):
        side = Path(side_of(released, named))
        name = side.name
        try:
            meta = json.loads(side.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if named is None and (os.fspath(released) == "-" or os.path.exists(released)):
                return None
            raise DataError(f"{name if named else file_name(released)}: no such file; check the path") from None
        except (OSError, ValueError):
            meta = None
    if not isinstance(meta, Mapping):
        raise DataError(f"{name}: cannot be read as a JSON object; name the side file that release wrote")
    if meta.get("format") != FORMAT or meta.get("version") != EDITION:
        raise DataError(f"{name}: expected a side file of format {FORMAT} {EDITION}; release the data again")
    return dict(meta)


def stored_reading(meta: Meta) -> Reading:
    """The columns that a side file names."""
    try:
        saved = meta["columns"]
        return Reading(saved["user"], saved["value"], saved["order"])
    except (KeyError, TypeError):
        raise DataError("the side file lacks the column names; release the data again") from None


def digest(*columns: pl.Series | Floats | Ints) -> str:
    """A digest of columns, each of its own. It follows the content, not the file: other formats of it have the same."""
    parts = (hashlib.sha256(part).digest() for column in columns for part in _as_bytes(column))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _as_bytes(column: pl.Series | Floats | Ints) -> tuple[bytes, ...]:
    """A column in bytes; of text also the length of each entry: without it "a", "bc" would look like "ab", "c"."""
    if isinstance(column, np.ndarray):
        return (np.ascontiguousarray(column, "<f8" if column.dtype.kind == "f" else "<i8").tobytes(),)
    text = column.cast(pl.String)
    return "".join(text.to_list()).encode(), text.str.len_bytes().to_numpy().astype("<i8").tobytes()


def rows_frame(
    reading: Reading,
    users: pl.Series,
    order: pl.Series | None,
    alphabet: Symbols,
    codes: Ints,
    more: Mapping[str, Any],
) -> pl.DataFrame:
    """Rows to write: the user, the order where there is one, the value(s) of the codes, and further columns.

    Of a code below 0 nothing was said.
    """
    public = parted(users, reading.user_columns)
    if order is not None:
        public.append(order)
    places = pl.Series(codes, dtype=pl.Int64)
    if (codes < 0).any():
        places = pl.select(pl.when(places >= 0).then(places)).to_series()
    series = [*public, *(values.gather(places) for values in symbol_columns(alphabet, reading.value_columns))]
    clash = {column.name for column in series} & set(more)
    if clash:
        raise InputError(f"a column is named {min(clash)!r}, which is what the output adds; rename it in the file")
    return pl.DataFrame([*series, *(pl.Series(name, values) for name, values in more.items())])


def symbol_columns(alphabet: Symbols, names: tuple[str, ...]) -> list[pl.Series]:
    """The alphabet's values as columns, one entry a code: two columns for points of a grid or the map."""
    if alphabet.width == 2 and alphabet.points is not None:
        return [pl.Series(name, alphabet.points[:, axis]) for axis, name in enumerate(names)]
    values = alphabet.points if isinstance(alphabet, Bins) else alphabet.decode(np.arange(alphabet.n))
    return [pl.Series(names[0], values, strict=False)]
