"""`python -m seqveil` is `seqveil`."""

import sys

from seqveil.interfaces.cli import main

if __name__ == "__main__":
    sys.exit(main())
