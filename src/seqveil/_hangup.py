"""SIGHUP tells a service to reload, also in the second that it takes to load: it must not end one that starts.

This is imported before everything else, and needs next to nothing itself.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from itertools import pairwise


def is_service(command: list[str]) -> bool:
    """Whether a command line is that of `seqveil serve`.

    >>> is_service(["python", "-m", "seqveil", "serve"]), is_service(["/usr/bin/seqveil", "--debug", "serve"])
    (True, True)
    >>> is_service(["python", "serve.py", "serve"])
    False
    """
    words = [os.path.basename(word) for word in command if word != "--debug"]
    return ("seqveil", "serve") in pairwise(words)


if is_service(sys.orig_argv) and hasattr(signal, "SIGHUP"):
    with suppress(ValueError):  # on another thread than the main one
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
