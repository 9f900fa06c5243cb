"""Facts of the real sets: files and their sums, terms, citation, source, and what a reader must know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    files: dict[str, str]  # name under the data folder → SHA-256
    stand_in: str  # the synthetic kind that resembles it
    order_is_real: bool
    licence: str
    citation: str
    source: str
    note: str


FACTS = {
    "msnbc": Facts(
        {
            "msnbc/msnbc_sequences.parquet": "b60fe16d67ffbf7cb17fabebf16fcae10b6d912301d46ea6a73cfee8fecd629e",
            "msnbc/msnbc_categories.parquet": "208e06b4075e7754ebe7b01d611e5dd605912af7d171de9b943cde2e9bd620d5",
        },
        "clicks",
        True,
        "UCI asks for citation",
        "Heckerman, MSNBC.com Anonymous Web Data, UCI Machine Learning Repository (thanks to msnbc.com)",
        "the UCI Machine Learning Repository, MSNBC.com Anonymous Web Data",
        "page categories that users of msnbc.com asked for on one day, in time order",
    ),
    "diginetica": Facts(
        {"shopclicks/diginetica_train.parquet": "25d2234a6117087a75b861d9d4b01438da47daa5d3ad89146934d241442367c8"},
        "items",
        True,
        "none stated: not to be passed on",
        "CIKM Cup 2016 Track 2, DIGINETICA; cut as in Wang et al., Global Context Enhanced GNN, SIGIR 2020",
        "GitHub CCIIPLab/GCE-GNN, datasets/diginetica",
        "items viewed in shop sessions, in time order; sessions of two or more, items seen five or more times",
    ),
    "kosarak": Facts(
        {"kosarak/kosarak_first100k.parquet": "02a990697d6bc7e4ccbcde0cd9a727c2697031817724b3d07c21814a7820615a"},
        "sets",
        False,
        "none stated: not to be passed on",
        "Bodon, Kosarak, Frequent Itemset Mining Dataset Repository (FIMI)",
        "the FIMI repository (first 100,000 lines)",
        "a line is a sorted SET, not a sequence: no pair of items ever occurs in both orders, so a chain fitted to it "
        "describes the sort order and not people",
    ),
    "gaze_vr": Facts(
        {
            "gaze_vr/gaze.parquet": "490b8866257328e8194a357bedecbd8ecd1e954370cda09d8ad999c97bd98e3f",
            "gaze_vr/recordings.parquet": "43d97bcbbadc917571ce2f61e19807ea3b14b874c3664ad7fbb91c4a6ca34280",
        },
        "gaze",
        True,
        "none stated: not to be passed on",
        "Xu et al., Gaze Prediction in Dynamic 360° Immersive Videos, CVPR 2018",
        "GitHub xuyanyu-shh/VR-EyeTracking",
        "eye gaze of 45 people in 360° videos, 24 to 30 samples a second mostly; x wraps round, which Euclidean "
        "distance on the grid does not know",
    ),
    "heart_rate": Facts(
        {"heart_rate/heart_rate_1hz.parquet": "50c3e3641b90e3b323781fe3e3817b83d7eac80c3dbad3069e505ce0276286f9"},
        "heart_rate",
        True,
        "MIT",
        "Iqbal et al., Stress Monitoring Using Wearable Sensors: A Pilot Study and Stress-Predict, Sensors 2022",
        "GitHub italha-d/Stress-Predict-Dataset",
        "heart rate once a second from a watch that smooths it, about 55 minutes a person",
    ),
    "electricity": Facts(
        {"electricity/swiss_15min.parquet": "eef9be667084f5850bff57b2b2d62b2678e976ff0a22f986a5f6b32096a024c7"},
        "power",
        True,
        "CC BY-SA 4.0",
        "Hopf, Weigert, Staake, ResidentialEnergyConsumption, University of Bamberg (CRAN)",
        "the CRAN package ResidentialEnergyConsumption, data elcons_15min",
        "consumption of Swiss households every 15 minutes for seven weeks; households with a negative reading, with a "
        "reading above 10 kWh in a slot, or all zero are left out",
    ),
    "geolife": Facts(
        {"geolife/geolife_1min.parquet": "5437dcfc566e2fd331c7380b23bdb8cf2b900dfd7662ac5fc84ab32bc5e4a9f1"},
        "places",
        True,
        "Microsoft Research Licence Agreement, non-commercial: not to be passed on",
        "Zheng, Xie, Ma, GeoLife: A Collaborative Social Networking Service among User, Location and Trajectory, 2010",
        "Microsoft Research, GeoLife GPS Trajectories 1.3",
        "places by the minute within inner Beijing; a stream ends where a track does or is silent for over 5 minutes",
    ),
}
