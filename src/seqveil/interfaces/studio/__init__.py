"""The page: what a mechanism does to a stream, looked at (`seqveil studio`).

`picture` turns one request into everything that the page shows; `serving` serves it. All figures come from the same
steps as a release, with a seed, so that they can be reprinted; nothing the page makes is a private release. The
commands and the script that it hands out carry no seed, so those are.

>>> from seqveil.interfaces.studio import Ask, builtin, picture
>>> shown = picture(builtin("clicks"), Ask("clicks", events=20, epsilon=1.0))
>>> shown["figures"]["leakage"] <= shown["figures"]["composition"] == 20.0
True
"""

from seqveil.interfaces.studio.ask import Ask
from seqveil.interfaces.studio.picture import picture
from seqveil.interfaces.studio.sources import StudioSource, builtin

__all__ = ["Ask", "StudioSource", "builtin", "picture"]
