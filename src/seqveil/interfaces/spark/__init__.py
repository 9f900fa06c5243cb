"""The same releases on Apache Spark; the functions need it (`pip install -e '.[spark]'` and Java 17)."""

from seqveil.interfaces.spark.checkpoint import Total, account, total
from seqveil.interfaces.spark.counting import fit
from seqveil.interfaces.spark.frames import FrameColumns
from seqveil.interfaces.spark.release import release, stream
from seqveil.interfaces.spark.sessions import session, session_conf

__all__ = ["FrameColumns", "Total", "account", "fit", "release", "session", "session_conf", "stream", "total"]
