"""The least error for one secret that is true or not, and wrong symbols: its structure, its solution, its one source.

A *source* z = (x, m) is a symbol and what is remembered of the raw stream; there are M for each symbol, z = n·m + x.
With the belief β(z), the weights σ(z) = Pr(E | z, past releases) and a box [lo, hi] around Pr(E | past), find the
kernel Q of least error Σ β(z) (1 - Q(x|z)) such that Pr(E | y, past) lies in the box for every label y:

    lo · p(y) ≤ Σ_z β(z) σ(z) Q(y|z) ≤ hi · p(y).

*Theorem.* Let r(z) = a(z) + b(z) be the mass of z that is not released as it is, and for a label y

    over(y) = Σ_m (β - r)(y,m) (σ(y,m) - hi),    under(y) = Σ_m (β - r)(y,m) (lo - σ(y,m)):

what is released there as it is and breaks a bound. The least error is the least Σ r(z) subject to 0 ≤ r ≤ β and

    (1)  Σ_y max(0, over(y))   ≤  Σ_z a(z) max(0, hi - σ(z))
    (2)  Σ_y max(0, under(y))  ≤  Σ_z b(z) max(0, σ(z) - lo).

docs/theory.md, section 18, has the proof: cover goes to the labels that need it, shared out so that all labels of a
group have its mean, and what would be too much for them to a third group.

*Two prices.* At prices μ of (1) and ν of (2) every label is a problem of its own: an exact answer from a sort of M
numbers (`_respond`). The answers to all prices are the columns of a program with two rows, solved by the simplex method
(`_least_moved`): about six steps of O(n M), each step a better answer, and at the end the certificate that none is
left. The optimum is a mixture of at most three answers.

*The dial.* If |log Q(y|x,m)/Q(y|x,m')| ≤ c is to hold for all x, y, m, m', let the kernel read not m but a randomised
response to it, m̃ = m with probability e^c/(e^c + M-1), any other with 1/(e^c + M-1). Every such kernel keeps to the
dial, and with M = 2 every kernel that does is one (section 20). So the problem is the one above, over (x, m̃).

*Form.* What is moved as cover of (1) goes to labels by one distribution, whichever source it comes from, and so does
that of (2). So the table has few different rows, besides those of sources that are released as they are. Sources too
unlikely to have a say draw from the marginal of the others, which moves the box a little (`_taken`).

One source, compiled where numba is loaded and plain Python where not, the same integers from both.
"""

from __future__ import annotations

from typing import Any

from seqveil.core.bulk import compiled, grid, reals, wholes
from seqveil.core.kernel import DENOMINATOR
from seqveil.core.secrets.several import fewer, least_for_all

UNLIKELY = 1e-7  # sources below this probability that may not be released as they are draw from what is released
NEGLIGIBLE = 1e-7  # mass below which nothing is left on a label that others are released as
ONE = float(DENOMINATOR)
STEPS = 200  # of the simplex method; some six are taken
NEAR = 1e-13
SMALL = 2.0**33  # a weight of which rounding takes more than one part in 10^10
ROUNDING = 1e-11  # by so much of it labels may miss a box in all
POOLS = 3  # parts of the closed form, besides what is released as it is
GROUPS = 64  # of symbols alike, the latest, that one more is compared with
WRITABLE = 25_000_000  # numbers of a table that is written out in full
DUST = 1e-11  # shares of a source that are rounding, not a choice
TINY = 1e-300
DONE, LEFT, IMPOSSIBLE = 0, 1, 2  # what became of a row: released; for the program; no such release can have been made


