"""Hold the releases of a file against what was promised: their exact leakage, and the model itself."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

import numpy as np

from seqveil.core.kernel import Floats, Ints
from seqveil.core.model import MarkovModel
from seqveil.core.secrets import Secret
from seqveil.core.secrets.watch import LONGEST
from seqveil.engine.stream import Setting
from seqveil.interfaces.files import writing as side
from seqveil.interfaces.files.reading import FilePath
from seqveil.interfaces.files.received import Received, Where, receive
from seqveil.interfaces.files.rows import Progress
from seqveil.interfaces.files.writing import Digest
from seqveil.receiver.audit import Asked, Audit, Report
from seqveil.receiver.drift import Drift, Seen

if TYPE_CHECKING:
    import polars as pl


SHOWN = 20  # users named, at most
ALPHA = 0.01  # of a false alarm in a verdict, however many releases there are


def audit_file(
    released: FilePath | pl.DataFrame,
    model: MarkovModel,
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
    """
    received = receive(released, model, setting, **where)
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
