"""Hold the releases of a file against what was promised: their exact leakage, another chain, and the model itself."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

import numpy as np

from seqveil.core.coins import known_as
from seqveil.core.errors import InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret
from seqveil.core.secrets.watch import LONGEST
from seqveil.core.words import Risk
from seqveil.engine.stream import Setting
from seqveil.interfaces.files import writing as side
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.received import Batch, Received, Where, receive
from seqveil.interfaces.files.rows import Progress
from seqveil.interfaces.files.writing import Digest
from seqveil.receiver.audit import ROUNDING, Asked, Audit, Report, within, within_ldp
from seqveil.receiver.drift import Drift, Seen
from seqveil.receiver.reweigh import Against, Departure, check, merged

if TYPE_CHECKING:
    import polars as pl

    from seqveil.receiver.coldstart import Receiver
    from seqveil.receiver.versions import Versions

SHOWN = 20  # users named, at most
ALPHA = 0.01  # of a false alarm in a verdict, however many releases there are


def audit_file(
    released: FilePath | pl.DataFrame,
    model: MarkovModel | Versions,
    setting: Setting | None = None,
    *,
    delta: float = 1e-6,
    memory: int = 1 << 30,
    progress: Progress | None = None,
    secrets: Sequence[Secret] | None = None,
    promised: bool = True,
    longest: int = LONGEST,
    **where: Unpack[Where],
) -> Report:
    """What the releases of a file leaked, exactly, from the file and the model alone.

    The setting comes from the side file; `setting` is for a file that has none. A model that is not the release's, and
    a release that the setting cannot have made, are refused. Where the file has the column `epsilon` it is compared
    with what the setting spent, and where the side file has a digest of the rows, with the rows. Of a release in
    batches everything is recomputed from the paths, the values too. A release that its side file calls seeded does not
    pass, whatever the figures: whoever knows the seed can undo it.

    `secrets` are accounted for exactly, whatever the mechanism; by default those that the release was to keep. Where
    nothing was `promised` about them their ε is not checked; `longest` is the most events of a stream where a secret
    needs an end.

    Of a cold start `model` are its versions. Each release is checked against its ε under the chain it was made with;
    each stream's leakage is exact under the last chain, and checked against Σε with twice the ε of versions between the
    first and the last. It keeps no declared secrets, and none can be asked about.
    """
    received = receive(released, model, setting, **where)
    if received.versions is not None:
        if secrets:
            raise InputError("a cold start has no one model under which a secret could be accounted for; leave it out")
        report = _audit_cold(received, received.versions, progress)
    else:
        audit = Audit(received.setting, memory, Asked.of(received.setting, secrets, promised, longest))
        digest = (_audit_batches if received.setting.in_batches else _audit_symbols)(received, audit, progress)
        report = audit.report(delta, received.unchanged(digest))
    return replace(report, unseeded=side.unseeded(received.meta), read=received.source.taken.sentence)


def _audit_symbols(received: Received, audit: Audit, progress: Progress | None) -> Digest:
    digest = Digest()
    for batch in received.batches(progress):
        with received.naming(batch.where):
            used = audit.take(batch.users, batch.codes, batch.times, batch.epsilons)
        batch.add_to(digest, used)
    return digest


def _audit_batches(received: Received, audit: Audit, progress: Progress | None) -> Digest:
    digest = Digest()
    for portion in received.portions(progress):
        for sealed in portion.sealed:
            with received.naming(sealed.where):
                claimed = None if sealed.path is None else sealed.epsilons
                audit.take_batch(sealed.user, sealed.path, sealed.codes, claimed, sealed.time)
        portion.add_to(digest)
    return digest


def _audit_cold(received: Received, versions: Versions, progress: Progress | None) -> Report:
    from seqveil.receiver.coldstart import Receiver

    audit, digest = _ColdAudit(Receiver(versions)), Digest()
    for batch in received.batches(progress):
        with received.naming(batch.where):
            audit.take(batch)
        batch.add_to(digest)
    return audit.report(received.unchanged(digest))


class _ColdAudit:
    """Follows the releases of a cold start, each under the version that it was made with."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver, self._versions = receiver, receiver.versions
        self._each = self._same = True
        self._events = self._held = 0
        self._between: dict[Hashable, float] = {}  # Σε of a user's releases by versions neither the first nor the last

    def take(self, batch: Batch) -> None:
        """Compare the ε and the version of these releases with what they were, and each one's cost with its ε."""
        assert batch.epsilons is not None
        assert batch.versions is not None
        used, costs = self._receiver.observe(batch.users, batch.codes)
        places = self._events + np.arange(len(used))
        numbers = np.searchsorted([version.after for version in self._versions], places, side="right") - 1
        self._each &= within(costs, used)
        self._same &= bool((np.abs(batch.epsilons - used) <= ROUNDING * (1 + used)).all())
        self._same &= bool((batch.versions == numbers).all())
        for k in np.flatnonzero((numbers > 0) & (numbers < self._versions.last.number) & (used > 0)).tolist():
            user = known_as(batch.users[k])
            self._between[user] = self._between.get(user, 0.0) + float(used[k])
        self._held += int((used == 0).sum())
        self._events += len(used)

    def report(self, unchanged: bool | None) -> Report:
        """Everything found so far; `unchanged` is what the caller knows of the file."""
        receiver, versions = self._receiver, self._versions
        accounts, budget = receiver.accounts(), versions[0].setting.budget
        leaked, worst = accounts.leakage, int(accounts.leakage.argmax())
        bound = accounts.by_composition + np.array([self._between.get(user, 0.0) for user in accounts.users])
        risk = Risk.of(versions.last.setting, accounts)
        total = None
        if budget.total is not None and len(versions) <= 2:
            total = bool(leaked[worst] <= budget.total * (1 + ROUNDING))
        return Report(
            users=len(accounts.users),
            releases=receiver.events,
            held=self._held,
            leakage=float(leaked[worst]),
            most=float(accounts.most[worst]),
            least=float(accounts.least[worst]),
            worst_user=accounts.users[worst],
            composition=float(accounts.by_composition.max()),
            worst_release=receiver.worst_release,
            worst_window=None,
            ldp=float(accounts.ldp.max()),
            each_release=self._each,
            each_stream=within(leaked, bound),
            total=total,
            ldp_total=within_ldp(budget, accounts),
            window=None,
            epsilons=self._same,
            unchanged=unchanged,
            composed=None,
            words=risk.sentences,
            told_grade=risk.grade.colour,
        )


