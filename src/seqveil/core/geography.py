"""Places on the globe: distances in metres, and a flat map of those that lie together.

The earth is a sphere of its mean radius, which is right to about half a percent everywhere. All distances are along
great circles, so that neither the date line nor a pole is a border.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seqveil.core.arrays import Floats
from seqveil.core.errors import InputError

EARTH = 6_371_008.8  # mean radius in metres
DEGREE = EARTH * np.pi / 180.0  # metres of a degree of latitude


def checked(points: ArrayLike) -> Floats:
    """Latitudes and longitudes in degrees, (n, 2); longitudes come back between -180 and 180.

    >>> checked([(34.05, 241.75)]).tolist()
    [[34.05, -118.25]]
    """
    try:
        found = np.array(points, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("expected a latitude and a longitude in degrees for each place; got something else") from None
    if found.ndim != 2 or found.shape[1] != 2 or not len(found) or not np.isfinite(found).all():
        raise InputError(f"expected finite pairs (latitude, longitude); got an array of shape {found.shape}")
    if possible(found).all():
        found[:, 1] = np.where(np.abs(found[:, 1]) <= 180.0, found[:, 1], np.round(wrapped(found[:, 1]), 9))
        return found
    raise InputError(
        "expected latitudes from -90 to 90 and longitudes from -180 to 180; check that the two are not swapped"
    )


def possible(points: Floats) -> Any:
    """Which pairs (latitude, longitude) are places at all; longitudes may also run from 0 to 360."""
    with np.errstate(invalid="ignore"):
        return (np.abs(points[:, 0]) <= 90.0) & (points[:, 1] >= -180.0) & (points[:, 1] <= 360.0)


def wrapped(longitudes: Any) -> Any:
    """Longitudes between -180 and 180, without 180 itself."""
    return (longitudes + 180.0) % 360.0 - 180.0


def haversine(here: ArrayLike, there: ArrayLike) -> Floats:
    """Metres between pairs (latitude, longitude) in degrees, (..., 2); the two broadcast.

        d = 2 R arcsin √( sin²((φ'-φ)/2) + cos φ cos φ' sin²((λ'-λ)/2) )

    >>> haversine((48.8566, 2.3522), (48.8606, 2.3376)).round().item()
    1157.0
    """
    (lat, lon), (other, across) = (np.moveaxis(np.radians(np.asarray(one, np.float64)), -1, 0) for one in (here, there))
    half = np.sin((other - lat) / 2.0) ** 2 + np.cos(lat) * np.cos(other) * np.sin((across - lon) / 2.0) ** 2
    return np.asarray(2.0 * EARTH * np.arcsin(np.sqrt(np.clip(half, 0.0, 1.0))))


def sphere(points: Floats) -> Floats:
    """Where the places lie in space, in metres from the middle of the earth: (n, 3)."""
    lat, lon = np.radians(points).T
    return EARTH * np.stack((np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)), axis=1)


def along(chords: Floats) -> Floats:
    """Metres along the ground for straight lines through the earth: what `haversine` gives.

    >>> ends = np.array([(48.8566, 2.3522), (-33.8688, 151.2093)])
    >>> straight = np.sqrt(((sphere(ends)[0] - sphere(ends)[1]) ** 2).sum())
    >>> bool(abs(along(straight) - haversine(*ends)) < 1e-6)
    True
    """
    return np.asarray(2.0 * EARTH * np.arcsin(np.minimum(chords / (2.0 * EARTH), 1.0)))


def plane(points: Floats) -> Floats:
    """The places on a flat map around their middle, in metres to the east and north: (n, 2).

    Distances and directions from the middle are right (an azimuthal equidistant map); others are nearly so where the
    places lie together. For searches, never for costs.
    """
    space = sphere(points) / EARTH
    up = space.mean(0)
    size = float(np.sqrt((up**2).sum()))
    up = up / size if size > 1e-9 else np.array([1.0, 0.0, 0.0])  # they are all around the globe: any middle will do
    east = np.cross([0.0, 0.0, 1.0], up)
    length = float(np.sqrt((east**2).sum()))
    east = east / length if length > 1e-9 else np.array([0.0, 1.0, 0.0])  # at a pole every way is as good
    flat = np.stack(((space * east).sum(1), (space * np.cross(up, east)).sum(1)), axis=1)
    across = np.sqrt((flat**2).sum(1))
    away = np.arctan2(across, (space * up).sum(1))
    return flat * (EARTH * np.where(across > 1e-12, away / np.maximum(across, 1e-12), 1.0))[:, None]


def to_box(point: tuple[float, float], south: Floats, north: Floats, west: Floats, east: Floats) -> Floats:
    """Metres from a point to the nearest point of each box of latitudes and longitudes; 0 inside.

    The nearest longitude of a box is at its side, or the point's own. Along that meridian the distance has one least
    point, at tan φ = tan φ₀ / cos Δλ, so the nearest latitude is there or at an end.

    >>> to_box((0.0, 0.0), np.array([1.0]), np.array([2.0]), np.array([-1.0]), np.array([1.0])).round().item()
    111195.0
    """
    lat, lon = point
    into, width = (lon - west) % 360.0, (east - west) % 360.0
    width = np.where((width == 0.0) & (east != west), 360.0, width)
    beyond = np.maximum(into - width, 0.0)
    away = np.where(beyond > 0.0, np.minimum(beyond, 360.0 - into), 0.0)
    turn, rise = np.radians(away), np.radians(lat)
    best = np.degrees(np.arctan2(np.sin(rise), np.cos(rise) * np.cos(turn)))
    tried = [np.clip(best, south, north), south, north]
    ends = [haversine(np.stack((at, away), -1), np.array([lat, 0.0])) for at in tried]
    return np.minimum(np.minimum(ends[0], ends[1]), ends[2])


def size_of(metres: float) -> str:
    """A distance in words.

    >>> size_of(49.6), size_of(1520.0), size_of(123456.0)
    ('50 m', '1.52 km', '123 km')
    """
    if metres < 1000:
        return f"{metres:.0f} m"
    return f"{metres / 1000:.3g} km" if metres < 1e6 else f"{metres / 1000:,.0f} km"
