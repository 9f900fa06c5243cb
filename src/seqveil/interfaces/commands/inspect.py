"""`seqveil inspect`: what is in a file, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines, progress

if TYPE_CHECKING:
    from seqveil.interfaces.files.inspection import Inspection


@o.option_groups
def inspect(
    data: o.Data,
    *,
    columns: o.ColumnOptions,
    format: o.Format = None,
    json: o.Json = False,
) -> None:
    """Say what a file holds, and what to type next.

    What each column is taken for and why, how many people, streams and events there are, how the rows are ordered,
    gaps in time, missing, outlying and rare values, how well a symbol is predicted by the one before, and a `fit`
    command that works when it is pasted. Of the values it shows those alone that at least 10 people share.

    It looks at the raw file: what it prints is for whoever holds that.

    Example: seqveil inspect clicks.csv
    """
    from seqveil.interfaces.files.inspection import inspect as look

    with progress(data, "reading") as advance:
        on_map = columns.latitude is not None
        found: Inspection = look(data, columns.columns, format=format, on_map=on_map, progress=advance)
    emit_json(found.to_dict()) if json else lines(found.lines())