def against_file(
    released: FilePath | pl.DataFrame,
    model: MarkovModel,
    other: MarkovModel,
    setting: Setting | None = None,
    *,
    memory: int = 1 << 30,
    progress: Progress | None = None,
    **where: Unpack[Where],
) -> Departure:
    """What the releases of a file leaked if the truth follows `other`, exactly, from public things alone.

    `model` is the one the file was released with; `other` is any chain over the same alphabet, of any order. Where the
    states of all users do not fit in `memory` bytes, the file is read once for each group of users that do.
    """
    received = receive(released, model, setting, **where)
    check(received.setting, other)
    if received.setting.in_batches:
        whole = Against(received.setting, other)
        for sealed in (sealed for portion in received.portions(progress) for sealed in portion.sealed):
            with received.naming(sealed.where):
                whole.take_batch(sealed.user, sealed.path, sealed.rows.size, sealed.time)
        return whole.report()
    numbers = sum(each.size * (1 if each.full_support else 3) for each in (model, other))
    room = max(1, memory // (16 * numbers))
    parts, users, first = [], math.inf, 0
    while first < users:
        against = Against(received.setting, other, (first, room))
        for batch in received.batches(progress):
            with received.naming(batch.where):
                against.take(batch.users, batch.codes, batch.times)
        parts.append(against.report())
        users, first = against.users, first + room
    return merged(parts)


@dataclass(frozen=True)
class Drifted:
    """What the releases of a file say against their model."""

    events: int
    users: int
    alpha: float  # Pr(alarm) is at most this if the model is right
    alarm: bool
    alarm_at: int | None  # events until the alarm
    log_e_value: float  # at the end of the file; the alarm is at log(1/alpha)
    log_likelihood: float  # of all releases under the model, an event
    users_alarmed: int  # users whose own stream is evidence enough, allowing for how many users there are
    worst_users: tuple[tuple[Hashable, float], ...]  # of those, the first few and their log e-values


def drift_file(
    released: FilePath,
    model: MarkovModel,
    setting: Setting | None = None,
    *,
    alpha: float = 0.01,
    progress: Progress | None = None,
    **where: Unpack[Where],
) -> Drifted:
    """Bet against the model with the releases of a file, in the order of its rows; see `seqveil.drift.Drift`.

    Alarms for single users are at level alpha over all of them together.
    """
    drift = _bets(receive(released, model, setting, **where), alpha, progress)
    own = drift.user_log_e_values()
    limit = math.log(len(own) / alpha)
    over = sorted(((user, value) for user, value in own.items() if value >= limit), key=lambda pair: -pair[1])
    return Drifted(
        events=drift.events,
        users=len(own),
        alpha=alpha,
        alarm=drift.alarm,
        alarm_at=drift.alarm_at,
        log_e_value=drift.log_e_value,
        log_likelihood=drift.log_likelihood / max(1, drift.events),
        users_alarmed=len(over),
        worst_users=tuple((user, float(np.round(value, 4))) for user, value in over[:SHOWN]),
    )


@dataclass(frozen=True, eq=False)
class FollowedPart:
    """A part of a file whose releases the caller has followed already: users by number, and what was seen."""

    rows: int  # of the file; a user's events without a release have none
    users: list[int]
    codes: Ints
    times: Floats | None
    seen: Seen


def _bets(
    received: Received, alpha: float, progress: Progress | None, followed: Sequence[FollowedPart] | None = None
) -> Drift:
    drift = Drift(received.setting, alpha)
    for part in followed or ():
        drift.update(part.users, part.codes, part.times, seen=part.seen)
        if progress is not None:
            progress(part.rows)
    for batch in received.batches(progress) if followed is None else ():
        with received.naming(batch.where):
            drift.update(batch.users, batch.codes, batch.times)
    return drift


@dataclass(frozen=True)
class Verdict:
    """Whether the releases of a file fit the model that is used to read them; `fits` is None where they were not asked.

    What a receiver says "under the model" holds if people follow it. Before it is said, the releases are asked: they
    are the bets of `seqveil.drift`, in a pass of their own, and they cost no privacy.
    """

    fits: bool | None
    log_e_value: float | None  # the highest on the way
    alarm: float  # its log at which the model does not fit
    rule: str  # what decides, or why nothing does, in words

    @classmethod
    def none(cls, why: str) -> Verdict:
        """For releases that cannot be asked."""
        return cls(None, None, -math.log(ALPHA), why)

    @classmethod
    def of(
        cls,
        received: Received,
        progress: Progress | None = None,
        followed: Sequence[FollowedPart] | None = None,
    ) -> Verdict:
        """The verdict of a released file's own releases on the model they were made with.

        `followed` is the whole file, where the caller has followed it already; else it is read once more.
        """
        if received.versions is not None:
            learned = len(received.versions) > 1
            why = "the chain was learned from these very releases"
            return cls.none(why if learned else "nothing was learned, so there is no chain to hold against them")
        if received.setting.in_batches or not received.setting.mechanism.sound:
            return cls.none("that takes releases one by one, by a sound mechanism")
        drift = _bets(received, ALPHA, progress, followed)
        rule = f"an e-value that ever reaches 1/{ALPHA:g} is an alarm; if the model is right, that has probability"
        return cls(not drift.alarm, drift.log_highest, -math.log(ALPHA), f"{rule} {ALPHA:g} at most")

    @property
    def said(self) -> tuple[str, str]:
        """The verdict as a line: its name, and what there is to say."""
        if self.fits is None or self.log_e_value is None:
            return "model", f"whether the releases fit it was not checked: {self.rule}"
        odds = f"e^{round(self.log_e_value, 1):g} against it, alarm at e^{round(self.alarm, 1):g}"
        if self.fits:
            return "model", f"the releases do not speak against it ({odds}), which is no proof that it is right"
        return "warning", f"the releases do not fit the model ({odds}): what is said under it need not hold"