@compiled
def pooled(
    belief: Any, yes: Any, lo: float, hi: float, n: int, rows: int, noise: Any, shares: Any, spread: Any
) -> bool:
    """The kernel of least error for one window; False where nothing would be released as it is.

    Parameters:
      belief, yes: β(z) and β(z) σ(z), (Z,), of E or, where that is rarer, of not E.
      noise: (M·M,) the probability of m̃ (second) given m; the identity where nothing is asked of the dial.
      shares: (4·Z,) filled with the parts of each row: as it is, by either distribution, by the marginal.
      spread: (3·n,) filled with the distributions of labels.
    """
    size = n * rows
    mass, secret, taken = reals(size), reals(size), wholes(size)
    _read(belief, n, rows, noise, mass)
    _read(yes, n, rows, noise, secret)
    lo, hi = _taken(mass, secret, lo, hi, size, taken)
    moved = reals(2 * size)
    if hi < lo:
        return False
    _least_moved(mass, secret, n, rows, lo, hi, moved)
    if not _placed(mass, secret, n, rows, lo, hi, moved, spread):
        return False
    noisy = reals(4 * size)
    for z in range(size):
        noisy[z], noisy[size + z], noisy[2 * size + z], noisy[3 * size + z] = 0.0, 0.0, 0.0, 1.0
        if taken[z]:
            noisy[z], noisy[3 * size + z] = max(0.0, 1.0 - moved[z] - moved[size + z]), 0.0
            noisy[size + z], noisy[2 * size + z] = moved[z], moved[size + z]
    _marginal(mass, n, rows, noisy, spread)
    for part in range(4):
        for m in range(rows):
            for x in range(n):
                total = 0.0
                for row in range(rows):
                    total += noise[m * rows + row] * noisy[part * size + row * n + x]
                shares[part * size + m * n + x] = total
    for z in range(size):
        if shares[size + z] + shares[2 * size + z] + shares[3 * size + z] == 0.0:
            shares[z] = 1.0  # whatever the chances of what is read add up to
    return True


@compiled
def _read(numbers: Any, n: int, rows: int, noise: Any, out: Any) -> None:
    """Numbers by what is remembered (Z,) as numbers by what is read; and back, since the noise is symmetric."""
    for row in range(rows):
        for x in range(n):
            out[row * n + x] = 0.0
        for m in range(rows):
            chance = noise[m * rows + row]
            for x in range(n):
                out[row * n + x] += chance * numbers[m * n + x]


@compiled
def _taken(mass: Any, secret: Any, lo: float, hi: float, size: int, taken: Any) -> tuple[float, float]:
    """Which sources have a say, the others' mass set to 0, and the box that the others leave to them; none: (1, 0).

    Each label gets of the others' mass in proportion to its own, so that with g of mass and s of E in them, and t of
    mass in those that have a say, S + s M/t ≤ hi (M + g M/t) is asked of a label with mass M and S of E in it.
    """
    total, gone, lost = 0.0, 0.0, 0.0
    for z in range(size):
        free = mass[z] > 0.0 and lo * mass[z] <= secret[z] <= hi * mass[z]
        taken[z] = 1 if free or mass[z] >= UNLIKELY else 0
        if taken[z]:
            total += mass[z]
        else:
            gone += mass[z]
            lost += secret[z]
            mass[z], secret[z] = 0.0, 0.0
    if total <= 0.0:
        return 1.0, 0.0
    return lo * (1.0 + gone / total) - lost / total, hi * (1.0 + gone / total) - lost / total


@compiled
def _respond(
    mass: Any, secret: Any, n: int, rows: int, lo: float, hi: float, mu: float, nu: float, moved: Any, at: Any,
    order: Any,
) -> Any:  # fmt: skip
    """The best answer of every label to the prices: which share of each source is moved, as cover of (1) or of (2).

    Gives the mass that is moved, and by how much it misses (1) and (2). `at` and `order` (M,) are room to sort in.
    """
    size = n * rows
    total, first, second = 0.0, 0.0, 0.0
    for y in range(n):
        over, under = 0.0, 0.0
        for z in range(y, size, n):
            worth = max(mu * (hi * mass[z] - secret[z]), nu * (secret[z] - lo * mass[z]))
            moved[z] = 1.0 if worth >= mass[z] else 0.0
            if worth < mass[z]:
                over += secret[z] - hi * mass[z]
                under += lo * mass[z] - secret[z]
        if over > 0.0 or under > 0.0:
            price, left, count = (mu if over > 0.0 else nu), max(over, under), 0
            for m in range(rows):
                z = m * n + y
                pull = secret[z] - hi * mass[z] if over > 0.0 else lo * mass[z] - secret[z]
                gain = mass[z] - max(mu * (hi * mass[z] - secret[z]), nu * (secret[z] - lo * mass[z]))
                if ((pull > 0.0 and gain > 0.0) or (pull < 0.0 and gain <= 0.0)) and gain / pull < price:
                    at[m] = gain / pull
                    k = count
                    while k > 0 and at[order[k - 1]] > at[m]:
                        order[k] = order[k - 1]
                        k -= 1
                    order[k] = m
                    count += 1
            for k in range(count):
                z = order[k] * n + y
                pull = secret[z] - hi * mass[z] if over > 0.0 else lo * mass[z] - secret[z]
                part = 1.0 if abs(pull) <= left else left / abs(pull)
                moved[z] = part if pull > 0.0 else 1.0 - part
                left = max(0.0, left - part * abs(pull))
                if left <= 0.0:
                    break
            if over > 0.0:
                first += left
            else:
                second += left
        for z in range(y, size, n):
            part, moved[size + z] = moved[z], 0.0
            if part > 0.0:
                total += part * mass[z]
                if mu * (hi * mass[z] - secret[z]) >= nu * (secret[z] - lo * mass[z]):
                    first -= part * max(0.0, hi * mass[z] - secret[z])
                else:
                    second -= part * max(0.0, secret[z] - lo * mass[z])
                    moved[z], moved[size + z] = 0.0, part
    return total, first, second


