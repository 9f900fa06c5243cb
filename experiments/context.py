"""What an experiment is given: its options, its data, and parts that are computed once and kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import experiments
import seqveil
from experiments import datasets

AROUND = ("bridge", "cli", "client", "commands", "files", "flow", "plots", "service", "spark", "store")  # no numbers
AROUND += ("studio", "_html")
OWN_OF = {
    "fig8": ("reidentify", "people", "observed"),
    "table1": ("growth", "notions"),
}  # modules that one experiment alone uses
OWN = {module for modules in OWN_OF.values() for module in modules}
DIGITS = 10  # significant ones: enough for any claim, and few enough not to depend on the order of a sum


@dataclass
class Context:
    """Options of a run. `part(key, function)` returns what `function` gave, now or in an earlier run like this one."""

    out: Path
    name: str = ""
    data: Path | None = None
    synthetic: bool = False
    quick: bool = False
    seed: int = 0
    timings: dict[str, float] = field(default_factory=dict)

    def part(self, key: str, function: Callable[[], Any]) -> Any:
        """The value of a part, as JSON gives it back, so that a kept part and a fresh one are the same."""
        path = self.out / "parts" / f"{self.name}.{plain_name(key)}.json"
        identity = self.identity()
        kept = read(path)
        if isinstance(kept, dict) and kept.get("identity") == identity:
            return kept["value"]
        begun = time.perf_counter()
        value = function()
        text = dumps({"identity": identity, "value": value})
        self.timings[f"{self.name}.{key}"] = time.perf_counter() - begun
        if not skipped(value):  # what it lacked may be there next time
            write(path, text)
        return json.loads(text)["value"]

    def identity(self) -> dict[str, Any]:
        """Everything a part's value depends on."""
        return {"version": seqveil.__version__, "code": code_digest(self.name), **self.options()}

    def options(self) -> dict[str, Any]:
        return {"seed": self.seed, "quick": self.quick, "data": "synthetic" if self.synthetic else "real"}

    def dataset(self, name: str, users: int, length: int, **options: Any) -> datasets.Dataset:
        """The real set, or `users` streams of `length` of the kind that stands in for it."""
        if not self.synthetic:
            return datasets.load(name, self.data, **options)
        return datasets.synthetic(datasets.stand_in(name), users, length, self.seed, **options)


def skipped(value: Any) -> bool:
    """Whether a result says that its experiment could not be run here."""
    return isinstance(value, dict) and "skipped" in (value.get("numbers") or {})


@lru_cache
def code_digest(name: str) -> str:
    """SHA-256 over the sources that an experiment's numbers come from: a part from other code is computed anew."""
    package, beside = Path(seqveil.__file__).parent, Path(experiments.__file__).parent
    others = {"report", "runner", "__init__", *experiments.EXPERIMENTS, *OWN} - {name, *OWN_OF.get(name, ())}
    left_out = {beside / f"{other}.py" for other in others}
    digest = hashlib.sha256()
    for path in sorted({*package.rglob("*.py"), *beside.glob("*.py")} - left_out):
        if path.relative_to(path.parents[1]).parts[0] not in AROUND and path.stem not in AROUND:
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def plain_name(key: str) -> str:
    """A key as a part of a file name, for every file system.

    >>> plain_name("msnbc.RR-LDP at 2ε.0.5")
    'msnbc.RR-LDP-at-2e.0.5'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", key.replace("ε", "e"))


def dumps(content: Any) -> str:
    """JSON in the order given: plain numbers of ten significant digits, nothing infinite as a number."""
    return json.dumps(_plain(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        return float(f"{number:.{DIGITS}g}") + 0.0 if np.isfinite(number) else str(number)
    return value


def read(path: Path) -> Any:
    """The JSON of a file, or None where there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write(path: Path, text: str) -> None:
    """All of the file or none of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
