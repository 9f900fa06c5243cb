"""People whom attacks are tried on: readers of news, sport and health pages, who follow a chain."""

from __future__ import annotations

import numpy as np

import seqveil as sv

NAMES = ["news", "sport", "health"]
SECRET = sv.secrets.ever("health", window=8, epsilon=0.5)
TABLE = np.array([[0.85, 0.1, 0.05], [0.2, 0.78, 0.02], [0.3, 0.05, 0.65]])


def people(count: int, length: int = 8, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = np.zeros((count, length), np.int64)
    codes[:, 0] = rng.choice(3, count, p=[0.5, 0.4, 0.1])
    for t in range(1, length):
        codes[:, t] = (rng.random(count)[:, None] > TABLE.cumsum(1)[codes[:, t - 1]]).sum(1)
    return list(codes)
