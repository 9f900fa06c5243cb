"""From an exported configuration to files: the stream as data, the model, and what to release them with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.model import MarkovModel
from seqveil.interfaces import files
from seqveil.interfaces.files.rows import symbol_columns
from seqveil.interfaces.studio.ask import FORMAT, VERSION, Ask
from seqveil.interfaces.studio.source import Source, builtin, sampled
from seqveil.interfaces.studio.table import Cut, loaded, rows_of_file


def configuration(path: Path) -> Mapping[str, Any]:
    """The configuration that a page exported."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path.name}: no such file; check the path") from None
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
        raise DataError(f"{path.name}: is no configuration of the page; export it there again")
    return found


def source_of(given: Mapping[str, Any], data: str | None = None, model: MarkovModel | None = None) -> Source:
    """The source that a configuration speaks of; loaded data and models have to be given again."""
    origin = given.get("origin")
    kind = origin.get("kind") if isinstance(origin, Mapping) else None
    if kind not in ("synthetic", "data", "model") or not isinstance(origin, Mapping):
        raise DataError("the configuration does not say where its stream is from; export it again")
    if "model" in origin and (model is None or model.fingerprint != origin["model"]):
        raise ModelError("the configuration was made with a model; name that one, and no other, with --model")
    if kind == "synthetic":
        return builtin(str(origin.get("name")))
    if kind == "model":
        assert model is not None
        return sampled(model, seed=int(origin.get("seed", 0)))
    if data is None:
        raise InputError("the configuration was made with data of your own; name the file, as in `seqveil studio DATA`")
    cut = Cut.of(origin.get("columns", {}))
    return loaded(rows_of_file(data, cut), cut, "data", model if "model" in origin else None)


def unpack(given: Mapping[str, Any], source: Source, folder: Path) -> Ask:
    """Write the stream (`stream.csv`: raw data) and its model (`model.npz`) for the commands that the page shows."""
    import polars as pl

    ask = Ask.of(given)
    codes = source.codes(ask.stream, ask.events)
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = source.model.alphabet
    names = ("x", "y") if source.describe()["grid"] else ("value",)
    table = pl.DataFrame(
        [
            pl.Series("user", np.zeros(codes.size, np.int64)),
            *(column.gather(codes) for column in symbol_columns(alphabet, names)),
        ]
    )
    files.write_text(folder / "stream.csv", table.write_csv())
    source.model.save(folder / "model.npz")
    return ask
