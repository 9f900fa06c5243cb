"""Print what an installation weighs, bare and with each extra: `python scripts/install_sizes.py [EXTRA …]`.

Each is installed by pip into a fresh environment that is removed again. Counted are the bytes of all files that pip put
there, with the byte code that it compiles; pip itself does not count. Packages come from the index that pip is set to.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ONLY_FOR_WORK_ON_IT = ("dev", "docs", "experiments")
PIP = ("pip", "pip-", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")


def megabytes(extra: str) -> tuple[float, float]:
    """What the package weighs with one extra ("" for none), in millions of bytes, and how much of it is byte code."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        target = f"{ROOT}[{extra}]" if extra else str(ROOT)
        subprocess.run([f"{folder}/bin/python", "-m", "pip", "install", "-q", target], check=True)
        site = next(Path(folder).glob("lib/python*/site-packages"))
        files = [
            path for path in site.rglob("*") if path.is_file() and not path.relative_to(site).parts[0].startswith(PIP)
        ]
        compiled = sum(path.stat().st_size for path in files if path.suffix == ".pyc")
        return sum(path.stat().st_size for path in files) / 1e6, compiled / 1e6


def main() -> None:
    """Print a line for the bare installation and one for each extra, with what it adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = sys.argv[1:] or [name for name in project["optional-dependencies"] if name not in ONLY_FOR_WORK_ON_IT]
    bare, compiled = megabytes("")
    print(f"bare       {bare:6.0f} MB, of which {compiled:.0f} MB byte code (none with pip's --no-compile)", flush=True)
    for extra in extras:
        print(f"{extra:<10} {megabytes(extra)[0] - bare:+6.0f} MB", flush=True)


if __name__ == "__main__":
    main()
