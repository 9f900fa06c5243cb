"""Which question to ask next: the split of a soft box that lowers the expected distortion most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from seqveil.distortion import Distortion
from seqveil.kernel import DENOMINATOR, Floats, Ints
from seqveil.mechanisms._boxes import Node, Split, Window
from seqveil.model import MarkovModel

HAIR = 1e-10
RHO = 0.5
PAIRS = 100_000
LOOK = 0
WIDE = 64


def cells(mass: float, least: float) -> int:
    """How many cells of mass `least` fit into a mass."""
    return math.floor(mass / least + HAIR)


@dataclass(frozen=True, eq=False)
class Search:
    """All that the choice of a split depends on besides the node; public."""

    model: MarkovModel
    window: Window
    distortion: Distortion
    least: float
    told: float
    root: Floats  # (w, n) laws of the symbols before the release

    def child(self, node: Node, split: Split, side: int) -> Node:
        return node.child(split, side)

    def choose(self, node: Node) -> Split | None:
        if cells(node.mass, self.least) < 2:
            return None
        found = exact_candidates(self, node)
        if found is None:
            return None
        return found.best(LOOK)


@dataclass(frozen=True, eq=False)
class Candidates:
    search: Search
    node: Node
    position: Ints
    left: Floats  # (C, n) share
    mass: Floats
    cost: Floats  # (C, 2) of the two sides
    before: float

    def split(self, index: int) -> Split:
        weights = np.rint(self.left[index] * float(1 << 50)).astype(np.int64) << 12
        share = weights / float(DENOMINATOR)
        t = int(self.position[index])
        law = self.node.symbol_law(t)
        return Split(t, weights, float((law * share).sum()), float((law * (1.0 - share)).sum()))

    def scores(self) -> Floats:
        s = self.search
        m = self.node.mass
        kl = np.floor(self.mass / s.least + HAIR)
        kr = np.floor((m - self.mass) / s.least + HAIR)
        return self.cost[:, 0] * kl ** (-RHO) + self.cost[:, 1] * kr ** (-RHO)

    def best(self, look: int) -> Split | None:
        gain = self.before - self.cost.sum(1)
        sc = self.scores()
        order = np.lexsort((np.arange(len(sc)), sc.round(12)))
        if look == 0:
            i = int(order[0])
            return self.split(i)
        best, bs = None, np.inf
        for i in order[:look]:
            sp = self.split(int(i))
            tot = 0.0
            for side in (0, 1):
                ch = self.node.child(sp, side)
                if cells(ch.mass, self.search.least) >= 2:
                    f = exact_candidates(self.search, ch)
                    tot += self.cost[i, side] if f is None else f.scores().min()
                else:
                    tot += self.cost[i, side]
            if tot < bs - 1e-12:
                best, bs = sp, tot
        return best


@lru_cache(maxsize=4)
def dense(model: MarkovModel) -> Floats:
    P = np.asarray(model.chain.todense(), dtype=np.float64).copy()
    np.add.at(P, (slice(None), model.base_state), model.backoff[:, None] * model.base[None, :])
    return P


def joint(search: Search, node: Node) -> Floats:
    """J[t, s, x, x'] = E[f; symbol_t = x, symbol_s = x'] for all pairs of positions."""
    P = dense(search.model)
    model = search.model
    w, n, S = node.window.length, model.n, model.size
    hot = np.zeros((S, n))
    hot[np.arange(S), model.newest] = 1.0
    out = np.empty((w, w, n, n))
    T = np.empty((0, n, S))
    for s in range(w):
        if s:
            T = np.einsum("txy,yz->txz", T, P) * node.weights[s]
        first = hot.T * node.ahead[s][None, :]
        T = np.concatenate((T, first[None]))
        part = np.einsum("txy,yz->txz", T * node.behind[s], hot)
        out[: s + 1, s] = part
        out[s, : s + 1] = part.transpose(0, 2, 1)
    return out


def least_cost(distortion: Distortion, laws: Floats) -> Floats:
    """Σ over positions of the least expected cost, laws (..., w, n)."""
    if distortion.is_hamming:
        return (laws.sum(-1) - laws.max(-1)).sum(-1)
    D = distortion.matrix(laws.shape[-1])
    return np.einsum("...x,xy->...y", laws, D).min(-1).sum(-1)


def orderings(search: Search, node: Node, t: int) -> list[Ints]:
    n = search.window.n
    pts = search.distortion.points
    if pts is not None and pts.ndim == 1:
        return [np.argsort(pts, kind="stable")]
    if pts is not None:
        return [np.argsort(pts @ d, kind="stable") for d in np.array([[1, 0], [0, 1.0]])]
    law = node.symbol_law(t)
    pop = np.argsort(-law, kind="stable")
    out = [pop]
    if n <= 2:
        return out
    k = min(n - 1, TOP)
    for i in range(1, k):
        out.append(np.concatenate((pop[[i]], np.delete(pop, i))))
    return out


TOP = 1


def exact_candidates(search: Search, node: Node) -> Candidates | None:
    w, n = node.window.length, search.model.n
    J = joint(search, node)
    K, m = cells(node.mass, search.least), node.mass
    lim = search.least * (1 - HAIR)
    pos, left, mass, cl = [], [], [], []
    for t in range(w):
        for order in orderings(search, node, t):
            rows = J[t][:, order].transpose(1, 0, 2)  # (n, w, n)
            C = np.concatenate((np.zeros((1, w, n)), np.cumsum(rows, axis=0)))
            c = C[:, t].sum(-1)
            g = np.diff(c)
            js, th = [], []
            for j in range(1, n):
                js.append(j)
                th.append(0.0)
            ks = c[1:-1] * K / m
            ks = np.unique(np.concatenate((np.floor(ks), np.ceil(ks), [K // 2, (K + 1) // 2])))
            if K <= WIDE:
                for k in ks:
                    if 1 <= k <= K - 1:
                        target = m * k / K
                        j = int(np.clip(np.searchsorted(c, target, side="right") - 1, 0, n - 1))
                        if g[j] > 0:
                            js.append(j)
                            th.append(min(1.0, (target - c[j]) / g[j]))
            js, th = np.array(js), np.array(th)
            ml = c[js] + th * np.append(g, 0)[js]
            ok = (ml >= lim) & (m - ml >= lim)
            js, th, ml = js[ok], th[ok], ml[ok]
            if not len(js):
                continue
            L = C[js] + th[:, None, None] * rows[np.minimum(js, n - 1)]
            rank = np.empty(n, np.int64)
            rank[order] = np.arange(n)
            sh = (rank[None] < js[:, None]) * 1.0 + (rank[None] == js[:, None]) * th[:, None]
            pos.append(np.full(len(js), t))
            left.append(sh)
            mass.append(ml)
            cl.append(L)
    if not pos:
        return None
    position, left, mass, L = np.concatenate(pos), np.concatenate(left), np.concatenate(mass), np.concatenate(cl)
    total = np.stack([node.symbol_law(t) for t in range(w)])
    sides = np.stack((L, np.maximum(total - L, 0)), axis=1)
    weight = np.stack((mass, m - mass), axis=1)
    mixed = search.told * sides + (1 - search.told) * weight[:, :, None, None] * search.root
    before = float(least_cost(search.distortion, search.told * total + (1 - search.told) * m * search.root))
    return Candidates(search, node, position, left, mass, least_cost(search.distortion, mixed), before)


def guess(distortion: Distortion, laws: Floats) -> Ints:
    return distortion.best_guess(laws)
