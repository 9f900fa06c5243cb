"""What a budget buys, before anything is released: streams simulated from the model, never private data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqveil.core import filtering, html, mechanisms
from seqveil.core.alphabet import WITHHELD
from seqveil.core.bulk import Layout
from seqveil.core.distortion import Distortion
from seqveil.core.errors import DataError, InputError
from seqveil.core.kernel import Floats, Ints
from seqveil.core.mechanisms import BatchMechanism, Mechanism
from seqveil.core.model import MarkovModel
from seqveil.core.randomness import SeededRandomness
from seqveil.engine import batches, stream
from seqveil.engine.policy import Policy
from seqveil.engine.secrets import guarded_table, totals
from seqveil.engine.terms import Terms
from seqveil.receiver import trial
from seqveil.receiver.decode import decode_codes

PERIODS = (1, 2, 3, 4, 6, 8, 12, 16)
HIGHEST = 12.0  # ε of one pulse beyond which spending more at once buys nothing
FEW = 40  # simulated streams of batches
PROGRAM = 40  # symbols up to which the exact optimum of any distortion is quick


@dataclass(frozen=True)
class PlanRow:
    """One line of a plan: means over simulated releases, each given its whole public past.

    `error` is the expected distortion of the release as it stands, `decoded_error` after the receiver's online filter,
    `truth` the probability that the release is the truth, `paid_truth` that of the releases that carry ε alone (None
    where none does), `constant_error` that of the best guess with no release at
    all, `gap` how far the kernel's expected cost lies above the exact optimum for the same beliefs (None: not known).

    For batches ε is that of one symbol on average (a batch spends batch · ε), `smoothed_error` that after decoding with
    all releases of the stream (None: not computed), and `delay` the most symbols that one waits for.

    All of these hold under the model. `realised_error` and `realised_decoded` are what releases and the receiver's best
    guesses cost real people, where there was data to measure it on (`realised`).
    """

    epsilon: float
    mechanism: str
    period: int
    error: float
    decoded_error: float
    truth: float
    constant_error: float
    gap: float | None
    leakage: float
    batch: int = 1
    smoothed_error: float | None = None
    paid_truth: float | None = None
    realised_error: float | None = None
    realised_decoded: float | None = None

    @property
    def delay(self) -> int:
        """Events that a symbol waits for at most before its batch is released."""
        return self.batch - 1


@dataclass(frozen=True)
class Plan:
    """What several ε cost in error on one model: a row for each ε and each way to release."""

    rows: tuple[PlanRow, ...]
    length: int
    distortion: str
    symbols: int
    realised_people: int | None = None  # whom the realised errors are of

    def _repr_html_(self) -> str:
        facts = [("simulated releases a stream", str(self.length)), ("symbols", str(self.symbols))]
        heads = ["epsilon", "mechanism", "period", "batch", "error", "decoded_error", "truth", "leakage"]
        rows = [[getattr(row, head) for head in heads] for row in self.rows]
        return html.page("Plan", facts, html.records(f"expected {self.distortion} error", heads, rows))


def plan(
    model: MarkovModel,
    epsilons: Sequence[float],
    mechanism: str | Mechanism = "optimal",
    distortion: str | Distortion = "hamming",
    length: int = 50,
    users: int = 200,
    seed: int = 0,
    *,
    period: int | None = 1,
    references: Sequence[str] = ("randomized_response",),
    batch_sizes: Sequence[int] = (),
    batch_mechanism: str | BatchMechanism = "auto",
    batch_users: int | None = None,
) -> Plan:
    """Expected utility against ε for this model: one row for each ε and mechanism.

    `period` pulses the mechanism's budget (None: the best period is found by simulation); `references` are mechanisms
    to show beside it, releasing at every step. `batch_sizes` adds, for each ε and size w, a row for `batch_mechanism`
    with w·ε for a batch, so that all rows of one ε spend the same on a symbol; with `batch_users`
    simulated streams (by default as many as 100 batches make, from 8 to 40: a batch takes milliseconds or more).

    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> row = plan(model, [1.0], length=10, users=50).rows[0]
    >>> row.error < row.constant_error
    True
    """
    if min(length, users, 1 if batch_users is None else batch_users) < 1:
        raise InputError(f"expected a length and a number of users ≥ 1, got {length} and {users}")
    chosen = mechanisms.get(mechanism)
    if not epsilons:
        raise InputError("expected at least one epsilon to plan for; try 0.5,1,2")
    rows = []
    for epsilon in epsilons:
        every = period if period is not None else best_period(model, epsilon, chosen, distortion, length, users, seed)
        shown = [(chosen, every)] if every == 1 else [(chosen, 1), (chosen, every)]
        shown += [(mechanisms.get(name), 1) for name in references if name != chosen.name]
        for each, pulse in shown:
            setting = Policy(epsilon=epsilon, mechanism=each, distortion=distortion, every=pulse).on(model)
            row = simulate(setting, length, users, seed, compare=pulse == 1)
            late = smoothed(setting, length, min(users, batch_users or FEW), seed) if batch_sizes else None
            rows.append(replace(row, smoothed_error=late))
        for size in batch_sizes:
            setting = Policy(epsilon=size * epsilon, batch=size, mechanism=batch_mechanism, distortion=distortion).on(
                model
            )
            few = batch_users or min(FEW, max(8, 100 * size // length))
            rows.append(replace(simulate_batches(setting, length, few, seed), epsilon=epsilon))
    name = distortion if isinstance(distortion, str) else distortion.name
    return Plan(tuple(rows), length, name, model.n)


def best_period(
    model: MarkovModel,
    epsilon: float,
    mechanism: str | Mechanism = "optimal",
    distortion: str | Distortion = "hamming",
    length: int = 50,
    users: int = 200,
    seed: int = 0,
) -> int:
    """The period m of least expected error: m·ε at every m-th release, else 0 (docs/theory.md, section 11)."""
    mechanisms.check_epsilon(epsilon)
    tried = [m for m in PERIODS if m == 1 or (m * epsilon <= HIGHEST and 2 * m <= length)]
    errors = {}
    for m in tried:
        setting = Policy(epsilon=epsilon, mechanism=mechanism, distortion=distortion, every=m).on(model)
        errors[m] = simulate(setting, length, users, seed).error
    return min(errors, key=lambda m: errors[m])


def simulate(setting: stream.Terms, length: int, users: int, seed: int = 0, compare: bool = False) -> PlanRow:
    """Release streams sampled from the model and average the exact conditional expectations of every release.

    Given all that is public after a release y, its expected cost is Σ post(x) D(x, y) and that of the best estimate
    min_r Σ post(x) D(x, r): averaging these instead of realised costs leaves only the noise of the histories.
    """
    model, distortion = setting.model, setting.distortion
    codes = model.sample(length, users, seed)
    totals, paid, gaps, rows = np.zeros(3), np.zeros(2), [], np.arange(users)
    for t, step in enumerate(trial.one_by_one(setting, codes, SeededRandomness(seed + 1))):
        made, post = step.made, step.distribution
        if compare and setting.mechanism.sound and t in (0, 1, length // 2, length - 1):
            gaps.append(_gap(setting, made.beliefs[:25]))
        costs = distortion.expected(post)
        right, carries = post[rows, made.codes], made.epsilons > 0
        totals += [costs[rows, made.codes].mean(), costs.min(1).mean(), right.mean()]
        paid += [right[carries].sum(), carries.sum()]
    error, decoded, truth = (totals / length).tolist()
    known = [gap for gap in gaps if gap is not None]
    return PlanRow(
        setting.epsilon,
        setting.mechanism.name,
        setting.schedule,
        error,
        decoded,
        truth,
        best_guess_error(setting, length),
        float(np.mean(known)) if known else None,
        float(step.after.account.worst.max()),
        paid_truth=float(paid[0] / paid[1]) if paid[1] else None,
    )


def smoothed(setting: stream.Terms, length: int, users: int, seed: int = 0) -> float:
    """Expected cost of the best estimate from all releases of a stream, for releases one by one."""
    steps = trial.one_by_one(setting, setting.model.sample(length, users, seed), SeededRandomness(seed + 1))
    made = np.stack([step.made.codes for step in steps], axis=1)
    distributions = decode_codes(setting, made).reshape(-1, setting.model.n)
    return float(setting.distortion.expected(distributions).min(1).mean())


def simulate_batches(setting: stream.Terms, length: int, users: int, seed: int = 0) -> PlanRow:
    """The same as `simulate` for releases in batches: a batch's symbols given its path are exact."""
    model, distortion, randomness = setting.model, setting.distortion, SeededRandomness(seed + 1)
    totals, leakage = np.zeros(4), 0.0
    for codes in model.sample(length, users, seed):
        sent, state = trial.in_batches(setting, codes, randomness)
        distributions, made = batches.filtered(setting, sent), np.concatenate([one.codes for one in sent])
        costs, places = distortion.expected(distributions), np.arange(length)
        late = distortion.expected(batches.smooth(setting, sent)).min(1)
        totals += [part.mean() for part in (costs[places, made], costs.min(1), distributions[places, made], late)]
        leakage = max(leakage, float(state.account.worst[0]))
    error, decoded, truth, late_error = (totals / users).tolist()
    unseen, name, size = best_guess_error(setting, length), setting.mechanism.name, setting.batch
    return PlanRow(
        setting.epsilon / size, name, 1, error, decoded, truth, unseen, None, leakage, size, late_error, truth
    )


