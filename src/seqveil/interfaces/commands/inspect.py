"""`seqveil inspect`: what is in a file, and what to type next."""

from __future__ import annotations

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import show


@o.option_groups
def inspect(data: o.Data, *, columns: o.ColumnOptions, format: o.Format = None, json: o.Json = False) -> None:
    """Say what a file holds, and what to type next.

    Shows what each column is taken for and why; how many people and events there are; how rows are ordered; gaps
    in time; missing, outlying and rare values; how well one symbol predicts the next; and a `fit` command to
    paste. It shows only values that at least 10 people share.

    It reads the raw file, so its output is only for those who may see that file.

    Example: seqveil inspect clicks.csv
    """
    from seqveil.interfaces.files.inspection import inspect as look

    show(look(data, format=format, **columns.given), json)
