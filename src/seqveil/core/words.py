"""What figures mean for a person: suspicions before and after, grades, and the sentences that every interface shows.

An observer suspects something about a person before anything is released; docs/guarantee.md, "In odds", says by how
much its odds may move, and how that is graded. A figure called "at most" is rounded up. Green says more than that the
bound is small: where there are doubts, such as a secret that nobody tried to find out, it is called unchecked.

What a command found is one object, a `Result`, which the terminal, `--json`, `print` and a notebook all show.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from seqveil.core.secrets import Secret

Colour = Literal["green", "unchecked", "amber", "red"]

SUSPICIONS = (0.01, 0.10, 0.50)  # that sentences follow
ASKED = 0.01  # the suspicion that a grade follows
GREEN, AMBER = 0.10, 0.50  # what it may become at most
REMEDY = "declare what must stay secret, lower its ε, or set a low total budget; `seqveil plan` finds a policy"
IMPOSSIBLE = "the model calls impossible what they may do"  # a doubt about a secret
UNCHECKED = "nobody checked that these people follow the model"  # a doubt, until their releases were asked
UNATTACKED = "releases alone cannot test what is said about a secret: run `seqveil attack` on these people"
MEASURED = "measured, not promised"
AS_RELEASED = "measured on what was released"  # which may be far less than is promised
CHECK_ON_PEOPLE = "an attack (`seqveil attack`, in Python `seqveil.attack`) tries the promise on real people"
PUBLIC_ZONE = "the zone is public: name places that are the same for everyone, never one person's home"
SUSPICION = 0.25  # that the sentence of a secret takes as its example
_NAMED = 4  # values named in a sentence; the others are counted
_ROUNDING = 1e-9  # by which a suspicion may pass the border of a grade


def moved(suspicion: float, log_odds: float) -> float:
    """A suspicion after its odds moved by e^log_odds.

    >>> round(moved(0.25, 0.5), 4), round(moved(0.5, 1.0), 4), moved(0.01, math.inf)
    (0.3547, 0.7311, 1.0)
    """
    if not 0.0 < suspicion < 1.0:
        return suspicion
    log = math.log(suspicion / (1 - suspicion)) + log_odds
    return 1 / (1 + math.exp(-log)) if log > -700 else 0.0


def log_odds_for(suspicion: float, limit: float) -> float:
    """The ε of a secret, twice the total leakage, at which a suspicion becomes `limit` and no more; see `moved`."""
    return math.log(limit / (1 - limit)) - math.log(suspicion / (1 - suspicion))


def count(number: int, one: str, many: str = "") -> str:
    """A number of things, one or several.

    >>> count(1, "user"), count(1200, "user"), count(2, "batch", "batches")
    ('1 user', '1,200 users', '2 batches')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """A time as people say it, in its largest unit.

    >>> duration(1.2), duration(90), duration(3600), duration(200_000)
    ('1 second', '2 minutes', '1 hour', '2 days')
    """
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size:
            return count(round(seconds / size), unit)
    return count(round(seconds), "second")


def percent(share: float) -> str:
    """A probability as people say it, to the nearest figure.

    >>> percent(0.25), percent(0.002), percent(0.9962), percent(0.99999)
    ('25 %', '0.2 %', '99.6 %', '100 %')
    """
    if share > 0.99:
        return f"{share * 100:.3g} %"
    return f"{share * 100:.0f} %" if share >= 0.01 else f"{share * 100:.2g} %"


def percent_up(share: float, to_whole: Callable[[float], int] = math.ceil) -> str:
    """A probability as people say it, rounded up, so that "at most" stays true; by `math.floor`, "at least".

    >>> percent_up(0.25), percent_up(0.0272), percent_up(0.00123), percent_up(0.99999, math.floor)
    ('25 %', '2.8 %', '0.13 %', '99.9 %')
    """
    points = share * 100
    if points <= 0:
        return "0 %"
    places = 0 if 10 <= points <= 99 else 1 if points >= 1 else 1 - math.floor(math.log10(points))
    scale = 10**places
    return f"{to_whole(round(points * scale, 6)) / scale:g} %"


def by_odds(log_odds: float, measured: bool = False) -> str:
    """What becomes of suspicions whose odds move by at most e^log_odds, or moved by that where it was measured.

    Where every lift lies between e^-a and e^b the odds of anything in a stream move by at most e^(a+b).
    """
    (low, least), *higher = [(percent(each), percent_up(moved(each, log_odds))) for each in SUSPICIONS]
    certainty = f"may {'have ' * measured}become certainty"
    if least == "100 %":
        return f"even a suspicion of {low} {certainty}"
    verb, most = ("became", "") if measured else ("becomes", "at most ")
    said = [f"one of {each} {certainty if after == '100 %' else most + after}" for each, after in higher]
    return ", ".join([f"a suspicion of {low} {verb} {most}{least}", *said])


