"""Commands to choose with, before anything is released: `seqveil mechanisms` and `seqveil plan`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from seqveil.core.distortion import error_name
from seqveil.core.errors import InputError
from seqveil.core.words import Risk
from seqveil.engine.policy import Policy
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.recommend import WishOptions, model_of, recommend
from seqveil.interfaces.commands.terminal import emit_json, table

if TYPE_CHECKING:
    from seqveil.core.kernel import Ints
    from seqveil.core.mechanisms import BatchMechanism, Mechanism
    from seqveil.core.model import MarkovModel
    from seqveil.core.secrets import Secret
    from seqveil.interfaces.planning import Plan, PlanRow

HOLDS = "under the model: all errors and shares are those of people who follow it"
PICTURES = (".png", ".svg", ".pdf")
EPSILONS = "0.25,0.5,1,2"
LENGTH = 50


def mechanisms(json: o.Json = False) -> None:
    """List the mechanisms and what each promises.

    Example: seqveil mechanisms --json
    """
    from seqveil.core import mechanisms as registry

    if json:
        emit_json([_mechanism_facts(registry.find(name)) for name in registry.names()])
        return
    headings = ("name", "what it does", "guarantee", "trusts", "LDP", "cost", "sound")
    print("one symbol at a time (seqveil release)")
    table(headings, [_row(registry.find(name)) for name in registry.instantaneous()])
    print("batches of W symbols (seqveil release --batch W); ε is that of a batch")
    table(headings, [_row(registry.find(name)) for name in registry.batched()])
    print("declared secrets (seqveil release --secret …); ε is that of a secret, for the whole stream")
    table(headings, [_row(registry.guarded)])
    print("blocks of W events, each answered at once (Policy(epsilon=…, block=W)); ε is that of a block")
    table(headings, [_row(registry.in_blocks)])


def _mechanism_facts(mechanism: Mechanism | BatchMechanism) -> dict[str, object]:
    plain = {f.name: getattr(mechanism, f.name) for f in fields(mechanism)}
    shown: dict[str, object] = {name: value for name, value in plain.items() if not callable(value)}
    return shown | {"batched": hasattr(mechanism, "draw")}


def _row(m: Mechanism | BatchMechanism) -> tuple[str, ...]:
    ldp = f"{m.ldp:g}ε" if isfinite(m.ldp) else "none"
    return m.name, m.summary, m.guarantee, m.trusts, ldp, m.cost, "yes" if m.sound else "NO"


@dataclass(frozen=True)
class PlannedPolicies(o.ShortSecrets):
    """The policies to compare: one in a file, or what the options spell out, in all combinations."""

    secret_epsilon: Annotated[
        str | None, o.option("E,E,…", "Totals to compare for each --secret, one row for each.")
    ] = None  # type: ignore[assignment]
    policy: Annotated[
        Path | None, o.option("FILE", "Plan for this policy, at each --epsilon; instead of the other options of it.")
    ] = None
    epsilon: Annotated[
        str | None,
        o.option("E,E,…", f"Bounds for one release to compare  [default: {EPSILONS}]", "--epsilon", "-e"),
    ] = None
    batch: Annotated[
        str | None, o.option("W,W,…", "Compare batches of these sizes, each with W·ε: equal ε an event.")
    ] = None
    every: Annotated[str | None, o.option("M|best", "Spend M·ε at every M-th release; best: find M for each ε.")] = None
    distortion: o.DistortionName = None

    @property
    def base(self) -> Policy | None:
        """The policy of the file, where one is named."""
        if self.policy is None:
            return None
        others = ("secret", "secret_epsilon", "secret_window", "batch", "every", "distortion")
        named = [f"--{name.replace('_', '-')}" for name in others if getattr(self, name) is not None]
        if named:
            raise InputError(f"--policy says what is promised; leave out {', '.join(named)}, or write it there")
        return Policy.load(self.policy)

    @property
    def bounds(self) -> list[float] | None:
        """The ε to compare; None where none is named."""
        return None if self.epsilon is None else parse_epsilons(self.epsilon)

    def wanted(self) -> tuple[tuple[Secret, ...], str]:
        """What a recommendation is to keep secret, and the cost of a wrong release."""
        idle = [name for name in ("epsilon", "secret_epsilon", "batch", "every") if getattr(self, name) is not None]
        if idle:
            option = "--" + idle[0].replace("_", "-")
            raise InputError(f"{option} is what a recommendation finds; leave it out, or plan without --seen-by")
        if self.secret_window is not None and not self.secret:
            raise InputError("--secret-window came without a secret; add --secret ever:VALUE")
        base = self.base
        if base is not None:
            return tuple(base.secrets), str(base.plain.get("distortion", "hamming"))
        return tuple(self.declared()), self.distortion or "hamming"

    def with_secrets(self) -> list[Policy]:
        """A policy for each total of the secrets and each ε beside it; none without secrets."""
        if not self.secret:
            if self.secret_epsilon is not None or self.secret_window is not None:
                raise InputError("--secret-epsilon and the like came without a secret; add --secret ever:VALUE")
            return []
        if self.secret_epsilon is None:
            raise InputError("--secret has no total; add --secret-epsilon E,E,…, for instance --secret-epsilon 0.5,1")
        for name in (name for name in ("batch", "every") if getattr(self, name) is not None):
            raise InputError(f"--{name} does not go with --secret: a secret has one total for its window; leave it out")
        found, cost = self.declared(), self.distortion or "hamming"
        rates: list[float] | list[None] = self.bounds or [None]
        return [
            Policy(rate, secrets=[replace(secret, epsilon=total) for secret in found], distortion=cost)
            for total in parse_epsilons(self.secret_epsilon, "secret-epsilon")
            for rate in rates
        ]

    def declared(self) -> list[Secret]:
        """The secrets that the options name, each still without its total."""
        return o.ShortSecrets(self.secret, None, self.secret_window).declared()

    def planned(self, model: MarkovModel, length: int, users: int | None) -> Plan:
        """The simulated cost of every policy that is asked for."""
        from seqveil.interfaces import planning

        base = self.base
        made = self.with_secrets() if base is None else [base]
        if base is not None and self.bounds is not None:
            made = [replace(base, epsilon=bound) for bound in self.bounds]
        if made:
            return planning.compared([policy.on(model) for policy in made], length, users)
        sizes = [] if self.batch is None else [size for size in parse_batches(self.batch) if size > 1]  # 1 is shown
        bounds, period = self.bounds or parse_epsilons(EPSILONS), _period(self.every)
        cost = self.distortion or "hamming"
        return planning.plan(model, bounds, "optimal", cost, length, users, period=period, batch_sizes=sizes)


def _period(text: str | None) -> int | None:
    """Every how many releases one carries ε; None where the best is to be found."""
    if text is not None and text != "best" and not (text.isascii() and text.isdigit()):
        raise InputError("expected --every as a whole number of releases, or best; got something else")
    return 1 if text is None else None if text == "best" else int(text)


@o.option_groups
def plan(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="The model, as `seqveil fit` writes it.")],
    *,
    asked: PlannedPolicies,
    length: Annotated[int, o.option("T", "Events of a stream.")] = LENGTH,
    users: Annotated[
        int | None,
        o.option(
            "N", "Simulated streams  [default: 200; 20 for secrets and costs that need a program, 8 to 40 for batches]"
        ),
    ] = None,
    plot: Annotated[Path | None, o.option("FILE.png", "Draw the trade-off.")] = None,
    data: Annotated[
        str | None, o.option("FILE", "People whom the model was not fitted to: release them, show the real error.")
    ] = None,
    columns: o.ColumnOptions,
    wishes: WishOptions,
    json: o.Json = False,
) -> None:
    """Show the error to expect at each ε, or recommend a policy.

    It simulates streams from the model, so its figures hold under the model: people who follow another one fare worse.
    No private data is released.

    With --secret it shows the error of releases that keep it, for each total of --secret-epsilon; an --epsilon is then
    one that every release keeps as well. With --policy it shows the error of that policy.

    With --data the columns "realised" tell what real people get: those of the file, released with the model.

    With --seen-by, --odds, --wrong or --wait it recommends: what to promise, what that costs, what it means for a
    person. With --wrong it finds the largest protection whose expected error stays below; else the setting that keeps
    a suspicion under its limit. At a terminal it asks for what the options leave out. It writes policy.toml, which
    release, serve, bridge and spark take by --policy.

    Example: seqveil plan clicks.model --seen-by partner --secret ever:health --wrong 20%

    Example: seqveil plan clicks.model --epsilon 0.5,1,2 --every best --plot plan.png

    Example: seqveil plan clicks.model --secret ever:health --secret-epsilon 0.5,1 --secret-window 20
    """
    if wishes.given:
        recommend(source, wishes, *asked.wanted(), asked.secret_window, length, json)
        return
    wishes.refuse_idle()
    check_picture(plot)
    model = model_of(source)
    people = None if data is None else _people(data, model, columns)
    made = asked.planned(model, length, users)
    about = HOLDS
    if people is not None:
        made, about = _realised(made, people, users)
    if plot is not None:
        from seqveil.interfaces import plots

        plots.tradeoff(made, plot)
    _say(made, about, None if plot is None else str(plot), json)


def check_picture(plot: Path | None) -> None:
    """Refuse a picture that could not be saved, before anything is computed for it."""
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise InputError(f"expected a picture named {', '.join(PICTURES)}; got another extension")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise InputError("expected the picture in a folder that exists; make it, or name another")


def parse_epsilons(text: str, name: str = "epsilon") -> list[float]:
    """The ε between commas; `name` is the option they stand for.

    >>> parse_epsilons("0.5, 1")
    [0.5, 1.0]
    """
    from seqveil.core.mechanisms import check_epsilon

    try:
        return [check_epsilon(float(part)) for part in text.split(",")]
    except InputError:
        raise
    except ValueError:
        raise InputError(f"expected numbers between commas for {name}, as in 0.5,1,2; got {text!r}") from None


def parse_batches(text: str) -> list[int]:
    """Batch sizes between commas.

    >>> parse_batches("10,1, 5")
    [1, 5, 10]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"expected whole numbers ≥ 1 between commas for batch, as in 1,5,10; got {text!r}")
    return sorted({int(part) for part in parts})


