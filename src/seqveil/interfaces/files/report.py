"""A report on a released file for whoever answers for data protection: one HTML page, from public things alone.

It rests on the side file and on an audit, which recomputes the account from the releases; with what `seqveil attack
--json` printed it says what an attacker got. It names no user and no released value. Its last part is a claim sheet
along the questions of NIST SP 800-226, "Guidelines for Evaluating Differential Privacy Guarantees", in our own words.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from seqveil.core.errors import DataError, InputError, option
from seqveil.core.model import MarkovModel
from seqveil.engine.secrets import SecretTotal
from seqveil.interfaces.choosing import held_out_check
from seqveil.interfaces.files.fit import origin_in_words
from seqveil.interfaces.files.table import FilePath, file_name
from seqveil.interfaces.files.writing import Meta
from seqveil.interfaces.sentences import CHECKS, attacked
from seqveil.receiver.audit import Report

Rows = Sequence[tuple[str, str]]
SOURCE = (
    "NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees "
    "(https://doi.org/10.6028/NIST.SP.800-226)"
)
NOT_RECORDED = "not recorded"
FIGURES = {"leakage": "leakage of the worst stream, nats", "composition": "by composition, Σε"}
OPEN = "For the controller to fill in: "
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b;
  background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2rem; border-bottom: 1px solid #767676 }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #d0d0d0;
  overflow-wrap: anywhere }
th { width: 32%; font-weight: 600 }
.grade { padding: .6rem .8rem; border-left: .6rem solid }
.green { border-color: #1a7f37 } .amber { border-color: #9a6700 } .red { border-color: #b42318 }
.unchecked { border-color: #767676 }
small { color: #555 }
@media print { body { margin: 0; max-width: none } h2 { break-after: avoid } tr { break-inside: avoid } }
"""


@dataclass(frozen=True)
class Material:
    """All that a report is made from."""

    name: str  # of the released file
    fingerprint: str  # of its bytes
    meta: Meta
    audit: Report  # recomputed from the releases
    model: MarkovModel
    attack: Sequence[Mapping[str, Any]] | None = None

    @property
    def made(self) -> str:
        """How the model was made, in words."""
        origin = self.model.origin
        return "from raw data, which is not private" if origin is None else origin_in_words(origin)

    @property
    def kept(self) -> list[tuple[SecretTotal, float]]:
        """The secrets that the release keeps, each with its ε."""
        return [(total, total.epsilon) for total in self.audit.secrets if total.epsilon is not None]


def material(
    released: FilePath, audit: Report, model: MarkovModel, meta: Meta | None, attack: FilePath | None = None
) -> Material:
    """What an audit found of a released file, its side file, and the fingerprint of its bytes."""
    if not isinstance(released, str | os.PathLike):
        raise InputError("a page is about a released file; write the rows to one, and audit that")
    path = Path(released)
    if meta is None:
        raise DataError(f"{path.name}: has no side file beside it; name it by {option('meta')}, or release again")
    with open(path, "rb") as rows:
        digest = hashlib.file_digest(rows, "sha256").hexdigest()
    results = None if attack is None else attack_results(attack)
    return Material(file_name(path), digest, meta, audit, model, results)


def attack_results(path: FilePath) -> list[Mapping[str, Any]]:
    """What `seqveil attack --json` printed, in a file."""
    name = os.path.basename(path)
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{name}: no such file; save what `seqveil attack … --json` prints") from None
    except (OSError, ValueError):
        raise InputError(f"{name}: cannot be read as JSON; save what `seqveil attack … --json` prints") from None
    attacks = found.get("attacks") if isinstance(found, dict) else None
    if not isinstance(attacks, list) or not all(_is_attack(one) for one in attacks):
        raise InputError(f"{name}: is not the result of an attack; save what `seqveil attack … --json` prints")
    return attacks


def _is_attack(one: Any) -> bool:
    texts = isinstance(one, dict) and all(isinstance(one.get(name), str) for name in ("about", "sentence", "verdict"))
    return texts and isinstance(one.get("guess"), dict | None)


