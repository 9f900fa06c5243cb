"""`seqveil decode`: the receiver's best estimate of every row."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqveil.interfaces.commands import options as o
from seqveil.interfaces.commands.terminal import emit_json, lines, progress

if TYPE_CHECKING:
    from seqveil.interfaces.files.estimates import Decoded


@o.option_groups
def decode(
    released: o.ReleasedFile,
    model: o.ModelFile,
    out: o.Out,
    *,
    online: Annotated[bool, typer.Option("--online", help="Use the releases up to each row only.")] = False,
    loss: Annotated[
        str | None, typer.Option(metavar="NAME", help="Cost that the estimate minimises  [default: --distortion]")
    ] = None,
    histogram: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write how often each symbol is expected to have occurred.")
    ] = None,
    chosen: o.SettingOptions,
    columns: o.ColumnOptions,
    format: o.Format = None,
    meta: o.Meta = None,
    json: o.Json = False,
) -> None:
    """Estimate every row's true value, for free.

    Writes the receiver's best estimate and its probability under the model; it is post-processing, so it costs no
    privacy. It also says whether the releases fit that model, as `seqveil drift` does.

    Of a cold start, --model names the file of versions (RELEASED.versions), and the last chain decodes all rows.

    The setting comes from the side file; give the release's options only where there is none.

    Example: seqveil decode released.csv --model clicks.model --out decoded.csv
    """
    from seqveil.core.model import MarkovModel
    from seqveil.interfaces.files.estimates import decode_file

    shared: dict[str, Any] = {
        "online": online,
        "distortion": loss,
        "meta": meta,
        "columns": columns.columns_if_given,
        "out_format": format if out == "-" else None,
        "inputs": (model,),
    }
    versions = o.versions_in(model, chosen.given or histogram is not None)
    if versions is not None:
        with progress(released, "decoding", passes=2) as advance:
            decoded = decode_file(released, versions, out, progress=advance, **shared)
    else:
        chain = MarkovModel.load(model)
        setting = chosen.setting_if_given(chain)
        with progress(released, "decoding", passes=3) as advance:
            decoded = decode_file(released, chain, out, setting, histogram=histogram, progress=advance, **shared)
    _say(decoded, out, json)


def _say(decoded: Decoded, out: str, as_json: bool) -> None:
    if as_json:
        facts = {"rows": decoded.rows, "users": decoded.users, "confidence": decoded.confidence, "out": out}
        facts |= {"confidence_holds": "under the model", "model": asdict(decoded.verdict)}
        emit_json(facts, to_stderr=out == "-")
    else:
        said = f"{decoded.rows} rows of {decoded.users} users; on average an estimate is right with probability "
        lines([("decoded", f"{said}{decoded.confidence:.3f} under the model"), decoded.verdict.said], to_stderr=True)