def realised(
    made: Plan,
    model: MarkovModel,
    users: Ints,
    codes: Ints,
    distortion: str | Distortion = "hamming",
    people: int = 200,
    seed: int = 0,
) -> Plan:
    """The plan held against people: what each of its rows really costs them, over their first `made.length` events.

    Whoever runs it holds the raw data. Nothing is protected by it: the figures are means over these people.

    Parameters:
      made: the plan.
      model: the model that they are released with; it should not have been fitted to them.
      users: whose each event is, each user's events in their order.
      codes: their symbols, as codes of the model's alphabet.
      distortion: that of the plan.
      people: how many of them are released at most, spread over all; of batches at most 40.
      seed: of the randomness.

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
    streams.sort(key=len, reverse=True)
    rows = tuple(_measured(row, model, distortion, streams, seed) for row in made.rows)
    return replace(made, rows=rows, realised_people=len(streams))


def _measured(
    row: PlanRow, model: MarkovModel, distortion: str | Distortion, streams: list[Ints], seed: int
) -> PlanRow:
    """The row with its realised errors: of the releases as they stand, and of the receiver's best guess after each."""
    randomness, sums = SeededRandomness(seed), np.zeros(3)  # of both costs, and of the events
    if row.batch > 1:
        setting = Policy(
            epsilon=row.epsilon * row.batch, batch=row.batch, mechanism=row.mechanism, distortion=distortion
        ).on(model)
        for codes in streams[:: max(1, len(streams) // FEW)]:
            sent, _ = trial.in_batches(setting, codes, randomness)
            made = np.concatenate([one.codes for one in sent])
            sums += _costs(setting, codes, made, batches.filtered(setting, sent))
    else:
        setting = Policy(epsilon=row.epsilon, mechanism=row.mechanism, distortion=distortion, every=row.period).on(
            model
        )
        for step in trial.one_by_one(setting, streams, randomness):
            sums += _costs(setting, step.truth, step.made.codes, step.distribution)
    error, decoded = (sums[:2] / sums[2]).tolist()
    return replace(row, realised_error=error, realised_decoded=decoded)


def _costs(setting: Terms, truth: Ints, released: Ints, distributions: Floats) -> Floats:
    """What these releases cost, what the best guesses from these distributions cost, and how many there are."""
    costs = [
        setting.distortion.between(truth, each).sum()
        for each in (released, setting.distortion.best_guess(distributions))
    ]
    return np.array([*costs, truth.size])


def best_guess_error(setting: stream.Terms, length: int) -> float:
    """Expected cost of the best guess of each symbol with no release at all."""
    return float(setting.distortion.expected(filtering.unseen(setting.model, length)).min(1).mean())


def _gap(setting: stream.Terms, beliefs: Floats) -> float | None:
    """Mean expected cost above the exact optimum on these beliefs, at the setting's ε."""
    if not setting.distortion.is_hamming and setting.model.n > PROGRAM:
        return None
    best = replace(setting, mechanism=mechanisms.optimal)
    mine, least = (
        stream.kernels(each, beliefs, setting.epsilon).error(beliefs, setting.distortion) for each in (setting, best)
    )
    return float((mine - least).mean())


@dataclass(frozen=True)
class SecretRow:
    """What keeping declared secrets costs, as a `PlanRow` says it; ε of every release, None where there is none.

    `error` counts a release that says nothing as a wrong one, `decoded_error` is that of the receiver's best estimate,
    `withheld` is the share of releases that say nothing, `disclosed` the most that any simulated stream revealed about
    any of the secrets (log B), and `totals` what was promised about each.
    """

    totals: tuple[float, ...]
    epsilon: float | None
    error: float
    decoded_error: float
    truth: float
    withheld: float
    constant_error: float
    disclosed: float


def simulate_secrets(setting: Terms, length: int = 50, users: int = 20, seed: int = 0) -> SecretRow:
    """Release streams sampled from the model with declared secrets kept, and average what every release costs.

    Parameters:
        setting: one whose mechanism is "guarded".
        length: events of a simulated stream.
        users: how many streams are simulated; one release takes milliseconds.
        seed: of the simulation; the same seed gives the same figures.

    >>> from seqveil.core.secrets import ever
    >>> model = MarkovModel([0.5, 0.4, 0.1], [[0.6, 0.35, 0.05], [0.4, 0.55, 0.05], [0.3, 0.2, 0.5]])
    >>> setting = Policy(secrets=ever(2, epsilon=0.5, window=5), mechanism="guarded").on(model)
    >>> row = simulate_secrets(setting, length=10, users=5)
    >>> row.error < row.constant_error, row.disclosed <= 0.5
    (True, True)
    """
    if not setting.guards:
        raise InputError('expected a setting whose mechanism is "guarded"; pass secrets=[sv.secrets.ever(…)] with it')
    if min(length, users) < 1:
        raise InputError(f"expected a length and a number of users ≥ 1, got {length} and {users}")
    model, distortion = setting.model, setting.distortion
    sums, rows = np.zeros(4), np.arange(users)
    for step in trial.one_by_one(setting, model.sample(length, users, seed), SeededRandomness(seed + 1)):
        made, post = step.made, step.distribution
        costs, withheld = distortion.expected(post), made.codes == WITHHELD
        said = np.where(withheld, 0, made.codes)
        error = np.where(withheld, 1.0, costs[rows, said])
        truth = np.where(withheld, 0.0, post[rows, said])
        sums += [error.mean(), costs.min(1).mean(), truth.mean(), withheld.mean()]
    error, decoded, truth, withheld = (sums / length).tolist()
    assert step.after.trackers is not None
    promised = tuple(secret.total for secret in setting.secrets)
    disclosed = max(total.log_odds_worst for total in totals(setting.secrets, step.after.trackers, promised))
    epsilon = None if setting.unbounded else setting.epsilon
    return SecretRow(promised, epsilon, error, decoded, truth, withheld, best_guess_error(setting, length), disclosed)


def guarded_cost(setting: Terms, events: np.ndarray, seed: int) -> float:
    """The mean expected cost of the kernels along simulated streams."""
    total = 0.0
    for step in trial.one_by_one(setting, events.T, SeededRandomness(seed)):
        assert step.before.trackers is not None
        tables = {id(each): guarded_table(setting, each) for each in step.before.trackers}
        total += sum(tables[id(each)].error for each in step.before.trackers)
    return total / events.size
