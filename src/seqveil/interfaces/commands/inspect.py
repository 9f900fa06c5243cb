"""`seqveil inspect`: what is in a file, and what to type next."""

from __future__ import annotations

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import show


@o.option_groups
def inspect(data: o.Data, *, columns: o.ColumnOptions, format: o.Format = None, json: o.Json = False) -> None:
    """Say what a file holds, and what to type next.

    What each column is taken for and why, how many people, streams and events there are, how the rows are ordered,
    gaps in time, missing, outlying and rare values, how well a symbol is predicted by the one before, and a `fit`
    command that works when it is pasted. Of the values it shows those alone that at least 10 people share.

    It looks at the raw file: what it prints is for whoever holds that.

    Example: seqveil inspect clicks.csv
    """
    from seqveil.interfaces.files.inspection import inspect as look

    show(look(data, format=format, **columns.given), json)
