"""Data sets by name, and synthetic ones: the public name of `seqveil.interfaces.datasets`."""

from seqveil.interfaces.datasets import Dataset, kinds, load, missing, names, stand_in, synthetic

__all__ = ["Dataset", "kinds", "load", "missing", "names", "stand_in", "synthetic"]
