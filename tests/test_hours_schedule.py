"""Events that come evenly, so that the hours to come are known, and secrets about hours, by enumeration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import seqveil as sv
from seqveil.core.errors import InputError
from seqveil.core.filtering import as_logs
from seqveil.engine.secrets import guarded_table
from seqveil.engine.state import State
from seqveil.engine.stream import located, observe
from seqveil.engine.streams import Streams
from test_hours import HOUR, NIGHT, Twin, laws


def odds_moved(n: int, seed: int, starts: float, epsilon: float, sides: str) -> tuple[float, float]:
    """Least and largest log odds factor of the first day's secret over all outcomes of six events, by enumeration."""
    priors, tables = laws(n, seed)
    model = sv.MarkovModel.by_hour("night=18-6,day=6-18", priors, tables).scheduled(4, starts)
    secret = sv.secrets.during(0, (18, 6), per_day=4, starts=starts, epsilon=epsilon, sides=sides)  # type: ignore[arg-type]
    setting = sv.Setting.of(model, "guarded", secrets=secret)
    times = [HOUR * (starts + 6 * k) for k in range(6)]
    bands = [0 if (starts + 6 * k) % 24 in (18, 0) else 1 for k in range(6)]
    twin = Twin(priors, tables, bands)
    happens = np.array([any(s[t] == 0 and bands[t] == 0 for t in range(4)) for s in twin.sequences])
    found = [0.0]

    def go_on(state: State, told: np.ndarray, t: int) -> None:
        table = guarded_table(setting, state.watches[0])  # type: ignore[index]
        for place, code in enumerate(table.outputs.tolist()):
            column = np.asarray(table.column(place), np.float64) / 2.0**62
            after = told * np.array([column[s[t]] for s in twin.sequences])
            yes, no = ((twin.chances * after)[part].sum() / twin.chances[part].sum() for part in (happens, ~happens))
            if not yes and not no:
                continue  # this label cannot come
            found.append(math.log(yes / no) if yes and no else math.copysign(math.inf, yes - no))
            if t + 1 < 6:
                _, following = observe(setting, state, np.array([code]), np.array([times[t]]))
                go_on(following, after, t + 1)

    go_on(State.start(setting), np.ones(len(twin.sequences)), 0)
    return min(found), max(found)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "seed", "starts"), [(2, 1, 0.0), (2, 2, 6.0), (2, 9, 18.0), (3, 5, 12.0)])
def test_at_home_at_night_is_kept_whatever_is_released(n: int, seed: int, starts: float) -> None:
    low, high = odds_moved(n, seed, starts, 0.5, "both")
    assert -0.5 <= low < 0 < high <= 0.5
    assert max(-low, high) > 0.4


def test_nobody_becomes_surer_than_promised() -> None:
    _, high = odds_moved(2, 4, 6.0, 0.4, "up")
    assert 0.1 < high <= 0.4


def test_events_come_when_it_is_their_turn() -> None:
    model = sv.MarkovModel.by_hour(NIGHT, *laws(2, 1)).scheduled(24, starts=7.0)
    assert (model.starts, model.bands) == (7.0, 24)
    streams = Streams(sv.Setting.of(model, epsilon=1.0))
    hour = [HOUR * (7 + k) for k in range(30)]
    streams.release(["ann"] * 30, [0] * 30, times=hour)
    for users, times in (
        (["bob"], [HOUR * 8]),
        (["bob", "bob"], [hour[0], hour[2]]),
        (["bob", "ann"], [hour[0], hour[3]]),
    ):
        with pytest.raises(InputError, match="24 events a day, evenly spread"):
            streams.release(users, [0] * len(users), times=times)
    assert streams.standings().events.tolist() == [30]
    session = sv.Session(model, epsilon=1.0)
    with pytest.raises(InputError, match="evenly spread"):
        session.release(0, time=HOUR)
    assert session.release(0, time=HOUR * 31.5) in (0, 1)  # another day, within the hour


def test_a_schedule_changes_no_release() -> None:
    """Under a schedule that events keep, belief and account are those of the bands alone."""
    model = sv.MarkovModel.by_hour(NIGHT, *laws(3, 6, sparse=True))
    one, two = (sv.Session(each, epsilon=0.8, seed=3) for each in (model, model.scheduled(24)))
    for t, symbol in enumerate([0, 0, 0, 2, 2, 1, 1, 2] * 5):
        np.testing.assert_allclose(one.belief_at(HOUR * t), two.belief_at(HOUR * t), rtol=1e-12)
        assert one.release(symbol, time=HOUR * t) == two.release(symbol, time=HOUR * t)
        assert one.leakage == pytest.approx(two.leakage, abs=1e-9)


EVER = sv.secrets.ever(0, epsilon=1.0, window=3)
TWICE, HOURLY = (sv.secrets.during(0, (22, 6), per_day=count, epsilon=1.0) for count in (48, 24))


def keeping(model: sv.MarkovModel, secret: Any, **more: Any) -> sv.Session:
    return sv.Session(model, "guarded", secrets=secret, **more)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda m: m.scheduled(7), "do not begin where one of 7 parts"),
        (lambda m: m.scheduled(24, 0.5), "expected starts as the hour"),
        (lambda m: m.scheduled(24).scheduled(24), "only a model by the hour"),
        (lambda m: sv.MarkovModel([1.0], [[1.0]]).scheduled(24), "only a model by the hour"),
        (lambda m: keeping(m, EVER), "events must come evenly"),
        (lambda m: keeping(m.scheduled(24), TWICE), "the same per_day"),
        (lambda m: keeping(m.scheduled(24, 7.0), HOURLY), "per_day and starts"),
        (lambda m: keeping(m.scheduled(24), EVER, observers=m), "an observer's model"),
        (lambda m: keeping(m.scheduled(24), EVER, observers=m.scheduled(24, 1.0)), "schedule"),
    ],
)  # fmt: skip
def test_schedules_and_secrets_that_cannot_be(act: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        act(sv.MarkovModel.by_hour(NIGHT, *laws(2, 1)))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_what_is_all_but_ruled_out_may_come_back() -> None:
    """On a chain that never moves the log odds are a sum, however faint one side gets, with hours as without."""
    still = np.eye(2)
    bands = sv.MarkovModel.by_hour(NIGHT, [0.5, 0.5], [still, still])
    for model in (bands, bands.scheduled(24)):
        setting = sv.Setting.of(model, "randomized_response", epsilon=2.0)
        state, odds = State.start(setting), 0.0
        for k, told in enumerate([0] * 200 + [1] * 199):
            seen, state = observe(setting, state, np.array([told]), np.array([HOUR * k]))
            odds += float(np.log(seen.columns[0, 0] / seen.columns[0, 1]))
            law = as_logs(located(setting, state, np.array([HOUR * (k + 1)])).states[0])
            sides = [law[model.newest == symbol].max() for symbol in (0, 1)]
            assert sides[0] - sides[1] == pytest.approx(odds, rel=1e-9, abs=1e-9)
