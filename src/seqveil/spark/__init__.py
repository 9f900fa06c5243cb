"""The same releases on Apache Spark, for users who do not fit one machine: fit, release and account.

Nothing here needs Spark to be imported; the functions do (`pip install seqveil[spark]` and Java 17).
"""

from seqveil.spark.conf import session, session_conf
from seqveil.spark.counting import fit
from seqveil.spark.frames import Columns, release
from seqveil.spark.ledger import Standing, Total, account, total
from seqveil.spark.moving import Carried, Moved, Query, carried, evidence_of, move

__all__ = [
    "Carried",
    "Columns",
    "Moved",
    "Query",
    "Standing",
    "Total",
    "account",
    "carried",
    "evidence_of",
    "fit",
    "move",
    "release",
    "session",
    "session_conf",
    "total",
]
