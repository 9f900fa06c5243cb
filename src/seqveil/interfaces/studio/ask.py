"""What the page asks for, checked field by field; which mechanisms fit; and how it is done again outside the page."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from seqveil.core import mechanisms
from seqveil.core.distortion import NAMES
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.mechanisms import BatchMechanism
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret, ever
from seqveil.interfaces import files
from seqveil.interfaces.files.rows import symbol_columns
from seqveil.interfaces.studio.sources import (
    MOST_EVENTS,
    PEOPLE,
    SHOWN,
    SMOOTHING,
    Cut,
    Source,
    builtin,
    loaded,
    rows_of_file,
    sampled,
)
from seqveil.release.accounting import Budget, Schedule
from seqveil.release.stream import Setting

FILE = "seqveil-page.json"  # what the page calls an exported configuration
SEEDED_COMMAND = "# not private, but these very figures: the same release with --seed {seed}\n"
SEEDED_SCRIPT = "# not private, but these very figures: sv.Session(…, seed={seed})"
UNKEPT = "it does not keep a declared secret; choose guarded, or no secret"
MOST_BATCH = 25
FORMAT, VERSION = "seqveil-page", 1


@dataclass(frozen=True)
class Ask:
    """One picture: which stream, released how. It holds no data, so it may be stored and passed on.

    `epsilon` is for one event on average, whatever the batch and the pulses: a batch of w spends w·ε, every m-th
    release m·ε. `window` is what may leak in any `window_releases` releases; `budget` in the whole stream. `secret` is
    the code of a symbol: whether it ever occurs among the events is kept secret, by the mechanism "guarded", within
    `secret_epsilon` for all of them together. `epsilon` may then be None: nothing is promised about anything else.

    >>> Ask.of({"source": "clicks", "epsilon": 2}).epsilon
    2.0
    >>> Ask.of({"source": "clicks", "epsilon": "2"})
    Traceback (most recent call last):
    ...
    seqveil.core.errors.InputError: epsilon: expected a finite number; check the configuration
    """

    source: str
    stream: int = 0
    events: int = 200
    mechanism: str = "optimal"
    epsilon: float | None = 1.0
    distortion: str = "hamming"
    batch: int = 1
    every: int = 1
    budget: float | None = None
    window: float | None = None
    window_releases: int | None = None
    when_spent: str = "hold"
    seed: int = 1
    secret: int | None = None
    secret_epsilon: float = 1.0

    @classmethod
    def of(cls, given: Any) -> Ask:
        """From JSON; whatever is not as documented is refused by the name of its field."""
        if not isinstance(given, Mapping):
            raise InputError("expected a JSON object with the fields of a configuration")
        known = {field.name for field in fields(cls)}
        if not given.keys() <= known | {"format", "version", "origin"}:
            raise InputError(f"expected no other fields than {', '.join(sorted(known))}")
        if "source" not in given:
            raise InputError("source: expected the name of a stream; check the configuration")
        made = cls(**{name: _checked(name, value) for name, value in given.items() if name in known})
        if made.epsilon is None and made.secret is None:
            raise InputError("epsilon: expected a finite number; check the configuration")
        return made

    @property
    def rate(self) -> float:
        """ε of an event on average; without bound where nobody gave one."""
        return math.inf if self.epsilon is None else self.epsilon

    def setting(self, model: MarkovModel) -> Setting:
        """The setting that a release with this configuration has."""
        budget = Budget(self.budget, None, self.window, self.window_releases, None, self.when_spent)  # type: ignore[arg-type]
        kept = self.declared(model)
        if kept and self.mechanism not in mechanisms.for_secrets():
            raise InputError(UNKEPT)
        rate = None if self.epsilon is None else self.epsilon * self.batch
        plain = (self.mechanism, rate, self.distortion, Schedule(self.every), budget, self.batch)
        made = Setting.of(model, *plain, secrets=kept)
        if made.in_batches and budget.limited and self.when_spent == "stop":
            raise InputError("the page shows what is released as batches with the policy hold alone; choose hold")
        return made

    def declared(self, model: MarkovModel) -> list[Secret]:
        """The secret that is kept, if there is one."""
        if self.secret is None:
            return []
        if self.secret >= model.n:
            raise InputError(
                f"secret: expected the number of a symbol from 0 to {model.n - 1}; check the configuration"
            )
        [value] = model.alphabet.decode(np.array([self.secret]))
        return [ever([value], epsilon=self.secret_epsilon, window=f"first {self.events}")]

    def to_json(self, origin: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration as it is exported; `origin` says how the source comes about."""
        return {"format": FORMAT, "version": VERSION, **asdict(self), "origin": dict(origin)}


