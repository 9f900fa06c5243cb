"""Flip bits of a state file and cut it, closed or as a kill leaves it: what is seen, and what goes by without a word.

Damage is seen where opening the file refuses it, where a user is refused, or by `seqveil state verify`. It has no
effect where every account, release, position and later draw is what it would have been. All else is silent, and must
not be.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.store import chain
from seqveil.core.errors import SeqveilError
from seqveil.core.randomness import KeyedRandomness
from seqveil.engine.policy import Policy
from seqveil.engine.store import Damaged, StoreError
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import verify
from seqveil.interfaces.events import EventJob, release_together

FLIPS, CUTS = 1000, 60
USERS = [f"user {k}" for k in range(8)]
SETTING = Policy(epsilon=0.8, mechanism="balanced").on(chain())
BESIDE = ("", "-wal", "-shm", "-lock")  # the state file, and what a kill leaves beside it
Files = dict[str, bytes]
Seen = dict[Any, Any]


def run(data: Path | None, flips: int = FLIPS, cuts: int = CUTS) -> dict[str, float]:
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        for how, count, spoil in (("bits flipped", flips, flipped), ("cut", cuts, cut)):
            for kind in ("closed", "killed"):
                folder = Path(name, f"{how} {kind}")
                folder.mkdir()
                silent, seen = silent_changes(folder, spoil, (count + (kind == "killed")) // 2, kind == "killed")
                figures = {**seen, "silent": len({k for k, _ in silent})}
                print(
                    f"  {how}, {kind}: " + ", ".join(f"{each} {value}" for each, value in figures.items()), flush=True
                )
                found |= {f"{how} {kind} {each}": value for each, value in figures.items()}
    return found


def opened(path: Path, **more: Any) -> CodeStreams:
    return CodeStreams.open(path, SETTING, randomness=KeyedRandomness.seeded(1), **more)


def make(path: Path, calls: int = 7, killed: bool = False) -> Files:
    """A file with users of 21 to 70 releases, and positions: its content, and what is beside it when it is killed."""
    rng = np.random.default_rng(7)
    for part in range(2):
        with opened(path) as streams:
            for k in range(part * calls // 2, (part + 1) * calls // 2):
                users = [user for at, user in enumerate(USERS) for _ in range(3 if at % 2 else 10)]
                positions = {"queue": k, "text": "x" * 50}
                streams.release(users, rng.integers(0, 4, len(users)), positions=positions)
            if killed and part:
                return read(path)
    return read(path)


def read(path: Path) -> Files:
    return {end: beside.read_bytes() for end in BESIDE if (beside := Path(f"{path}{end}")).exists()}


def write(path: Path, files: Files) -> Path:
    for end in BESIDE:
        Path(f"{path}{end}").unlink(missing_ok=True)
    for end, content in files.items():
        Path(f"{path}{end}").write_bytes(content)
    return path


def disclosed(streams: CodeStreams, user: str) -> Any:
    """All that is known of a user, or that it is damaged."""
    try:
        return streams.account(user), streams.releases(user), streams.next_seqs([user]).tolist()
    except Damaged:
        return "found"


def look(path: Path, more: bool) -> Seen:
    """What a file says, and how it goes on: part by part; "found" where damage is seen."""
    try:
        with opened(path, must_exist=True) as streams:
            seen: Seen = {user: disclosed(streams, user) for user in USERS}
            seen["positions"] = streams.position("queue"), streams.position("text")
            jobs = [EventJob([u, u], [0, len(seen[u][1])], [1, 2], None) for u in USERS if more and seen[u] != "found"]
            release_together(streams, jobs)
            for job in jobs:
                made = job.outcome
                kept = "found" if isinstance(made, StoreError) else (made.codes.tolist(), made.replayed.tolist())
                seen[job.users[0], "more"] = kept
            return seen
    except SeqveilError:
        return {"all": "found"}


def silent_changes(
    folder: Path, spoiled: Callable[[Files, int], Files], count: int, killed: bool = False
) -> tuple[list[tuple[int, Any]], Counter[str]]:
    """Look at so many spoiled copies: what went by without a word, and by what how many were seen."""
    files = make(folder / "s.db", killed=killed)
    true = write(folder / "true.db", files)
    truth, silent = [look(true, more) | {"all": ""} for more in (True, False)], list[tuple[int, Any]]()
    seen_by = Counter({"spoilt": count, "seen when opened": 0, "seen by verify alone": 0, "no effect": 0})
    for k in range(count):
        spoilt, path = spoiled(files, k), folder / "spoiled.db"
        verified = sound(write(path, spoilt))
        write(path, spoilt)
        both = [look(path, more) for more in (True, False)]  # the second time: nothing right was written wrong
        hit = any("found" in seen.values() for seen in both)
        changed = [
            (k, name) for seen, real in zip(both, truth, strict=True) for name in seen if seen[name] != real[name]
        ]
        changed = [] if hit or not verified else changed
        for seen, real in zip(both, truth, strict=True):
            changed += [(k, user) for user in USERS if user in seen and less(seen[user], real[user])]
        seen_by["seen when opened" if hit else "no effect" if verified else "seen by verify alone"] += not changed
        silent += changed
    return silent, seen_by


def sound(path: Path) -> bool:
    """Whether `verify` finds nothing."""
    try:
        return verify(path).sound
    except SeqveilError:
        return False


def less(said: Any, true: Any) -> bool:
    """Whether a user's ledger is another than the truth, with nothing said; one set apart may have disclosed less."""
    if said == "found":
        return False
    return said[0] is None or said[1] != true[1][: len(said[1])] or len(said[1]) < len(true[1]) - 1


def flipped(files: Files, k: int) -> Files:
    """One bit of one file, two times in three in the head or where something stands: much of a small file is room."""
    chance = random.Random(k)
    end = chance.choice([end for end, content in files.items() if content])
    content = bytearray(files[end])
    used = [range(len(content)), range(100), [at for at, byte in enumerate(content) if byte]][k % 3]
    content[chance.choice(used) % len(content)] ^= 1 << chance.randrange(8)
    return files | {end: bytes(content)}


def cut(files: Files, k: int) -> Files:
    """The file, or the -wal beside it, is cut somewhere."""
    end = ["", "-wal"][k % 2] if "-wal" in files else ""
    return files | {end: files[end][: int(random.Random(k).random() * len(files[end]))]}