@compiled
def _least_moved(mass: Any, secret: Any, n: int, rows: int, lo: float, hi: float, moved: Any) -> None:
    """The shares of each source that are moved as cover of (1) and of (2), (2·Z,), of least mass in all.

    The simplex method on min Σ w C with Σ w G1 ≤ 0, Σ w G2 ≤ 0, Σ w = 1 over the answers (C, G1, G2) to prices; the
    basis holds three of them or of the slacks, `inverse` its inverse.
    """
    size, scales, at, order = n * rows, reals(2), reals(rows), wholes(rows)
    scales[0], scales[1] = TINY, TINY
    for z in range(size):
        scales[0] += abs(secret[z] - hi * mass[z])
        scales[1] += abs(secret[z] - lo * mass[z])
    cost, first, second = _respond(mass, secret, n, rows, lo, hi, 0.0, 0.0, moved, at, order)
    if first <= 0.0 and second <= 0.0:
        return
    held, answer = reals(6 * size), moved
    costs, weights, inverse = reals(3), reals(3), reals(9)
    first, second, costs[0] = 0.0, 0.0, 0.0
    for z in range(size):  # everything is moved
        up, down = (hi * mass[z] - secret[z]) / scales[0], (secret[z] - lo * mass[z]) / scales[1]
        held[z], held[size + z] = (1.0, 0.0) if up >= down else (0.0, 1.0)
        first -= max(0.0, up) if up >= down else 0.0
        second -= 0.0 if up >= down else max(0.0, down)
        costs[0] += mass[z]
    for k in range(9):
        inverse[k] = 0.0
    inverse[2], inverse[3], inverse[5], inverse[7], inverse[8] = 1.0, 1.0, -first, 1.0, -second
    weights[0], weights[1], weights[2], costs[1], costs[2] = 1.0, -first, -second, 0.0, 0.0
    for k in range(2 * size, 6 * size):
        held[k] = 0.0
    column, step, duals = reals(3), reals(3), reals(3)
    for _ in range(STEPS):
        for k in range(3):
            duals[k] = costs[0] * inverse[k] + costs[1] * inverse[3 + k] + costs[2] * inverse[6 + k]
        mu, nu = max(0.0, -duals[0]), max(0.0, -duals[1])
        mu_first, nu_second = mu / scales[0], nu / scales[1]
        cost, first, second = _respond(mass, secret, n, rows, lo, hi, mu_first, nu_second, answer, at, order)
        column[0], column[1], column[2] = first / scales[0], second / scales[1], 1.0
        slack = duals[0] > NEAR or duals[1] > NEAR
        if slack:
            cost = 0.0
            column[0], column[1], column[2] = (1.0, 0.0, 0.0) if duals[0] > NEAR else (0.0, 1.0, 0.0)
        elif cost + mu * column[0] + nu * column[1] - duals[2] > -NEAR:
            break
        leaves, ratio = -1, 0.0
        for k in range(3):
            step[k] = inverse[3 * k] * column[0] + inverse[3 * k + 1] * column[1] + inverse[3 * k + 2] * column[2]
            if step[k] > NEAR and (leaves < 0 or weights[k] / step[k] < ratio):
                leaves, ratio = k, weights[k] / step[k]
        if leaves < 0:
            break
        pivot = step[leaves]
        for j in range(3):
            inverse[3 * leaves + j] /= pivot
        for k in range(3):
            if k != leaves:
                weights[k] = max(0.0, weights[k] - ratio * step[k])
                for j in range(3):
                    inverse[3 * k + j] -= step[k] * inverse[3 * leaves + j]
        weights[leaves], costs[leaves] = ratio, cost
        for k in range(2 * size):
            held[2 * size * leaves + k] = 0.0 if slack else answer[k]
    for k in range(2 * size):
        share = weights[0] * held[k] + weights[1] * held[2 * size + k] + weights[2] * held[4 * size + k]
        moved[k] = 0.0 if share < DUST else 1.0 if share > 1.0 - DUST else share