_TEXT = {
    "source": None,
    "mechanism": tuple(mechanisms.names()),
    "distortion": NAMES,
    "when_spent": ("hold", "stop"),
}
_WHOLE = {
    "stream": (0, 10_000),
    "events": (2, MOST_EVENTS),
    "batch": (1, MOST_BATCH),
    "every": (1, 100),
    "window_releases": (1, MOST_EVENTS),
    "seed": (0, 2**31 - 1),
    "secret": (0, 2**31 - 1),
}
_MAY_LACK = ("epsilon", "budget", "window", "window_releases", "secret")


def _checked(name: str, value: Any) -> Any:
    if value is None and name in _MAY_LACK:
        return None
    if name in _TEXT:
        return _text(name, value, _TEXT[name])
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (-1e12 < value < 1e12):  # neither NaN is, nor a whole number too large for a float
        raise InputError(f"{name}: expected a finite number; check the configuration")
    if name not in _WHOLE:
        if not 0 < value <= 1e6:
            raise InputError(f"{name}: expected a number above 0; check the configuration")
        return float(value)
    least, most = _WHOLE[name]
    if value != int(value) or not least <= value <= most:
        raise InputError(f"{name}: expected a whole number from {least} to {most}; check the configuration")
    return int(value)


def _text(name: str, value: Any, among: tuple[str, ...] | None) -> str:
    if not isinstance(value, str) or len(value) > 64 or (among is not None and value not in among):
        wanted = "a short text" if among is None else f"one of {', '.join(among)}"
        raise InputError(f"{name}: expected {wanted}; check the configuration")
    return value


@dataclass(frozen=True)
class Offer:
    """A mechanism with what it promises; `why_not` is empty where it fits."""

    name: str
    summary: str
    guarantee: str
    sound: bool
    batched: bool
    why_not: str = ""


def offers(source: Source, ask: Ask) -> list[Offer]:
    """Every mechanism, and why it does not fit where it does not.

    >>> [each.name for each in offers(builtin("clicks"), Ask("clicks", batch=3)) if not each.why_not]
    ['auto', 'tree', 'tree_ldp']
    """
    return [_offer(name, source, ask) for name in mechanisms.names()]


def _offer(name: str, source: Source, ask: Ask) -> Offer:
    found = mechanisms.find(name)
    try:
        replace(ask, mechanism=name).setting(source.model)
        why = _slow(name, source.model.n, ask)
    except InputError as refusal:
        limited = ask.budget is not None or ask.window is not None
        why = "it keeps to no ε, so no budget can hold" if limited and not found.sound else str(refusal)
        if ask.batch > 1 and not isinstance(found, BatchMechanism):
            why = "it releases one event at a time"
    return Offer(name, found.summary, found.guarantee, found.sound, isinstance(found, BatchMechanism), why)


def _slow(name: str, n: int, ask: Ask) -> str:
    """Why it would take too long to look at, if it would."""
    if name == "auto" and ask.batch == 1:
        return "for single events it is one of the others"
    limit = _LARGEST.get(name)
    if limit is not None and not limit(n, ask):
        size = f" in batches of {ask.batch}" if ask.batch > 1 else ""
        return f"with {n} symbols{size} a release takes too long to watch"
    return ""


# the sizes up to which a release takes some hundredths of a second: a program over 128 possible batches, say
_LARGEST: dict[str, Callable[[int, Ask], bool]] = {
    "optimal": lambda n, ask: ask.distortion == "hamming" or n <= 120,
    "optimal_ldp": lambda n, ask: ask.distortion == "hamming" or n <= 40,
    "mutual_information": lambda n, ask: ask.distortion == "hamming" and n <= 24,
    "tree_refined": lambda n, ask: n**ask.batch <= 40 and ask.rate * ask.batch * ask.every < 3.6,
    "batch_lp": lambda n, ask: n**ask.batch <= 128,
    "batch_descent": lambda n, ask: n**ask.batch <= 32,
}


