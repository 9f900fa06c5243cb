"""Attack released rows with the raw rows they were made from: what `seqveil attack` and `sv.attack` do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import numpy as np

from seqveil.core.alphabet import Symbols, from_json
from seqveil.core.errors import InputError, ModelError, option
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel, Reading
from seqveil.core.secrets import ever, from_dict
from seqveil.core.secrets.declared import Secret
from seqveil.core.words import about
from seqveil.engine.policy import OTHER_MODEL, several_secrets
from seqveil.evaluate.attack.attackers import Believer, posteriors
from seqveil.evaluate.attack.finding import Finding, Findings
from seqveil.evaluate.attack.guess import FALSE_ALARM, attack_secret, attack_trait
from seqveil.interfaces.files import writing
from seqveil.interfaces.files.events import Events, ValueType, read_events, symbol_events
from seqveil.interfaces.files.fit import ColumnWords, answers_of
from seqveil.interfaces.files.receive import evidence_of
from seqveil.interfaces.files.received import paired, received
from seqveil.interfaces.files.table import FilePath, as_polars, chain_of
from seqveil.interfaces.files.writing import BATCH, EPSILON, EVENT, ReleasedRows

SYMBOLS = 5  # the most frequent ones, of which single events are attacked where no secret is named

Rows = FilePath | Any  # a path, or a polars frame


def attack(
    released: Any,
    truth: Any,
    *,
    model: MarkovModel | FilePath | None = None,
    secrets: Secret | Sequence[Secret] = (),
    epsilon: float | None = None,
    with_model: Mapping[str, MarkovModel | FilePath] | None = None,
    meta: Any = None,
    seed: int = 0,
    false_alarm: float = FALSE_ALARM,
    **columns: Unpack[ColumnWords],
) -> Findings:
    """Whether what was promised is broken for the people of a release, as `seqveil attack` finds out.

    Parameters:
        released: what `release` gave back, or a frame or path of released rows.
        truth: the raw rows that it was made from, users in any order.
        model: gives the alphabet; needed where no side file does. No classifier uses its chain.
        secrets: what to attack; by default what the release promised to keep, else single events of frequent values.
        epsilon: what was promised about them, where that is not what they and the release say.
        with_model: models of Bayes attackers by name, fitted to other people than those of the release; `model` must be
            the one that the release was made with.
        meta: `ReleasedRows.meta`, or the path of a side file, where `released` has none with it.
        false_alarm: how likely a promise that holds may be called broken.
        columns: what they are called, where no side file says it.
    """
    if isinstance(released, ReleasedRows):
        released, meta = released.frame, released.meta if meta is None else meta
    rows, raw = as_polars(released), as_polars(truth)
    chain = None if model is None else chain_of(model)
    people = read_people(rows, raw, chain, meta, **columns)
    believers = _believers(rows, chain, with_model or {}, meta, people.reading)
    chosen = several_secrets(secrets) or people.secrets or people.events()
    share = false_alarm / len(chosen)
    plan: dict[str, Any] = {"seed": seed, "false_alarm": share, "times": people.times}
    findings = list[Finding]()
    for secret in chosen:
        promised = people.promised(secret) if epsilon is None else epsilon
        if secret.kind == "trait":
            answers, size = _answers(rows, raw, people.reading, secret.text), people.alphabet.n
            found_out = attack_trait(people.releases, answers, size, promised, about=about(secret), **plan)
        else:
            skipped = people.before_window(secret) if secret.follows_clock else None
            more = plan | {"skipped": skipped, "believers": believers}
            found_out = attack_secret(people.releases, people.truth, secret.over(people.alphabet), promised, **more)
        findings.append(replace(found_out, red=people.red))
    return Findings(tuple(findings))


@dataclass(frozen=True, eq=False)
class AttackedPeople:
    """What was released at each event of each person, and the truth; what each stream was promised to cost."""

    alphabet: Symbols
    reading: Reading  # of both files
    releases: list[Ints]
    truth: list[Ints]
    times: list[Floats] | None  # of each event, in seconds; None where the files have none
    total: float | None  # the most that a stream may leak: its budget, or its Σε; None where neither is known
    secrets: tuple[Secret, ...] = ()  # that the side file says were promised
    red: str = ""  # why the side file grades the release red, if it does

    def promised(self, secret: Secret) -> float | None:
        """What was promised about the odds of a secret: its own ε, or twice what the whole stream may leak."""
        for other in self.secrets:
            if replace(other, epsilon=secret.epsilon) == secret:
                return other.epsilon
        return None if self.total is None else 2 * self.total

    def events(self) -> list[Secret]:
        """Single events of the values that were released most often."""
        codes = np.concatenate(self.releases)
        counts = np.bincount(codes[codes >= 0], minlength=self.alphabet.n)  # of others nothing was released
        often = np.argsort(-counts, kind="stable")[: min(SYMBOLS, self.alphabet.n)]
        return [ever([value], epsilon=None, window="event") for value in self.alphabet.decode(often[counts[often] > 0])]

    def before_window(self, secret: Secret) -> Ints:
        """How many events of each stream come before the first whole window of a secret that follows the clock."""
        slots = self.alphabet.slots
        if slots is None or self.times is None:
            raise InputError("an attack on during, or on a day or week, needs a model, one in slots of time")
        first = slots.numbers(np.array([own[0] for own in self.times]))
        return -slots.place(first) % (secret.length(slots) or 1)


def read_people(
    released: Rows,
    truth: Rows,
    model: MarkovModel | None = None,
    meta: FilePath | Mapping[str, Any] | None = None,
    **columns: Unpack[ColumnWords],
) -> AttackedPeople:
    """Both files, person by person and event by event; `meta` is the side file, or what stands in it.

    Columns are called as in the side file, or in the file that the model was fitted to, unless `columns` say otherwise.
    """
    found = writing.load_meta(released, meta)
    said, known = found or {}, Reading() if model is None else model.reading or Reading()
    reading = (known if found is None else writing.stored_reading(found)).but(**columns)
    if model is not None and found is not None and found.get("model") != model.fingerprint:
        raise ModelError(OTHER_MODEL)
    alphabet = from_json(said["alphabet"]) if "alphabet" in said else None if model is None else model.alphabet
    if alphabet is None:
        raise InputError(f"without a side file an attack needs the model of the release; pass {option('model')}")
    beside = (EPSILON, EVENT, BATCH)
    out = symbol_events(released, alphabet, reading, missing=None, slots=None, holes="any", beside=beside)
    raw = symbol_events(truth, alphabet, reading, holes="any")
    promised = said.get("setting") or {}
    both = paired(out, raw, raw.codes(alphabet.tracked()), int(promised.get("batch", 1)))
    secrets = tuple(from_dict(one) for one in promised.get("secret") or ())
    codes, total = out.codes(alphabet.with_policy("hide")), _total(out, promised.get("budget") or {})
    red = str(said["grade_why"]) if said.get("grade") == "red" else ""
    return AttackedPeople(alphabet, reading, both.aligned(codes), both.truth, both.times, total, secrets, red)


def _answers(released: Rows, truth: Rows, reading: Reading, name: str) -> list[str | None]:
    """The label of each person, from a column of the raw file; people as the released file has them."""
    try:
        found = answers_of(truth, reading, name)
    except InputError as error:
        raise InputError(f"an attack on a trait needs its column in the raw file; {error}") from None
    kind: ValueType = "number" if len(reading.value_columns) == 2 else "text"
    people = read_events(released, reading, kind, holes="any").people[0]
    return [found.get(str(user)) for user in people]


def _believers(
    released: Rows, model: MarkovModel | None, others: Mapping[str, Any], meta: Any, reading: Reading
) -> dict[str, Believer]:
    """Bayes attackers with these models; people in the order of the file."""
    if not others:
        return {}
    if model is None:
        raise InputError(f"a Bayes attacker weighs each release by how it was made; pass {option('model')}, its model")
    chains = {name: chain_of(other) for name, other in others.items()}
    for name, other in chains.items():
        if other.alphabet.strict.fingerprint() != model.alphabet.strict.fingerprint():
            raise ModelError(f"{name} is about other values than the release; fit it with the alphabet of its model")
    evidence = evidence_of(received(released, model, None, meta, **reading.to_dict()))
    return {f"Bayes with {name}": partial(posteriors, evidence, other) for name, other in chains.items()}


def _total(released: Events, budget: Mapping[str, Any]) -> float | None:
    """The most that a stream may leak: the largest sum of ε, from the column that a release writes, or its budget."""
    import polars as pl

    exact = None if budget.get("delta") is not None else budget.get("total")
    spent = [] if exact is None else [float(exact)]
    if EPSILON in released.frame.columns:
        sums = released.frame.group_by("user").agg(pl.col(EPSILON).cast(pl.Float64, strict=False).sum())[EPSILON]
        spent += [total for total in sums.to_list() if np.isfinite(total) and total == sums.max()][:1]
    return min(spent, default=None)
