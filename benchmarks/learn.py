"""Two steps without raw data: release without context, learn a chain from that, release the next file with it.

Generated clicks (17 categories, 20 clicks a person). The second file is of other people. Beside the learned model stand
one fitted to the raw clicks of the first file, and none.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.intervals import released
from experiments import datasets
from seqveil import MarkovModel
from seqveil.core.kernel import Ints
from seqveil.engine.policy import Policy
from seqveil.receiver.decode import decode_codes
from seqveil.receiver.evidence import Evidence
from seqveil.receiver.learn import learn

EPSILON, CLICKS, SECOND = 1.0, 20, 1_000
PEOPLE = (300, 1_000, 3_000, 10_000)


def clicks(people: int, seed: int) -> Ints:
    """Raw codes, a row a person."""
    made = datasets.synthetic("clicks", people, CLICKS, seed=seed)
    return np.stack([np.asarray(codes, np.int64) for codes in made.arrays()])


def second(title: str, model: MarkovModel, mechanism: str, people: int = 0) -> dict[str, object]:
    """Release the second file, and count what is wrong in it and in the receiver's estimates."""
    raw, setting = clicks(SECOND, seed=2), Policy(epsilon=EPSILON, mechanism=mechanism).on(model)
    codes = released(setting, raw, seed=7)
    wrong = [float((guess != raw).mean()) for guess in (codes, decode_codes(setting, codes).argmax(2))]
    print(f"  {title:<34}{people or '':>8}{wrong[0]:>10.3f}{wrong[1]:>10.3f}", flush=True)
    return {"model": title, "people": people, "released": wrong[0], "decoded": wrong[1]}


def run(data: Path | None) -> list[dict[str, object]]:
    """Print the share of wrong clicks in the second file, by how its model was made."""
    alphabet = datasets.synthetic("clicks", 2, 2, seed=1).alphabet
    n = alphabet.n
    none = MarkovModel(np.full(n, 1 / n), np.full((n, n), 1 / n), alphabet=alphabet)
    first = Policy(epsilon=EPSILON, mechanism="randomized_response").on(none)
    print(f"generated clicks, {n} symbols, ε = {EPSILON:g} a click; second file: {SECOND} other people, share wrong")
    print(f"  {'model of the second file':<34}{'people':>8}{'released':>10}{'decoded':>10}")
    rows = [second("none: randomized_response again", none, "randomized_response")]
    for people in PEOPLE:
        codes = released(first, clicks(people, seed=1), seed=3)
        users = np.repeat(np.arange(people), codes.shape[1])
        learned = learn(Evidence.of_streams(first, users, codes.ravel()), alphabet)
        rows.append(second("learned from the first release", learned.model, "optimal", people))
    raw = clicks(PEOPLE[-1], seed=1)
    return [
        *rows,
        second("fitted to the raw first file", MarkovModel.fit(raw, alphabet=range(n)), "optimal", PEOPLE[-1]),
    ]


if __name__ == "__main__":
    run(None)