@compiled
def _placed(mass: Any, secret: Any, n: int, rows: int, lo: float, hi: float, moved: Any, spread: Any) -> bool:
    """The two distributions of labels by which what is moved is spread, in the first 2·n places of `spread`.

    Labels are above the box, below it or inside, by what is released there as it is. Cover goes where it is needed, as
    much as leaves these labels inside, and what would be too much to a third group. False: there is no label.
    """
    size, own, weight = n * rows, reals(n), reals(n)
    held, part = reals(6), reals(4)  # mass and mass of E of the labels below, inside, above; of both covers
    for k in range(6):
        held[k] = 0.0
    for k in range(4):
        part[k] = 0.0
    for k in range(2 * n):
        spread[k] = 0.0
    groups = wholes(n)
    for y in range(n):
        own[y], weight[y] = 0.0, 0.0
        for z in range(y, size, n):
            own[y] += (1.0 - moved[z] - moved[size + z]) * mass[z]
            weight[y] += (1.0 - moved[z] - moved[size + z]) * secret[z]
        if own[y] < NEGLIGIBLE and not lo * own[y] <= weight[y] <= hi * own[y]:
            for z in range(y, size, n):  # a little that rounding may spoil is moved too
                left = max(0.0, 1.0 - moved[z] - moved[size + z])
                moved[size + z if secret[z] > hi * mass[z] else z] += left
            own[y], weight[y] = 0.0, 0.0
        for z in range(y, size, n):
            for side in range(2):
                part[2 * side] += moved[side * size + z] * mass[z]
                part[2 * side + 1] += moved[side * size + z] * secret[z]
        groups[y] = 2 if weight[y] > hi * own[y] else 0 if weight[y] < lo * own[y] else 1
        held[2 * groups[y]] += own[y]
        held[2 * groups[y] + 1] += weight[y]
    if part[0] + part[2] <= 0.0:
        return True
    if held[0] + held[2] + held[4] <= 0.0:
        return False
    gets = reals(6)  # what share of either cover goes to the labels below, inside, above
    _dealt(held, part, lo, hi, gets)
    for g in range(3):
        cover = gets[g] * part[0] + gets[3 + g] * part[2]
        if cover > 0.0 and held[2 * g] > 0.0:
            within = gets[g] * part[1] + gets[3 + g] * part[3]
            _spread_out(own, weight, groups, g, held, cover, within, lo, hi, gets, n, spread)
    return True


@compiled
def _dealt(held: Any, part: Any, lo: float, hi: float, gets: Any) -> None:
    """Shares of the covers of (1) and (2) by group: [cover of (1): below, inside, above; the same of (2)]."""
    below, above, low, high = held[0], held[4], part[0], part[2]
    phi = _most(lo * low - part[1], held[5] - lo * above, above)
    psi = _most(part[3] - hi * high, hi * below - held[1], below)
    least_phi = _least(held[5] - hi * above, hi * low - part[1], above)
    least_psi = _least(lo * below - held[1], part[3] - lo * high, below)
    one = 1 if held[2] > 0.0 else 0 if below > 0.0 else 2
    two = 1 if held[2] > 0.0 else 2 if above > 0.0 else 0
    if one == two:
        mass, secret = held[2 * one], held[2 * one + 1]
        excess = (secret - hi * mass) - (1 - phi) * (hi * low - part[1]) + (1 - psi) * (part[3] - hi * high)
        if excess > 0.0 and hi * low > part[1]:
            phi = max(least_phi, phi - excess / (hi * low - part[1]))
        lack = (lo * mass - secret) + (1 - phi) * (lo * low - part[1]) - (1 - psi) * (part[3] - lo * high)
        if lack > 0.0 and part[3] > lo * high:
            psi = max(least_psi, psi - lack / (part[3] - lo * high))
    for k in range(6):
        gets[k] = 0.0
    gets[2] = phi
    gets[one] += 1.0 - phi
    gets[3] = psi
    gets[3 + two] += 1.0 - psi