def commands(setting: Setting, ask: Ask, source: Source) -> str:
    """Commands that release the same stream, privately, and audit it.

    With the page's seed added, which the last line names, they print the figures that the page shows.
    """
    kind = source.origin["kind"]
    data = f" {shlex.quote(source.data_file)}" if kind == "data" else ""
    model = f" --model {shlex.quote(source.model_file)}" if "model" in source.origin else ""
    options = [] if setting.unbounded else [f"--epsilon {setting.epsilon!r}"]
    options += [f"--mechanism {setting.mechanism.name}", f"--distortion {ask.distortion}"]
    options += ["--secrets page/secret.toml"] if setting.guards else []
    options += [f"--batch {ask.batch}"] if ask.batch > 1 else []
    options += [f"--every {ask.every}"] if ask.every > 1 else []
    options += [f"--budget {ask.budget!r}"] if ask.budget is not None else []
    if ask.window is not None:
        options += [f"--window {ask.window!r} --window-releases {ask.window_releases}"]
    if setting.budget.limited:
        options += [f"--when-spent {ask.when_spent}"]
    columns = " --value-column x,y" if source.describe()["grid"] else ""
    return (
        f"seqveil studio{data}{model} --unpack {shlex.quote(FILE)} --into page\n"
        f"seqveil release page/stream.csv --model page/model.npz{columns} \\\n"
        f"    {' '.join(options)} \\\n"
        "    --out page/released.csv\n"
        "seqveil audit page/released.csv --model page/model.npz\n" + SEEDED_COMMAND.format(seed=ask.seed)
    )


def python(ask: Ask, source: Source) -> str:
    """A script that releases the same stream, privately, and prints its account."""
    if source.origin["kind"] == "synthetic":
        side = ", side=10" if ask.source == "gaze" else ""
        head = (
            "import seqveil as sv\nfrom seqveil.datasets import synthetic\n\n"
            f'data = synthetic("{ask.source}", users={PEOPLE}, length=1000, seed=0{side})\n'
            f"model = data.model(smoothing={SMOOTHING}, people=range({SHOWN}, {PEOPLE}))\n"
            f"raw = model.alphabet.decode(data.arrays()[{ask.stream}][:{ask.events}])\n"
        )
    else:
        value = 'zip(*(table[name] for name in ("x", "y")))' if source.describe()["grid"] else 'table["value"]'
        head = (
            f"# after: seqveil studio --unpack {FILE} --into page (see the commands)\n"
            "import polars as pl\nimport seqveil as sv\n\n"
            'model = sv.MarkovModel.load("page/model.npz")\n'
            'table = pl.read_csv("page/stream.csv")\n'
            f"raw = list({value})\n"
        )
    return head + _session(ask, ask.declared(source.model))


def _session(ask: Ask, kept: list[Secret]) -> str:
    rate = None if ask.epsilon is None else ask.epsilon * ask.batch
    options = [f'"{ask.mechanism}"', f"epsilon={rate!r}", f'distortion="{ask.distortion}"']
    options += [f"secrets=sv.secrets.ever({list(secret.values)!r}, epsilon={secret.epsilon!r}, "
                f"window={secret.window!r})" for secret in kept]  # fmt: skip
    options += [f"batch={ask.batch}"] if ask.batch > 1 else []
    parts = []
    if ask.budget is not None:
        parts.append(f"total={ask.budget!r}")
    if ask.window is not None:
        parts.append(f"per_window={ask.window!r}, releases={ask.window_releases}")
    if parts:
        options.append(f'budget=sv.Budget({", ".join(parts)}, when_spent="{ask.when_spent}")')
    options += [f"schedule={ask.every}"] if ask.every > 1 else []
    lines = [SEEDED_SCRIPT.format(seed=ask.seed), f"session = sv.Session(model, {', '.join(options)})"]
    if ask.batch > 1:
        lines += ["released = [y for x in raw for y in session.push(x)] + session.flush()"]
    else:
        lines += ["released = [session.release(x) for x in raw]"]
    if kept:
        lines += ['print(f"log odds of the secret {session.secrets[0].log_odds:.6g}")']
    else:
        lines += ['print(f"leakage {session.leakage:.6g}, Σε {session.standing().by_composition:.6g}")']
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
    """Write the stream (`stream.csv`: raw data) and its model (`model.npz`) for the commands that the page shows.

    Where a secret is kept, it is written too (`secret.toml`).
    """
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
    for secret in ask.declared(source.model):
        values = json.dumps(secret.values, ensure_ascii=False)  # lists, texts and numbers are written alike in TOML
        text = f'[[secret]]\never = {values}\nepsilon = {secret.epsilon!r}\nwindow = "{secret.window}"\n'
        files.write_text(folder / "secret.toml", text)
    return ask