def made_public(secrets: Iterable[Secret], on_map: bool = False) -> str:
    """Says that a zone is public, as all that is declared is, and its unit; empty where there is none."""
    zones = [part for secret in secrets for part in (secret, *secret.parts) if part.kind == "zone"]
    unit = f"; its radius is in {'metres' if on_map else 'the units of the values'}"
    return PUBLIC_ZONE + unit * any(zone.circle for zone in zones) if zones else ""


def side_knowledge(c: float) -> str:
    """What the release of an event adds for somebody who knows that event already, at this side information.

    >>> "given the earlier releases, by at most a factor e^0.5 = 1.65;" in side_knowledge(0.5)
    True
    """
    most = f"by at most a factor e^{c:g} = {math.exp(c):.3g}"
    own = f"moves the odds of a secret, given the earlier releases, {most}"
    own = "adds nothing about a secret" if c == 0.0 else "may reveal a secret" if math.isinf(c) else own
    rest = "what the other releases reveal to somebody who knows a true event is not bounded"
    return f"for somebody who already knows a true event, its own release {own}; {rest}"


def measured(secret: Secret, within: bool | None = None) -> str:
    """What is said about a secret that no mechanism keeps; `within` says whether the releases stayed within its ε."""
    said = f"{about(secret)}; {MEASURED}"
    if within is None or secret.epsilon is None:
        return said
    return f"{said}; these releases {'stayed' if within else 'did not stay'} within ε = {secret.epsilon:g}"


def promise(secret: Secret) -> str:
    """How well a secret is kept, and on what condition: the second half of its sentence."""
    if secret.epsilon is None:
        return MEASURED
    low, high = (moved(SUSPICION, side * secret.total) for side in (-1, 1))
    stays = f"stays between {percent_up(low, math.floor)} and {percent_up(high)}"
    move, who, odds = "move", "the stream follows", "the odds that an observer who knows the model gives it"
    if secret.one_sided:
        move, stays = "rise", f"becomes at most {percent_up(high)}"
    if secret.kind == "trait":
        who, odds = "the person follows", "the odds that an observer who knows the model gives between any two values"
    bound = f"by at most a factor of {math.exp(secret.epsilon):.3g} (ε = {secret.epsilon:g})"
    return f"if {who} the model, {odds} {move} {bound}: a suspicion of {percent(SUSPICION)} {stays}"


def about(secret: Secret) -> str:
    """What the secret is about, as the first half of a sentence."""
    if secret.kind == "joint":
        return "any combination of: " + "; ".join(about(part) for part in secret.parts)
    if secret.kind == "trait":
        return f"which value of the trait {secret.text} a person has"
    what, where, hours = _list(secret.values), _window(secret), secret.hours or (0.0, 24.0)
    if secret.circle:
        *centre, radius = (f"{number:.10g}" for number in secret.circle)
        near = f"{radius} (metres for places on a map) around ({', '.join(centre)})"
        return f"whether the zone of radius {near} is entered {where}"
    phrases = {
        "ever": f"whether {what} occurs {where}",
        "always": f"whether every event is {what} {where}",
        "count": f"whether {what} occurs at least {secret.at_least} times {where}",
        "followed_by": f"whether {what} is followed, at once or later, by {_list(secret.then)} {where}",
        "pattern": f"whether the pattern {secret.text.strip()} occurs {where}",
        "zone": f"whether a zone of {len(secret.values)} cells is entered {where}",
        "during": f"whether {what} occurs from {hours[0]:g} to {hours[1]:g} o'clock {where}",
    }
    return phrases[secret.kind]


def _list(values: tuple[Any, ...]) -> str:
    shown = [str(value) for value in values[:_NAMED]]
    if len(values) > _NAMED:
        return f"{', '.join(shown)} or one of {len(values) - _NAMED} others"
    return " or ".join(part for part in (", ".join(shown[:-1]), *shown[-1:]) if part)


def _window(secret: Secret) -> str:
    window = secret.window
    known = {
        None: "in the stream, whenever it ends", "day": "on a day, each day for itself",
        "week": "in a week, each week for itself", "event": "at an event, each for itself",
        1: "at an event, each for itself",
    }  # fmt: skip
    if window in known:
        return known[window]
    if secret.repeats:
        return f"in a run of {window} events (the first {window}, the next {window} and so on)"
    return f"among the first {secret.length()} events"


@dataclass(frozen=True)
class Grade:
    """A colour, and the sentence that says why."""

    colour: Colour
    why: str

    @property
    def text(self) -> str:
        """The colour and why, as one line."""
        return f"{self.colour}: {self.why}"


