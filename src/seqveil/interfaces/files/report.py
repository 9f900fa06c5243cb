"""`seqveil audit --html`: one page about a release, for whoever answers for data protection and was not there.

It holds what the audit says, line by line, what an attacker got, settings and fingerprints, and a claim sheet along the
questions of NIST SP 800-226, "Guidelines for Evaluating Differential Privacy Guarantees", in our own words. It names no
user and no released value.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqveil.core.errors import DataError, InputError, option
from seqveil.core.words import Line, cell_text, guess_means
from seqveil.interfaces.choosing import said_of_check
from seqveil.interfaces.files.fit import origin_in_words
from seqveil.interfaces.files.table import FilePath
from seqveil.interfaces.files.writing import Meta

if TYPE_CHECKING:
    from seqveil.interfaces.files.receive import Audited

SOURCE = (
    "NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees "
    "(https://doi.org/10.6028/NIST.SP.800-226)"
)
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
OPEN = "For the controller to fill in: "
CLAIMS = {  # the questions that SP 800-226 asks of a claim, and what a release answers
    "Unit of privacy": "What does the claim protect? {unit}. People are distinguished by the user column alone.",
    "Parameters": "How strong is it? {guarantee}; δ = {delta:g}. Realised in the worst stream: {realised}. In words: "
    "{words}.",
    "What is bounded": "{bounded}, against an observer who believes the model. It is not (ε, δ)-differential privacy "
    "of a table: it is a bound on what is learned about a person's own stream. Without trust in the model, over a "
    "stream: {without_model}.",
    "Repeated use": "All releases of a stream are in one account, which this report shows. A second release of the "
    "same data adds to it; this report knows of this file alone.",
    "Threat model": "Whoever releases sees the raw data and is trusted with it. Receivers may be anyone with unlimited "
    "computing power who knows the model and sees every release{observers}. What people tell otherwise, and other data "
    "about them, is outside of the claim.",
    "Mechanism and its correctness": "“{mechanism}”, from integer tables that are checked before each draw, with "
    "{randomness}. How long a release takes is not hidden.",
    "Utility": OPEN + "which errors were expected (`seqveil plan`), and which were found?",
    "Bias": "Releases lean towards what the model holds likely, so rare values and people unlike it are disclosed less "
    "truly. " + OPEN + "which groups would that touch, and was it looked at?",
    "Security": OPEN + "who can reach the raw data, the state file, the key and the tokens, and how is it logged?",
    "Data collection": OPEN + "how were the raw data collected, on what legal ground, how long are they kept? The "
    "model: {made}.",
}


def page(released: FilePath, audited: Audited, meta: Meta | None, attack: FilePath | None = None) -> str:
    """The whole page about a released file."""
    from seqveil import __version__

    if not isinstance(released, str | os.PathLike):
        raise InputError("a page is about a released file; write the rows to one, and audit that")
    path, report, grade = Path(released), audited.report, audited.report.graded
    if meta is None:
        raise DataError(f"{path.name}: has no side file beside it; name it by {option('meta')}, or release again")
    none = [("attack", "none is on record; `seqveil attack` makes one")]
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    title, short = f"Release report: {path.name}", "".join(f"<li>{escape(text)}</li>" for text in report.words)
    shown = [each for each in audited.lines(named=False) if each[0] not in ("means", "grade", "people")]
    with open(path, "rb") as rows:
        prints = [("released file, SHA-256 of its bytes", hashlib.file_digest(rows, "sha256").hexdigest())]
    named = {"released rows, digest": "digest", "model": "model", "released by seqveil": "seqveil"}
    prints += [(name, _text(meta.get(key))) for name, key in named.items()]
    sections = {
        "What was promised": [("guarantee", _text(meta.get("guarantee")))],
        "What an audit found": [*shown, ("held-out check", f"the model was {said_of_check(audited.model)}")],
        "What an attacker got": none if attack is None else attack_results(attack),
        "Settings": _flat(meta["setting"]),
        "Fingerprints": prints,
        "Claim sheet": _claims(audited, meta),
    }
    body = (
        f"<h1>{escape(title)}</h1>\n<p><small>Written {written} by seqveil {escape(__version__)}, from public things "
        "alone: no user and no value of the data is named here, but for those that declared secrets are about. The "
        f"claim sheet goes along the questions of {escape(SOURCE)}; the wording is ours.</small></p>\n<h2>In short</h2>"
        f'<p class="grade {grade.colour}"><strong>{grade.colour}</strong>: {escape(grade.why)}</p>\n<ul>{short}</ul>\n'
    )
    for heading, lines in sections.items():
        cells = (f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>\n' for name, text in lines)
        body += f"<h2>{escape(heading)}</h2><table><tbody>\n{''.join(cells)}</tbody></table>\n"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body><main>\n{body}'
        "</main></body></html>\n"
    )


def attack_results(path: FilePath) -> list[Line]:
    """What `seqveil attack --json` printed into a file: each verdict with its sentence."""
    try:
        said: list[Line] = []
        for one in json.loads(Path(path).read_text(encoding="utf-8"))["attacks"]:
            means = guess_means((one["guess"] or {}).get("likelihood_ratio"))
            said.append((str(one["verdict"]), f"{one['about']}: {one['sentence']}{f'; {means}' if means else ''}"))
        return said
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else "is not the result of an attack"
        name = os.path.basename(path)
        raise InputError(f"{name}: {what}; save what `seqveil attack` prints as JSON") from None


def _claims(audited: Audited, meta: Meta) -> list[Line]:
    """The claim sheet, filled in."""
    setting, report = meta["setting"], audited.report
    unit, bounded = (
        "everything that one user's stream says, for as long as it is",
        "the probability of every statement about a stream, by a factor e^ε at each release",
    )
    if kept := [total.name for total in report.secrets if total.epsilon is not None]:
        unit = f"for one user's stream, whether these hold: {', '.join(kept)}"
        bounded = "the odds of each declared secret, by a factor e^ε in total over its window"
    many, origin = len(setting.get("observers") or ()), audited.model.origin
    facts = {
        "unit": unit,
        "bounded": bounded,
        "guarantee": _text(meta.get("guarantee")),
        "delta": (setting.get("budget") or {}).get("delta") or 0.0,
        "realised": cell_text(report.leakage),
        "words": ". ".join(report.words),
        "without_model": f"{report.ldp:.4g}-LDP" if math.isfinite(report.ldp) else "no bound",
        "observers": f"; also {many} observers with models of their own" if many else "",
        "mechanism": _text(setting.get("mechanism")),
        "randomness": "randomness of the operating system"
        if meta.get("private") is True
        else "SEEDED randomness: NOT private",
        "made": "from raw data, which is not private" if origin is None else origin_in_words(origin),
    }
    return [(name, text.format(**facts)) for name, text in CLAIMS.items()]


def _flat(setting: Mapping[str, Any], before: str = "") -> list[Line]:
    rows: list[Line] = []
    for name, value in setting.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{before}{name}: ")
        else:
            rows.append((f"{before}{name}", "none" if value in (None, [], ()) else _text(value)))
    return rows


def _text(value: Any) -> str:
    """A value of the side file as text: numbers in four figures."""
    if isinstance(value, str | float | None):
        return "not recorded" if value is None else cell_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return json.dumps(value, ensure_ascii=False)
