"""Commands for whoever has released rows: `seqveil audit`, `decode` and `stats`; they cost no privacy."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.core.distortion import error_size
from seqveil.core.errors import InputError
from seqveil.core.words import moved, percent
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, figure, lines, progress, table
from seqveil.interfaces.sentences import CHECKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqveil.core.model import MarkovModel
    from seqveil.engine.secrets import SecretTotal
    from seqveil.interfaces.files.estimates import Counted, Decoded
    from seqveil.receiver.audit import Report
    from seqveil.receiver.statistics import Estimate

SHOWN = 20  # rows of a table on the terminal


@o.option_groups
def audit(
    released: o.ReleasedFile,
    model: o.ModelFile,
    *,
    policy: o.PolicyOfRelease = None,
    asked: o.SecretOptions,
    delta: Annotated[float, o.option("D", "Failure probability of the (ε, δ) total.")] = 1e-6,
    html: Annotated[Path | None, o.option("FILE", "Also write a page for whoever answers for data protection.")] = None,
    attack: Annotated[Path | None, o.option("FILE", "With --html: what `seqveil attack --json` printed.")] = None,
    rows: o.ReleasedOptions,
    jobs: o.Jobs = None,
    json: o.Json = False,
) -> None:
    """Check what a released file leaked, exactly, and whether these people follow the model.

    Recomputes each user's leakage from the model and the releases alone, and checks every promise against it. For
    batches it does so from their paths, and a stream's total is a bound from above.

    It also asks the releases whether they fit the model: a bet against it whose odds reach 100 to 1 is an alarm, and if
    the model is right that has probability 1 % at most, however many releases there are. No alarm is no proof.

    With --html it writes a page for a data protection officer: what was promised to whom, the model and its checks,
    what an attacker got, the account, settings and fingerprints, and a claim sheet along the questions of NIST SP
    800-226. It names no user and no released value.

    With --secret, what all releases of a stream together disclosed about it, exactly, whatever the mechanism; the ε of
    it is checked where --secret-epsilon or the side file has one.

    The policy comes from the side file; name one only where there is none. Exit code 1: a check
    failed, the release was seeded, or these people do not follow the model. Exit code 2: the file cannot be a release
    made with this model and policy.

    Example: seqveil audit released.csv --model clicks.model --json
    """
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.audit import audit_file

    if attack is not None and html is None:
        raise InputError("--attack goes with --html, whose page says what an attacker got")
    chain = MarkovModel.load(model)
    secrets, where = asked.declared(), rows.made_with(chain, policy)
    with progress(released, "auditing") as advance:
        report = audit_file(released, chain, delta=delta, progress=advance, secrets=secrets, **where)
    if html is not None:
        _write_page(html, released, report, chain, attack, rows.meta)
    if json:
        emit_json(_audit_facts(report, chain))
    else:
        lines(audit_disclosed(report, chain))
    if not report.passed or report.check.fits is False:
        raise typer.Exit(1)


SEEDED = "the randomness was seeded, so it is not private: whoever knows the seed can undo the release"


def _write_page(
    place: Path, released: Path, report: Report, model: MarkovModel, attack: Path | None, meta: Path | None
) -> None:
    from seqveil.interfaces.files.report import material, page
    from seqveil.interfaces.files.writing import same_file, write_text

    inputs = [released, meta or Path(f"{released}.meta.json"), attack]
    if any(each is not None and same_file(place, each) for each in inputs):
        raise InputError(f"{place.name}: is read for the page; name another file by --html")
    write_text(place, page(material(released, report, model, attack, meta)))


def _audit_facts(report: Report, model: MarkovModel) -> dict[str, object]:
    facts = asdict(report)
    checks = {name: facts.pop(name) for name in CHECKS}
    composed = facts.pop("composed")
    if not report.whole_sequence:
        facts.pop("whole_sequence")
    best = None if report.composed is None else {**composed, "best": report.composed.best}
    share = report.held / report.releases if report.releases else 0.0
    found = {"passed": report.passed, "checks": checks, **facts, "held_share": share, "composed": best}
    found.pop("bound_grade")
    found |= {"grade": report.grade, "grade_why": report.graded.why}
    found["origin"] = model.origin
    return found


def audit_disclosed(report: Report, model: MarkovModel) -> list[tuple[str, str]]:
    """What there is to say about an audit, line by line."""
    from seqveil.interfaces.files.fit import origin_in_words

    share = report.held / report.releases if report.releases else 0.0
    one, many = ("release", "releases") if report.exact else ("batch", "batches")
    what, why = (many, "ε = 0") if report.exact else (f"batches of at most {report.batch}", "they tell nothing")
    bound = "at most" if report.exact else "batches added up, at most"
    composed = report.whole_sequence or f"composition charges {report.composition:.4g}"
    leaked = (
        f"{bound} {report.leakage:.4g} over a stream (up {figure(report.most)}, down {figure(report.least)}; user "
        f"{report.worst_user!r}); {composed}; one {one} at most {figure(report.worst_release)}"
    )
    without = f"{report.ldp:.4g}-LDP" if math.isfinite(report.ldp) else figure(report.ldp)
    said = [
        ("read", report.read),
        ("audited", f"{report.releases} {what} of {report.users} users, {share:.1%} of them held ({why})"),
        *(("means", sentence) for sentence in report.words),
        ("grade", f"{report.graded.text} (docs/guarantee.md)"),
        ("leakage", leaked if math.isfinite(report.leakage) else composed),
        ("no model", f"{without} over a stream, whatever the truth's distribution is"),
    ]
    said += [("secret", _disclosed(total)) for total in report.secrets]
    if report.worst_window is not None:
        said.append(("window", f"at most {report.worst_window:.4g} realised in any one window"))
    if report.composed is not None:
        c = report.composed
        said.append(
            (
                "(ε, δ)",
                f"({c.best:.4g}, {c.delta:g}) for the longest stream, {c.releases} paid {many}",
            )
        )
    said += [*_verdicts(report), report.check.said]
    if model.origin is not None:
        said.append(("model", origin_in_words(model.origin)))
    if report.secrets:
        said.append(("people", o.CHECK_ON_PEOPLE))
    return said


def _disclosed(total: SecretTotal) -> str:
    """What the releases disclosed about a secret."""
    figures = f"worst over {total.users} users (between {total.lowest:.4g} and {total.highest:.4g})"
    if total.epsilon is None:
        became = percent(moved(0.10, max(0.0, total.highest)))
        means = f"the log odds moved by {total.log_odds_worst:.4g}, so that a suspicion of 10 % became {became}"
        return f"{total.sentence}: {means}, {figures}"
    if total.kept is None:
        return f"{total.sentence}. But {total.unkept}"
    beside = f"; {total.unkept}" if total.unkept else ""
    moves = f"The log odds moved by {total.log_odds_worst:.4g} of at most {total.epsilon:g}"
    return f"{total.sentence}. {moves}, {figures}{beside}"


def _verdicts(report: Report) -> list[tuple[str, str]]:
    """Each promise, kept or broken. Of a seeded release none is kept, whatever its figures."""
    found = {text: getattr(report, name) for name, text in CHECKS.items()}
    if report.unseeded is False:
        found |= {CHECKS["unseeded"]: None, SEEDED: False}
    return [(_good(report) if held else "BROKEN", text) for text, held in found.items() if held is not None]


def _good(report: Report) -> str:
    """What a check that holds is called."""
    return "seed apart" if report.unseeded is False else "kept"


@o.option_groups
def decode(
    released: o.ReleasedFile,
    model: o.ModelFile,
    out: o.Out,
    *,
    online: Annotated[bool, o.flag("--online", "Use the releases up to each row only.")] = False,
    loss: Annotated[str | None, o.option("NAME", "Cost that the estimate minimises  [default: --distortion]")] = None,
    histogram: Annotated[
        str | None, o.option("FILE", "Write how often each symbol is expected to have occurred.")
    ] = None,
    truth: Annotated[
        Path | None, o.option("RAW", "The raw file that was released: say how many estimates are right.")
    ] = None,
    policy: o.PolicyOfRelease = None,
    rows: o.ReleasedOptions,
    format: o.Format = None,
    jobs: o.Jobs = None,
    json: o.Json = False,
) -> None:
    """Estimate every row's true value, for free.

    Writes the receiver's best estimate and its probability under the model; it is post-processing, so it costs no
    privacy. It also says whether the releases fit that model, as `seqveil audit` does.

    The setting comes from the side file; give the release's options only where there is none.

    Whoever holds the raw data can name it by --truth, and is called with the share of estimates that are right beside
    the one that the model expects. It is that of people held out where the model was fitted to others.

    Example: seqveil decode released.csv --model clicks.model --out decoded.csv
    """
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.estimates import decode_file

    shared: dict[str, Any] = {
        "online": online,
        "distortion": loss,
        "histogram": histogram,
        "out_format": format if out == "-" else None,
        "inputs": (model,),
        "truth": truth,
    }
    chain = MarkovModel.load(model)
    with progress(released, "decoding", passes=4) as advance:
        decoded = decode_file(released, chain, out, progress=advance, **shared, **rows.made_with(chain, policy))
    _say_decoded(decoded, out, json)


def _say_decoded(decoded: Decoded, out: str, as_json: bool) -> None:
    if as_json:
        facts = {"rows": decoded.rows, "users": decoded.users, "confidence": decoded.confidence, "out": out}
        facts |= {"confidence_holds": "under the model", "model": asdict(decoded.check), "right": decoded.right}
        facts |= {} if decoded.away is None else {"away": decoded.away, "loss": decoded.loss}
        emit_json(facts, to_stderr=out == "-")
    else:
        lines(decode_disclosed(decoded), to_stderr=True)


def decode_disclosed(decoded: Decoded) -> list[tuple[str, str]]:
    """What there is to say about estimates, line by line."""
    said = f"{decoded.rows} rows of {decoded.users} users; on average an estimate is right with probability "
    disclosed = [("decoded", f"{said}{decoded.confidence:.3f} under the model"), decoded.check.said]
    if decoded.right is not None:
        off = "" if decoded.away is None else f"; on average they are {error_size(decoded.away, decoded.loss)} off"
        disclosed.insert(1, ("truth", f"{decoded.right:.3f} of the estimates are right, by the raw file{off}"))
    return disclosed


@o.option_groups
def stats(
    released: o.ReleasedFile,
    model: o.ModelFile,
    *,
    confidence: Annotated[float, o.option("C", "Confidence of every interval.")] = 0.95,
    per: Annotated[
        int | None, o.option("N", "Histogram over time: one for every N events of a stream.", "--per")
    ] = None,
    top: Annotated[int, o.option("K", "How many of the most frequent symbols to name.")] = 5,
    method: Annotated[
        str, o.option("auto|design|learned|model", "How the counts are estimated; see docs/receiver.md.")
    ] = "auto",
    policy: o.PolicyOfRelease = None,
    rows: o.ReleasedOptions,
    jobs: o.Jobs = None,
    json: o.Json = False,
) -> None:
    """Estimate histograms, transitions, dwell times and top symbols, with intervals.

    It is post-processing and costs no privacy. Where releases can be inverted the intervals assume nothing about the
    data; else a chain is learned from the releases. The output says which.

    The releases are also asked whether they fit the model, as `seqveil audit` does. Where they do not, it is said, and
    intervals that rest on a chain are left out.

    The setting comes from the side file; give the release's options only where there is none.

    Example: seqveil stats released.csv --model clicks.model --top 3
    """
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.estimates import summarise_file

    chain = MarkovModel.load(model)
    with progress(released, "counting", passes=2) as advance:
        counted: dict[str, Any] = {"confidence": confidence, "window": per, "top": top, "method": method}
        found = summarise_file(released, chain, progress=advance, **counted, **rows.made_with(chain, policy))
    if json:
        emit_json(_stats_facts(found, chain))
    else:
        _say_stats(found, chain, per)


def _stats_facts(counted: Counted, model: MarkovModel) -> dict[str, Any]:
    """The summary as plain values; arrays are in the order of `symbols`."""
    found = counted.summary
    names = model.alphabet.decode(list(range(model.n)))
    tables = {name: _lists(getattr(found, name)) for name in ("histogram", "over_time", "transitions", "dwell")}
    leading = [
        {"symbol": names[each.code], "share": each.share, "low": each.low, "high": each.high, "sure": each.sure}
        for each in found.top
    ]
    disclosed = {name: getattr(found, name) for name in ("users", "events", "confidence", "method", "assumes")}
    more = {"in_window": found.in_window.tolist(), "maybe_top": [names[code] for code in found.maybe_top]}
    more |= {"model": asdict(counted.check), "intervals": counted.intervals}
    more |= {"not_disclosed": [names[code] for code in found.undisclosed]}
    return {**disclosed, "symbols": names, **tables, "top": leading, **more}


def _lists(estimate: Estimate) -> dict[str, Any]:
    return {part: getattr(estimate, part).tolist() for part in ("value", "error", "low", "high")}


LEFT_OUT = (
    "none: all figures below are read through one chain of order 1 that these people do not follow, so they are its "
    "best guess, and no interval around them would hold"
)
LEFT_OUT_MODEL = (
    "none: all figures below are read through the model of the release, which these people do not follow, so they are "
    "its best guess, and no interval around them would hold"
)
NOT_MODEL = "they rest on no model: each release is inverted, and only its randomness is random"


def stats_disclosed(counted: Counted, names: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """What there is to say about statistics before their tables, line by line; `names` are those of the symbols."""
    found = counted.summary
    left_out = LEFT_OUT_MODEL if found.method == "model" else LEFT_OUT
    level = f"; intervals of {found.confidence:.0%} each" if counted.intervals else ""
    return [
        ("from", f"{found.events} events of {found.users} users{level}"),
        ("method", f"{found.method}: assumes {found.assumes}"),
        counted.check.said,
        *([] if counted.intervals else [("intervals", left_out)]),
        *([("intervals", NOT_MODEL)] if counted.intervals and counted.check.fits is False else []),
        *_undisclosed(counted, names),
    ]


def _undisclosed(counted: Counted, names: Sequence[str] | None) -> list[tuple[str, str]]:
    """Which symbols a guarded release hardly tells, so that their counts are not its own."""
    found = counted.summary
    if not found.undisclosed:
        return []
    which = (
        f"{len(found.undisclosed)} symbols"
        if names is None
        else ", ".join(names[code] for code in found.undisclosed[:SHOWN])
    )
    why = "the release keeps declared secrets, and on purpose tells next to nothing about how often it came"
    if not counted.intervals:
        return [("not known", f"{which}: no estimate; {why}")]
    rests = {"model": "the model", "learned": "the learned chain"}[found.method]
    return [("barely known", f"{which}: {why}; figures about it are mostly the word of {rests}, look at the interval")]


def _say_stats(counted: Counted, model: MarkovModel, per: int | None) -> None:
    found = counted.summary
    names = [str(value) for value in model.alphabet.decode(list(range(model.n)))]
    lines(stats_disclosed(counted, names))
    counts, stays = found.histogram, found.dwell
    order = sorted(range(model.n), key=lambda code: _from_most(float(counts.value[code])))[:SHOWN]
    headings = ("symbol", "events", "share", "mean run")
    size = found.events
    table(
        headings,
        [(names[x], _span(counts, x), _span(counts, x, 1 / size, ".3f"), _span(stays, x, 1.0, ".3g")) for x in order],
    )
    moves = found.transitions
    pairs = [(a, b) for a in order for b in order if not math.isnan(moves.value[a, b])]
    largest = sorted(pairs, key=lambda pair: -moves.value[pair])[:SHOWN]
    table(("from", "to", "transitions"), [(names[a], names[b], _span(moves, (a, b))) for a, b in largest])
    if per is not None:
        rows = [
            (
                f"{w * per}",
                *(_span(found.over_time, (w, x), 1 / max(1, int(found.in_window[w])), ".3f") for x in order[:5]),
            )
            for w in range(len(found.in_window))
        ]
        table(("from event", *(names[x] for x in order[:5])), rows[:SHOWN])
    if not counted.intervals:
        lines([("top", f"by these figures {', '.join(names[each.code] for each in found.top)}; none of them surely")])
        return
    sure = [names[each.code] for each in found.top if each.sure]
    open_ = [names[each.code] for each in found.top if not each.sure] + [names[code] for code in found.maybe_top]
    lines([("top", f"surely {', '.join(sure) or 'none'}; maybe {', '.join(open_) or 'no other'}")])


def _from_most(count: float) -> float:
    """A key that puts the largest first, and what is not known last."""
    return math.inf if math.isnan(count) else -count


def _span(estimate: Estimate, at: Any, scale: float = 1.0, form: str = ".0f") -> str:
    value, low, high = (float(part[at]) * scale for part in (estimate.value, estimate.low, estimate.high))
    if math.isnan(value):
        return "not known"
    if math.isnan(low):
        return f"{value:{form}}"
    return f"{value:{form}} ({low:{form}} to {high:{form}})"
