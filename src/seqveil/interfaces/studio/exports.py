"""What the page hands out: `policy.toml`, the commands and the script that do it again, and what they start from."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret
from seqveil.core.words import Risk
from seqveil.engine import toml
from seqveil.engine.terms import Terms
from seqveil.interfaces import files
from seqveil.interfaces.files.rows import symbol_columns
from seqveil.interfaces.studio.ask import FORMAT, VERSION, Ask
from seqveil.interfaces.studio.sources import PEOPLE, SHOWN, StudioSource, builtin, loaded, sampled
from seqveil.interfaces.studio.uploads import Cut, rows_of_file

FILE = "seqveil-page.json"  # what the page calls an exported configuration
MODEL = "page/model.npz"  # where `studio --unpack` writes the model
SEEDED_SCRIPT = "# not private, but these very figures: sv.Session(…, seed={seed})"


def policy_file(setting: Terms, risk: Risk) -> str:
    """The policy as `policy.toml`, which release, serve, bridge and Spark take by --policy.

    >>> setting = Ask("clicks", epsilon=0.5, every=2).setting(builtin("clicks").model)
    >>> print("epsilon" + policy_file(setting, Risk.promised(setting)).partition("epsilon")[2], end="")
    epsilon = 0.5
    mechanism = "optimal"
    every = 2
    """
    said = ["Written by the page (`seqveil studio`); release, serve, bridge and spark take it by --policy."]
    return toml.written(setting.policy.to_dict(), [*said, *risk.sentences, f"grade {risk.grade.text}"])


def _own_columns(source: StudioSource) -> Cut | None:
    """The columns of a file of one's own that names its users; None where the stream to release is the page's."""
    cut = Cut.of(source.origin["columns"]) if source.origin["kind"] == "data" else None
    return cut if cut is not None and cut.user else None


def _columns(source: StudioSource) -> str:
    """The options that name columns, where they are not called as usual."""
    cut = _own_columns(source)
    if cut is None:
        return " --value-column x,y" if source.describe()["grid"] else ""
    named = {"user-column": cut.user, "value-column": cut.value, "time-column": cut.time}
    usual = {"user-column": "user", "value-column": "value", "time-column": None}
    return "".join(f" --{name} {shlex.quote(value)}" for name, value in named.items() if value and value != usual[name])


def steps(source: StudioSource) -> str:
    """The commands that release with the files that the page saves: `seqveil-page.json` and `policy.toml`."""
    cut = _own_columns(source)
    data = "page/stream.csv" if cut is None else shlex.quote(source.data_file)
    order = " --sort" if cut is not None and cut.time is not None else ""
    return (
        f"{_unpack_command(source)}\n"
        f"seqveil release {data} --model {MODEL}{_columns(source)} --policy policy.toml{order} --out released.csv\n"
        f"seqveil audit released.csv --model {MODEL}\n"
    )


def _unpack_command(source: StudioSource) -> str:
    data = f" {shlex.quote(source.data_file)}" if source.origin["kind"] == "data" else ""
    model = f" --model {shlex.quote(source.model_file)}" if "model" in source.origin else ""
    return f"seqveil studio{data}{model} --unpack {shlex.quote(FILE)} --into page"


def _call(secret: Secret) -> str:
    """A declared secret as an expression of Python."""
    given = [repr(list(secret.values))]
    if secret.circle:
        given = [f"centre={secret.circle[:-1]!r}, radius={secret.circle[-1]!r}"]
    given += [repr(list(secret.then))] if secret.then else []
    given += [repr(secret.at_least)] if secret.kind == "count" else []
    given += [f"epsilon={secret.epsilon!r}, window={secret.window!r}"]
    return f"sv.secrets.{secret.kind}({', '.join(given)})"


def python(ask: Ask, source: StudioSource) -> str:
    """A script that releases the same stream, privately, and prints its account."""
    if source.origin["kind"] == "synthetic":
        side = ", side=10" if ask.source == "gaze" else ""
        head = (
            "import seqveil as sv\nfrom seqveil.datasets import synthetic\n\n"
            f'data = synthetic("{ask.source}", users={PEOPLE}, length=1000, seed=0{side})\n'
            f"model = data.model(people=range({SHOWN}, {PEOPLE}))\n"
            f"raw = model.alphabet.decode(data.arrays()[{ask.stream}][:{ask.events}])\n"
        )
    else:
        value = 'zip(*(table[name] for name in ("x", "y")))' if source.describe()["grid"] else 'table["value"]'
        head = (
            f"# after: seqveil studio --unpack {FILE} --into page (see the commands)\n"
            "import polars as pl\nimport seqveil as sv\n\n"
            'model = sv.MarkovModel.load("page/model.npz")\n'
            f"table = pl.read_csv({_read_as(source)})\n"
            f"raw = list({value})\n"
        )
    return head + _session(ask, ask.declared(source.model))


def _read_as(source: StudioSource) -> str:
    """How the script reads the stream: names stay text, also where they look like numbers, as 01 does."""
    text = source.model.alphabet.points is None
    return '"page/stream.csv", schema_overrides={"value": pl.String}' if text else '"page/stream.csv"'


def _session(ask: Ask, kept: list[Secret]) -> str:
    rate = None if ask.epsilon is None else ask.epsilon * ask.batch
    options = [f"epsilon={rate!r}", f'mechanism="{ask.mechanism}"', f'distortion="{ask.distortion}"']
    options += [f"secrets={_call(secret)}" for secret in kept]
    options += [f"batch={ask.batch}"] if ask.batch > 1 else []
    parts = []
    if ask.budget is not None:
        parts.append(f"total={ask.budget!r}")
    if ask.window is not None:
        parts.append(f"per_window={ask.window!r}, releases={ask.window_releases}")
    if parts:
        options.append(f'budget=sv.Budget({", ".join(parts)}, when_spent="{ask.when_spent}")')
    options += [f"every={ask.every}"] if ask.every > 1 else []
    lines = [SEEDED_SCRIPT.format(seed=ask.seed), f"session = sv.Session(model, {', '.join(options)})"]
    if ask.batch > 1:
        lines += ["released = [y for x in raw for y in session.push(x)] + session.flush()"]
    else:
        lines += ["released = [session.release(x) for x in raw]"]
    if kept:
        lines += ['print(f"log odds of the secret {session.account.secrets[0].log_odds:.6g}")']
    else:
        lines += ['print(f"leakage {session.leakage:.6g}, Σε {session.account.epsilon_spent:.6g}")']
    return "\n".join(lines) + "\n"


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


def source_of(given: Mapping[str, Any], data: str | None = None, model: MarkovModel | None = None) -> StudioSource:
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


def unpack(given: Mapping[str, Any], source: StudioSource, folder: Path) -> Ask:
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
