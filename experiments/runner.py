"""Run experiments one after another, keep their numbers, then draw the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import EXPERIMENTS, datasets, module, report
from experiments.context import Context, dumps, read, write
from seqveil import __version__
from seqveil.core.errors import DataError, InputError

Result = dict[str, Any]


def chosen(names: list[str]) -> list[str]:
    """The experiments meant: all of them, or those named."""
    for name in names:
        if name != "all" and name not in EXPERIMENTS:
            raise InputError(f"expected an experiment among all, {', '.join(EXPERIMENTS)}; got {name!r}")
    return [name for name in EXPERIMENTS if "all" in names or name in names]


def check_data(names: list[str], data: Path | None) -> None:
    """Refuse before anything is run where a file is missing."""
    for name in names:
        for needed in module(name).NEEDS:
            if files := datasets.missing(needed, data):
                raise DataError(
                    f"{name} needs {', '.join(files)} in the data folder, and finds it not; pass --data FOLDER or set "
                    "SEQVEIL_DATA, or pass --synthetic to run on generated streams"
                )


def reproduce(names: list[str], context: Context, finished: Callable[[str], None]) -> list[Result]:
    """Run each experiment, or take its result from an earlier run like this one; write JSON, pictures and the page."""
    if not context.synthetic:
        check_data(names, context.data)
    results = []
    for name in names:
        own = replace(context, name=name)
        result = own.part("result", lambda name=name, own=own: module(name).run(own))
        kept = {**result, "options": context.options(), "version": __version__}
        write(context.out / f"{name}.json", dumps(kept))
        _keep_timings(context.out, own.timings)
        results.append(kept)
        finished(name)
    report.write_report(context.out)
    return results


def _keep_timings(out: Path, timings: dict[str, float]) -> None:
    """Seconds of what was computed, in a file of their own: they differ from run to run."""
    path = out / "timings.json"
    known = read(path)
    write(path, dumps({**(known if isinstance(known, dict) else {}), **timings}))
