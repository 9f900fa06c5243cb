"""Modules of the repository that stand beside the package: experiments and benchmarks."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from seqveil.core.errors import InputError


def beside_the_package(name: str) -> ModuleType:
    """The module, where the package runs from its repository or the command is given inside it."""
    first = name.split(".")[0]
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / first / "__init__.py").is_file() and (root / "src" / "seqveil").is_dir():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return importlib.import_module(name)
    raise InputError(
        f"the {first} are not part of the installed package; clone the repository and run this command from there"
    )