@compiled
def _most(harm: float, room: float, held: float) -> float:
    """The largest share of a cover that its labels can take, the whole of it doing so much harm."""
    if held <= 0.0:
        return 0.0
    return 1.0 if harm <= room else max(0.0, room / harm)


@compiled
def _least(need: float, help: float, held: float) -> float:
    """The least share of a cover that its labels need."""
    if held <= 0.0 or need <= 0.0:
        return 0.0
    return 1.0 if need >= help else need / help


@compiled
def _spread_out(
    own: Any, weight: Any, groups: Any, g: int, held: Any, cover: float, within: float, lo: float, hi: float, gets: Any,
    n: int, spread: Any,
) -> None:  # fmt: skip
    """How what goes to a group is spread over its labels: each ends up inside the box.

    Labels outside it come to the mean of their group; those inside go towards the bound that the cover draws to, each
    as far as it may.
    """
    middle, bound = within / cover, (held[2 * g + 1] + within) / (held[2 * g] + cover)
    inside = g == 1
    if inside:
        bound = hi if middle > hi else lo if middle < lo else -1.0
    total, small = 0.0, 0.0
    for y in range(n):
        if groups[y] == g:
            room = own[y] if bound < 0.0 else abs(weight[y] - bound * own[y])
            total += room
            small += room if inside and own[y] < NEGLIGIBLE else 0.0
    few = inside and total > small  # where there are labels of some mass, the others get nothing
    total -= small if few else 0.0
    for y in range(n):
        if groups[y] == g and own[y] > 0.0 and not (few and own[y] < NEGLIGIBLE):
            room = own[y] if bound < 0.0 else abs(weight[y] - bound * own[y])
            share = room / total if total > 0.0 else own[y] / held[2 * g]
            spread[y] += gets[g] * share
            spread[n + y] += gets[3 + g] * share


@compiled
def _marginal(mass: Any, n: int, rows: int, shares: Any, spread: Any) -> None:
    """The distribution of labels of the sources that have a say, in the last n places of `spread`."""
    size, one, two, total = n * rows, 0.0, 0.0, 0.0
    for z in range(size):
        one += mass[z] * shares[size + z]
        two += mass[z] * shares[2 * size + z]
    for y in range(n):
        truthful = 0.0
        for z in range(y, size, n):
            truthful += mass[z] * shares[z]
        spread[2 * n + y] = truthful + one * spread[y] + two * spread[n + y]
        total += spread[2 * n + y]
    for y in range(n):
        spread[2 * n + y] /= total


@compiled
def _broken(mass: Any, secret: Any, lo: float, hi: float, n: int, rows: int) -> float:
    """By how much labels break a box, if every source is released as it is."""
    need = 0.0
    for y in range(n):
        over, under = 0.0, 0.0
        for z in range(y, n * rows, n):
            over += secret[z] - hi * mass[z]
            under += lo * mass[z] - secret[z]
        need += max(0.0, over, under)
    return need


@compiled
def _released_as(numbers: Any, n: int, rows: int, shares: Any, spread: Any, out: Any) -> None:
    """What numbers by source (Z,) become by label: Σ_z numbers(z) Q(y|z)."""
    size = n * rows
    for y in range(n):
        out[y] = 0.0
        for z in range(y, size, n):
            out[y] += numbers[z] * shares[z]
    for part in range(POOLS):
        total = 0.0
        for z in range(size):
            total += numbers[z] * shares[(part + 1) * size + z]
        if total != 0.0:
            for y in range(n):
                out[y] += total * spread[part * n + y]


