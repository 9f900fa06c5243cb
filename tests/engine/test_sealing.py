"""What is private of a stream lies in a state file sealed, for one user, one event and one key."""

import sqlite3
import sys

import numpy as np
import pytest

import reference_streams as ref
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.engine import calls
from seqveil.engine.policy import Policy
from seqveil.engine.sealing import Sealing
from seqveil.engine.sqlite import row_sum
from seqveil.engine.state import Private
from seqveil.engine.store import Damaged
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import verify

KEY, SALT = bytes(range(32)), b"salt"
SETTING = Policy(epsilon=0.8, mechanism="balanced").on(MarkovModel(*ref.random_chain(np.random.default_rng(1), 3)))
MARK = 7_340_033
MEMORY = np.array([MARK, 2, 0])


def test_what_is_sealed_opens_for_the_same_user_and_event_alone():
    sealing = Sealing(KEY, SALT)
    closed = sealing.close("ann", 5, MEMORY)
    assert sealing.open("ann", 5, closed).tolist() == MEMORY.tolist()
    assert MEMORY.astype("<i8").tobytes()[:3] not in closed
    assert closed != sealing.close("ann", 5, MEMORY)  # nothing shows that it did not change
    tampered = [closed[:k] + bytes([closed[k] ^ 1]) + closed[k + 1 :] for k in range(len(closed))]
    others = [
        *((sealing, "ann", 5, changed) for changed in (*tampered, closed[:-1], closed[:9], b"")),
        (sealing, "bob", 5, closed),
        (sealing, "ann", 4, closed),
        (Sealing(bytes(32), SALT), "ann", 5, closed),
        (Sealing(KEY, b"another file"), "ann", 5, closed),
    ]
    for opening, user, step, content in others:
        with pytest.raises(Damaged, match=r"does not open: .* Use the key of the state file, or restore") as refused:
            opening.open(user, step, content)
        assert refused.value.users == (user,)
        assert "\n" not in str(refused.value)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(InputError, match=r"pip install -e '.\[state\]'"):
        Sealing(KEY, SALT).close("ann", 0, MEMORY)


@pytest.fixture
def taken(monkeypatch):
    """A mechanism that remembers how often each raw symbol was 2; what it was given, step by step."""
    given, real = [], calls.step

    def step(setting, state, private, codes, *more):
        given.append(private.memory.tolist())
        made, after, _ = real(setting, state, Private(), codes, *more)
        return made, after, Private(memory=private.memory + np.outer(codes == 2, [0, 1]))

    monkeypatch.setattr(Private, "start", lambda setting, users=1: Private(memory=np.tile([MARK, 0], (users, 1))))
    monkeypatch.setattr(calls, "step", step)
    return given


@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_a_state_file_goes_on_with_what_was_remembered(tmp_path, taken, memory):
    path = tmp_path / "s.db"
    for raw in ([2, 2, 1], [1, 2, 2]):
        with CodeStreams.open(path, SETTING, key=KEY, memory=memory) as streams:
            for _ in range(2):
                streams.release(["ann", "bob", "cy"], raw)
    found = [row[1] for step in taken for row in step]
    assert found == [0, 0, 0, 1, 1, 0, 2, 2, 0, 2, 3, 1]
    assert np.int64(MARK).tobytes() not in path.read_bytes()
    assert verify(path).sound
    with sqlite3.connect(
        path
    ) as sql:  # the row of one user with what is sealed of another, and a checksum that is right
        rows = sql.execute("SELECT * FROM users ORDER BY id").fetchall()
        user, name, _, _, *ledger, state, _, _ = rows[0]
        own = row_sum(user, name, ledger, state, rows[1][11])
        sql.execute("UPDATE users SET sealed = ?, checksum = ? WHERE id = 1", (rows[1][11], own))
    sql.close()
    with CodeStreams.open(path, SETTING, key=KEY) as streams:
        with pytest.raises(Damaged, match="does not open") as refused:
            streams.release(["bob", "ann"], [0, 0])
        assert refused.value.users == ("ann",)
        assert streams.release(["bob"], [0]).seqs.tolist() == [4]


def test_without_a_key_nothing_private_is_kept(tmp_path, taken):
    path = tmp_path / "s.db"
    with CodeStreams.open(path, SETTING) as streams:
        streams.release(["ann", "ann"], [2, 2])
    with CodeStreams.open(path, SETTING) as streams:
        assert streams.release(["ann", "new"], [0, 0]).seqs.tolist() == [2, 0]
    with sqlite3.connect(path) as sql:
        assert sql.execute("SELECT sealed FROM users").fetchall() == [(None,), (None,)]
    sql.close()
