"""Whether the releases of a file fit the model that is used to read them.

What a receiver says "under the model" holds if people follow it. Before it is said, the releases are asked: they are
the bets of `seqveil.drift`, in a pass of their own, and they cost no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from seqveil.core.errors import DataError
from seqveil.interfaces.flow.received import Received
from seqveil.interfaces.flow.rows import Progress
from seqveil.receive.drift import Drift

ALPHA = 0.01  # of a false alarm, however many releases there are


@dataclass(frozen=True)
class Verdict:
    """What the releases say against the model; `fits` is None where they were not asked."""

    fits: bool | None
    log_e_value: float | None  # the highest on the way
    alarm: float  # its log at which the model does not fit
    rule: str  # what decides, or why nothing does, in words

    @property
    def said(self) -> tuple[str, str]:
        """The verdict as a line: its name, and what there is to say."""
        if self.fits is None or self.log_e_value is None:
            return "model", f"whether the releases fit it was not checked: {self.rule}"
        odds = f"e^{round(self.log_e_value, 1):g} against it, alarm at e^{round(self.alarm, 1):g}"
        if self.fits:
            return "model", f"the releases do not speak against it ({odds}), which is no proof that it is right"
        return "warning", f"the releases do not fit the model ({odds}): what is said under it need not hold"


def not_checked(why: str) -> Verdict:
    """For releases that cannot be asked."""
    return Verdict(None, None, -math.log(ALPHA), why)


def verdict_of(received: Received, progress: Progress | None = None) -> Verdict:
    """The verdict of a released file's own releases on the model they were made with."""
    setting = received.setting
    if setting.in_batches or not setting.mechanism.sound:
        return not_checked("that takes releases one by one, by a sound mechanism")
    drift = Drift(setting, ALPHA)
    for batch in received.batches(progress):
        try:
            drift.update(batch.users, batch.codes, batch.times)
        except DataError as error:
            raise DataError(f"{received.source.name}: {error}") from None
    rule = (
        f"an e-value that ever reaches 1/{ALPHA:g} is an alarm; if the model is right, that has probability {ALPHA:g}"
    )
    return Verdict(not drift.alarm, drift.log_highest, -math.log(ALPHA), f"{rule} at most")
