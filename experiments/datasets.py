"""The real data sets of the figures and benchmarks: what is known of each, where its files are, and one loader a set.

They stay outside the repository: a folder is given by argument or by the environment variable SEQVEIL_DATA. A loader
goes from Parquet files to streams of codes, an alphabet and the natural distortion. Every file is checked against the
sum it was measured with.

>>> names()
['msnbc', 'diginetica', 'kosarak', 'gaze_vr', 'heart_rate', 'electricity', 'geolife']
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.generated import Dataset as Dataset
from experiments.generated import check_options
from experiments.generated import synthetic as synthetic
from seqveil.core.alphabet import Alphabet, Bins, Grid
from seqveil.core.distortion import absolute, euclidean, hamming
from seqveil.core.errors import DataError, InputError

if TYPE_CHECKING:
    import polars as pl

BEIJING = (39.75, 40.10, 116.15, 116.60)  # latitudes, longitudes: the city within and about its fifth ring road
KILOMETRES = 111.2  # of a degree of latitude
SILENCE = 5  # minutes without a fix that end a stream
TOO_MUCH = 10_000  # watt-hours in a quarter of an hour that no household uses
VARIABLE = "SEQVEIL_DATA"


@dataclass(frozen=True)
class Facts:
    """What is known of a data set: its files and their sums, where it comes from, what it is and under which terms."""

    files: dict[str, str]  # name under the data folder → SHA-256
    stand_in: str  # the synthetic kind that resembles it
    source: str
    about: str


FACTS = {
    "msnbc": Facts(
        {
            "msnbc/msnbc_sequences.parquet": "b60fe16d67ffbf7cb17fabebf16fcae10b6d912301d46ea6a73cfee8fecd629e",
            "msnbc/msnbc_categories.parquet": "208e06b4075e7754ebe7b01d611e5dd605912af7d171de9b943cde2e9bd620d5",
        },
        "clicks",
        "the UCI Machine Learning Repository, MSNBC.com Anonymous Web Data",
        "page categories that users of msnbc.com asked for on one day, in time order. UCI asks for citation: "
        "Heckerman, MSNBC.com Anonymous Web Data, UCI Machine Learning Repository (thanks to msnbc.com)",
    ),
    "diginetica": Facts(
        {"shopclicks/diginetica_train.parquet": "25d2234a6117087a75b861d9d4b01438da47daa5d3ad89146934d241442367c8"},
        "items",
        "GitHub CCIIPLab/GCE-GNN, datasets/diginetica",
        "items viewed in shop sessions, in time order; sessions of two or more, items seen five or more times. No "
        "licence stated: not to be passed on. CIKM Cup 2016 Track 2, DIGINETICA; cut as in Wang et al., SIGIR 2020",
    ),
    "kosarak": Facts(
        {"kosarak/kosarak_first100k.parquet": "02a990697d6bc7e4ccbcde0cd9a727c2697031817724b3d07c21814a7820615a"},
        "sets",
        "the FIMI repository (first 100,000 lines)",
        "a line is a sorted SET, not a sequence: no pair of items ever occurs in both orders, so a chain fitted to it "
        "describes the sort order and not people. No licence stated: not to be passed on. Bodon, Kosarak, FIMI",
    ),
    "gaze_vr": Facts(
        {
            "gaze_vr/gaze.parquet": "490b8866257328e8194a357bedecbd8ecd1e954370cda09d8ad999c97bd98e3f",
            "gaze_vr/recordings.parquet": "43d97bcbbadc917571ce2f61e19807ea3b14b874c3664ad7fbb91c4a6ca34280",
        },
        "gaze",
        "GitHub xuyanyu-shh/VR-EyeTracking",
        "eye gaze of 45 people in 360° videos, 24 to 30 samples a second mostly; x wraps round, which Euclidean "
        "distance on the grid does not know. No licence stated: not to be passed on. Xu et al., CVPR 2018",
    ),
    "heart_rate": Facts(
        {"heart_rate/heart_rate_1hz.parquet": "50c3e3641b90e3b323781fe3e3817b83d7eac80c3dbad3069e505ce0276286f9"},
        "heart_rate",
        "GitHub italha-d/Stress-Predict-Dataset",
        "heart rate once a second from a watch that smooths it, about 55 minutes a person. MIT. Iqbal et al., Stress "
        "Monitoring Using Wearable Sensors: A Pilot Study and Stress-Predict, Sensors 2022",
    ),
    "electricity": Facts(
        {"electricity/swiss_15min.parquet": "eef9be667084f5850bff57b2b2d62b2678e976ff0a22f986a5f6b32096a024c7"},
        "power",
        "the CRAN package ResidentialEnergyConsumption, data elcons_15min",
        "consumption of Swiss households every 15 minutes for seven weeks; households with a negative reading, with a "
        "reading above 10 kWh in a slot, or all zero are left out. CC BY-SA 4.0. Hopf, Weigert, Staake, Bamberg (CRAN)",
    ),
    "geolife": Facts(
        {"geolife/geolife_1min.parquet": "5437dcfc566e2fd331c7380b23bdb8cf2b900dfd7662ac5fc84ab32bc5e4a9f1"},
        "places",
        "Microsoft Research, GeoLife GPS Trajectories 1.3",
        "places by the minute within inner Beijing; a stream ends where a track does or is silent for over 5 minutes. "
        "Microsoft Research Licence Agreement, non-commercial: not to be passed on. Zheng, Xie, Ma, GeoLife, 2010",
    ),
}


def names() -> list[str]:
    """Names of the real sets that `load` knows."""
    return list(FACTS)


def load(
    name: str,
    data: str | os.PathLike[str] | None = None,
    *,
    users: int | None = None,
    verify: bool = True,
    **options: Any,
) -> Dataset:
    """A real set, cut into symbols.

    Parameters: `data` is the folder (else SEQVEIL_DATA); `users` keeps the first so many people; `verify=False` reads a
    copy of your own that has the same columns. Options of single sets: `side` of the grid (gaze_vr 100, geolife 40),
    `width` of a bin in beats a minute (heart_rate 5), `levels` (electricity 10) and their `scale`, "quantile" or "log".
    """
    if name not in FACTS:
        raise InputError(f"expected a data set among {', '.join(names())}, got {name!r}")
    loader: Callable[..., Dataset] = globals()[name]
    check_options(name, loader, options)
    found = loader(Folder(folder_of(name, data), name, verify), users, **options)
    return replace(found, name=name, about=FACTS[name].about)


def stand_in(name: str) -> str:
    """The kind of synthetic stream that resembles a real set.

    >>> stand_in("msnbc")
    'clicks'
    """
    return FACTS[name].stand_in


def missing(name: str, data: str | os.PathLike[str] | None = None) -> list[str]:
    """The files of a set that are not in the folder (all of them where no folder is named)."""
    given = data or os.environ.get("SEQVEIL_DATA")
    return [file for file in FACTS[name].files if given is None or not (Path(given) / file).is_file()]


def folder_of(name: str, data: str | os.PathLike[str] | None) -> Path:
    """The folder given, or that of the environment; else one line that says what to do."""
    given = data or os.environ.get(VARIABLE)
    if not given:
        raise DataError(
            f"no data folder is named; pass --data FOLDER (data= in Python) or set {VARIABLE}. {_remedy(name)}"
        )
    return Path(given)


@dataclass(frozen=True)
class Folder:
    """The files of one set under a data folder."""

    root: Path
    name: str
    verify: bool = True

    def read(self, file: str) -> pl.DataFrame:
        """One Parquet file, once its sum is checked."""
        import polars as pl

        path = self.root / file
        if not path.is_file():
            raise DataError(
                f"{self.name} needs the file {file} in the data folder, and it is not there. {_remedy(self.name)}"
            )
        if self.verify:
            status = path.stat()
            found = _sum(path, status.st_size, status.st_mtime_ns)
            if found != FACTS[self.name].files[file]:
                raise DataError(
                    f"{file} is not the file our figures were measured on (its sha256 differs); copy it again, or pass "
                    "verify=False to read a copy of your own with the same columns"
                )
        return pl.read_parquet(path)


@lru_cache(maxsize=64)
def _sum(path: Path, size: int, changed: int) -> str:
    """SHA-256 of a file, computed once for as long as it does not change."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remedy(name: str) -> str:
    facts = FACTS[name]
    return f'{name} comes from {facts.source}; or use datasets.synthetic("{facts.stand_in}"), which needs no file'


