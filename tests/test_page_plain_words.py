"""What the page says to somebody who does not know what a nat is."""

from __future__ import annotations

import numpy as np

from seqveil.interfaces.studio.uploads import looked_at


def test_how_predictable_a_file_is_is_said_as_chances() -> None:
    rng = np.random.default_rng(1)
    rows = [f"p{who},{'ab'[int(k)]}" for who in range(40) for k in np.cumsum(rng.random(20) < 0.1) % 2]
    said = dict(looked_at("person,page\n" + "\n".join(rows) + "\n")["lines"])["foretold"]
    assert "nats" not in said
    chances = [float(word) for word in said.replace("%", " ").split() if word.replace(".", "").isdigit()]
    assert 60 < chances[0] < 95  # it stays where it is nine times of ten
    assert 40 < chances[1] < 60
    assert "people set apart" in said
