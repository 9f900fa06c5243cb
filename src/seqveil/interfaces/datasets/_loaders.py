"""One loader a set: from its Parquet files to streams of codes, an alphabet and the natural distortion."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.distortion import absolute, euclidean, hamming
from seqveil.core.errors import InputError
from seqveil.interfaces.datasets._dataset import Content, gather
from seqveil.interfaces.datasets._files import Folder

if TYPE_CHECKING:
    import polars as pl

BEIJING = (39.75, 40.10, 116.15, 116.60)  # latitudes, longitudes: the city within and about its fifth ring road
KILOMETRES = 111.2  # of a degree of latitude
SILENCE = 5  # minutes without a fix that end a stream
TOO_MUCH = 10_000  # watt-hours in a quarter of an hour that no household uses


def msnbc(folder: Folder, users: int | None) -> Content:
    """17 page categories by name; Hamming."""
    categories = folder.read("msnbc/msnbc_categories.parquet").sort("code")["name"].to_list()
    frame = folder.read("msnbc/msnbc_sequences.parquet")
    return Content(*_lists(frame, "user", "seq", users), Alphabet(categories), hamming())


def diginetica(folder: Folder, users: int | None) -> Content:
    """43,097 items by number; Hamming."""
    frame = folder.read("shopclicks/diginetica_train.parquet")
    return Content(*_lists(frame, "session", "seq", users), Alphabet(range(1, 43_098)), hamming())


def kosarak(folder: Folder, users: int | None) -> Content:
    """23,496 items by number; Hamming. The order of a line is a sort order."""
    frame = folder.read("kosarak/kosarak_first100k.parquet")
    return Content(*_lists(frame, "user", "items", users), Alphabet(range(1, 23_497)), hamming())


def gaze_vr(folder: Folder, users: int | None, *, side: int = 100) -> Content:
    """side × side cells over the panorama; Euclidean distance in cells. A stream is one recording."""
    import polars as pl

    of = folder.read("gaze_vr/recordings.parquet").select("rec", pl.col("user").alias("person"))
    gaze = folder.read("gaze_vr/gaze.parquet").join(of, on="rec", how="left", maintain_order="left")
    gaze = _first_people(gaze.sort("person", "rec", maintain_order=True), "person", users)
    x, y = (_cell(gaze[axis].to_numpy(), side) for axis in ("eye_x", "eye_y"))
    streams = gather(gaze["person"].to_numpy(), gaze["rec"].to_numpy(), x * side + y)
    grid = Grid.regular(side, side, (0, side, 0, side), "nearest")
    return Content(*streams, grid, euclidean(grid.points))


def heart_rate(folder: Folder, users: int | None, *, width: float = 5.0) -> Content:
    """Bins of `width` beats a minute from 45 to 150; absolute difference of their middles."""
    frame = _first_people(folder.read("heart_rate/heart_rate_1hz.parquet"), "user", users)
    bins = Bins.of_width(45, 150, width, "nearest")
    person = frame["user"].to_numpy()
    codes = bins.encode(frame["bpm"].to_numpy()).astype(np.int32)
    return Content(*gather(person, np.zeros(len(person), np.int32), codes), bins, absolute(bins.points))


def electricity(folder: Folder, users: int | None, *, levels: int = 10, scale: str = "quantile") -> Content:
    """Levels of consumption in a quarter of an hour; levels apart.

    `scale="quantile"`: levels that hold about as many readings each, over all households (their edges then show those
    readings: take them as public). `scale="log"`: edges at equal ratios from 20 Wh to 2,500 Wh, fixed beforehand.
    """
    import polars as pl

    frame = folder.read("electricity/swiss_15min.parquet").sort("household", "t")
    reading = pl.col("wh")
    fine = (reading.min() >= 0) & (reading.max() > 0) & (reading.max() <= TOO_MUCH)
    frame = _first_people(frame.filter(fine.over("household")), "household", users)
    watt_hours = frame["wh"].to_numpy()
    if scale not in ("quantile", "log") or levels < 2:
        raise InputError(f'expected scale "quantile" or "log" and at least 2 levels; got {scale!r} and {levels}')
    if scale == "quantile":
        bins = Bins.quantiles(watt_hours, levels, "nearest")
    else:
        bins = Bins([0.0, *np.geomspace(20, 2_500, levels - 1), TOO_MUCH], "nearest")
    codes = bins.encode(watt_hours).astype(np.int32)
    household = frame["household"].to_numpy()
    return Content(*gather(household, np.zeros(len(codes), np.int32), codes), bins, absolute(np.arange(bins.n)))


def geolife(folder: Folder, users: int | None, *, side: int = 40) -> Content:
    """side × side cells over inner Beijing, in kilometres east and north of its corner; Euclidean distance in km.

    Fixes outside are left out. A stream ends with its track, or where no fix came for over 5 minutes; streams of a
    person are numbered in order.
    """
    import polars as pl

    south, north, west, east = BEIJING
    frame = _first_people(folder.read("geolife/geolife_1min.parquet"), "user", users)
    inside = pl.col("lat_e5").is_between(south * 1e5, north * 1e5) & pl.col("lon_e5").is_between(west * 1e5, east * 1e5)
    frame = frame.filter(inside)
    person, trip, minute = (frame[name].to_numpy().astype(np.int64) for name in ("user", "trip", "t_min"))
    gap = np.r_[0, np.diff(minute)]
    cut = (gap < 0) | (gap > SILENCE) | np.r_[True, trip[1:] != trip[:-1]]
    cut |= np.r_[True, person[1:] != person[:-1]]
    latitude, longitude = frame["lat_e5"].to_numpy() / 1e5, frame["lon_e5"].to_numpy() / 1e5
    squeeze = math.cos(math.radians((south + north) / 2))
    wide, high = (east - west) * KILOMETRES * squeeze, (north - south) * KILOMETRES
    grid = Grid.regular(side, side, (0, wide, 0, high), "nearest")
    places = np.stack([(longitude - west) * KILOMETRES * squeeze, (latitude - south) * KILOMETRES], axis=1)
    number = np.cumsum(cut)
    first = np.maximum.accumulate(np.where(np.r_[True, person[1:] != person[:-1]], number, 0))
    streams = gather(person, (number - first).astype(np.int32), grid.encode(places).astype(np.int32))
    return Content(*streams, grid, euclidean(grid.points))


def _lists(frame: pl.DataFrame, user: str, values: str, users: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Streams from one list of numbers 1.. a user."""
    import polars as pl

    kept = (frame if users is None else frame.head(users)).filter(pl.col(values).list.len() > 0)
    person = np.repeat(kept[user].to_numpy(), kept[values].list.len().to_numpy())
    codes = kept[values].explode().to_numpy().astype(np.int32) - 1
    return gather(person, np.zeros(len(codes), np.int32), codes)


def _first_people(frame: pl.DataFrame, column: str, users: int | None) -> pl.DataFrame:
    import polars as pl

    if users is None:
        return frame
    first = frame[column].unique(maintain_order=True).head(users)
    return frame.filter(pl.col(column).is_in(first.implode()))


def _cell(place: NDArray[Any], side: int) -> NDArray[np.int32]:
    """The cell of a coordinate 0..10,000; the few outside go to the border."""
    return np.clip(place.astype(np.int64) * side // 10_000, 0, side - 1).astype(np.int32)
