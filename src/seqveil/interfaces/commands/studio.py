"""`seqveil studio`: the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.core.errors import DataError, InputError
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import INTERRUPTIONS

if TYPE_CHECKING:
    from seqveil.interfaces.studio.answers import Studio


@o.option_groups
def studio(
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Any file that `inspect` reads  [default: none]")
    ] = None,
    model: Annotated[
        Path | None, o.option("MODEL", "Release under this model; without DATA, sample from it.", "--model", "-m")
    ] = None,
    *,
    columns: o.ColumnOptions,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")
    ] = 8714,
    no_browser: Annotated[bool, o.flag("--no-browser", "Print the address and leave the browser alone.")] = False,
) -> None:
    """Walk from your data to a policy: look, name a secret, choose the odds, see what is released, take policy.toml.

    Serves a page on this machine alone and prints its address, which holds a key; Ctrl-C ends it. Nothing is stored.

    Example: seqveil studio clicks.csv
    """
    from seqveil.interfaces.studio.serving import serve

    def announce(address: str) -> None:
        print(f"page  {address}\nopen it in a browser on this machine; Ctrl-C ends it", flush=True)
        if not no_browser and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(address)

    answering = _studio(data, model, columns)
    try:
        serve(answering, port, announce)
    except INTERRUPTIONS:  # the signal that ends it
        return


def _studio(data: str | None, model: Path | None, columns: o.ColumnOptions) -> Studio:
    """The answers of the page, with the file or the model that it begins with."""
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.studio.answers import Studio
    from seqveil.interfaces.studio.source import sampled
    from seqveil.interfaces.studio.upload import Upload, UploadChoice, loaded

    chain = None if model is None else MarkovModel.load(model)
    if data is None:
        return Studio(None if chain is None else sampled(chain, str(model)))
    if data == "-":
        raise InputError("the page needs a file that it can name again; save the data and name it")
    try:
        upload = Upload.of(Path(data).read_bytes(), data)
    except OSError as error:
        raise DataError(f"{Path(data).name}: cannot be read ({error.strerror}); check the path") from None
    chosen = UploadChoice(columns.user_column or "", columns.value_column or "", columns.time_column or "")
    if chain is not None:
        return Studio(loaded(upload, chosen, "data", chain, str(model)))
    return Studio(upload, chosen)
