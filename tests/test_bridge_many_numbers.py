"""A bridge keeps the numbers of all events under way, however long the names: none is drawn twice after a kill."""

import json

import pytest

from bridges import KEY, setting_of
from seqveil.core.errors import InputError
from seqveil.engine import store as states
from seqveil.engine.streams import Streams
from seqveil.engine.upkeep import erase, verify
from seqveil.interfaces import bridge
from seqveil.interfaces.bridge import Core, Made
from seqveil.interfaces.payloads import Event, Form, Payloads

USERS = [f"user-{k:02d}" for k in range(40)]


@pytest.fixture
def small(monkeypatch):
    """Positions that hold a tenth of the numbers."""
    for module in (bridge, states):
        monkeypatch.setattr(module, "MOST_POSITION", 80)


def core_of(store):
    return Core(store, Payloads(store.setting, form=Form.parse("value")), "mqtt")


def come(path, users, again):
    with Streams.open(path, setting_of(), key=KEY) as store:
        return core_of(store).release([Event(user, None, (1,), ident=f"7/{user}", again=again) for user in users])


def sources(path):
    with Streams.open(path, setting_of(), key=KEY) as store:
        parts = (store.position("mqtt:numbers" if not part else f"mqtt:{part}:numbers") for part in range(40))
        return [json.loads(str(part)) for part in parts if part is not None]


def test_numbers_that_fill_several_positions_are_all_found_again(tmp_path, small):
    path = tmp_path / "s.db"
    first = come(path, USERS, again=False)
    assert all(isinstance(made, Made) for made in first)
    assert len(sources(path)) > 5
    again = come(path, USERS, again=True)
    assert [made.payload for made in again] == [made.payload for made in first]
    assert all(made.repeated for made in again)


def test_positions_that_are_not_needed_any_more_are_emptied(tmp_path, small):
    path = tmp_path / "s.db"
    come(path, USERS, again=False)
    with Streams.open(path, setting_of(), key=KEY) as store:
        core = core_of(store)
        core.confirmed([f"7/{user}" for user in USERS[1:]])
        core.close()
    assert [part for part in sources(path) if part] == [{"7/user-00": 0}]


def test_erasing_takes_names_out_of_every_position(tmp_path, small):
    path = tmp_path / "s.db"
    come(path, USERS, again=False)
    assert erase(path, [USERS[1], USERS[-1]], KEY) == (2, [])
    content = path.read_bytes()
    assert all(content.count(user.encode()) == 0 for user in (USERS[1], USERS[-1]))
    assert verify(path).sound
    made = come(path, USERS, again=True)
    anew = [user for user, each in zip(USERS, made, strict=True) if not each.repeated]
    assert anew == [USERS[1], USERS[-1]]  # nothing is known of them, so they begin again


def test_releases_whose_numbers_cannot_be_kept_are_not_given_out(tmp_path, monkeypatch):
    monkeypatch.setattr(states, "MOST_POSITION", 80)  # the bridge takes them for larger
    with pytest.raises(InputError, match="expected positions"):
        come(tmp_path / "s.db", USERS, again=False)


@pytest.mark.slow
def test_as_many_messages_with_as_long_names_as_there_may_be(tmp_path):
    path, names = tmp_path / "s.db", [f"{'é' * 120}{k:05d}" for k in range(3000)]
    with Streams.open(path, setting_of(), key=KEY) as store:
        core = core_of(store)
        for k in range(0, len(names), 1000):
            core.release([Event(user, None, (1,), ident=f"{user}/{user}") for user in names[k : k + 1000]])
    with Streams.open(path, setting_of(), key=KEY) as store:
        assert list(core_of(store).numbers) == [f"{user}/{user}" for user in names]
