"""From a request to everything that the page shows."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from seqveil.core.distortion import resolve
from seqveil.core.kernel import Floats
from seqveil.interfaces.studio import words
from seqveil.interfaces.studio.ask import Ask
from seqveil.interfaces.studio.curve import slow
from seqveil.interfaces.studio.offer import offers
from seqveil.interfaces.studio.run import Run
from seqveil.interfaces.studio.source import Source
from seqveil.release.accounting import compose
from seqveil.release.stream import NOTHING

DELTA = 1e-6
SHADES = 255
REPEATS = ("batch_lp", "batch_descent")  # for single events the first is `optimal`, the second strives to be


def picture(source: Source, ask: Ask) -> dict[str, Any]:
    """Release the stream that is asked for and tell all about it, as JSON values.

    >>> from seqveil.interfaces.studio.source import builtin
    >>> shown = picture(builtin("power"), Ask("power", events=12, distortion="absolute", epsilon=0.5))
    >>> shown["complete"], len(shown["series"]["released"]), shown["figures"]["composition"]
    (True, 12, 6.0)
    """
    run = Run(source, ask)
    run.go()
    return picture_of(run)


def picture_of(run: Run, whole: bool = True) -> dict[str, Any]:
    """What a run has made so far; what takes all releases to tell is left for the `whole` picture."""
    source, ask = run.source, run.ask
    complete = run.complete and whole
    costs = resolve(ask.distortion, source.model.alphabet)
    laws = {"online": run.online, **({"hindsight": run.hindsight} if complete else {})}
    guesses = {name: costs.best_guess(law) for name, law in laws.items()}
    figures = figures_of(run, guesses, complete)
    series: dict[str, Any] = {"raw": run.raw[: run.done].tolist(), "released": run.released.tolist()}
    series |= {"decoded": guesses["online"].tolist(), "hindsight": guesses.get("hindsight", guesses["online"]).tolist()}
    for name in ("epsilons", "leakage", "most", "least", "spent"):
        series[name] = [_short(value) for value in getattr(run, name).tolist()]
    heat = {name: shades(law) for name, law in laws.items()}
    return {
        "complete": complete,
        "done": run.done,
        "events": int(run.raw.size),
        "series": series,
        "heat": {"hindsight": heat["online"]} | heat,
        "figures": {name: _finite(value) for name, value in figures.items()},
        "sentence": words.sentence(run.setting, figures, source.event),
        "notes": words.notes(run.setting, figures),
        "mechanisms": [asdict(each) for each in offers(source, ask)],
        "mechanism": run.setting.mechanism.name,
        "curves": source.remember(("compared", ask.distortion), lambda: compared(source, ask.distortion)),
        "configuration": ask.to_json(source.origin),
        "snippets": {"cli": words.commands(run.setting, ask, source), "python": words.python(ask, source)},
    }


def compared(source: Source, distortion: str) -> list[str]:
    """The mechanisms that stand beside the chosen one in a picture of error against ε: all that fit, event by event."""
    plain = Ask(source.name, distortion=distortion)
    fit = [each.name for each in offers(source, plain) if not each.why_not and each.name not in REPEATS]
    return sorted(fit, key=lambda name: slow(name, distortion))  # the quick ones first


def figures_of(run: Run, guesses: Mapping[str, Any], complete: bool) -> dict[str, Any]:
    """The figures of a release: those of `seqveil audit`, and the errors, which take the truth."""
    setting, costs = run.setting, run.costs
    made = run.released != NOTHING
    truth, distortion = run.raw[: run.done], setting.distortion
    window = setting.budget.releases
    alone = run.source.guesses(distortion)[: run.done]
    late = distortion.between(truth, guesses["hindsight"]).mean() if complete else None
    begins = np.arange(run.done) % setting.batch == 0 if setting.in_batches else made
    gone = _gone(run)
    return {
        "releases": int(begins.sum()),
        "held": int(_held(run, costs)[begins].sum()),
        "stopped": int((~made).sum()),
        "leakage": float(run.leakage[-1]),
        "most": float(run.most[-1]),
        "least": float(run.least[-1]),
        "composition": float(run.spent[-1]),
        "worst_release": float(costs.max(initial=0.0)),
        "worst_window": None if window is None else _worst_window(costs[begins], window),
        "ldp": float(run.ldp[-1]),
        "delta": DELTA,
        "with_delta": _with_delta(run) if complete else None,
        "error": float(distortion.between(truth[made], run.released[made]).mean()) if made.any() else None,
        "decoded_error": float(distortion.between(truth, guesses["online"]).mean()),
        "hindsight_error": None if late is None else float(late),
        "silent_error": float(distortion.between(truth, alone).mean()),
        "spent_at": gone,
        "budget": setting.budget.total,
        "window": setting.budget.per_window,
        "claimed": setting.epsilon * setting.schedule.period,
    }


def _held(run: Run, costs: Floats) -> Any:
    """Releases that leak nothing, counted as an audit counts them."""
    if run.setting.in_batches:
        return costs <= 1e-9
    return (run.epsilons == 0) & (run.released != NOTHING)


def _gone(run: Run) -> int | None:
    """The first event for which a budget had less than its schedule asked for nothing left, if there is one."""
    setting = run.setting
    if not setting.budget.limited:
        return None
    size = setting.batch if setting.in_batches else 1
    releases = np.arange(0, run.done, size)
    wanted = (releases // size) % setting.schedule.period == 0
    dry = np.flatnonzero(wanted & (run.epsilons[releases] == 0))
    return int(releases[dry[0]]) if dry.size else None


def _worst_window(costs: Floats, span: int) -> float:
    padded = np.concatenate([np.zeros(span - 1), costs])
    return float(np.lib.stride_tricks.sliding_window_view(padded, span).sum(1).max(initial=0.0))


def _with_delta(run: Run) -> float | None:
    """ε of the releases so far with failure probability δ, where their ε was fixed."""
    setting = run.setting
    if setting.budget.limited or not setting.mechanism.sound:
        return None
    releases = -(-run.done // setting.batch)
    return compose(setting.epsilon * setting.schedule.period, -(-releases // setting.schedule.period), DELTA).best


def shades(laws: Floats) -> str:
    """Laws (T, n) as one byte a probability, in base 64: the square root, so that small beliefs can be seen.

    >>> list(base64.b64decode(shades(np.array([[0.25, 0.75]]))))
    [128, 221]
    """
    return base64.b64encode(np.rint(SHADES * np.sqrt(np.clip(laws, 0.0, 1.0))).astype(np.uint8).tobytes()).decode()


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
