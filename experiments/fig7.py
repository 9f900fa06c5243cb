"""Figure 7: one gaze trace on a 100 × 100 grid, ten units of ε a second: raw, and as four mechanisms release it."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments import gaze, streams
from experiments.claims import judge
from experiments.context import Context
from seqveil.engine.policy import Policy

TITLE = "One gaze trace, ε = 10 a second"
NEEDS = ("gaze_vr",)
SIZE = (14, 3.4)
PER_SECOND, BATCH = 10.0, 10
WAYS = {
    "RR-LDP": ("randomized_response", 1),
    "instantaneous, published": ("crr", 1),
    "instantaneous, sound": ("tree", 1),
    f"batches of {BATCH}, sound": ("tree", BATCH),
}


def run(context: Context) -> dict[str, Any]:
    numbers = context.part("traces", lambda: traces(context))
    return {"name": "fig7", "title": TITLE, "numbers": numbers, "claims": [claim(numbers)]}


def traces(context: Context) -> dict[str, Any]:
    data = gaze.load(context)
    model, truth = gaze.model_and_streams(context, data, order=1, count=1)
    places = data.alphabet.points
    assert places is not None
    shown: dict[str, Any] = {"raw": places[truth[0]].T}
    found: dict[str, Any] = {}
    for name, (mechanism, size) in WAYS.items():
        setting = Policy(
            epsilon=PER_SECOND * size / gaze.FRAMES, batch=size, mechanism=mechanism, distortion=data.distortion
        ).on(model)
        made = streams.release(setting, truth, context.seed)
        found[name] = streams.errors(truth, made, data.distortion)
        shown[name] = places[made["released"][0]].T
    note = "the raw trace is real gaze: the set states no terms, so keep this picture to yourself"
    return {"traces": shown, "errors": found, "side": gaze.side(context), "note": "" if context.synthetic else note}


def claim(numbers: dict[str, Any]) -> dict[str, Any]:
    error = {name: found["released"] for name, found in numbers["errors"].items()}
    single, batch, response = error["instantaneous, sound"], error[f"batches of {BATCH}, sound"], error["RR-LDP"]
    leak = numbers["errors"]["instantaneous, published"]["leakage"]
    budget = PER_SECOND * len(numbers["traces"]["raw"][0]) / gaze.FRAMES
    return judge(
        "the batched trace can still be recognised, the instantaneous one less, randomised response is noise",
        None,
        bool(batch < single < response),
        f"mean distance in cells from the raw trace; the published instantaneous release leaks {leak:.0f} in all where "
        f"{budget:g} was promised; Algorithm 2 cannot be run on so many batches, so the batched trace is our tree's",
        {f"{name}: released, decoded": [e["released"], e["hindsight"]] for name, e in numbers["errors"].items()},
    )


def draw(figure: Any, result: dict[str, Any]) -> None:
    numbers = result["numbers"]
    panels = figure.subplots(1, len(numbers["traces"]), sharex=True, sharey=True)
    for axes, name in zip(panels, ("raw", *WAYS), strict=True):
        x, y = numbers["traces"][name]
        axes.plot(x, y, "-", lw=0.4, color="#7a7a7a")
        axes.scatter(x, y, s=5, c=np.arange(len(x)), cmap="viridis")
        axes.set(title=name, xlim=(0, numbers["side"]), ylim=(0, numbers["side"]), aspect="equal")
        axes.title.set_fontsize(9)
