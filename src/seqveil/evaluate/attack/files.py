"""Attack released rows with the raw rows they were made from: what `seqveil attack` and `sv.attack` do."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from seqveil.core.alphabet import Alphabet, OnMissing, Symbols
from seqveil.core.errors import DataError, InputError, ModelError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import ever, from_dict
from seqveil.core.secrets.declared import Secret
from seqveil.core.slots import Slots
from seqveil.core.words import about
from seqveil.engine.terms import OTHER_MODEL
from seqveil.evaluate.attack.finding import Finding, Findings
from seqveil.evaluate.attack.guess import FALSE_ALARM, attack_secret, attack_trait
from seqveil.evaluate.attack.identity import attack_identity
from seqveil.interfaces.files import Columns, read
from seqveil.interfaces.files.columns import Holes
from seqveil.interfaces.files.estimates import evidence_of
from seqveil.interfaces.files.in_memory import goes_back, in_order
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.received import receive
from seqveil.interfaces.files.rows import Progress, Source
from seqveil.interfaces.files.truth import paired
from seqveil.interfaces.files.writing import EPSILON, Meta, load_release_meta, stored_columns
from seqveil.interfaces.frames import ColumnWords, ReleasedRows, chain_of, columns_of, table_of
from seqveil.receiver.learn import Evidence

if TYPE_CHECKING:
    pass

SYMBOLS = 5  # the most frequent ones, of which single events are attacked where no secret is named
SPLITS = 3

Rows = FilePath | Any  # a path, or a polars frame


def attack(
    released: Any,
    truth: Any,
    *,
    model: MarkovModel | FilePath | None = None,
    secrets: Secret | Sequence[Secret] = (),
    epsilon: float | None = None,
    who: bool = False,
    with_model: Mapping[str, MarkovModel | FilePath] | None = None,
    meta: Any = None,
    splits: int = SPLITS,
    seed: int = 0,
    false_alarm: float = FALSE_ALARM,
    missing: OnMissing | None = None,
    progress: Progress | None = None,
    working: Callable[[float], None] | None = None,
    **columns: Unpack[ColumnWords],
) -> Findings:
    """Whether what was promised is broken for the people of a release, as `seqveil attack` finds out.

    Parameters:
        released: what `release` gave back, or a frame or path of released rows.
        truth: the raw rows that it was made from, users in any order.
        model: gives the alphabet, which numbers and places need; no classifier uses its chain.
        secrets: what to attack; by default what the release promised to keep, else single events of frequent values.
        epsilon: what was promised about them, where that is not what they and the release say.
        who: also whether people are recognised by their past.
        with_model: models of Bayes attackers by name, fitted to other people than those of the release; `model` must be
            the one that the release was made with.
        meta: `ReleasedRows.meta`, or the path of a side file, where `released` has none with it.
        splits: how often people are split anew, from this seed on; the splits share the false-alarm rate.
        seed: splits the people.
        false_alarm: how likely a promise that holds may be called broken.
        missing: what was done with raw rows without a value, where neither model nor side file says so.
        progress: called with the number of rows read.
        working: called with the share of the attack that is done, 0 to 1, once the files are read.
        columns: what they are called, where no side file says it.
    """
    if splits < 1:
        raise InputError(f"expected at least 1 split of the people, got {splits}")
    if isinstance(released, ReleasedRows):
        released, meta = released.frame, released.meta if meta is None else meta
    rows, raw, names = table_of(released), table_of(truth), columns_of(columns) if columns else None
    found = load_release_meta(rows, meta)
    rows, raw = (_in_order(table, names or stored_columns(found)) for table in (rows, raw))
    chain = None if model is None else chain_of(model)
    others = {name: chain_of(other) for name, other in (with_model or {}).items()}
    evidence = _evidence(rows, chain, others, found if meta is not None else None, names)
    people = read_people(rows, raw, chain, found, names, progress, missing)
    wanted = [secrets] if isinstance(secrets, Secret) else list(secrets)
    chosen = wanted or people.secrets or people.events()
    share = false_alarm / (len(chosen) + who)
    learned, show = count(1), working or (lambda done: None)
    # how often classifiers learn is not known beforehand, so each time a part of what is left counts as done
    plan: dict[str, Any] = {"seeds": tuple(range(seed, seed + splits)), "false_alarm": share}
    plan["working"] = lambda: show(1 - 0.97 ** next(learned))
    findings = list[Finding]()
    for secret in chosen:
        promised = people.promised(secret) if epsilon is None else epsilon
        if secret.kind == "trait":
            answers = _answers(rows, raw, names or stored_columns(found), secret.text)
            findings.append(attack_trait(people.releases, answers, people.alphabet.n, promised, about=about(secret),
                                         times=people.times, **plan))  # fmt: skip
            continue
        skipped = people.before_midnight() if secret.follows_clock else None
        over = secret.over(people.alphabet)
        findings.append(attack_secret(people.releases, people.truth, over, promised, times=people.times,
                                      skipped=skipped, models=others, evidence=evidence, **plan))  # fmt: skip
    if who:
        sought = (people.releases, people.truth, people.alphabet.n, people.total)
        findings.append(attack_identity(*sought, seed=seed, false_alarm=share))
    return Findings(tuple(findings))


@dataclass(frozen=True, eq=False)
class AttackedPeople:
    """What was released at each event of each person, and the truth; what each stream was promised to cost."""

    alphabet: Symbols
    releases: list[Ints]
    truth: list[Ints]
    times: list[Floats] | None  # of each event, in seconds; None where the files have none
    total: float | None  # the most that a stream may leak: its budget, or its Σε; None where neither is known
    secrets: tuple[Secret, ...] = ()  # that the side file says were promised

    def promised(self, secret: Secret) -> float | None:
        """What was promised about the odds of a secret: its own ε, or twice what the whole stream may leak."""
        for other in self.secrets:
            if replace(other, epsilon=secret.epsilon) == secret:
                return other.epsilon
        return None if self.total is None else 2 * self.total

    def events(self) -> list[Secret]:
        """Single events of the most frequent values."""
        codes = np.concatenate(self.truth)
        counts = np.bincount(codes[codes >= 0], minlength=self.alphabet.n)  # others are outside the alphabet
        often = np.argsort(-counts, kind="stable")[: min(SYMBOLS, self.alphabet.n)]
        return [ever([value], epsilon=None, window="event") for value in self.alphabet.decode(often[counts[often] > 0])]

    def before_midnight(self) -> Ints:
        """How many events of each stream come before its first midnight, where windows of a day begin."""
        slots = self.alphabet.slots
        if slots is None or self.times is None:
            raise InputError("an attack on during, or on a window of a day, needs a model, one in slots of time")
        first = slots.numbers(np.array([own[0] for own in self.times]))
        return -slots.place(first) % slots.per_day


def read_people(
    released: Rows,
    truth: Rows,
    model: MarkovModel | None = None,
    meta: FilePath | Mapping[str, Any] | None = None,
    names: Columns | None = None,
    progress: Progress | None = None,
    missing: OnMissing | None = None,
) -> AttackedPeople:
    """Both files, person by person and event by event; `meta` is the side file, or what stands in it."""
    found = load_release_meta(released, meta)
    said, columns = found or {}, names or stored_columns(found)
    if model is not None and found is not None and found.get("model") != model.fingerprint:
        raise ModelError(OTHER_MODEL)
    known = None if model is None else model.alphabet
    slots = known.slots if known is not None else Slots(**said["slots"]) if "slots" in said else None
    holes = missing or (said.get("missing") if known is None else known.missing)
    out, raw = Source(released, columns), Source.released(truth, columns, missing=holes, slots=slots)
    alphabet = known or _alphabet([out, raw])
    promised = said.get("setting") or {}
    both = paired(out, raw, alphabet, int(promised.get("batch", 1)), progress)
    codes = np.concatenate([part.codes for part in out.coded(alphabet.with_policy("hide"), progress)])
    secrets = tuple(from_dict(one) for one in promised.get("secret") or ())
    total = _total(out, promised.get("budget") or {})
    return AttackedPeople(alphabet, both.aligned(codes), both.truth, both.times, total, secrets)


def _answers(released: Rows, truth: Rows, columns: Columns, name: str) -> list[str | None]:
    """The label of each person, from a column of the raw file; people as the released file has them."""
    found: dict[str, str] = {}
    raw, out = replace(columns, value=name), Source(released, columns)
    for chunk in read(truth, raw, out.chunk, None, "text", holes="any"):
        for user, label in zip(chunk.users.to_list(), list(chunk.values), strict=True):
            if label is not None and found.setdefault(str(user), str(label)) != str(label):
                raise DataError(f"column {name!r} gives one person two labels; a trait has one answer for each")
    users = (str(user) for chunk in out.chunks("text", again=True, holes="any") for user in chunk.users.to_list())
    return [found.get(user) for user in dict.fromkeys(users)]


def _in_order(table: Rows, columns: Columns) -> Rows:
    """A frame in the order of its times; a file is read so anyway."""
    if isinstance(table, str | os.PathLike) or not goes_back(table, columns):
        return table
    return table[in_order(table, columns)]


def _evidence(
    released: Rows,
    model: MarkovModel | None,
    others: Mapping[str, MarkovModel],
    meta: Meta | None,
    columns: Columns | None,
) -> Evidence | None:
    """What each release tells of the truth, for Bayes attackers; people in the order of the file."""
    if not others:
        return None
    if model is None:
        raise InputError("a Bayes attacker weighs each release by how it was made; pass the release's own model")
    for name, other in others.items():
        if other.alphabet.strict.fingerprint() != model.alphabet.strict.fingerprint():
            raise ModelError(
                f"{name} is about other values than the release; fit it with the alphabet of the release's model"
            )
    received = receive(released, model, meta=meta, columns=columns)
    terms = received.setting
    if terms.in_batches or terms.in_blocks or terms.budget.seconds is not None:
        raise InputError(
            "a Bayes attacker weighs releases one by one, without batches, blocks or a budget per seconds; leave other "
            "models out"
        )
    return evidence_of(received)


def _alphabet(files: Sequence[Source]) -> Symbols:
    """All values of both files, where no model names them."""
    if len(files[0].columns.value_columns) > 1:
        raise InputError("places in two columns need the model, which says how they become symbols")
    values: set[object] = set()
    for file in files:
        holes: Holes = "empty" if file is files[0] else "none"  # a release may say nothing, a raw event not
        for chunk in file.chunks("text", again=True, holes=holes):
            values.update(chunk.values.drop_nulls().to_list())  # type: ignore[union-attr]
        if len(values) > 10_000:
            raise InputError(f"{file.name}: more than 10,000 values; pass the model, which says how they are cut")
    return Alphabet(sorted(values, key=str)).with_policy("hide")


def _total(file: Source, budget: Mapping[str, Any]) -> float | None:
    """The most that a stream may leak: the largest sum of ε, from the column that a release writes, or its budget."""
    spent: dict[Hashable, float] = {}
    try:
        for chunk in read(file.path, replace(file.columns, value=EPSILON), file.chunk, file.format, "number"):
            for user, value in zip(chunk.users.to_list(), np.asarray(chunk.values, np.float64).tolist(), strict=True):
                spent[user] = spent.get(user, 0.0) + value
    except (DataError, InputError):
        spent = {}
    sums = [most for most in (max(spent.values(), default=np.inf),) if np.isfinite(most)]
    exact = None if budget.get("delta") is not None else budget.get("total")
    return min([*sums, *([] if exact is None else [exact])], default=None)
