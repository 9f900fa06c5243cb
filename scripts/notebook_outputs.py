"""Run examples/tour.ipynb and store what its cells show (`python scripts/notebook_outputs.py`); a test compares.

No notebook software is needed: the cells run in order in one namespace, and what stands below a cell is what it printed
and how its last expression shows itself, as HTML or as a picture.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parent.parent / "examples" / "tour.ipynb"


def shown(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell, as a notebook of version 4 stores them, but for their numbers."""
    parsed = ast.parse(source, str(NOTEBOOK))
    last = parsed.body.pop() if isinstance(parsed.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(parsed, str(NOTEBOOK), "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
        )
    if value is not None:
        outputs.append({"data": forms(value), "metadata": {}, "output_type": "execute_result"})
    return outputs


def forms(value: Any) -> dict[str, Any]:
    """How a value shows itself: its picture or its HTML, beside its name in plain text; else its text."""
    if hasattr(value, "_repr_png_"):
        picture = base64.b64encode(value._repr_png_()).decode()
        return {"image/png": picture, "text/plain": [f"<{type(value).__name__}>"]}
    if not hasattr(value, "_repr_html_"):
        return {"text/plain": repr(value).splitlines(keepends=True)}
    return {"text/html": value._repr_html_().splitlines(keepends=True), "text/plain": [f"<{type(value).__name__}>"]}


def with_outputs(notebook: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """The notebook after all of its cells ran, in order, in the namespace given."""
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = shown("".join(cell["source"]), names)
            for output in outputs:
                if output["output_type"] == "execute_result":
                    output["execution_count"] = count
            cell = {**cell, "execution_count": count, "outputs": outputs}
        cells.append(cell)
    return {**notebook, "cells": cells}


if __name__ == "__main__":
    made = with_outputs(json.loads(NOTEBOOK.read_text(encoding="utf-8")), {})
    text = json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True)
    NOTEBOOK.write_text(text + "\n", encoding="utf-8")
