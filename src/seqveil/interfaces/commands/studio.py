"""`seqveil studio`: a page to look at what a mechanism does to a stream."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqveil.core.errors import InputError, needs_extra
from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import INTERRUPTIONS

if TYPE_CHECKING:
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.studio import Source


def studio(
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="CSV, TSV, JSONL or Parquet file to look at  [default: none]")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", metavar="MODEL", help="Release under this model; without DATA, sample from it."),
    ] = None,
    user_column: o.UserColumn = None,
    value_column: o.ValueColumn = None,
    cells: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Cut numbers into N bins, points into N by N cells; 0 keeps values as they are."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")
    ] = 8714,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address and leave the browser alone.")
    ] = False,
    unpack: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG", help="Write stream and model of a configuration that the page exported, and end."
        ),
    ] = None,
    into: Annotated[Path, typer.Option(metavar="FOLDER", help="With --unpack: where to write.")] = Path("page"),
) -> None:
    """Look at a stream raw, released and decoded, at what an observer believes, and at what it costs.

    Serves a page on this machine alone and prints its address, which holds a key; Ctrl-C ends it. Nothing is stored.

    Example: seqveil studio clicks.csv
    """
    from seqveil.core.model import MarkovModel

    chain = None if model is None else MarkovModel.load(model)
    if unpack is not None:
        _unpack(unpack, into, data, chain)
        return
    own = _own(data, chain, user_column or "user", value_column or "value", cells)
    own = [replace(each, data_file=data or "", model_file=str(model)) for each in own]
    try:
        _serve(own, port, no_browser)
    except INTERRUPTIONS:  # the signal that ends it
        return


def _own(data: str | None, model: MarkovModel | None, user: str, value: str, cells: int | None) -> list[Source]:
    from seqveil.interfaces.studio.sources import Cut, loaded, rows_of_file, sampled

    if data is None:
        return [] if model is None else [sampled(model)]
    if data == "-":
        raise InputError("the page needs a file that it can name again; save the data and name it")
    cut = Cut.of({"user": user, "value": value, "cells": cells})
    return [loaded(rows_of_file(data, cut), cut, "data", model)]


def _unpack(config: Path, folder: Path, data: str | None, model: MarkovModel | None) -> None:
    from seqveil.interfaces.studio.ask import configuration, source_of, unpack

    given = configuration(config)
    ask = unpack(given, source_of(given, data, model), folder)
    print(f"wrote  {folder / 'stream.csv'} (raw data: {ask.events} events at most) and {folder / 'model.npz'}")


def _serve(own: list[Source], port: int, no_browser: bool) -> None:
    with needs_extra("the page", "serve"):
        from seqveil.interfaces.service.page import serve

    def announce(address: str) -> None:
        print(f"page  {address}\nopen it in a browser on this machine; Ctrl-C ends it", flush=True)
        if not no_browser and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(address)

    serve(own, port, announce)