@compiled
def best_for(
    belief: Any, yes: Any, low: Any, high: Any, n: int, rows: int, noise: Any, most: int, as_is: Any, groups: Any
) -> Any:
    """The kernel of least error for all windows: the closed form for the one that would be broken most, where that
    keeps the others, else the program (`several`), where it has at most so many cells.

    Fills in the share of each source that is released as it is, `as_is` (Z,), and the group of each symbol (n,). Gives
    what else the sources of each group put on labels, (G·M·n,); nothing where there is no such kernel.
    """
    window, worst, mass, secret = -1, 0.0, reals(n), reals(n)
    shares, spread = reals((POOLS + 1) * n * rows), reals(POOLS * n)
    for w in range(len(low)):
        need = _broken(belief, yes[w], low[w], high[w], n, rows)
        if need > worst:
            window, worst = w, need
    weights, lo, hi = (belief, 0.0, 1.0) if window < 0 else (yes[window], low[window], high[window])
    kept = pooled(belief, weights, lo, hi, n, rows, noise, shares, spread)
    if kept and len(low) > 1:
        _released_as(belief, n, rows, shares, spread, mass)
    for w in range(len(low)):
        if kept and w != window:
            _released_as(yes[w], n, rows, shares, spread, secret)
            kept = _broken(mass, secret, low[w], high[w], n, 1) <= ROUNDING * (low[w] if low[w] > 0.0 else high[w])
    if kept:
        return _in_groups(shares, spread, n, rows, as_is, groups)
    if n * n * rows > most:
        return reals(0)
    return _kept_by_all(belief, yes, low, high, n, rows, noise, as_is, groups)


@compiled
def _in_groups(shares: Any, spread: Any, n: int, rows: int, as_is: Any, groups: Any) -> Any:
    """The closed form as `best_for` gives it: symbols whose sources have the same shares make a group."""
    size, count, first = n * rows, 0, wholes(n)
    for x in range(n):
        groups[x] = count
        for k in range(max(0, count - GROUPS), count):
            same = True
            for at in range(x, (POOLS + 1) * size, n):
                if shares[at] != shares[at + first[k] - x]:
                    same = False
                    break
            if same:
                groups[x] = k
                break
        if groups[x] == count:
            first[count] = x
            count += 1
    for z in range(size):
        as_is[z] = min(1.0, shares[z])
    weights = reals(count * size if count * size <= WRITABLE else 0)
    for at in range(0, len(weights), n):
        z = at // n % rows * n + first[at // size]
        for y in range(n):
            weights[at + y] = 0.0
            for part in range(POOLS):
                weights[at + y] += shares[(part + 1) * size + z] * spread[part * n + y]
    return weights


@compiled
def _kept_by_all(
    belief: Any, yes: Any, low: Any, high: Any, n: int, rows: int, noise: Any, as_is: Any, groups: Any
) -> Any:
    """The kernel of least error for all windows, as `best_for` gives it."""
    size, count = n * rows, 0
    mass, secret, bounds, table = reals(size), reals(size), grid(2 * len(low), size), grid(size, n)
    own, place = wholes(size), wholes(size)
    _read(belief, n, rows, noise, mass)
    for w in range(len(low)):
        _read(yes[w], n, rows, noise, secret)
        lo, hi = low[w], high[w]
        for side in range(2):
            largest = 0.0
            for z in range(size):
                bounds[count, z] = secret[z] - hi * mass[z] if side == 0 else lo * mass[z] - secret[z]
                largest = max(largest, bounds[count, z])
            count += 1 if largest > 0.0 else 0
    taken = _distinguished(mass, bounds, size, count, place)
    for k in range(taken):
        own[k], secret[k] = place[k] % n, mass[place[k]]
    count = fewer(secret, bounds, taken, count)
    if taken == 0 or not least_for_all(secret, own, bounds, n, taken, count, table):
        return reals(0)
    noisy = reals(n * size)
    _cleaned(secret, own, bounds, n, size, taken, count, place, table, noisy)
    weights, groups_so_far, alone = reals(n * size), 0, -1
    for y in range(n):
        for z in range(size):
            secret[z] = noisy[y * size + z]
        _read(secret, n, rows, noise, mass)
        for z in range(size):
            weights[z % n * size + z - z % n + y] = mass[z]
    for x in range(n):
        moved = 0.0
        for m in range(rows):
            at, left = x * size + m * n, 0.0
            as_is[m * n + x], weights[at + x] = weights[at + x], 0.0
            for y in range(n):
                left = max(left, weights[at + y])
            if left == 0.0:
                as_is[m * n + x] = 1.0  # whatever the chances of what is read add up to
            moved = max(moved, left)
        groups[x] = alone if moved == 0.0 and alone >= 0 else groups_so_far
        if groups[x] == groups_so_far:
            for k in range(size):
                weights[groups_so_far * size + k] = weights[x * size + k]
            groups_so_far += 1
            alone = groups[x] if moved == 0.0 else alone
    return weights[: groups_so_far * size]


