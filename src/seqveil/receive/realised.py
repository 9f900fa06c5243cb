"""A plan held against people: the error that releases really have, beside the one that the model expects.

People whom the model was not fitted to are released with each row's setting, and what comes out is compared with the
truth. Whoever runs it holds the raw data; nothing that is printed is private, and nothing is protected: the figures are
means over these people.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seqveil.core.bulk import Layout
from seqveil.core.coins import SeededCoins
from seqveil.core.distortion import Distortion
from seqveil.core.errors import DataError
from seqveil.core.kernel import Ints
from seqveil.core.model import MarkovModel
from seqveil.receive.planning import FEW, Plan, Row
from seqveil.release import batches, stream
from seqveil.release.accounting import Schedule


def realised(
    made: Plan,
    model: MarkovModel,
    users: Ints,
    codes: Ints,
    distortion: str | Distortion = "hamming",
    people: int = 200,
    seed: int = 0,
) -> Plan:
    """The plan with what each of its rows really costs people, over their first `made.length` events.

    Parameters:
      made: the plan.
      model: the model that they are released with; it should not have been fitted to them.
      users: whose each event is, each user's events in their order.
      codes: their symbols, as codes of the model's alphabet.
      distortion: that of the plan.
      people: how many of them are released at most, spread over all; of batches at most 40.
      seed: of the coins.

    >>> from seqveil.receive.planning import plan
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> streams = model.sample(10, 300, seed=1)
    >>> found = realised(plan(model, [2.0], length=10), model, np.repeat(np.arange(300), 10), streams.ravel())
    >>> abs(found.rows[0].realised_error - found.rows[0].error) < 0.03, found.realised_people
    (True, 200)
    """
    if not users.size:
        raise DataError("there is nobody to release: the data hold no events")
    layout = Layout.of(users)
    taken = np.unique(np.linspace(0, layout.lengths.size - 1, min(people, layout.lengths.size)).astype(np.int64))
    streams = [
        codes[layout.order[layout.begins[at] : layout.begins[at] + min(layout.lengths[at], made.length)]]
        for at in taken
    ]
    rows = tuple(_measured(row, model, distortion, streams, seed) for row in made.rows)
    return replace(made, rows=rows, realised_people=len(streams))


def _measured(row: Row, model: MarkovModel, distortion: str | Distortion, streams: list[Ints], seed: int) -> Row:
    """The row with its realised errors: of the releases as they stand, and of the receiver's best guess after each."""
    if row.batch > 1:
        spent = row.epsilon * row.batch
        setting = stream.Setting.of(model, row.mechanism, spent, distortion, batch=row.batch)
        error, decoded = _in_batches(setting, streams[:: max(1, len(streams) // FEW)], seed)
    else:
        setting = stream.Setting.of(model, row.mechanism, row.epsilon, distortion, Schedule(row.period))
        error, decoded = _one_by_one(setting, streams, seed)
    return replace(row, realised_error=error, realised_decoded=decoded)


def _one_by_one(setting: stream.Setting, streams: list[Ints], seed: int) -> tuple[float, float]:
    streams = sorted(streams, key=len, reverse=True)  # whoever has ended stands last
    lengths, totals = np.array([len(codes) for codes in streams]), np.zeros(2)
    state, coins = stream.State.start(setting, len(streams)), SeededCoins(seed)
    for t in range(int(lengths[0])):
        now = int((lengths > t).sum())
        truth = np.array([codes[t] for codes in streams[:now]])
        made, state = stream.step(setting, state.take(np.arange(now)), truth, coins)
        post = made.beliefs * made.columns
        post /= post.sum(1, keepdims=True)
        guess = setting.distortion.best_guess(post)
        totals += [setting.distortion.between(truth, each).sum() for each in (made.codes, guess)]
    error, decoded = (totals / lengths.sum()).tolist()
    return error, decoded


def _in_batches(setting: stream.Setting, streams: list[Ints], seed: int) -> tuple[float, float]:
    coins, totals = SeededCoins(seed), np.zeros(2)
    for codes in streams:
        state, sent = stream.State.start(setting), []
        for begin in range(0, len(codes), setting.batch):
            one, state = batches.step(setting, state, codes[begin : begin + setting.batch], coins)
            assert one is not None  # nothing is left out without a budget
            sent.append(one)
        made = np.concatenate([one.codes for one in sent])
        guess = setting.distortion.best_guess(batches.filtered(setting, sent))
        totals += [setting.distortion.between(codes, each).sum() for each in (made, guess)]
    error, decoded = (totals / sum(len(codes) for codes in streams)).tolist()
    return error, decoded