def _people(data: str, model: MarkovModel, names: o.ColumnOptions) -> tuple[Ints, Ints]:
    """Which stream each event of a file is in, numbered by name, and its code."""
    from seqveil.core.reading import Reading
    from seqveil.interfaces.files.events import read_events, value_type_of

    alphabet = model.alphabet
    kept = alphabet if alphabet.on_unknown in ("other", "nearest") else alphabet.strict
    how: dict[str, Any] = {"missing": alphabet.missing, "slots": alphabet.slots, "on_map": alphabet.on_map}
    events = read_events(data, (model.reading or Reading()).but(**names.given), value_type_of(kept), **how)
    people, who = events.people
    place = {user: at for at, user in enumerate(sorted(people))}
    return np.array([place[user] for user in people], np.int64)[who], events.codes(kept)


def _realised(made: Plan, people: tuple[Ints, Ints], users: int | None) -> tuple[Plan, str]:
    """The plan with what it costs real people, and a sentence about whom its figures are of."""
    from seqveil.interfaces.planning import realised

    most = users if users is not None else 200 if made.distortion == "hamming" else 20
    found = realised(made, *people, most)
    whom = "whom --data names; they are held out only if the model was not fitted to them"
    return found, f"{HOLDS}, except those called realised: of {found.realised_people} people {whom}"