@compiled
def _distinguished(mass: Any, bounds: Any, size: int, count: int, place: Any) -> int:
    """Which sources have a say, and how many. Fills in their places, and in place their mass, of all that they have,
    and bounds, a unit of mass: the others draw from the marginal of these, and so add to bounds in proportion."""
    taken, total = 0, 0.0
    for z in range(size):
        free = mass[z] > 0.0
        for i in range(count):
            free = free and bounds[i, z] <= 0.0
        if free or mass[z] >= UNLIKELY:
            place[taken] = z
            total += mass[z]
            taken += 1
    for i in range(count):  # in place: what comes later is not yet written
        rest, largest = 0.0, TINY
        for z in range(size):
            rest += bounds[i, z]
        for k in range(taken):
            rest -= bounds[i, place[k]]
        for k in range(taken):
            number = bounds[i, place[k]] / mass[place[k]] + rest / total
            bounds[i, k], largest = number, max(largest, abs(number))
        for k in range(taken):
            bounds[i, k] /= largest
    for k in range(taken):
        mass[place[k]] /= total
    return taken


@compiled
def _cleaned(
    mass: Any, own: Any, bounds: Any, n: int, size: int, taken: int, count: int, place: Any, table: Any, noisy: Any
) -> None:
    """Fill in Q(y|z) (n, Z) from masses (taken, n), without labels so unlikely that rounding may spoil them."""
    marginal, whole = reals(n), 0.0
    for y in range(n):
        marginal[y], pure = 0.0, True
        for k in range(taken):
            marginal[y] += table[k, y]
            pure = pure and (table[k, y] == 0.0 or (own[k] == y and table[k, y] == mass[k]))
            for i in range(count if pure and table[k, y] > 0.0 else 0):
                pure = pure and bounds[i, k] <= 0.0
        if marginal[y] < NEGLIGIBLE and not pure:
            marginal[y] = 0.0
            for k in range(taken):
                table[k, y] = 0.0
        whole += marginal[y]
    for y in range(n):
        for z in range(size):
            noisy[y * size + z] = marginal[y] / whole
    for k in range(taken):
        left = 0.0
        for y in range(n):
            left += table[k, y]
        for y in range(n if left > 0.5 * mass[k] else 0):
            share = table[k, y] / left
            noisy[y * size + place[k]] = 0.0 if share < DUST else 1.0 if share > 1.0 - DUST else share


