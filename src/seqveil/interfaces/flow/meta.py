"""What stands beside a released file: everything public that a receiver needs besides the model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.interfaces import files
from seqveil.interfaces.files import Columns
from seqveil.interfaces.flow.rows import FilePath
from seqveil.release.setting import OTHER_MODEL, Setting

if TYPE_CHECKING:
    import polars as pl

FORMAT, VERSION = "seqveil-release", 1
EPSILON, EVENT, CONFIDENCE = "epsilon", "event", "confidence"  # the columns that the commands add
BATCH, PATH = "batch", "path"  # and those of a release in batches
SAME_PATH = "-"  # on the rows of a batch after its first: an empty field would look like a damaged one

Meta = dict[str, Any]


class Digest:
    """A digest of the rows released (who, what, at which ε), so that an audit sees whether they were changed since.

    For batches it covers their numbers and paths too.

    It follows the content, not the file: the same rows in another format have the same digest.
    """

    def __init__(self) -> None:
        self._parts = [hashlib.sha256() for _ in range(4)]
        self._paths: Any = None

    def add(
        self, users: pl.Series, codes: Ints, epsilons: Floats, batches: Iterable[tuple[int, str]] | None = None
    ) -> None:
        import polars as pl

        names = users.cast(pl.String)
        lengths = np.asarray(names.str.len_bytes().to_numpy(), np.int64)  # or "a","bc" would look like "ab","c"
        content = ("".join(names.to_list()).encode(), _bytes(lengths, "<i8"), _bytes(codes, "<i8"))
        for part, data in zip(self._parts, (*content, _bytes(epsilons, "<f8")), strict=True):
            part.update(data)
        if batches is not None:
            self._paths = self._paths or hashlib.sha256()
            self._paths.update("".join(f"{number} {path}\n" for number, path in batches).encode())

    def hex(self) -> str:
        if self._paths is not None:
            return hashlib.sha256(b"".join(part.digest() for part in (*self._parts, self._paths))).hexdigest()
        return hashlib.sha256(b"".join(part.digest() for part in self._parts)).hexdigest()


def _bytes(numbers: Floats | Ints, kind: str) -> bytes:
    return np.ascontiguousarray(numbers, dtype=kind).tobytes()


def header(setting: Setting, columns: Columns, order: str | None, seed: int | None) -> Meta:
    """The part of the side file that is known before the first row."""
    from seqveil import __version__

    alphabet = setting.model.alphabet
    return {
        "format": FORMAT,
        "version": VERSION,
        "seqveil": __version__,
        "setting": setting.to_dict(),
        "model": setting.model.fingerprint,
        "alphabet": {"kind": alphabet.to_json()["kind"], "symbols": alphabet.n},
        "columns": {"user": columns.user, "value": columns.value, "order": order},
        "seed": seed,
        "private": seed is None,
    }


def refuse_second(out: FilePath, named: FilePath | None, *more: FilePath, force: bool) -> None:
    """Refuse to draw again where an earlier release stands, by its rows, its side file, or what else is named.

    Whoever saw the first release and sees the second learns from both, and each spent the whole budget.
    """
    for path in (out, place(out, named), *more):
        if not force and files.taken(path):
            raise InputError(
                f"{os.path.basename(path)}: is there already, and a second release of the same data is a second spend; "
                "name another file, or pass --force if nobody was ever shown the first"
            )


def place(out: FilePath, named: FilePath | None) -> FilePath:
    """Where the side file of a release is written: under its own name, or beside the rows; ``-`` for nowhere."""
    return named if named is not None else out if os.fspath(out) == "-" else f"{os.fspath(out)}.meta.json"


def save(meta: Mapping[str, Any], out: FilePath, named: FilePath | None) -> None:
    """Write the side file under its own name, or beside a released file that is not standard output."""
    if named is not None:
        files.write_text(named, json.dumps(meta, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    elif os.fspath(out) != "-":
        files.save_meta(out, meta)


def load(released: FilePath, named: FilePath | None = None) -> Meta | None:
    """The side file of a released file, or None where there is none."""
    meta = files.load_meta(released) if named is None else _read(Path(named))
    if meta is not None and (meta.get("format") != FORMAT or meta.get("version") != VERSION):
        name = Path(named).name if named is not None else f"{Path(released).name}.meta.json"
        raise DataError(f"{name}: expected a side file of format {FORMAT} {VERSION}; release the data again")
    return meta


def _read(path: Path) -> Meta:
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path.name}: no such file; check the path") from None
    except (OSError, ValueError):
        meta = None
    if not isinstance(meta, dict):
        raise DataError(f"{path.name}: cannot be read as a JSON object; name the side file that release wrote")
    return meta


def unseeded(meta: Meta | None) -> bool | None:
    """Whether the side file says that no seed made the coins; None where there is none."""
    return None if meta is None else meta.get("seed") is None and meta.get("private") is True


def check_model(meta: Meta, model: MarkovModel) -> None:
    """Refuse a model that is not the one the release was made with."""
    if meta.get("model") != model.fingerprint:
        raise ModelError(OTHER_MODEL)


def stored_setting(meta: Meta, model: MarkovModel) -> Setting:
    """The setting a side file describes, for the model it was made with and no other."""
    check_model(meta, model)
    return Setting.from_dict(meta.get("setting", {}), model)


def stored_columns(meta: Meta | None) -> Columns:
    """The column names a side file gives, or the usual ones."""
    try:
        saved = {} if meta is None else meta["columns"]
        return Columns(saved.get("user", "user"), saved.get("value", "value"), saved.get("order"))
    except (KeyError, TypeError, AttributeError):
        raise DataError("the side file lacks the column names; release the data again") from None