def _meaning(row: PlanRow, length: int) -> str:
    """What a row of the plan means for a person with so many events, and then what is promised."""
    from seqveil.interfaces.files.release import guarantee

    setting = row.setting
    if setting.guards or row.epsilon is None:
        return f"{'; '.join(Risk.promised(setting, truth=row.truth).sentences)}; {guarantee(setting)}"
    where = f"at ε = {row.epsilon:g}"
    where += f" in batches of {row.batch}" if row.batch > 1 else ""
    where += f" spent at every {row.period} releases" if row.period > 1 else ""
    one = setting.epsilon * row.period if setting.mechanism.sound else None
    ldp = setting.mechanism.ldp * row.epsilon * length if setting.model.rules_out else None
    risk = Risk(row.leakage, one_release=one, truth=row.paid_truth, period=row.period, size=row.batch, ldp=ldp)
    return f"{where} ({risk.grade.colour}): {'; '.join(risk.sentences)}; {guarantee(setting)}"


def _say(made: Plan, about: str, plot: str | None, json: bool) -> None:
    """The plan as a table with sentences, or as JSON."""
    from seqveil.core.words import made_public
    from seqveil.interfaces.planning import REFERENCE

    shown = [row for row in made.rows if row.mechanism != REFERENCE] or made.rows
    sentences, public = [_meaning(row, made.length) for row in shown], made_public(made.rows[0].setting.secrets)
    if json:
        facts = {each.name: getattr(made, each.name) for each in fields(made)} | {"plot": plot, "holds": about}
        rows = [row.to_dict() for row in made.rows]
        emit_json({**facts, "rows": rows, "guarantees": sentences, "made_public": public})
        return
    columns = [(heading, cell) for heading, there, cell in _columns(made) if there]
    table([heading for heading, _ in columns], [[cell(row) for _, cell in columns] for row in made.rows])
    print(
        f"expected {error_name(made.distortion)} over {made.length} releases of people who follow the model; decoded: "
        "after the receiver's online filter"
    )
    if made.rows[0].totals:
        print("disclosed: the most a simulated stream reveals of a secret (log odds)")
    if any(row.batch > 1 for row in made.rows):
        print(
            "a batch of W spends W·ε, so every row of one ε spends the same on an event; delay: events that one waits "
            "for at most; smoothed: decoded with all releases of the stream"
        )
    for sentence in [*([about] if about != HOLDS else []), *sentences, *([public] if public else [])]:
        print(sentence)


