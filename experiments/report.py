"""Pictures from the numbers, the claims as a table, and one HTML page with all: `python -m experiments.report DIR`."""

from __future__ import annotations

import base64
import html
import json
import sys
from pathlib import Path
from typing import Any

from experiments import EXPERIMENTS, module
from experiments.claims import FAILS, HOLDS, OPEN, SOUND, UNSOUND
from experiments.context import read, write
from seqveil.core.errors import needs_extra

Result = dict[str, Any]
STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --paper: #fff; --line: #d5d9e0; --soft: #f4f5f8;
  --good: #17703c; --bad: #a3262f; --half: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ec; --paper: #16181d; --line: #3a3f4a; --soft: #20242c;
  --good: #6fce93; --bad: #ff8a8f; --half: #f0bd5a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1100px;
  margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } td, th { border-top: 1px solid var(--line); padding: .4rem .6rem;
  text-align: left; vertical-align: top; } th { font-weight: 600; }
img { max-width: 100%; background: #fff; border-radius: 6px; } pre { background: var(--soft); padding: .8rem;
  overflow: auto; max-height: 24rem; font-size: 12px; }
.holds { color: var(--good); } .fails { color: var(--bad); } .unsound { color: var(--half); } .v { font-weight: 600; }
.small { font-size: 13px; }
"""
KINDS = {HOLDS: "holds", FAILS: "fails", UNSOUND: "unsound", SOUND: "holds", OPEN: "unsound"}


def write_report(out: Path) -> Path:
    """A PNG for each result that lies in the folder, of whichever run, claims.md, and the page."""
    results = [found for name in EXPERIMENTS if (found := read(out / f"{name}.json")) is not None]
    for result in results:
        picture(out, result)
    write(out / "claims.md", claims(results) + "\n")
    page = out / "report.html"
    write(page, render(out, results))
    return page


def picture(out: Path, result: Result) -> Path:
    """The experiment's picture, drawn from its JSON alone."""
    with needs_extra("a picture", "plots"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    drawn_by = module(result["name"])
    figure = Figure(figsize=drawn_by.SIZE, layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    drawn_by.draw(figure, result)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    path = out / f"{result['name']}.png"
    figure.savefig(path)
    return path


def claims(results: list[Result]) -> str:
    """Every claim, its verdict and the reason, as one Markdown table, and below it the figures behind each.

    >>> judged = {"claim": "A | B", "verdict": "holds", "reason": "so it is", "figures": {"error": [0.25, 0.5]}}
    >>> print(claims([{"name": "fig3", "claims": [judged]}]))
    | figure | claim | verdict | why |
    |---|---|---|---|
    | fig3 | A \\| B | **holds** | so it is |
    <BLANKLINE>
    **fig3.** *A | B*: error: 0.25, 0.5.
    """
    lines = ["| figure | claim | verdict | why |", "|---|---|---|---|"]
    below = []
    for result in results:
        for claim in result["claims"]:
            disclosed = (result["name"], claim["claim"], f"**{claim['verdict']}**", claim["reason"])
            lines.append("| " + " | ".join(part.replace("|", "\\|") for part in disclosed) + " |")
            figures = "; ".join(f"{name}: {shown(value)}" for name, value in claim["figures"].items())
            if figures:
                below += ["", f"**{result['name']}.** *{claim['claim']}*: {figures}."]
    return "\n".join([*lines, *below])


def render(out: Path, results: list[Result]) -> str:
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>seqveil: the paper's claims, rerun</title><style>{STYLE}</style></head><body>",
        "<h1>The paper's claims, rerun</h1>",
        "<p><i>Published</i>: the mechanisms as the paper gives them. "
        "<i>Sound</i>: those whose every release keeps its bound, on both sides, checked on its integers.</p>",
        summary(results),
        *(section(out, result) for result in results),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def summary(results: list[Result]) -> str:
    rows = [
        f"<tr><td><a href='#{r['name']}'>{r['name']}</a></td><td>{html.escape(c['claim'])}</td>"
        f"<td class='v {KINDS[c['verdict']]}'>{c['verdict']}</td></tr>"
        for r in results
        for c in r["claims"]
    ]
    return "<table><tr><th></th><th>claim</th><th>verdict</th></tr>" + "".join(rows) + "</table>"


def section(out: Path, result: Result) -> str:
    name = result["name"]
    content = base64.b64encode((out / f"{name}.png").read_bytes()).decode()
    rows = "".join(claim_rows(claim) for claim in result["claims"])
    numbers = html.escape(json.dumps(result["numbers"], ensure_ascii=False)[:200_000])
    how = ", ".join(f"{key}: {value}" for key, value in {"seqveil": result["version"], **result["options"]}.items())
    return (
        f"<h2 id='{name}'>{name}: {html.escape(result['title'])}</h2><p class='small'>{html.escape(how)}</p>"
        f"<img alt='{html.escape(result['title'])}' src='data:image/png;base64,{content}'>"
        f"<table><tr><th>claim</th><th>verdict</th><th>why, and our figures</th></tr>{rows}</table>"
        f"<details><summary>all numbers</summary><pre>{numbers}</pre></details>"
    )


def claim_rows(claim: dict[str, Any]) -> str:
    figures = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(shown(value))}</td></tr>"
        for name, value in claim["figures"].items()
    )
    return (
        f"<tr><td>{html.escape(claim['claim'])}</td><td class='v {KINDS[claim['verdict']]}'>{claim['verdict']}</td>"
        f"<td>{html.escape(claim['reason'])}<table class='small'>{figures}</table></td></tr>"
    )


def shown(value: Any) -> str:
    """A figure as a reader wants it: four digits.

    >>> shown({"1": [0.123456, 2]}), shown([])
    ('1: 0.1235, 2', 'none')
    """
    if isinstance(value, dict):
        return "; ".join(f"{key}: {shown(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(shown, value)) if value else "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    print(write_report(Path(sys.argv[1])))
