"""Events that come evenly, so many a day, in streams of several lengths."""

from __future__ import annotations

import numpy as np
import pytest

from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import DataError
from seqveil.receiver.contexts import Context

LENGTHS = (3, 13, 6)  # the first is not the longest, and days are not whole


def streams(shift: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    users = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    hours = np.concatenate([(np.arange(length) + shift) * 6.0 for length in LENGTHS])
    return users, (hours // 6).astype(np.int64) % 2, 3600.0 * hours


def test_streams_of_several_lengths_that_come_evenly_are_taken():
    users, codes, times = streams()
    model = Context.parse("hours:4,per_day:4").fit(users, codes, Alphabet(["a", "b"]), times=times)
    assert model.hours is not None


def test_streams_that_begin_at_another_hour_are_refused():
    users, codes, times = streams(shift=1)
    with pytest.raises(DataError, match="begin at 0 o'clock"):
        Context.parse("hours:4,per_day:4").fit(users, codes, Alphabet(["a", "b"]), times=times)