def page(made_of: Material) -> str:
    """The whole page."""
    from seqveil import __version__

    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = [
        f"<h1>Release report: {escape(made_of.name)}</h1>",
        f"<p><small>Written {written} by seqveil {escape(__version__)}, from public things alone: no user and no value "
        "of the data is named here, but for those that declared secrets are about.</small></p>",
        _in_short(made_of),
        _section("What was promised, and to whom", _promises(made_of)),
        _section("The model, and whether it was checked", _model(made_of)),
        _section("What an attacker got", _attack(made_of)),
        _section("The account", _account(made_of)),
        _section("Settings", _flat(made_of.meta["setting"])),
        _section("Fingerprints", _fingerprints(made_of)),
        _section("Claim sheet", _claims(made_of), f"Along the questions of {SOURCE}; the wording is ours."),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(made_of.name)}: '
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}release report</title><style>{STYLE}</style></head>\n'
        f"<body><main>\n{chr(10).join(parts)}\n</main></body></html>\n"
    )


def _section(title: str, rows: Rows, note: str = "") -> str:
    body = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>\n' for name, text in rows)
    said = f"<p><small>{escape(note)}</small></p>" if note else ""
    return f"<h2>{escape(title)}</h2>{said}<table><tbody>\n{body}</tbody></table>"


def _in_short(made_of: Material) -> str:
    grade = made_of.audit.graded
    listed = "".join(f"<li>{escape(text)}</li>" for text in made_of.audit.words)
    shown = f'<p class="grade {grade.colour}"><strong>{grade.colour}</strong>: {escape(grade.why)}</p>'
    return f"<h2>In short</h2>{shown}<ul>{listed}</ul>"


def _promises(made_of: Material) -> list[tuple[str, str]]:
    meta = made_of.meta
    rows = [("guarantee", _text(meta.get("guarantee")))]
    rows += [(f"secret {disclosed.name}", disclosed.sentence) for disclosed, _ in made_of.kept]
    setting = meta["setting"]
    many = len(setting.get("observers") or ())
    against = "anyone who knows the model and sees every release, with unlimited computing power"
    rows.append(("against", against + (f"; also {many} observers with models of their own" if many else "")))
    rows.append(("to", f"each of the {_text(meta.get('users'))} people whose stream is in the file"))
    if meta.get("whole_sequence"):
        rows.append(("not promised", _text(meta["whole_sequence"])))
    return rows


def _model(made_of: Material) -> Rows:
    model, found = made_of.model, held_out_check(made_of.model)
    checked = "not recorded: what is said “under the model” holds for people who follow it, and nobody looked here"
    if found is not None and {"people", "log_likelihood", "standard_error"} <= found.keys():
        checked = (
            f"log-likelihood {found['log_likelihood']:.4f} a symbol, ± {found['standard_error']:.4f}, on "
            f"{found['people']:,} people who had no part in the fit"
        )
    return [
        ("fingerprint", model.fingerprint),
        ("symbols", str(model.n)),
        ("made", made_of.made),
        ("order", str(model.order)),
        ("held-out check", checked),
        ("check on these releases", made_of.audit.check.said[1]),
    ]


def _attack(made_of: Material) -> list[tuple[str, str]]:
    if made_of.attack is None:
        return [("attack", "none is on record; `seqveil attack RELEASED --truth RAW --json` makes one")]
    said = attacked(made_of.attack)
    return [(str(one["verdict"]), text) for one, text in zip(made_of.attack, said, strict=True)] or [("attack", "none")]


def _account(made_of: Material) -> list[tuple[str, str]]:
    meta, audit = made_of.meta, made_of.audit
    rows = [(name, _text(meta.get(name))) for name in ("events", "users", "releases", "held", "stopped")]
    rows += [(name, _bound(meta.get(key))) for key, name in FIGURES.items()]
    for disclosed in audit.secrets:
        bound = f"of at most {disclosed.epsilon:g}" if disclosed.epsilon is not None else "(measured, not promised)"
        rows.append((f"log odds of {disclosed.name} moved by", f"{disclosed.log_odds_worst:.4g} {bound}"))
        rows += [(f"not promised about {disclosed.name}", disclosed.unkept)] if disclosed.unkept else []
    verdicts = {None: "nothing of the kind was promised", True: "kept", False: "BROKEN"}
    rows.append(("recomputed leakage, nats", _text(audit.leakage)))
    rows.append(("without any model, LDP over a stream", _text(audit.ldp)))
    return rows + [(name, verdicts[getattr(audit, check)]) for check, name in CHECKS.items()]


