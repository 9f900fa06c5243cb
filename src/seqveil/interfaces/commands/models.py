"""Commands that make models: `seqveil fit` from raw data, `learn` from what was released."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from seqveil.core.errors import DataError
from seqveil.core.fitting import SMOOTHING
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines, progress, stages

if TYPE_CHECKING:
    from seqveil.interfaces.files.estimates import LearnedFile
    from seqveil.interfaces.files.fit import Fitted


MANY_CLAMPED = 0.02  # share of events at the edge beyond which the range should be named


@dataclass(frozen=True)
class PrivateFitOptions:
    """A fit with differential privacy, and an alphabet that does not come from the data."""

    private: Annotated[float | None, o.option("EPSILON", "Fit with differential privacy at this ε for each user.")] = (
        None
    )
    contribution: Annotated[
        int | None, o.option("M", "With --private: most transitions of one user that count  [default: 20]")
    ] = None
    alphabet: Annotated[
        Path | None, o.option("FILE", "The values there are: one a line, a JSON list, or a model to take them from.")
    ] = None
    range: Annotated[
        str | None,
        o.option(
            "LO,HI",
            "Range not taken from data, of --bins (of --grid X0,X1,Y0,Y1, of --cell-metres SOUTH,NORTH,WEST,EAST).",
            "--range",
        ),
    ] = None
    seed: Annotated[int | None, o.option("N", "With --private: repeatable noise, for research; NOT private.")] = None


@o.option_groups
def fit(
    data: o.Data,
    out: o.ModelOut,
    *,
    order: o.Order = 1,
    smoothing: o.Smoothing = SMOOTHING,
    prior: o.Prior = "data",
    context: Annotated[
        str | None,
        o.option(
            "auto|order:2|types:16",
            "What the next symbol depends on, checked on held-out people; auto compares several.",
        ),
    ] = None,
    trait: Annotated[
        str | None, o.option("COLUMN", "One label for each user: each label gets types of its own, for --secret trait:")
    ] = None,
    cuts: o.CutOptions,
    other: Annotated[
        int | None, o.option("N", "Pool values that fewer than N people have into one symbol, other.")
    ] = None,
    on_unknown: Annotated[
        str | None,
        o.option(
            "error|hide|nearest|other",
            "What later commands do with values outside the alphabet  [default: error; other with --other]",
        ),
    ] = None,
    privacy: PrivateFitOptions,
    files: o.FileOptions,
    timing: o.FitSlotOptions,
    json: o.Json = False,
) -> None:
    """Fit a model of how the streams are correlated.

    A plain fit reads raw data and is not itself private: fit on public or consented data, and treat the model as
    public. With --private the counts get noise, and adding or removing any one user changes the probability of any
    model by a factor of at most e^EPSILON; the model carries that as a record. A private fit takes its alphabet from
    --alphabet, or from --bins or --grid with --range, never from the data.

    With --context some people are held out of the fit, and the table of how well each candidate predicts them is
    printed and kept in the model file. types:16 is a mixture of 16 chains, one for each type of person; types that
    fewer than 50 people make up are merged into others.

    The line `read` says what each column was taken for and how the rows were ordered; `seqveil inspect DATA` says more
    and proposes options.

    Example: seqveil fit clicks.csv -o clicks.model

    Example: seqveil fit clicks.csv -o clicks.model --context auto

    Example: seqveil fit meters.csv -o meters.model --levels 8 --trait heating

    Example: seqveil fit clicks.csv -o clicks.model --private 1 --alphabet pages.txt
    """
    from seqveil.interfaces.files.fit import fit_file

    _check_out(out, data)
    distribution = {"order": order, "smoothing": smoothing, "prior": prior, "context": context, "trait": trait}
    words = o.fit_words(cuts, privacy, files, timing, **distribution, other=other, on_unknown=on_unknown)
    passes = 1 if files.sort or data == "-" else 2
    with stages(data, "fitting", passes, "comparing contexts") as (advance, done):
        fitted = fit_file(data, words, progress=advance, working=done)
    fitted.model.save(out)
    say_fitted(out, fitted, json)


def say_fitted(out: Path, fitted: Fitted, as_json: bool) -> None:
    """Say what was fitted, and whether that is private."""
    from seqveil.interfaces.choosing import called
    from seqveil.interfaces.files.fit import origin_in_words

    model, edges, choice = fitted.model, fitted.model.transitions, fitted.choice
    origin = model.origin
    if as_json:
        size: dict[str, Any] = {"order": model.order, "symbols": model.n, "transitions": edges, "types": model.types}
        counts: dict[str, Any] = {
            "events": fitted.events,
            "users": fitted.users,
            "pooled": fitted.pooled,
            "clamped": fitted.clamped,
        }
        counts |= {"smoothing": fitted.smoothing, "rules_out": model.rules_out}
        private = {"private": bool(origin and origin["private"]), "origin": origin}
        disclosed = {"model": str(out), "fingerprint": model.fingerprint, **size, **counts, **private}
        emit_json(disclosed | {"reading": fitted.reading.to_dict(), "read": fitted.reading.sentence})
        return
    noisy = "about " if origin is not None and origin.get("kind") == "private fit" else ""
    types = f"{model.types} types, " if model.types > 1 else ""
    unsure = " (noisy counts)" if noisy else ""
    said = [
        ("read", fitted.reading.sentence),
        ("model", f"{out}: {types}order {model.order}, {model.n} symbols, {edges} transitions"),
        ("from", f"{noisy}{fitted.events} events of {noisy}{fitted.users} users{unsure}"),
    ]
    if fitted.smoothing is not None:
        said.append(("added", _smoothed(fitted.smoothing)))
    if fitted.pooled:
        said.append(("other", f"{fitted.pooled} values that too few people have are one symbol, other"))
    if fitted.clamped:
        many = fitted.clamped > MANY_CLAMPED * fitted.events
        more = ", which are many: name the part that counts with --range" if many else ""
        said.append(("clamped", f"{fitted.clamped:,} events outside the cells count to those at the edge{more}"))
    said += _said_of_values(fitted)
    if model.trait is not None and origin is not None:
        told = ", ".join(
            f"{answer} ({own})" for answer, own in zip(model.trait.answers, model.trait.types, strict=True)
        )
        left_out = f"; {origin['people_without_answer']:,} users without an answer are left out"
        said.append(("trait", f"{model.trait.name}, by answer (types): {told}{left_out}"))
    plain = "the fit is not private: the model shows how the raw data behave"
    if choice is not None:
        for line in choice.lines():
            print(line)
        said.append(("context", f"{called(model, choice.taken)}, checked on {choice.taken.people:,} held-out people"))
    lines([*said, ("note", plain if origin is None or choice is not None else origin_in_words(origin))])


def _smoothed(events: float) -> str:
    """How much a fit was smoothed, and what follows."""
    if not events:
        return "nothing: what nobody did is called impossible, and every account assumes that nobody ever does it"
    return f"{events:g} event{'s' * (events != 1)} to each context, spread as all are: nothing is called impossible"


def _said_of_values(fitted: Fitted) -> list[tuple[str, str]]:
    """What is to be said about places, and about numbers that nobody cut."""
    from seqveil.core.alphabet import Alphabet
    from seqveil.core.places import Cells
    from seqveil.interfaces.files.inspection import MOST_NUMBERS

    alphabet, said = fitted.model.alphabet, list[tuple[str, str]]()
    if isinstance(alphabet, Cells):
        said.append(("places", f"cells of {alphabet.metres:.10g} m, named by their centres; --distortion metres"))
    values = alphabet.values if isinstance(alphabet, Alphabet) and alphabet.n > MOST_NUMBERS else ()
    if any(isinstance(value, float) and not value.is_integer() for value in values):
        asked = f"{alphabet.n:,} different decimal numbers are symbols, each for itself: shall they be cut?"
        said.append(("question", f"{asked} --bins auto cuts them evenly, --levels 20 by their counts"))
    return said


@o.option_groups
def learn(
    released: o.ReleasedFile,
    model: o.ModelFile,
    out: Annotated[Path, o.option("MODEL", "Where to write the learned model.", "--out", "-o")],
    *,
    order: o.Order = 1,
    strength: Annotated[
        float | None, o.option("W", "Pseudo-moves a row of the prior  [default: tried on held-out users]")
    ] = None,
    confidence: Annotated[float, o.option("C", "Of the region that the rows are within.")] = 0.95,
    rows: o.ReleasedOptions,
    json: o.Json = False,
) -> None:
    """Learn how streams are correlated from what was released of them.

    It looks at releases only, so it costs no privacy. --model is what the release was made with. The learned model says
    how likely moves are; how sure that is, is said beside it.

    Example: seqveil learn released.csv --model pages.model -o learned.model
    """
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.estimates import learn_file

    _check_out(out, released, model)
    known = MarkovModel.load(model)
    with progress(str(released), "learning") as advance:
        how: dict[str, Any] = {"order": order, "strength": strength, "confidence": confidence}
        found = learn_file(released, known, progress=advance, **how, **rows.where)
    found.learned.model.save(out)
    emit_json(_learned_facts(found, out)) if json else _say_learned(found, out)


def _learned_facts(found: LearnedFile, out: Path) -> dict[str, object]:
    learned, disclosed, region = found.learned, found.learned.held_out, found.region
    facts: dict[str, object] = {
        "users": learned.found.users,
        "releases": learned.found.events,
        "symbols": learned.model.n,
        "order": learned.model.order,
        "rounds": learned.rounds,
        "converged": learned.converged,
        "strength": learned.strength,
        "model": learned.model.fingerprint,
        "out": str(out),
    }
    if disclosed is not None:
        facts |= {
            "gain": disclosed.gain,
            "gain_error": disclosed.error,
            "log_evidence": disclosed.log_evidence,
            "earned": disclosed.earned,
        }
    if region is not None:
        facts |= {"confidence": region.confidence, "radii": region.rows.tolist(), "first_radius": region.first}
    return facts


def _say_learned(found: LearnedFile, out: Path) -> None:
    learned, disclosed = found.learned, found.learned.held_out
    said = [("learned", f"{learned.model!r} from {learned.found.events} releases of {learned.found.users} users")]
    ended = "converged" if learned.converged else f"not converged: still {learned.change:.1e} nats an event a round"
    said.append(("EM", f"{learned.rounds} rounds, {ended}; prior of {learned.strength:g} moves a row"))
    if disclosed is not None:
        beats = "beyond chance" if disclosed.earned else "NOT beyond chance: keep releasing without it"
        gain = f"{disclosed.gain:.4f} ± {disclosed.error:.4f} nats an event over no context, {beats}"
        said.append(("held out", f"{disclosed.users} users: {gain}"))
    if found.region is not None:
        said.append(("region", repr(found.region)))
    lines([*said, ("written", str(out.name))], to_stderr=True)


def _check_out(out: Path, *read: str | Path) -> None:
    """Refuse to write the model over what it is made from, or where no file can be, before anything is read."""
    from seqveil.interfaces.files import same_file

    if any(same_file(each, out) for each in read):
        raise DataError(f"{out.name}: is read and written at once; choose another output")
    o.check_model_out(out)
