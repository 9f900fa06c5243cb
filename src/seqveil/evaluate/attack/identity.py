"""Attack who it is: match the release of the second half of each stream to the raw first half of one of N people."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from seqveil.core.kernel import Floats, Ints
from seqveil.evaluate.attack.bounds import share_low
from seqveil.evaluate.attack.finding import AttackerGuess, Finding, Verdict
from seqveil.evaluate.attack.guess import FALSE_ALARM, FEWEST, draws
from seqveil.interfaces.sentences import IDENTITY

MOST_PEOPLE = 1 << 40


def attack_identity(
    releases: Sequence[Ints],
    truth: Sequence[Ints],
    n: int,
    epsilon: float | None,
    *,
    seed: int = 0,
    false_alarm: float = FALSE_ALARM,
    most: int = 2000,
) -> Finding:
    """Whether people are recognised by their past.

    The attacker knows the raw first halves of all N people. From other people it learned how often each symbol is
    released for each true one; a person's release is matched to the person whose past makes it likeliest. If each
    release may move a belief by e^ε in total, a match is right with a probability of at most e^ε / N.

    epsilon: the total of a whole stream that was promised; None where nothing was.
    most: people among whom a match is sought.
    """
    usable = [k for k in range(len(truth)) if len(truth[k]) >= 4 and min(truth[k]) >= 0]
    order = [usable[k] for k in draws(seed).permutation(len(usable))]
    half, people = min(len(order) // 2, most), len(order)
    if half < FEWEST:
        return Finding(IDENTITY, "not decided", epsilon, 0.0, None, None, people, people, false_alarm, 2 * FEWEST)
    sought = order[:half]
    past = np.stack([np.bincount(truth[k][: len(truth[k]) // 2], minlength=n) for k in sought]).astype(np.float64)
    common = past.sum(0) + 1.0
    profile = past + 2.0 * common / common.sum()
    expected = np.log(profile / profile.sum(1, keepdims=True) @ _channel(releases, truth, order[half:], n))
    later = [releases[k][len(truth[k]) // 2 :] for k in sought]
    seen = np.stack([np.bincount(codes[codes >= 0], minlength=n) for codes in later]).astype(np.float64)
    hits = int(((seen @ expected.T).argmax(1) == np.arange(half)).sum())
    low, estimate = math.log(max(half * share_low(hits, half, false_alarm), 1.0)), math.log(max(hits, 1))
    target, shares = f"{IDENTITY}, among {half}", (hits / half, 1 / half)
    guess = AttackerGuess("likeliest past", target, "has it", hits, half, half - hits, half, *shares, float(hits))
    verdict: Verdict = "not decided"
    noticed = needed = None
    if epsilon is not None:
        enough = (hit for hit in range(1, half + 1) if half * share_low(hit, half, false_alarm) > math.exp(epsilon))
        noticed = next((math.log(hit) for hit in enough), None)  # among few people nobody can be surer than certain
        within = estimate <= epsilon and noticed is not None
        verdict = "broken" if low > epsilon else "not refuted" if within else "not decided"
        wanted = 2 * math.exp(epsilon)
        needed = math.ceil(wanted) if noticed is None and wanted <= MOST_PEOPLE else None
    return Finding(IDENTITY, verdict, epsilon, low, estimate, noticed, people, people, false_alarm, needed, guess)


def _channel(releases: Sequence[Ints], truth: Sequence[Ints], learned: Sequence[int], n: int) -> Floats:
    """How often each symbol was released for each true one, among these people; rare ones lean to the common share."""
    true, out = (np.concatenate([streams[k] for k in learned]) for streams in (truth, releases))
    table = np.zeros((n, n))
    np.add.at(table, (true[out >= 0], out[out >= 0]), 1.0)
    common = (table.sum(0) + 0.5) / (table.sum() + 0.5 * n)
    table += 2.0 * common
    return table / table.sum(1, keepdims=True)