def _fingerprints(made_of: Material) -> list[tuple[str, str]]:
    meta = made_of.meta
    return [
        ("released file, SHA-256 of its bytes", made_of.fingerprint),
        ("released rows, digest", _text(meta.get("digest"))),
        ("model", _text(meta.get("model"))),
        ("released by seqveil", _text(meta.get("seqveil"))),
        ("randomness", "the operating system's" if meta.get("private") is True else "seeded: NOT private"),
    ]


def _claims(made_of: Material) -> list[tuple[str, str]]:
    """The questions that SP 800-226 asks of a claim, and what this release answers."""
    setting, meta = made_of.meta["setting"], made_of.meta
    secrets = [disclosed.name for disclosed, _ in made_of.kept]
    unit = "everything that one user's stream says, for as long as it is"
    if secrets:
        unit = f"for one user's stream, whether these hold: {', '.join(secrets)}"
    bounded = (
        "the odds of each declared secret, by a factor e^ε in total over its window"
        if secrets
        else "the probability of every statement about a stream, by a factor e^ε at each release"
    )
    randomness = (
        "randomness of the operating system"
        if meta.get("private") is True
        else "randomness that were SEEDED, so not private"
    )
    return [
        ("Unit of privacy", f"What does the claim protect? {unit}. People are distinguished by the user column alone."),
        ("Parameters", f"How strong is it? {_strength(made_of)}"),
        (
            "What is bounded",
            f"{bounded}, against an observer who believes the model. It is not (ε, δ)-differential privacy of a "
            f"table: it is a bound on what is learned about a person's own stream. Without trust in the model: "
            f"{_without_model(setting)}.",
        ),
        (
            "Repeated use",
            "All releases of a stream are in one account, which this report shows. A second release of the same data "
            "adds to it; this report knows of this file alone.",
        ),
        (
            "Threat model",
            "Whoever releases sees the raw data and is trusted with it. Receivers may be anyone, may know the model "
            "and keep everything. What people tell otherwise, and other data about them, is outside of the claim.",
        ),
        (
            "Mechanism and its correctness",
            f"“{_text(setting.get('mechanism'))}”, from integer tables that are checked before each draw, with "
            f"{randomness}. How long a release takes is not hidden.",
        ),
        ("Utility", f"{OPEN}which errors were expected (`seqveil plan`), and which were found?"),
        (
            "Bias",
            "Releases lean towards what the model holds likely, so rare values and people unlike it are disclosed "
            f"less truly. {OPEN}which groups would that touch, and was it looked at?",
        ),
        (
            "Security",
            f"{OPEN}who can reach the raw data, the state file, the key and the tokens, and how is it logged?",
        ),
        (
            "Data collection",
            f"{OPEN}how were the raw data collected, on what legal ground, how long are they kept? The model: "
            f"{made_of.made}.",
        ),
    ]


def _without_model(setting: Mapping[str, Any]) -> str:
    """What holds of one release whatever the truth's distribution is."""
    from seqveil.core import mechanisms

    try:
        level = mechanisms.find(_text(setting.get("mechanism"))).ldp
    except InputError:
        return "not known here"
    epsilon = setting.get("epsilon")
    if not isinstance(epsilon, int | float) or not math.isfinite(level):
        return "nothing is promised"
    return f"each release is {level * epsilon:.4g}-locally differentially private"


def _strength(made_of: Material) -> str:
    setting, meta = made_of.meta["setting"], made_of.meta
    parts = [f"ε = {epsilon:g} for {disclosed.name}" for disclosed, epsilon in made_of.kept]
    if setting.get("epsilon") is not None:
        parts.append(f"ε = {_text(setting['epsilon'])} a release")
    budget = setting.get("budget")
    total = budget.get("total") if isinstance(budget, dict) else None
    parts.append("no total was set" if total is None else f"a total of {_text(total)} for a stream")
    parts.append(f"realised {_bound(meta.get('leakage'))} in the worst stream")
    delta = budget.get("delta", 0) if isinstance(budget, dict) else 0
    return "; ".join(parts) + f". δ = {delta:g}. In words: " + ". ".join(made_of.audit.words) + "."


def _flat(setting: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in setting.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{before}{name}: ")
        else:
            rows.append((f"{before}{name}", "none" if value in (None, [], ()) else _text(value)))
    return rows


def _text(value: Any) -> str:
    """A value of the side file as text: numbers in four figures."""
    if value is None:
        return NOT_RECORDED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "no bound"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _bound(value: Any) -> str:
    """A figure of the side file, where null says that there is none."""
    return "no bound" if value is None else _text(value)
