"""Policy files for commands."""

import itertools
import tempfile
from pathlib import Path

import seqveil as sv

_NUMBERS = itertools.count()


def promise(**fields):
    """The options of a command that name the file of a policy with these fields."""
    path = Path(tempfile.mkdtemp(prefix="policy-")) / f"policy-{next(_NUMBERS)}.toml"
    sv.Policy(**fields).save(path)
    return "--policy", str(path)
