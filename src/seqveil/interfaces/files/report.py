"""`seqveil audit --html`: one page about a release, for whoever answers for data protection and was not there.

It holds what the audit says, line by line, settings and fingerprints. It names no user, and values only in secrets.
"""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from seqveil.core.errors import DataError, InputError, option
from seqveil.core.model import MarkovModel
from seqveil.interfaces.choosing import said_of_check
from seqveil.interfaces.files.table import FilePath
from seqveil.interfaces.files.writing import Meta
from seqveil.receiver.audit import Report

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
SCOPE = (
    "Whoever releases sees the raw data and is trusted with it; receivers know the model and see every release. What "
    "people tell otherwise, other data about them, and a second release of the same data are not in this account."
)


def page(released: FilePath, report: Report, model: MarkovModel, meta: Meta | None) -> str:
    """The whole page about a released file."""
    from seqveil import __version__

    if not isinstance(released, str | os.PathLike):
        raise InputError("a page is about a released file; write the rows to one, and audit that")
    path, grade = Path(released), report.graded
    if meta is None:
        raise DataError(f"{path.name}: has no side file beside it; name it by {option('meta')}, or release again")
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    title, short = f"Release report: {path.name}", "".join(f"<li>{escape(text)}</li>" for text in report.words)
    shown = [each for each in report.lines(named=False) if each[0] not in ("means", "grade")]
    with open(path, "rb") as rows:
        prints = [("released file, SHA-256 of its bytes", hashlib.file_digest(rows, "sha256").hexdigest())]
    named = {"released rows, digest": "digest", "model": "model", "released by seqveil": "seqveil"}
    prints += [(name, str(meta.get(key, "not recorded"))) for name, key in named.items()]
    setting = {name: value for name, value in meta["setting"].items() if value not in (None, [], {})}
    sections = {
        "What was promised": [("guarantee", str(meta.get("guarantee", "not recorded"))), ("scope", SCOPE)],
        "What an audit found": [*shown, ("held-out check", f"the model was {said_of_check(model)}")],
        "Settings": [(name, json.dumps(value, ensure_ascii=False)) for name, value in setting.items()],
        "Fingerprints": prints,
    }
    body = (
        f"<h1>{escape(title)}</h1>\n<p><small>Written {written} by seqveil {escape(__version__)}, from public things "
        "alone: no user and no value of the data is named here, but for those that declared secrets are about."
        "</small></p>\n<h2>In short</h2>"
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
