"""Attack released rows with the raw rows they were made from: files, and frames in memory (`sv.attack`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from seqveil.core import html
from seqveil.core.alphabet import Alphabet, OnMissing, Symbols
from seqveil.core.errors import InputError, ModelError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.reading import Reading
from seqveil.core.secrets import ever, from_dict
from seqveil.core.secrets.declared import Secret
from seqveil.core.slots import Slots
from seqveil.engine.terms import OTHER_MODEL
from seqveil.evaluate import attack as attacks
from seqveil.evaluate.attack import AttackerGuess, Finding
from seqveil.interfaces.files import writing
from seqveil.interfaces.files.events import Events, ValueType, read_events, value_type_of
from seqveil.interfaces.files.fit import ColumnWords
from seqveil.interfaces.files.frames import as_polars, chain_of
from seqveil.interfaces.files.receive import evidence_of
from seqveil.interfaces.files.received import received
from seqveil.interfaces.files.release import ReleasedRows
from seqveil.interfaces.files.table import FilePath
from seqveil.interfaces.files.truth import paired
from seqveil.interfaces.files.writing import BATCH, EPSILON, EVENT, Meta
from seqveil.interfaces.sentences import guess_means
from seqveil.receiver.learn import Evidence

SYMBOLS = 5  # the most frequent ones, of which single events are attacked where no secret is named


@dataclass(frozen=True, eq=False)
class AttackedPeople:
    """What was released at each event of each person, and the truth; what each stream was promised to cost."""

    alphabet: Symbols
    releases: list[Ints]
    truth: list[Ints]
    times: list[Floats] | None  # of each event, in seconds; None where the files have none
    total: float | None  # the most that a stream may leak: its budget, or its Σε; None where neither is known
    meta: Meta | None

    def before_midnight(self) -> Ints:
        """How many events of each stream come before its first midnight, where windows of a day begin."""
        slots = self.alphabet.slots
        if slots is None or self.times is None:
            raise InputError("an attack on during, or on a window of a day, needs a model, one in slots of time")
        first = slots.numbers(np.array([own[0] for own in self.times]))
        return -slots.place(first) % slots.per_day

    @property
    def secrets(self) -> list[Secret]:
        """The secrets that the side file says were promised."""
        saved = ((self.meta or {}).get("setting") or {}).get("secret") or []
        return [from_dict(one) for one in saved]


def attack_file(
    released: Any,
    truth: Any,
    model: MarkovModel | None = None,
    secrets: Sequence[Secret] = (),
    *,
    claimed: float | None = None,
    who: bool = False,
    meta: FilePath | Mapping[str, Any] | None = None,
    columns: ColumnWords | None = None,
    seed: int = 0,
    false_alarm: float = attacks.FALSE_ALARM,
    missing: OnMissing | None = None,
    with_models: Mapping[str, MarkovModel] | None = None,
    working: Callable[[float], None] | None = None,
) -> list[Finding]:
    """Whether what was promised about secrets is broken for the people of a file, one finding a secret.

    released: the file that was released.
    truth: the raw file it was made from, users in any order.
    model: gives the alphabet, which files of numbers and places need; no classifier uses its chain.
    secrets: what to attack; by default those that the side file says were promised, and where there are none, single
        events of the most frequent values.
    claimed: the ε that was promised about the odds, instead of what the side file and the column of ε say.
    who: also whether people are recognised by their past.
    missing: what was done with rows of the raw file without a value, where that is not what the model says.
    meta, columns, seed, false_alarm: as elsewhere.
    with_models: models of Bayes attackers by name, fitted to other people than those of the file; `model` must be the
        one that the release was made with.
    working: called with the share of the attack that is done, 0 to 1, once the files are read.
    """
    evidence = _evidence(released, model, with_models, meta, columns)
    people = read_people(released, truth, model, meta, columns, missing)
    chosen = list(secrets) or people.secrets or _events(people)
    shared: dict[str, Any] = {"seed": seed, "false_alarm": false_alarm / (len(chosen) + who)}
    seen: dict[str, Any] = {"times": people.times, "models": with_models, "evidence": evidence}
    heard = _Heard(len(chosen) + who, working)
    findings = []
    for secret in chosen:
        heard.begin()
        promised = _promised(secret, people, claimed)
        attacked, seen["heard"] = secret.over(people.alphabet), heard.learning
        seen["skipped"] = people.before_midnight() if secret.follows_clock else None
        findings.append(attacks.attack_secret(people.releases, people.truth, attacked, promised, **shared, **seen))
    if who:
        heard.begin()
        findings.append(
            attacks.attack_identity(people.releases, people.truth, people.alphabet.n, people.total, **shared)
        )
    return findings


class _Heard:
    """Says which share of so many attacks is done. How often classifiers learn in one is not known beforehand: each
    time half of what is left of it counts as done, so that the bar goes on and never back.
    """

    def __init__(self, attacks: int, tell: Callable[[float], None] | None) -> None:
        self._attacks, self._tell = attacks, tell or (lambda share: None)
        self._begun, self._left = -1, 1.0

    def begin(self) -> None:
        """The next attack begins."""
        self._begun, self._left = self._begun + 1, 1.0
        self._tell(self._begun / self._attacks)

    def learning(self) -> None:
        """A classifier is about to learn."""
        self._left /= 2
        self._tell((self._begun + 1 - self._left) / self._attacks)


def _evidence(
    released: Any,
    model: MarkovModel | None,
    others: Mapping[str, MarkovModel] | None,
    meta: Any,
    columns: ColumnWords | None,
) -> Evidence | None:
    """What each release tells of the truth, for Bayes attackers; people in the order of the file."""
    if not others:
        return None
    if model is None:
        raise InputError("a Bayes attacker weighs each release by how it was made; pass the release's own model")
    names = model.alphabet.strict.fingerprint()
    for name, other in others.items():
        if other.alphabet.strict.fingerprint() != names:
            raise ModelError(
                f"{name} is about other values than the release; fit it with the alphabet of the release's model"
            )
    found = received(released, model, None, meta, **columns or {})
    if found.setting.in_batches or found.setting.budget.seconds is not None:
        raise InputError(
            "a Bayes attacker weighs releases one by one, without a budget per seconds; leave other models out"
        )
    return evidence_of(found)


def _promised(secret: Secret, people: AttackedPeople, claimed: float | None) -> float | None:
    """What was promised about the odds of a secret: its own ε, or twice what the whole stream may leak."""
    if claimed is not None:
        return claimed
    for other in people.secrets:
        if replace(other, epsilon=secret.epsilon) == secret:
            return other.epsilon
    return None if people.total is None else 2 * people.total


def _events(people: AttackedPeople) -> list[Secret]:
    """Single events of the most frequent values."""
    codes = np.concatenate(people.truth)
    counts = np.bincount(codes[codes >= 0], minlength=people.alphabet.n)  # others are outside the alphabet
    often = np.argsort(-counts, kind="stable")[: min(SYMBOLS, people.alphabet.n)]
    return [ever([value], epsilon=None, window="event") for value in people.alphabet.decode(often[counts[often] > 0])]


def read_people(
    released: Any,
    truth: Any,
    model: MarkovModel | None = None,
    meta: FilePath | Mapping[str, Any] | None = None,
    columns: ColumnWords | None = None,
    missing: OnMissing | None = None,
) -> AttackedPeople:
    """Both files, person by person and event by event."""
    if isinstance(released, ReleasedRows):
        released, meta = released.frame, released.meta if meta is None else meta
    table, raw_table = as_polars(released), as_polars(truth)
    found = writing.load_meta(table, meta)
    if model is not None and found is not None and found.get("model") != model.fingerprint:
        raise ModelError(OTHER_MODEL)
    known = model.reading if model is not None else None
    reading = writing.stored_reading(found) if found is not None else known or Reading()
    reading = reading.but(**columns or {})
    slots = None if found is None or "slots" not in found else Slots(**found["slots"])
    how: dict[str, Any] = {"missing": missing, "slots": slots}
    kind: ValueType = "text"
    if model is not None:
        how = {"missing": missing or model.alphabet.missing, "slots": model.alphabet.slots}
        how["on_map"], kind = model.alphabet.on_map, value_type_of(model.alphabet)
    elif len(reading.value_columns) > 1:
        raise InputError("places in two columns need the model, which says how they become symbols")
    out = read_events(table, reading, kind, holes="any", beside=(EPSILON, EVENT, BATCH))
    raw = read_events(raw_table, reading, kind, holes="none" if model is None else "any", **how)
    alphabet = _alphabet([out, raw]) if model is None else model.alphabet
    promised = (found or {}).get("setting") or {}
    batch, budget = int(promised.get("batch", 1)), promised.get("budget") or {}
    both = paired(out, raw, raw.codes(alphabet.tracked()), batch)
    codes = out.codes(alphabet.with_policy("hide"))
    return AttackedPeople(alphabet, both.aligned(codes), both.truth, both.times, _total(out, budget), found)


def _alphabet(files: Sequence[Events]) -> Symbols:
    """All values of both files, where no model names them."""
    values: set[object] = set()
    for file in files:
        values.update(file.frame["value"].drop_nulls().unique().to_list())
        if len(values) > 10_000:
            raise InputError(f"{file.name}: more than 10,000 values; pass the model, which says how they are cut")
    return Alphabet(sorted(values, key=str)).with_policy("hide")


def _total(released: Events, budget: Mapping[str, Any]) -> float | None:
    """The most that a stream may leak: the largest sum of ε, from the column that a release writes, or its budget."""
    import polars as pl

    exact = None if budget.get("delta") is not None else budget.get("total")
    spent = [] if exact is None else [float(exact)]
    if EPSILON in released.frame.columns:
        sums = released.frame.group_by("user").agg(pl.col(EPSILON).cast(pl.Float64, strict=False).sum())[EPSILON]
        spent += [float(total) for total in [sums.max()] if total is not None and np.isfinite(total)]  # type: ignore[arg-type]
    return min(spent, default=None)


class Findings(list[Finding]):
    """What an attack found, one finding a secret; a table in a notebook."""

    def lines(self) -> list[tuple[str, str]]:
        """What was found, line by line."""
        return disclosed(self)

    def __str__(self) -> str:
        return "\n".join(f"{name:<10} {text}" for name, text in self.lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.page("Attack", self.lines())


def attack(
    released: Any,
    truth: Any,
    *,
    model: MarkovModel | FilePath | None = None,
    secrets: Secret | Sequence[Secret] = (),
    epsilon: float | None = None,
    meta: Any = None,
    who: bool = False,
    seed: int = 0,
    false_alarm: float = attacks.FALSE_ALARM,
    missing: OnMissing | None = None,
    with_model: Any = None,
    **columns: Unpack[ColumnWords],
) -> Findings:
    """Whether what was promised is broken for the people of a release, as `seqveil attack` finds out.

    Parameters:
        released: what `release` gave back, or a frame or path of released rows.
        truth: the raw rows that it was made from, in any order that their times give.
        model: gives the alphabet, which numbers and places need.
        secrets: what to attack; by default what the release promised to keep, else single events.
        epsilon: what was promised about them, where that is not what they and the release say.
        meta: `ReleasedRows.meta`, or the path of a side file, where `released` has none with it.
        who: also whether people are recognised by their past.
        seed: splits the people.
        false_alarm: how likely a promise that holds may be called broken.
        missing: what was done with raw rows without a value, where that is not what the model says.
        with_model: models of Bayes attackers by name.
        columns: what they are called, where no side file says it.
    """
    others: Mapping[str, Any] = with_model or {}
    return Findings(
        attack_file(
            released,
            truth,
            None if model is None else chain_of(model),
            [secrets] if isinstance(secrets, Secret) else list(secrets),
            claimed=epsilon,
            who=who,
            meta=meta,
            columns=columns,
            seed=seed,
            false_alarm=false_alarm,
            missing=missing,
            with_models={name: chain_of(other) for name, other in others.items()},
        )
    )


def disclosed(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """What there is to say about an attack, line by line."""
    said = []
    for one in findings:
        said += [("attacked", one.about), ("verdict", one.sentence)]
        if one.guess is not None:
            said.append(("guess", _guessed(one.guess)))
            means = guess_means(one.about, one.guess.likelihood_ratio)
            said += [("means", means)] if means else []
    return said


def _guessed(guess: AttackerGuess) -> str:
    """How the guess did on the people who had no part in picking it."""
    if guess.target.startswith("who"):
        return f"{guess.attacker}: right of {guess.right:,} of {guess.of_true:,} people"
    true, false = ("with", "without") if guess.says == "has it" else ("without", "with")
    return (
        f"{guess.attacker} singles out {guess.share_true:.2%} of the windows {true} {guess.target} and "
        f"{guess.share_false:.2%} of those {false}: {guess.likelihood_ratio:.3g} times as likely"
    )