@compiled
def keeping(
    n: int, rows: int, noise: Any, ratio: float, most: int, belief: Any, yes: Any, low: Any, high: Any, promised: Any,
    as_is: Any, groups: Any,
) -> Any:  # fmt: skip
    """The integers (G·M·n,) of `best_for`, where they keep every bound and the dial; else nothing.

    A source puts `ONE` times `as_is` on the label of its symbol, and `ONE` times its weights on all labels, each
    rounded down; what that leaves goes to the label of its largest weight.
    """
    weights = best_for(belief, yes, low, high, n, rows, noise, most, as_is, groups)
    cells = wholes(len(weights))
    if len(cells) == 0 or not _rounded(weights, as_is, groups, n, rows, ratio, cells):
        return wholes(0)
    part, sums = reals(len(cells) // n), reals(n)
    for k in range(len(cells)):
        weights[k] = float(cells[k])
    for i in range(len(promised)):
        row = promised[i]
        for k in range(len(part)):
            part[k] = 0.0
        for x in range(n):
            sums[x] = 0.0
            for m in range(rows):
                z = m * n + x
                part[groups[x] * rows + m] += row[z]
                sums[x] += row[z] * float(int(as_is[z] * ONE))
        for k in range(len(part)):
            if part[k] != 0.0:
                for y in range(n):
                    sums[y] += part[k] * weights[k * n + y]
        for y in range(n):
            if sums[y] > 0.0:
                return wholes(0)
    return cells


@compiled
def _rounded(weights: Any, as_is: Any, groups: Any, n: int, rows: int, ratio: float, cells: Any) -> bool:
    """Fill in the integers; whether none is below zero and all keep to the dial.

    Where the dial is asked for, weights so small that rounding would tell the rows of a symbol apart are made equal.
    """
    size, even, seen = n * rows, ratio < 1e300, 0
    for x in range(n):
        at, first = groups[x] * size, groups[x] == seen
        seen += 1 if first else 0
        for y in range(n if first else 0):
            least, largest = 2.0 * ONE, 0.0
            for m in range(rows):
                least, largest = min(least, weights[at + m * n + y] * ONE), max(largest, weights[at + m * n + y] * ONE)
            for m in range(rows):
                weight = least if even and largest < SMALL else weights[at + m * n + y] * ONE
                cells[at + m * n + y] = 0 if as_is[m * n + x] >= 1.0 else int(weight)
        for m in range(rows if first else 0):
            begin, best, left = at + m * n, 0, DENOMINATOR - int(as_is[m * n + x] * ONE)
            for y in range(n):
                left -= cells[begin + y]
                best = y if cells[begin + y] > cells[begin + best] else best
            cells[begin + best] += left
            if cells[begin + best] < 0:
                return False
        for y in range(n if first and even else 0):
            if not _dialled(cells, at, as_is, -1, y, n, rows, ratio):
                return False
        if even and not _dialled(cells, at, as_is, x, x, n, rows, ratio):
            return False
    return True


@compiled
def _dialled(cells: Any, at: int, as_is: Any, x: int, y: int, n: int, rows: int, ratio: float) -> bool:
    """Whether what the rows of a symbol put on a label differs by at most e^c."""
    least, largest = -1.0, 0.0
    for m in range(rows):
        number = float(cells[at + m * n + y] + (int(as_is[m * n + x] * ONE) if x >= 0 else 0))
        least = number if least < 0.0 else min(least, number)
        largest = max(largest, number)
    return largest <= ratio * least


@compiled
def release_each(
    n: int, rows: int, noise: Any, ratio: float, most: int, belief: Any, yes: Any, low: Any, high: Any, promised: Any,
    sources: Any, uniforms: Any, given: Any, codes: Any, columns: Any, status: Any,
) -> None:  # fmt: skip
    """`keeping` for each user, and the draw, or the release that was made, with its column: what every source puts on
    its label; where there is room for them, the columns of all labels. A release of what is no symbol, or of what no
    source puts anything on, is impossible."""
    size = n * rows
    as_is, groups = reals(size), wholes(n)
    for b in range(len(belief)):
        y, z, reached = given[b], sources[b], 0
        status[b] = LEFT if y < n and z < size and (y >= 0 or z >= 0) else IMPOSSIBLE
        if status[b] == IMPOSSIBLE:
            continue
        cells = keeping(n, rows, noise, ratio, most, belief[b], yes[b], low[b], high[b], promised[b], as_is, groups)
        if len(cells) == 0:
            continue
        if y < 0:
            y, reached = z % n, int(as_is[z] * ONE)
            at = groups[y] * size + z - y
            if reached <= uniforms[b]:
                y = -1
                while reached <= uniforms[b]:
                    y += 1
                    reached += cells[at + y]
        codes[b], status[b], used = y, DONE, False
        labels = len(columns[b]) // size
        for k in range(labels):
            label = k if labels > 1 else y
            for z in range(size):
                x = z % n
                cell = cells[groups[x] * size + z - x + label] + (int(as_is[z] * ONE) if x == label else 0)
                columns[b][k * size + z], used = cell, used or cell > 0
        if not used:
            status[b] = IMPOSSIBLE
