"""`seqveil report`: one page about a release for whoever answers for data protection."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from seqveil.core.errors import InputError
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.models import ledger
from seqveil.interfaces.commands.terminal import emit_json, lines, progress

if TYPE_CHECKING:
    from seqveil.interfaces.files.report import Material

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 120  # for a browser to print a page


@o.option_groups
def report(
    released: o.ReleasedFile,
    *,
    model: o.ModelOrNone = None,
    attack: Annotated[Path | None, o.option("FILE", "What `seqveil attack --json` printed.")] = None,
    out: Annotated[
        Path | None, o.option("FILE", "Where to write  [default: RELEASED.report.html]", "--out", "-o")
    ] = None,
    pdf: Annotated[bool, o.flag("--pdf", "Also print it to a PDF beside it; needs Chromium on this machine.")] = False,
    observer: Annotated[
        list[Path] | None, o.option("MODEL2", "With --model: the models of further observers; may be repeated.")
    ] = None,
    rows: o.ReleasedOptions,
    json: o.Json = False,
) -> None:
    """Write one page about a release for a data protection officer.

    What was promised to whom, the model and its held-out check, what an attacker got, the account, settings and
    fingerprints, and a claim sheet along the questions of NIST SP 800-226. It names no user and no released value.

    With --model the account is recomputed from the releases, as `seqveil audit` does.

    Example: seqveil report released.csv --model clicks.model --attack attack.json -o report.html
    """
    from seqveil.interfaces.files.report import attack_results, material
    from seqveil.interfaces.files.report import report as page
    from seqveil.interfaces.files.writing import same_file, write_text

    place = Path(f"{released}.report.html") if out is None else out
    browser = _browser() if pdf else None
    found = material(released, rows.meta)
    inputs = [released, rows.meta or Path(f"{released}.meta.json"), model, attack]
    if any(each is not None and same_file(place, each) for each in inputs):
        raise InputError(f"{place.name}: is read for the report; name another file by --out")
    found = replace(found, attack=None if attack is None else attack_results(attack))
    if model is not None:
        found = _audited(found, released, model, observer or [], rows)
    write_text(place, page(found))
    printed = None if browser is None else _print(browser, place)
    grade = found.meta.get("grade") if found.audit is None else found.audit.grade
    if json:
        emit_json({"report": str(place), "pdf": None if printed is None else str(printed), "grade": grade})
        return
    said = [("report", str(place))]
    lines([*said, *([("pdf", str(printed))] if printed is not None else []), ("grade", str(grade or "not graded"))])


def _audited(found: Material, released: Path, model: Path, observers: list[Path], rows: o.ReleasedOptions) -> Material:
    """The material with an audit of the releases, and with what the model says of itself."""
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.audit import audit_file
    from seqveil.interfaces.files.report import checked
    from seqveil.receiver.contexts import held_out_check

    where: dict[str, Any] = dict(rows.where)
    with progress(released, "auditing") as advance:
        chain, more = MarkovModel.load(model), [MarkovModel.load(path) for path in observers]
        account = audit_file(released, chain, progress=advance, observers=more, **where)
    made = "from raw data, which is not private" if chain.origin is None else ledger(chain.origin)
    known = {"made": made, "order": str(chain.order), "held-out check": checked(held_out_check(chain))}
    return replace(found, audit=account, model=known)


def _browser() -> str:
    """The browser that prints; said before anything is computed where there is none."""
    for name in BROWSERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise InputError("--pdf needs Chromium, which is not on this machine; install it, or print the HTML from a browser")


def _print(browser: str, page: Path) -> Path:
    """The page as a PDF beside it, printed by a browser that nobody sees."""
    target = page.with_suffix(".pdf")
    with tempfile.TemporaryDirectory() as profile:
        made = Path(profile, "report.pdf")
        flags = ["--headless", "--disable-gpu", "--no-pdf-header-footer", f"--user-data-dir={profile}"]
        flags += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        asked = [browser, *flags, f"--print-to-pdf={made}", page.resolve().as_uri()]
        try:
            subprocess.run(asked, check=True, timeout=SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            shutil.copyfile(made, target)
        except (OSError, subprocess.SubprocessError):
            raise InputError(f"{page.name}: is written, but Chromium could not print it; print it by hand") from None
    return target
