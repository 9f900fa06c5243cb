"""Releases on Spark: the public name of `seqveil.interfaces.spark`."""

from seqveil.interfaces.spark import *  # noqa: F403
from seqveil.interfaces.spark import __all__ as __all__