def msnbc(folder: Folder, users: int | None) -> Dataset:
    """17 page categories by name; Hamming."""
    categories = folder.read("msnbc/msnbc_categories.parquet").sort("code")["name"].to_list()
    frame = folder.read("msnbc/msnbc_sequences.parquet")
    return _lists(frame, "user", "seq", users, Alphabet(categories))


def diginetica(folder: Folder, users: int | None) -> Dataset:
    """43,097 items by number; Hamming."""
    frame = folder.read("shopclicks/diginetica_train.parquet")
    return _lists(frame, "session", "seq", users, Alphabet(range(1, 43_098)))


def kosarak(folder: Folder, users: int | None) -> Dataset:
    """23,496 items by number; Hamming. The order of a line is a sort order."""
    frame = folder.read("kosarak/kosarak_first100k.parquet")
    return _lists(frame, "user", "items", users, Alphabet(range(1, 23_497)))


def gaze_vr(folder: Folder, users: int | None, *, side: int = 100) -> Dataset:
    """side × side cells over the panorama; Euclidean distance in cells. A stream is one recording."""
    import polars as pl

    of = folder.read("gaze_vr/recordings.parquet").select("rec", pl.col("user").alias("person"))
    gaze = folder.read("gaze_vr/gaze.parquet").join(of, on="rec", how="left", maintain_order="left")
    gaze = _first_people(gaze.sort("person", "rec", maintain_order=True), "person", users)
    x, y = (_cell(gaze[axis].to_numpy(), side) for axis in ("eye_x", "eye_y"))
    grid = Grid.regular(side, side, (0, side, 0, side), "nearest")
    person, recording = gaze["person"].to_numpy(), gaze["rec"].to_numpy()
    return Dataset.of(person, x * side + y, grid, euclidean(grid.points), recording)


