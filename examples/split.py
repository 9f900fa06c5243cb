"""Split a CSV file into two, person by person: `past.csv` to learn from, `today.csv` to release.

    python examples/split.py mine.csv            # people are distinguished by the column `user`
    python examples/split.py mine.csv person     # by the column `person`

A model that was fitted on the people who are released knows them too well: what it promises is then better than what
others will get, and it is public. So fit it on some people, and release others.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from pathlib import Path

OUTPUTS = ("past.csv", "today.csv")


def split(path: Path, column: str = "user") -> None:
    """Write every row to one of two files in this folder; which one depends on the person alone."""
    form, header, rows = read(path)
    if column not in header:
        sys.exit(f"expected a column {column!r} that says whose row it is; got {', '.join(header)}. Name one of them.")
    at = header.index(column)
    for name in OUTPUTS:
        if Path(name).exists():
            sys.exit(f"{name} is there already, and is not written over; move it away first")
    for half, name in enumerate(OUTPUTS):
        kept = [row for row in rows if hashlib.sha256(row[at].encode()).digest()[0] % 2 == half]
        with open(name, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, form, lineterminator="\n").writerows([header, *kept])
        print(f"wrote {name}: {len({row[at] for row in kept})} people, {len(kept)} rows")


def read(path: Path) -> tuple[type[csv.Dialect], list[str], list[list[str]]]:
    """How a CSV file is written, its header, and its rows that are not blank."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            form = csv.Sniffer().sniff(file.readline(), delimiters=",;\t|")
            file.seek(0)
            header, *rows = (row for row in csv.reader(file, form) if row)
    except (OSError, UnicodeDecodeError, csv.Error):
        sys.exit(f"expected a CSV file in UTF-8 with a header of several columns; {path} is not there, or is none")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            sys.exit(f"expected {len(header)} fields in each row, as in the header; row {number} has {len(row)}")
    return form, header, rows


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("expected a CSV file, and perhaps the column of the person: python examples/split.py mine.csv person")
    split(Path(sys.argv[1]), *sys.argv[2:])
