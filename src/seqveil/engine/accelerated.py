"""A fleet on an accelerator: millions of users a call, in torch, with the releases of `Streams` to the last bit.

The state of all users stays on the device; symbols and coins go in, releases come out. Off unless asked for, and for
the one case that gains by it: `optimal` with wrong-symbol cost over a small alphabet and a chain in which anything can
follow anything. Every operation is a separate product, sum or comparison of float64 tensors in the order of the numpy
code, so nothing is fused or reordered. Only logarithms differ from numpy's by a last bit; they enter the account alone,
where the rounding outward covers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqveil.core.coins import Coins
from seqveil.core.errors import GuaranteeError, InputError, SeqveilError
from seqveil.core.fast import labels_and_bounds
from seqveil.core.kernel import DENOMINATOR, DROP, EVEN, UNIT, Floats, Ints, slack, usable
from seqveil.core.leakage import Account
from seqveil.core.mechanisms import optimal as OPTIMAL
from seqveil.engine.stream import REFUSED, Setting, gate

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

CHUNK = 1 << 20  # users at once: some 4 GB of the device's memory at 17 symbols and 4 labels
WIDEST = 64  # symbols
ONE = float(DENOMINATOR)


class DeviceFleet:
    """Streams of many users on one device; each call releases one symbol of every user.

    *Guarantee*: as `Streams`: every table is checked from its integers before anything is drawn from it, and coins come
    from the caller. `chunk`: users whose tables are on the device at once; fewer take less of its memory.

    >>> from seqveil.core.coins import SeededCoins
    >>> from seqveil.core.model import MarkovModel
    >>> model = MarkovModel([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    >>> fleet = DeviceFleet(Setting.of(model, epsilon=1.0), users=3, device="cpu")
    >>> fleet.release(np.array([1, 0, 1]), SeededCoins(1)).shape, bool((fleet.leakage() <= 1.0).all())
    ((3,), True)
    """

    def __init__(self, setting: Setting, users: int, device: str = "cuda", chunk: int = CHUNK) -> None:
        self._torch = _torch(device)
        model = setting.model
        plain = setting.schedule.period == 1 and not setting.budget.limited and setting.schedule.threshold is None
        covered = setting.mechanism is OPTIMAL and setting.distortion.is_hamming
        covered = covered and model.full_support and model.types == 1 and model.hours is None
        if not (plain and covered and 1 < model.n <= WIDEST and usable(setting.epsilon, model.n) > 0):
            raise InputError(
                f"a device fleet does mechanism optimal with cost hamming over 2 to {WIDEST} symbols, a chain of full "
                "support, no budget and no schedule; use Streams for anything else"
            )
        self.setting, self.device, self._chunk = setting, device, chunk
        self._law = self._put(model.chain.toarray())
        self._backoff = self._put(model.backoff) if model.backoff.any() else None
        self._base = self._put(np.bincount(model.base_state, model.base, model.n))
        self._states = self._put(model.initial)[:, None].repeat(1, users)  # (n, users)
        self._most, self._least = self._put(np.zeros(users)), self._put(np.zeros(users))
        self.steps, self._failed = 0, False

    def __len__(self) -> int:
        return self._states.shape[1]

    def release(self, codes: Ints, coins: Coins) -> Ints:
        """The released codes of all users, for their codes in order."""
        if self._failed:
            raise InputError("this fleet failed in the middle of an earlier call; go on from its releases with Streams")
        truth = gate(codes, self.setting.model.n, len(self))
        thrown = coins.draw(truth.size)
        out = np.full(truth.size, REFUSED, np.int64)
        try:
            for begin in range(0, truth.size, self._chunk):
                part = slice(begin, begin + self._chunk)
                out[part] = self._some(part, self._put(truth[part]), self._put(thrown[part])).cpu().numpy()
        except Exception as error:  # the users before this chunk have moved on, and what was drawn for them stands
            self._failed = True
            if isinstance(error, SeqveilError):
                error.made = out
            raise
        self.steps += 1
        return out

    def states(self) -> Floats:
        """Law of each user's next symbol, (users, n), on the host."""
        return np.ascontiguousarray(self._states.T.cpu().numpy())

    def leakage(self) -> Floats:
        """Exact leakage of each user's releases so far, both sides, rounded up."""
        most, least = self._most.cpu().numpy(), self._least.cpu().numpy()
        alone = np.zeros((len(most), 1))
        return Account(most, least, alone, alone).worst

    def _put(self, array: Any) -> Tensor:
        return self._torch.tensor(array, device=self.device)

    def _some(self, part: slice, codes: Tensor, thrown: Tensor) -> Tensor:
        torch, belief = self._torch, self._states[:, part]
        width, numbers, bounds = labels_and_bounds(self.setting.epsilon, self.setting.model.n)
        labels, table = _tables(torch, belief, width, numbers)
        _check(torch, belief, table, bounds)
        users = torch.arange(belief.shape[1], device=belief.device)
        reached = _running(table[codes, :, users].T)
        drawn = (reached[:-1] <= thrown).sum(0)
        column = table[:, drawn, users]
        self._learn(part, belief, column)
        return labels[drawn, users]

    def _learn(self, part: slice, belief: Tensor, column: Tensor) -> None:
        """`filtering.condition`, `filtering.predict` and `Account.charge` for a chain of full support."""
        torch, n = self._torch, self.setting.model.n
        post = belief * column.to(torch.float64)
        marginal = _total(post)
        if not bool((marginal > 0).all()):
            raise GuaranteeError("a belief rules out what was drawn; nothing was released; please report the model")
        post = post / marginal
        ahead = torch.zeros_like(post)
        for s in range(n):
            ahead = ahead + self._law[s][:, None] * post[s]
        if self._backoff is not None:
            again = torch.zeros_like(marginal)
            for s in range(n):
                again = again + self._backoff[s] * post[s]
            ahead = ahead + again * self._base[:, None]
        infinite = torch.iinfo(torch.int64).max
        low = torch.where(belief > 0, column, infinite).amin(0)
        high = torch.where(belief > 0, column, 0).amax(0)
        silent = low == high
        for total, weight, sign in ((self._most, high, 1.0), (self._least, low, -1.0)):
            log = torch.log(weight.to(torch.float64) / marginal)
            cost = torch.where(silent, 0.0, log + sign * (slack(n) + 8 * UNIT * log.abs()))
            both = total[part] + cost
            total[part] = torch.where(cost == 0.0, both, both + sign * (2 * UNIT) * both.abs())
        self._states[:, part] = ahead / _total(ahead)


def _tables(torch: Any, belief: Tensor, width: int, numbers: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """`_filling.solve` as integers: labels (K, B) and weights (n, K, B)."""
    a, gain, kappa = numbers
    n, users = belief.shape
    labels, top = _likeliest(torch, belief, width)
    slots = torch.arange(width, device=belief.device)[:, None]
    rest = torch.clamp(_total(belief) - _running(top)[-1], min=0.0) if width < n else torch.zeros_like(belief[0])
    from_here = _running(torch.cat([rest[None], top.flip(0)])).flip(0)  # mass of each and of all less likely
    after = from_here[1:]
    need = torch.clamp(kappa - top, min=0.0)
    worth_it = top > a * a * top[0]
    labelled = (worth_it & (after >= _running(need))).cummin(0).values
    count = labelled.sum(0)
    need = torch.where(labelled, need, 0.0)
    tail = from_here.gather(0, count[None])[0]
    left = torch.clamp(tail - _running(need)[-1], min=0.0)

    last = (slots == count) & worth_it
    share = torch.where(labelled, torch.clamp((kappa - after) / torch.where(labelled, top, 1.0), 0.0, 1.0), 0.0)
    slope = torch.clamp(tail, max=kappa) - _running(share * need)[-1]
    worth = torch.where(labelled, top * (a * torch.clamp(top, min=kappa) + gain), 0.0)
    head = _running(torch.where(last, top, 0.0))[-1]
    advantage = (kappa / a) * head - _running(share * worth)[-1]
    opened = last.any(0) & (advantage > a * top[0] * slope) & (left > 0.0)
    last = (last & opened).to(torch.float64)
    time = torch.where(opened, torch.clamp(left / torch.where(slope > 0.0, slope, 1.0), max=1.0), 0.0)
    kept = torch.where(labelled, 1.0 - time * share, 0.0)
    filling = kept * need
    filling[0] += torch.where(opened, 0.0, left)
    marginal = kept * top + filling + time * kappa * last

    place = torch.full((n, users), -1, dtype=torch.int64, device=belief.device)
    place.scatter_(0, labels, torch.where(labelled, slots, -1))
    holds = _last_slot(torch, belief, place, labels.gather(0, count.clamp(max=width - 1)[None]), kappa)
    holds = torch.where(opened, torch.where(tail < kappa, 1.0, holds), 0.0)
    in_last = time * holds
    mass = torch.where(place < 0, belief * (1.0 - in_last), 0.0)
    end = _running(mass)
    start, borders = end - mass, _running(filling)
    final = (borders < borders[-1]).sum(0)
    first = torch.minimum((borders <= start[:, None]).sum(1), final)
    past = torch.maximum(torch.minimum((borders < end[:, None]).sum(1), final), first)

    start, end, first, past = start[:, None], end[:, None], first[:, None], past[:, None]
    presence = torch.minimum(end, borders) - torch.maximum(start, borders - filling)
    presence = torch.where((slots >= first) & (slots <= past), torch.clamp(presence, min=0.0), 0.0)
    presence = torch.where(first == past, (slots == first).to(torch.float64), presence)
    presence = torch.where(borders[-1] <= 0.0, marginal, presence)
    presence = presence * ((1.0 - in_last) / _running(presence.transpose(0, 1))[-1])[:, None]
    presence = presence + in_last[:, None] * last
    gone = (time * share).gather(0, place.clamp(min=0))
    own = torch.where(slots == place[:, None], kept, 0.0) + gone[:, None] * last
    presence = torch.where(place[:, None] >= 0, own, presence)
    return labels, _weights(torch, torch.clamp(a * marginal + (1.0 - a) * presence, min=0.0))


def _likeliest(torch: Any, belief: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The likeliest symbols in descending order, ties by code, and their beliefs: (K, B) each."""
    left, labels, top = belief.clone(), [], []
    for _ in range(width):
        best, which = left[0], torch.zeros(belief.shape[1], dtype=torch.int64, device=belief.device)
        for x in range(1, belief.shape[0]):
            larger = left[x] > best
            best, which = torch.where(larger, left[x], best), torch.where(larger, x, which)
        labels.append(which)
        top.append(best)
        left.scatter_(0, which[None], -1.0)
    return torch.stack(labels), torch.stack(top)


def _last_slot(torch: Any, belief: Tensor, place: Tensor, head: Tensor, kappa: float) -> Tensor:
    """`_filling._last_slot` where the slot is full: share of it that each unlabelled symbol holds, (n, B)."""
    room = kappa - belief.gather(0, head)
    mass = torch.where(place < 0, belief, 0.0).scatter_(0, head, 0.0)
    before = _running(mass) - mass
    inside = torch.clamp((room - before) / torch.where(mass > 0.0, mass, 1.0), 0.0, 1.0)
    return torch.where(mass > 0.0, inside, (before < room).to(torch.float64)).scatter_(0, head, 1.0)


def _weights(torch: Any, table: Tensor) -> Tensor:
    """Tables (n, K, B) as integers whose rows sum to 2**62: `kernel.to_weights`."""
    if bool(((_running(table.transpose(0, 1))[-1] - 1.0).abs() > EVEN).any()):
        raise GuaranteeError("a table's row does not sum to one; nothing was released; please report the model")
    weights = (table * ONE).to(torch.int64)
    largest = weights.argmax(1, keepdim=True)
    rest = DENOMINATOR - weights.sum(1, keepdim=True)
    return weights.scatter_add_(1, largest, rest)


def _check(torch: Any, belief: Tensor, table: Tensor, bounds: tuple[float, ...]) -> None:
    """Every lift and LDP level well inside its bound, from the integers; else nothing is drawn."""
    ceiling, floor, ldp = bounds
    low, high = table.amin(0).to(torch.float64), table.amax(0).to(torch.float64)
    mean = (belief[:, None] * table.to(torch.float64)).sum(0)
    inside = (high <= ceiling * mean) & (low >= floor * mean) & (high <= ldp * low) & (mean > DROP * ONE)
    if not bool((inside | (high == 0)).all()):
        raise GuaranteeError("a table is not well inside its bounds; nothing was released; use Streams, which mends it")


def _running(values: Tensor) -> Tensor:
    """Running sums along the first axis, one after another on every device."""
    out = values.clone()
    for k in range(1, len(values)):
        out[k] += out[k - 1]
    return out


def _total(values: Tensor) -> Tensor:
    """Sum along the first axis in numpy's order for a contiguous one: eight running sums up to 128 values."""
    count = len(values)
    whole = count - count % 8 if count >= 8 else 0
    total = values[0].new_zeros(values.shape[1:])
    if whole:
        part = [values[k] for k in range(8)]
        for k in range(8, whole):
            part[k % 8] = part[k % 8] + values[k]
        total = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]))
    for k in range(whole, count):
        total = total + values[k]
    return total


def _torch(device: str) -> Any:
    try:
        import torch
    except ImportError:
        raise InputError("a device fleet needs torch; install the build for your device, or use Streams") from None
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f'no device "{device}" is there; use device="cpu", or Streams')
    return torch