def heart_rate(folder: Folder, users: int | None, *, width: float = 5.0) -> Dataset:
    """Bins of `width` beats a minute from 45 to 150; absolute difference of their middles."""
    frame = _first_people(folder.read("heart_rate/heart_rate_1hz.parquet"), "user", users)
    bins = Bins.of_width(45, 150, width, "nearest")
    return Dataset.of(frame["user"].to_numpy(), bins.encode(frame["bpm"].to_numpy()), bins, absolute(bins.points))


def electricity(folder: Folder, users: int | None, *, levels: int = 10, scale: str = "quantile") -> Dataset:
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
        bins = Bins(np.unique(np.quantile(watt_hours, np.linspace(0, 1, levels + 1))), "nearest")
    else:
        bins = Bins([0.0, *np.geomspace(20, 2_500, levels - 1), TOO_MUCH], "nearest")
    return Dataset.of(frame["household"].to_numpy(), bins.encode(watt_hours), bins, absolute(np.arange(bins.n)))


def geolife(folder: Folder, users: int | None, *, side: int = 40) -> Dataset:
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
    return Dataset.of(person, grid.encode(places), grid, euclidean(grid.points), number - first)


def _lists(frame: pl.DataFrame, user: str, values: str, users: int | None, alphabet: Alphabet) -> Dataset:
    """Streams from one list of numbers 1.. a user; Hamming."""
    import polars as pl

    kept = (frame if users is None else frame.head(users)).filter(pl.col(values).list.len() > 0)
    person = np.repeat(kept[user].to_numpy(), kept[values].list.len().to_numpy())
    return Dataset.of(person, kept[values].explode().to_numpy().astype(np.int32) - 1, alphabet, hamming())


def _first_people(frame: pl.DataFrame, column: str, users: int | None) -> pl.DataFrame:
    import polars as pl

    if users is None:
        return frame
    first = frame[column].unique(maintain_order=True).head(users)
    return frame.filter(pl.col(column).is_in(first.implode()))


def _cell(place: NDArray[Any], side: int) -> NDArray[np.int32]:
    """The cell of a coordinate 0..10,000; the few outside go to the border."""
    return np.clip(place.astype(np.int64) * side // 10_000, 0, side - 1).astype(np.int32)