@dataclass(frozen=True)
class DisclosedSecret:
    """A declared secret with the most that its log odds move: what was promised, or disclosed if that is more."""

    name: str
    log_odds: float
    window: str = "over the whole stream"

    @classmethod
    def of(cls, secret: Secret, log_odds: float) -> DisclosedSecret:
        """A declared secret of which so much was disclosed, or promised to be disclosed at most."""
        each = "in each window" if secret.repeats else "over the whole stream"
        over = "over its events" if str(secret.window).startswith("first") else each
        return cls(secret.name, log_odds, over)


@dataclass(frozen=True)
class Risk:
    """What releases mean for the people in them, from public figures alone.

    Parameters:
        up, down: the most that all releases of a stream together raised the log probability of a sequence, and lowered
            it, worst over users; where `down` is None both are promised, and it is as much.
        one_release: the ε of the release, or batch, that carries most; None where there is no bound for it.
        secrets: those that were promised to be kept. They decide the grade, where there are any.
        unit: what has that ε: a release, a batch of so many, a block of so many events.
        measured: nothing is promised about the whole stream: what is said about it was measured.
        doubts, support: what keeps a small bound from being called green, and what it rests on where it is.
        unkept: of which streams nothing is promised, because they end inside a window of a secret; a sentence each.
        ldp: the level that holds whatever people do, worst over users, where the model calls something impossible; it
            takes the place of `up` and `down`. None where the model allows everything.
        undone: why none of it holds (a seed, a broken promise, people who do not follow the model), if anything.
    """

    up: float
    down: float | None = None
    one_release: float | None = None
    secrets: tuple[DisclosedSecret, ...] = ()
    unit: str = "release"
    measured: bool = False
    doubts: tuple[str, ...] = (UNCHECKED,)
    support: str = ""
    unkept: tuple[str, ...] = ()
    ldp: float | None = None
    undone: str = ""

    @classmethod
    def of(cls, setting: Any, accounts: Any, disclosed: Sequence[Any] = (), **more: Any) -> Risk:
        """The risk of the releases under some `Terms`, from the `Account` of a user, or the `Accounts` of all.

        `disclosed` are the totals of its secrets, in their order: each counts with what was promised, or with what was
        disclosed where that is more. `more` is what else is known, by the names above.
        """
        secrets = [
            DisclosedSecret.of(secret, max(secret.total, total.log_odds_worst))
            for secret, total in zip(setting.secrets, disclosed, strict=False)
            if total.kept is not None
        ]
        unkept = tuple(dict.fromkeys(total.unkept for total in disclosed if total.unkept))
        up, down = float(np.max(accounts.most, initial=0.0)), -float(np.min(accounts.least, initial=0.0))
        ldp = float(np.max(accounts.ldp, initial=0.0)) if setting.model.rules_out else None
        more = _shape(setting) | {"measured": bool(setting.whole_sequence), "ldp": ldp} | more
        more |= {"doubts": (UNATTACKED,)} if setting.secrets else {}
        undone = more.pop("undone", "") or ("" if setting.mechanism.sound else setting.whole_sequence)
        if disclosed and len(secrets) < len(setting.secrets):  # about one of them nothing is promised
            undone = undone or unkept[0]
        return cls(up, down, secrets=tuple(secrets), unkept=unkept, undone=undone, **more)

    @classmethod
    def promised(cls, setting: Any) -> Risk:
        """The risk that terms allow before anything is released: without a total a stream may reveal everything."""
        secrets = tuple(DisclosedSecret.of(secret, secret.total) for secret in setting.secrets)
        budget = setting.budget
        total, ldp = (math.inf if most is None else most for most in (budget.exact_total, budget.ldp_total))
        return cls(total, secrets=secrets, ldp=ldp if setting.model.rules_out else None, **_shape(setting))

    @property
    def log_odds(self) -> float:
        """The most that the log odds of anything about the stream move by all releases together."""
        if self.ldp is not None:
            return self.ldp
        return self.up + (self.up if self.down is None else self.down)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What may become of suspicions, by the secrets, by one release and by the whole stream."""
        said = [f"secret {each.name}, {each.window}: {by_odds(each.log_odds)}" for each in self.secrets]
        said += [f"{each}; declared without a window, a secret is kept wherever a stream ends" for each in self.unkept]
        if self.one_release is not None:
            said.append(f"any one {self.unit}, about anything: {by_odds(2 * self.one_release)}")
        beside = " else" if self.secrets else ""
        how = f", {MEASURED}" if self.measured else "" if self.down is None else f", {AS_RELEASED}"
        about = f"all releases of a stream together, about anything{beside}{how}"
        exact = self.measured and not self.secrets  # where kernels remember, the account of all else is a bound
        said.append(f"{about}: {by_odds(self.log_odds, exact)}")
        if self.ldp is not None:
            most = max(self.up, self.down or 0.0)
            figure = f" ({most:.2g})" if math.isfinite(most) else ""
            holds = f"{self.ldp:.4g}-LDP holds" if math.isfinite(self.ldp) else "nothing is promised"
            assumed = "assumes that what the model calls impossible never happens"
            said.append(f"the account{figure} {assumed}; without that, {holds}")
        return tuple(said)

    @property
    def grade(self) -> Grade:
        """The grade: that of the worst declared secret, or, where none is declared, that of the whole stream."""
        if self.undone:
            return Grade("red", self.undone)
        if self.secrets:
            becomes, what = max(moved(ASKED, each.log_odds) for each in self.secrets), "about a secret"
        else:
            becomes, what = moved(ASKED, self.log_odds), "about anything in the stream"
        said, most = f"a suspicion of {percent(ASKED)} {what}", percent_up(becomes)
        if becomes > AMBER * (1 + _ROUNDING):
            return Grade("red", f"{said} may become more likely than not ({most}), which protects next to nothing")
        if becomes > GREEN * (1 + _ROUNDING):
            return Grade("amber", f"{said} may grow to {most}")
        doubts = [*self.doubts, *self.unkept]
        doubts += [IMPOSSIBLE] if self.secrets and self.ldp is not None else []
        if doubts:
            return Grade("unchecked", f"{said} becomes at most {most}, but {', and '.join(doubts)}")
        return Grade("green", "; ".join(part for part in (f"{said} becomes at most {most}", self.support) if part))

    @property
    def warning(self) -> str:
        """One line that names the remedy, where the bound is not small; empty where it is."""
        grade = self.grade
        if grade.colour in ("green", "unchecked") or self.undone:
            return ""
        return f"{grade.text}; {REMEDY}"


def _shape(setting: Any) -> dict[str, Any]:
    """What has an ε of its own, and the ε of the one that carries most; None where there is no bound for one."""
    unit, most = "release" if setting.batch == 1 else f"batch of {setting.batch}", setting.budget.exact_total
    if setting.in_blocks:
        unit = f"block of {setting.policy.block} events"
    if not setting.mechanism.sound or setting.unbounded:
        return {"unit": unit}
    epsilon = float(setting.epsilon)
    return {"unit": unit, "one_release": epsilon if most is None else min(epsilon, most)}


Line = tuple[str, str]  # a name, and what there is to say about it


@dataclass(frozen=True)
class ResultTable:
    """Rows under headings; the first column names the rows."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __str__(self) -> str:
        cells = [[cell_text(cell) for cell in row] for row in (self.headings, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        shown = ["  ".join(text.ljust(wide) for text, wide in zip(row, widths, strict=True)).rstrip() for row in cells]
        return "\n".join([*([self.caption] if self.caption else []), *shown])


class Result:
    """What a command found; a subclass is a dataclass that defines `lines`, and `tables` where it has some."""

    def lines(self) -> list[Line]:
        """What there is to say: a name and a sentence, line by line."""
        raise NotImplementedError

    def tables(self) -> list[ResultTable]:
        """What stands in rows, below the lines."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON has it: its fields as plain values, null for every figure that is not a finite number."""
        return {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return "\n\n".join([aligned(self.lines()), *map(str, self.tables())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left = 'style="padding:2px 8px;text-align:left"'
        row = f'<tr><th scope="row" {left}>{{}}</th><td {left}>{{}}</td></tr>'
        rows = "".join(row.format(escape(name), escape(text)) for name, text in self.lines())
        below = "".join(f"<pre>{escape(str(table))}</pre>" for table in self.tables())
        said = f"<p><strong>{type(self).__name__}</strong></p><table><tbody>{rows}</tbody></table>{below}"
        return f'<div class="seqveil">{said}</div>'


def aligned(lines: Sequence[Line]) -> str:
    """Lines as text, their names in one column.

    >>> print(aligned([("read", "3 rows"), ("model", "m.model")]))
    read   3 rows
    model  m.model
    """
    width = max((len(name) for name, _ in lines), default=0)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def cell_text(value: Any) -> str:
    """A value as a table shows it: a number in four figures, nothing for None.

    >>> [cell_text(value) for value in (0.51234, 3, None, math.inf, "a")]
    ['0.5123', '3', '', 'no bound', 'a']
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value + 0.0:.4g}" if math.isfinite(value) else "no bound"
    return str(value)


def plain(value: Any) -> Any:
    """A value as JSON holds it: numbers or null, never "nan"; objects by their `to_dict`, or as text.

    >>> plain({"error": float("nan"), "people": np.int64(3), "shares": (0.5, math.inf)})
    {'error': None, 'people': 3, 'shares': [0.5, None]}
    """
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return str(value)


def to_json(value: Any) -> str:
    """One JSON document of a result, or of any plain values."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
