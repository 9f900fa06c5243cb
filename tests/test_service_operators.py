"""What an operator asks of a running service: erase a person, start without surprises, say when the disk is full."""

import os

import pytest

from seqveil.client import Client, ServiceError
from seqveil.core.errors import InputError
from seqveil.engine.accounting import Budget
from seqveil.engine.streams import Streams
from seqveil.interfaces import figures
from seqveil.interfaces.commands.bridge import MetricsOptions
from served import KEY, running, words_setting


def event(user, seq, value="home", **more):
    return {"user": user, "seq": seq, "value": value, **more}


def erased(service, user, query="", **options):
    return service.ask("DELETE", f"/v1/users/{user}{query}", **options)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("erasing"), words_setting()) as found:
        yield found


def test_an_admin_erases_a_person_while_the_service_runs(service):
    service.release(*(event("zq-ann", k) for k in range(5)), event("bob", 0))
    before = service.ask("GET", "/v1/users/zq-ann/account").json
    answer = erased(service, "zq-ann")
    assert (answer.status, answer.json) == (200, {"releases": 5, "ledger": "kept", "sources": []})
    assert service.ask("GET", "/v1/users/bob/releases").json["releases"]
    for file in service.folder.iterdir():  # in the pages that SQLite keeps for later too
        assert b"zq-ann" not in file.read_bytes(), file.name
    assert service.ask("GET", "/v1/users/zq-ann/releases").reason == "gone"
    back = service.release(event("zq-ann", 5))
    assert back.status == 200
    after = service.ask("GET", "/v1/users/zq-ann/account").json
    assert after["events"] == 6
    assert after["by_composition"] > before["by_composition"]


def test_erasing_again_takes_out_what_came_since_and_then_nothing(service):
    service.release(event("carl/account", 0))  # a name that looks like another address
    with Client(service.url, service.secret) as client:
        assert client.erase("carl/account") == 1
        assert client.erase("carl/account") == 0
        client.release("carl/account", 1, "home")
        assert client.erase("carl/account") == 1
        with pytest.raises(ServiceError, match="not-found"):
            client.erase("nobody")


def test_only_an_admin_erases(service):
    service.release(event("dora", 0))
    others = service.token("release", "read", "read-account", "metrics")
    service.look_again()
    assert erased(service, "dora", token=others).reason == "forbidden"
    assert erased(service, "dora", token=None).reason == "unauthorised"
    assert erased(service, "dora", "?forget_ledger=perhaps").reason == "malformed"
    assert service.ask("GET", "/v1/users/dora/account").json["events"] == 1


def test_with_a_key_too_the_ledger_may_be_forgotten_for_the_randomness_is_another_then(service):
    service.release(event("emil", 0))
    before = service.store._store.salt
    assert erased(service, "emil", "?forget_ledger=true").json["ledger"] == "forgotten"
    assert service.store._store.salt != before
    service.release(event("emil", 0))
    assert service.ask("GET", "/v1/users/emil/account").json["events"] == 1


def test_without_a_key_as_with_one(tmp_path):
    with running(tmp_path, words_setting(), key=None) as service:
        service.release(event("ann", 0), event("ann", 1))
        assert erased(service, "ann").json == {"releases": 2, "ledger": "kept", "sources": []}
        assert service.ask("GET", "/v1/users/ann/account").json["events"] == 2
        assert erased(service, "ann", "?forget_ledger=true").json["ledger"] == "forgotten"
        assert erased(service, "ann").reason == "not-found"
        assert service.release(event("ann", 0)).json["releases"][0]["replayed"] is False
        assert service.ask("GET", "/v1/users/ann/account").json["events"] == 1
        assert b"seqveil_users 1" in service.ask("GET", "/metrics").content


def test_what_was_erased_while_it_ran_is_told_by_name_after_a_restart(tmp_path):
    setting = words_setting()
    with Streams.open(tmp_path / "state.db", setting, key=KEY) as streams:
        streams.release(["ann", "ann", "bob"], [0, 1, 2], [0, 1, 0])
        assert streams.erase(["ann"]) == (2, [])
        streams.release(["bob"], [1], [1])
        spent = streams.standing("ann").by_composition
    with Streams.open(tmp_path / "state.db", setting, key=KEY) as streams:
        assert streams.next_seqs(["ann", "bob"]).tolist() == [2, 2]
        streams.release(["ann"], [0], [2])
        assert streams.standing("ann").by_composition == pytest.approx(spent + 0.7)
    with pytest.raises(InputError, match="state file"):
        Streams(setting).erase(["ann"])


def test_time_that_went_back_is_told_by_its_place(tmp_path):
    with running(tmp_path, words_setting(budget=Budget(per_window=9.0, seconds=60.0, when_spent="stop"))) as service:
        service.release(event("ann", 0, time=100.0))
        late = [event("bob", 0, time=5.0), event("ann", 0, time=100.0), event("ann", 1, time=200.0)]
        answer = service.release(*late, event("ann", 2, time=150.0))
        assert (answer.reason, answer.json["position"]) == ("time-went-back", 3)
        answer = service.release(event("ann", 1, time=99.0))
        assert (answer.reason, answer.json["position"]) == ("time-went-back", 0)
        assert "event 0" in answer.json["detail"]


def test_room_is_looked_for_on_the_disk_that_the_file_is_on(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "state.db").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "disk" / "state.db")
    looked = []
    monkeypatch.setattr(figures.shutil, "disk_usage", lambda path: looked.append(path) or os.statvfs_result)
    with pytest.raises(AttributeError):
        figures.free_bytes(tmp_path / "link.db")
    assert looked == [tmp_path / "disk"]


def test_a_service_without_the_name_of_its_file_still_looks_for_room(tmp_path):
    with running(tmp_path, words_setting(), min_free=1 << 62) as service:
        answer = service.ask("GET", "/readyz")
        assert (answer.status, answer.reason) == (503, "store")
        assert service.ask("GET", "/livez").status == 200


@pytest.mark.parametrize("port", [99999, -1])
def test_a_port_that_is_none_is_refused_before_anything_is_opened(port):
    with pytest.raises(InputError, match="0 to 65535"):
        MetricsOptions(metrics_port=port)
