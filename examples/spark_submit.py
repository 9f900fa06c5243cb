"""The `seqveil spark` commands under spark-submit: `spark-submit … examples/spark_submit.py release DATA …`."""

import sys

from seqveil.interfaces.cli import main

if __name__ == "__main__":
    sys.exit(main(["spark", *sys.argv[1:]]))