def _columns(made: Plan) -> list[tuple[str, bool, Callable[[PlanRow], str]]]:
    """The columns of the table: a heading, whether it is there, and what a row has in it."""
    secrets, real = bool(made.rows[0].totals), made.realised_people is not None
    batches = any(row.batch > 1 for row in made.rows)
    rate = "ε a release" if secrets else "ε an event" if batches else "ε"
    return [
        ("total", secrets, lambda row: ", ".join(f"{total:g}" for total in row.totals)),
        (rate, True, lambda row: "no bound" if row.epsilon is None else f"{row.epsilon:g}"),
        ("mechanism", not secrets, lambda row: row.mechanism),
        ("every", not secrets, lambda row: str(row.period)),
        ("error", True, lambda row: _figure(row.error)),
        ("realised", real, lambda row: _figure(row.realised_error)),
        ("decoded", True, lambda row: _figure(row.decoded_error)),
        ("realised", real, lambda row: _figure(row.realised_decoded)),
        ("truth", True, lambda row: f"{row.truth:.1%}"),
        ("empty", secrets, lambda row: f"{row.withheld:.1%}"),
        ("best guess", True, lambda row: _figure(row.constant_error)),
        ("disclosed", secrets, lambda row: _figure(row.disclosed)),
        ("leakage", not secrets, lambda row: _figure(row.leakage)),
        ("batch", batches, lambda row: str(row.batch)),
        ("delay", batches, lambda row: str(row.delay)),
        ("smoothed", batches, lambda row: _figure(row.smoothed_error)),
    ]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
