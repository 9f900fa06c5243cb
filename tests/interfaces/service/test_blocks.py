"""Blocks over HTTP: killed within a block, the service goes on with the releases of a run that was not cut."""

import signal

import pytest

import reference_streams as ref
from seqveil.core.randomness import key_file
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from served import WORDS, Process, ask, event, words_model

BLOCKS = Policy(epsilon=4.0, block=5)


@pytest.mark.slow
def test_a_service_killed_within_a_block_releases_the_same(tmp_path):
    events = [event(user, seq, WORDS[(seq + len(user)) % 4]) for seq in range(13) for user in ("ann", "robert")]
    released = []
    BLOCKS.save(tmp_path / "p")
    policy = (tmp_path / "p").read_text()
    for first, last in ((0, 7), (4, 16), (16, 26)):  # some are sent again
        process = Process(tmp_path, "--no-auth", "--key", tmp_path / "key", policy=policy)
        for one in events[first:last]:
            answer = ask(process.port, "POST", "/v1/release", {"events": [one]})
            assert answer.status == 200, answer.content
            released.append((one["user"], one["seq"], answer.json["releases"][0]))
        process.end(signal.SIGKILL)
    by_event = {(user, seq): row for user, seq, row in released}
    terms, key = BLOCKS.on(words_model()), key_file(tmp_path / "key")
    with CodeStreams.open(tmp_path / "state.db", terms, key=key) as store:
        salt = store._store.salt
        assert store.account("ann").epsilon_spent == 12.0  # three blocks
    for user in ("ann", "robert"):
        own = [one["value"] for one in events if one["user"] == user]
        whole = ref.twin(terms, salt, key).release([user] * 13, words_model().alphabet.encode(own))
        assert [by_event[user, seq]["value"] for seq in range(13)] == [WORDS[code] for code in whole.codes]
        assert [by_event[user, seq]["epsilon"] for seq in range(13)] == [
            4.0 if seq % 5 == 0 else 0.0 for seq in range(13)
        ]
    again = [row for _, _, row in released if row["replayed"]]
    assert len(again) == 3
    refused = pytest.raises(RuntimeError, match="blocks with a stored state need a key")
    with refused:
        (tmp_path / "state.db").unlink()
        Process(tmp_path, "--no-auth", policy=policy)
