"""Decode live: poll a service (`seqveil serve`) for a user's releases and print the best estimate of each symbol.

    SEQVEIL_TOKEN=… python examples/receiver.py http://127.0.0.1:8713 ann --model clicks.model --policy policy.toml

The token needs the scope `read`; model and policy are those of the service, and public. Everything here is
post-processing of what is public: it costs no privacy.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from seqveil import MarkovModel, Policy, Release
from seqveil.client import Client, ServiceError
from seqveil.core import filtering
from seqveil.engine import batches, stream
from seqveil.engine.stream import NOTHING, State, Terms


class LiveDecoder:
    """Follows one user's releases; each gives the distribution of its symbols given all released so far."""

    def __init__(self, setting: Terms) -> None:
        self.setting, self.state = setting, State.start(setting)

    def take(self, release: Release) -> np.ndarray:
        """Distributions (T, n) of the symbols behind one release; none where the service gave the event up."""
        setting, model = self.setting, self.setting.model
        if release.status == "given-up":
            return self._pass()
        if setting.in_batches:
            sent, self.state = batches.observe(setting, self.state, release.path, release.events, release.time)
            return np.zeros((0, model.n)) if sent is None else batches.filtered(setting, [sent])
        code = NOTHING if release.status == "withheld" else int(model.alphabet.encode([release.value])[0])
        stamp = None if release.time is None else np.array([release.time])
        before = self.state.states
        seen, self.state = stream.observe(setting, self.state, np.array([code], np.int64), stamp)
        distribution, _ = filtering.condition(model, before, seen.columns / seen.columns.max(1, keepdims=True))
        return filtering.symbols(model, distribution)

    def _pass(self) -> np.ndarray:
        from seqveil.engine.stream import skipped

        self.state = skipped(self.setting, self.state)
        return np.zeros((0, self.setting.model.n))


def follow(client: Client, user: str, setting: Terms, pause: float) -> Iterator[tuple[Release, list[Any], list[float]]]:
    """Each release of a user as it comes, with the best estimates and how sure they are."""
    decoder, since = LiveDecoder(setting), 0
    while True:
        try:
            for release in client.releases(user, since):
                distributions = decoder.take(release)
                guesses = setting.distortion.best_guess(distributions) if len(distributions) else np.zeros(0, np.int64)
                sure = [float(distribution[guess]) for distribution, guess in zip(distributions, guesses, strict=True)]
                yield release, setting.model.alphabet.decode(guesses), sure
                since = release.seq + 1
        except ServiceError as refused:
            if refused.reason != "not-found":  # nothing of this user yet
                raise
        time.sleep(pause)


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode a user's releases as a service makes them.")
    parser.add_argument("url")
    parser.add_argument("user")
    parser.add_argument("--model", required=True)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--token", default=os.environ.get("SEQVEIL_TOKEN"))
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two looks")
    parser.add_argument("--count", type=int, help="end after so many releases")
    chosen = parser.parse_args()
    setting = Policy.load(chosen.policy).on(MarkovModel.load(chosen.model))
    with Client(chosen.url, chosen.token) as client:
        for number, (release, guesses, sure) in enumerate(follow(client, chosen.user, setting, chosen.pause), start=1):
            disclosed = release.value if release.values is None else list(release.values)
            shown = ", ".join(f"{guess} ({share:.2f})" for guess, share in zip(guesses, sure, strict=True))
            print(f"{release.seq:>6}  {release.status}  {disclosed}  →  {shown or '-'}", flush=True)
            if number == chosen.count:
                return


if __name__ == "__main__":
    main()
