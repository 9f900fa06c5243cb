"""Whose window is this? A small recurrent network (GRU, PyTorch), trained on one half of everybody's windows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

Floats = Codes = np.ndarray
NEEDED = "needs torch (pip install -e '.[experiments]')"


@dataclass(frozen=True)
class Network:
    """Size and training.

    The defaults were chosen among four on raw gaze, before anything was released, but by the very rates that are then
    reported: those of raw gaze may be a little flattering.
    """

    hidden: int = 64
    epochs: int = 20
    rate: float = 0.01
    blur: float = 0.3  # noise added to the standardised features while training
    together: int = 64


def available() -> bool:
    return find_spec("torch") is not None


@contextmanager
def repeatable(seed: int) -> Iterator[Any]:
    """torch on one thread, by deterministic algorithms only, from a seed; as it was, afterwards.

    An accelerator is used where there is one: repeatable there too, but with other last digits.
    """
    import torch

    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        try:
            yield torch
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(strict)


def log_probabilities(features: Floats, person: Codes, known: Codes, network: Network, seed: int) -> Floats:
    """Log-probability of every person for each window that is not `known`, by a network trained on those that are.

    features: (N, T, F), person: (N,) 0..P-1, known: (N,) bool. Returns (N - known, P), in the order of the windows.
    """
    middle, spread = features[known].mean((0, 1)), features[known].std((0, 1)) + 1e-6
    with repeatable(seed) as torch:
        where = "cuda" if torch.cuda.is_available() else "cpu"
        every = torch.from_numpy(((features - middle) / spread).astype(np.float32)).to(where)
        train, whose = every[torch.from_numpy(known)], torch.from_numpy(person[known]).to(where)
        core = torch.nn.GRU(features.shape[2], network.hidden, batch_first=True).to(where)
        head = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(2 * network.hidden, int(person.max()) + 1))
        head = head.to(where)

        def forward(windows: Any) -> Any:
            outputs, _ = core(windows)
            return head(torch.cat([outputs.mean(1), outputs.amax(1)], dim=1))

        parameters = [*core.parameters(), *head.parameters()]
        optimiser = torch.optim.AdamW(parameters, lr=network.rate, weight_decay=0.01)
        steps = network.epochs * -(-len(train) // network.together)
        pace = torch.optim.lr_scheduler.OneCycleLR(optimiser, network.rate, total_steps=steps)
        for _ in range(network.epochs):
            for rows in torch.randperm(len(train)).split(network.together):
                windows = train[rows] + network.blur * torch.randn_like(train[rows])
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(forward(windows), whose[rows], label_smoothing=0.1).backward()
                optimiser.step()
                pace.step()
        head.eval()
        with torch.no_grad():
            unknown = every[torch.from_numpy(~known)]
            return np.asarray(forward(unknown).log_softmax(1).cpu().numpy(), dtype=np.float64)


def rates(logs: Floats, person: Codes) -> tuple[Floats, Floats]:
    """For each person the share of windows named rightly, and 1 or 0 for all of its windows taken together: (P,) each.

    Together the windows name whoever has the largest sum of log-probabilities: a vote weighted by how sure each is.

    >>> logs = np.log([[0.6, 0.4], [0.3, 0.7], [0.4, 0.6], [0.2, 0.8]])
    >>> [part.tolist() for part in rates(logs, np.array([0, 0, 1, 1]))]
    [[0.5, 1.0], [0.0, 1.0]]
    """
    people = np.arange(logs.shape[1])
    right = np.array([(logs[person == one].argmax(1) == one).mean() for one in people])
    together = np.array([logs[person == one].sum(0).argmax() == one for one in people])
    return right, together.astype(np.float64)
