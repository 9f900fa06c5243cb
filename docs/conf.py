"""The site that `make docs` builds from these pages with Sphinx, into out/site.

Sources are the pages as they stand in the repository, read from its root, so that a link means the same on the site and
in a clone. Two pages are more on the site than in a clone: the lists of `docs/index.md` become the navigation, and each
name in the lists of `docs/api.md` becomes that name's documentation, from its docstring.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent

project = "seqveil"
copyright = "the authors of seqveil, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md"]
exclude_patterns = [".*", *(folder.name for folder in ROOT.iterdir() if folder.is_dir() and folder.name != "docs")]
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # a page's first heading may be followed by one two levels down
    "misc.highlighting_failure",  # a block that shows the shape of code, with … in it
]

html_theme = "furo"
html_title = "seqveil"
html_copy_source = False
html_show_sphinx = False

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["pyspark"]  # the one import that takes long, and needs Java to be of use


def navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Each heading of docs/index with its list of links becomes a part of the navigation."""
    if name != root_doc:
        return
    trees = []
    for part in source[0].split("\n## ")[1:]:
        heading, _, body = part.partition("\n")
        links = re.findall(r"^- \[(.*?)\]\(([^)#]+)\.md\)", body, re.MULTILINE)
        pages = [f"{title} <{page}>" for title, page in links]
        trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *pages, "```"]))
    source[0] = "\n\n".join([source[0], *trees])


def reference(app: Sphinx, name: str, source: list[str]) -> None:
    """Each name in the lists of docs/api becomes its documentation."""
    if name == "docs/api":
        source[0] = re.sub(r"^- `([\w.]+)`.*$", lambda found: documented(found[1]), source[0], flags=re.MULTILINE)


def documented(dotted: str) -> str:
    """The directive that documents a module, a class or a function."""
    found = resolved(dotted)
    if inspect.ismodule(found):
        kind, dotted = "module", found.__name__
    else:
        kind = "class" if inspect.isclass(found) else "function"
        dotted = dotted if kind == "class" else f"{found.__module__}.{found.__qualname__}"
    return "\n".join(["", "```{eval-rst}", f".. auto{kind}:: {dotted}", "```", ""])


def resolved(dotted: str) -> Any:
    """The object of a dotted name: a module, or what a module has."""
    try:
        return import_module(dotted)
    except ModuleNotFoundError:
        above, _, last = dotted.rpartition(".")
        return getattr(import_module(above), last)


def from_markdown(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are written as Markdown, and autodoc reads reStructuredText: lists of parameters, formulas, code."""
    text = "\n".join(lines)
    text = re.sub(r"(?:(?<=^)|(?<=\n))Parameters:\n((?:    .*\n|\n(?=    ))+)", parameters, text)
    text = re.sub(r"\n\n(?=    \S)(?!    - )", "\n\n::\n\n", text)
    blocks = [block if block.startswith(("    ", ">>>")) else in_words(block) for block in text.split("\n\n")]
    lines[:] = "\n\n".join(blocks).split("\n")


def parameters(found: re.Match[str]) -> str:
    """The indented block below "Parameters:" as a list, a point for each name."""
    points = re.sub(r"^ {4}(\S.*?): ", r"- `\1`: ", found[1], flags=re.MULTILINE)
    return "**Parameters**\n\n" + re.sub(r"^ {8,}", "  ", points, flags=re.MULTILINE)


def in_words(block: str) -> str:
    """Code in one backtick gets two, and a bar means itself."""
    return re.sub(r"``[^`]+``|`([^`]+)`|(\|)", lambda found: code_or_bar(*found.group(0, 1, 2)), block)


def code_or_bar(whole: str, code: str | None, bar: str | None) -> str:
    """What stands for a piece of code, or for a bar."""
    return f"``{code}``" if code else f"\\{bar}" if bar else whole


def front_door(app: Sphinx, error: Exception | None) -> None:
    """The root of the site leads to its first page."""
    if error is None and app.builder.format == "html":
        line = '<!doctype html><title>seqveil</title><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
        (Path(app.outdir) / "index.html").write_text(line, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Tie the functions above to the steps of a build."""
    app.connect("source-read", navigation)
    app.connect("source-read", reference)
    app.connect("autodoc-process-docstring", from_markdown, priority=100)
    app.connect("build-finished", front_door)
