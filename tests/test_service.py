"""The service over real sockets: what it answers is what the store holds, and a refusal changes nothing."""

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import reference_streams as ref
from seqveil.core.alphabet import Alphabet, Grid
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.engine.accounting import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.stream import UNKNOWN
from seqveil.engine.streams import Streams
from seqveil.interfaces.events import Wording
from seqveil.interfaces.service.app import create_app
from seqveil.interfaces.service.config import ServeConfig
from seqveil.receiver.decode import decode_paths
from served import KEY, WORDS, event, running, words_model, words_setting


@pytest.fixture(scope="module")
def service(tmp_path_factory, one_salt):
    with running(tmp_path_factory.mktemp("served"), words_setting(), max_body=200_000, max_events=300) as found:
        yield found


@pytest.mark.slow
def test_what_is_answered_is_what_a_store_with_this_key_releases(service, tmp_path):
    raw = [WORDS[k] for k in np.random.default_rng(3).integers(0, 4, 40)]
    users, seqs = [f"twin {k % 4}" for k in range(40)], [k // 4 for k in range(40)]
    events = [event(*each) for each in zip(users, seqs, raw, strict=True)]
    first = service.ask("POST", "/v1/release", events[0]).json["releases"]  # the form of one event
    rest = service.release(*events[1:]).json["releases"]
    with Streams.open(tmp_path / "s.db", words_setting(), key=KEY) as twin:
        made = twin.release(users, [WORDS.index(value) for value in raw], seqs)
        ledger = twin.account("twin 0")
    assert [row["value"] for row in first + rest] == [WORDS[code] for code in made.codes]
    assert [row["epsilon"] for row in first + rest] == made.epsilons.tolist()
    assert {row["status"] for row in first + rest} == {"released"}
    assert not any(row["replayed"] for row in first + rest)
    account = service.ask("GET", "/v1/users/twin%200/account").json
    assert account == {name: getattr(ledger, name) for name in account}
    assert account["events"] == 10
    assert account["leakage"] > 0


def test_the_same_event_again_gives_the_same_release(service):
    first = service.release(event("again", 0, "gym"), event("again", 1, "home")).json["releases"]
    again = service.release(*(event("again", k % 2, WORDS[k % 4]) for k in range(12)), event("again", 2)).json[
        "releases"
    ]
    assert [row["value"] for row in again[:12]] == [row["value"] for row in first] * 6
    assert [row["replayed"] for row in again] == [True] * 12 + [False]
    assert service.ask("GET", "/v1/users/again/account").json["releases"] == 3


MALFORMED = {
    "no JSON": b'{"user": "u", "seq"',
    "no UTF-8": b'{"user": "\xff\xfe", "seq": 0, "value": "home"}',
    "half a character": b'{"user": "\\ud800", "seq": 0, "value": "home"}',
    "a list": b"[]",
    "a number": b"7",
    "nothing": b"",
    "deep": b'{"user":"u","seq":0,"value":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "no events": {"events": []},
    "no user": {"seq": 0, "value": "home"},
    "no value": {"user": "u", "seq": 0},
    "empty user": event("", 0),
    "long user": event("u" * 300, 0),
    "user with control characters": event("u\n", 0),
    "user a number": event(5, 0),
    "seq text": event("u", "0"),
    "seq a fraction": event("u", 0.5),
    "seq true": event("u", True),
    "seq below 0": event("u", -1),
    "seq huge": event("u", 2**63),
    "seq beyond digits": b'{"user":"u","value":"home","seq":' + b"9" * 5000 + b"}",
    "another field": event("u", 0, valu="zq-secret"),
    "an unknown field's name": {"events": [event("u", 0) | {"zq-secret": 1}]},
    "time text": event("u", 0, time="now"),
    "a batch": {"user": "u", "seq": 0, "values": ["home"]},
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_not_as_documented_is_400(service, body):
    answer = service.ask("POST", "/v1/release", body)
    assert (answer.status, answer.reason) == (400, "malformed")
    assert b"zq-secret" not in answer.content
    assert service.ask("GET", "/v1/users/u/account").status == 404


@pytest.mark.parametrize("value", ["zq-secret", 0, 1.5, True, None, ["home"], {"a": 1}, [["home"]], "x" * 100_000])
def test_a_value_outside_the_alphabet_is_answered_like_any_other(service, value):
    user = f"outside {value!r}"[:50]
    answer = service.release(event(user, 0), event(user, 1, value))
    assert answer.status == 200
    usual, outside = answer.json["releases"]
    assert outside.keys() == usual.keys()
    assert (outside["status"], outside["epsilon"]) == (usual["status"], usual["epsilon"])


def test_a_gap_is_409_and_nothing_of_the_request_is_released(service):
    answer = service.release(event("gap", 0), event("gap", 1), event("gap", 3))
    assert (answer.status, answer.reason, answer.json["position"], answer.json["next"]) == (409, "out-of-order", 2, 0)
    assert service.ask("GET", "/v1/users/gap/account").status == 404
    service.release(event("gap", 0))
    assert service.release(event("gap", 2)).json["next"] == 1


def test_what_is_too_large_or_of_another_kind_is_refused(service):
    assert service.release(*(event("large", k) for k in range(301))).reason == "too-large"
    assert service.ask("POST", "/v1/release", b" " * 200_001).status == 413
    chunks = (b" " * 50_000 for _ in range(10))  # no length told beforehand
    assert chunked(service, chunks) in (413, None)
    text = service.ask("POST", "/v1/release", event("large", 0), headers={"Content-Type": "text/plain"})
    assert (text.status, text.reason) == (415, "wrong-type")
    assert service.ask("GET", "/v1/release").reason == "wrong-method"
    assert service.ask("GET", "/v1/nothing").reason == "not-found"
    other = service.ask("POST", "/v1/release", event("large", 0, model="0" * 64))
    assert (other.status, other.reason) == (409, "wrong-model")
    assert service.ask("GET", "/v1/users/large/account").status == 404
    assert service.ask("POST", "/v1/release", event("fits", 0, model=words_model().fingerprint)).status == 200


def chunked(service, chunks):
    """The status, or None where the server hung up before it had all."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    headers = {"Authorization": f"Bearer {service.secret}", "Content-Type": "application/json"}
    try:
        connection.request("POST", "/v1/release", chunks, headers, encode_chunked=True)
        return connection.getresponse().status
    except (BrokenPipeError, ConnectionResetError):
        return None
    finally:
        connection.close()


def test_a_receiver_reads_pages_and_the_model(service):
    made = service.release(*(event("read/me ü", k, WORDS[k % 4]) for k in range(150))).json["releases"]
    address = "/v1/users/read%2Fme%20%C3%BC/releases"
    page = service.ask("GET", f"{address}?since=20&limit=100").json
    assert (page["next"], page["more"], len(page["releases"])) == (120, True, 100)
    page["releases"] += service.ask("GET", f"{address}?since=120").json["releases"]
    assert [row["value"] for row in page["releases"]] == [row["value"] for row in made[20:]]
    assert service.ask("GET", f"{address}?since=150").json == {
        "user": "read/me ü", "releases": [], "next": 150, "more": False,
    }  # fmt: skip
    for query in ("since=-1", "limit=0", "limit=99999", "since=x"):
        assert service.ask("GET", f"{address}?{query}").reason == "malformed"
    assert service.ask("GET", "/v1/users/nobody/releases").reason == "not-found"
    facts = service.ask("GET", "/v1/model")
    assert facts.json["setting"] == words_setting().to_dict()
    tag = facts.headers["ETag"]
    assert tag == f'"{words_model().fingerprint}"'
    file = service.ask("GET", "/v1/model/file")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "m").write_bytes(file.content)
        assert MarkovModel.load(Path(folder, "m")).fingerprint == words_model().fingerprint
    for path in ("/v1/model", "/v1/model/file"):
        same = service.ask("GET", path, headers={"If-None-Match": tag})
        assert (same.status, same.content) == (304, b"")


def test_requests_at_once_share_transactions_and_fail_alone(service):
    before = service.app.state.service.writer.transactions
    bodies = [[event(f"crowd {k}", 0), event(f"crowd {k}", 1)] for k in range(60)]
    bodies += [[event(f"bad {k}", 0), event(f"bad {k}", 2)] for k in range(20)]
    barrier = threading.Barrier(16)

    def work(part):
        barrier.wait()
        return [service.release(*body).status for body in part]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(work, [bodies[k::16] for k in range(16)]))
    assert sorted(status for part in found for status in part) == [200] * 60 + [409] * 20
    assert all(service.store.account(f"crowd {k}").events == 2 for k in range(60))
    assert all(service.store.account(f"bad {k}") is None for k in range(20))
    assert service.app.state.service.writer.transactions - before < 60


def test_metrics_count_and_health_is_told(service):
    assert service.ask("GET", "/healthz", token=None).json == {"status": "ok"}
    service.release(event("counted", 0))
    service.release(event("counted", 0))
    service.release(event("counted", 7))
    text = service.ask("GET", "/metrics").content.decode()
    counts = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(counts["seqveil_releases_total"]) >= 1
    assert float(counts["seqveil_replays_total"]) >= 1
    assert float(counts['seqveil_refusals_total{reason="out-of-order"}']) >= 1
    assert float(counts["seqveil_users"]) > 0
    assert 'seqveil_request_seconds_count{method="POST",route="/v1/release",status="200"}' in counts
    assert 'seqveil_user_leakage_nats_bucket{le="1.0"}' in counts


@pytest.mark.slow
def test_a_full_disk_is_503_and_passes(tmp_path):
    with running(tmp_path, words_setting()) as service:
        service.release(event("ann", 0))
        sql = service.store._store.sql
        (pages,) = sql.execute("PRAGMA page_count").fetchone()
        sql.execute(f"PRAGMA max_page_count = {pages}")
        answer = service.release(*(event(f"{'long' * 50} {k}", 0) for k in range(500)))
        assert (answer.status, answer.reason) == (503, "store")
        assert int(answer.headers["Retry-After"]) > 0
        sql.execute("PRAGMA max_page_count = 1000000")
        assert service.release(event("ann", 1)).status == 200
        service.store.close()
        assert service.release(event("ann", 2)).reason == "store"
        service.look_again()
        assert service.ask("GET", "/healthz").status == 503


BUDGETS = {
    "stop": Budget(total=2.0, when_spent="stop"),
    "seconds": Budget(per_window=1.0, seconds=10.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUDGETS)
def test_a_budget_is_kept_and_told(tmp_path, kind):
    with running(tmp_path, words_setting(budget=BUDGETS[kind])) as service:
        timed = [event("ann", k, WORDS[k % 4], time=100.0 + k) for k in range(30)]
        if kind == "stop":
            rows = service.release(*timed).json["releases"]
            assert [row["status"] for row in rows].count("withheld") > 5
            assert all(row["value"] is None for row in rows if row["status"] == "withheld")
            page = service.ask("GET", "/v1/users/ann/releases").json["releases"]
            assert [row["status"] for row in page] == [row["status"] for row in rows]
        else:
            assert service.release(event("ann", 0)).reason == "malformed"
            assert service.release(*timed[:3]).status == 200
            answer = service.release(event("bob", 0, time=1.0), event("ann", 3, time=50.0))
            assert (answer.status, answer.reason) == (409, "time-went-back")
            assert service.ask("GET", "/v1/users/bob/account").status == 404
            assert service.ask("GET", "/v1/users/ann/releases?since=2").json["releases"][0]["time"] == 102.0


@pytest.mark.slow
def test_gaps_may_be_skipped(tmp_path):
    with running(tmp_path, words_setting(), gaps="skip") as service:
        rows = service.release(event("ann", 2), event("ann", 0)).json["releases"]
        assert [row["status"] for row in rows] == ["released", "given-up"]
        page = service.ask("GET", "/v1/users/ann/releases").json["releases"]
        assert [row["status"] for row in page] == ["given-up", "given-up", "released"]
        assert service.release(event("ann", 50_000)).reason == "out-of-order"


@pytest.mark.slow
def test_batches_are_released_with_their_paths(tmp_path):
    setting = Policy(epsilon=2.0, batch=3, mechanism="tree").on(words_model())
    with running(tmp_path, setting) as service:
        body = {"user": "ann", "seq": 0, "values": ["home", "home", "work"]}
        row = service.ask("POST", "/v1/release", body).json["releases"][0]
        again = service.ask("POST", "/v1/release", body | {"values": ["gym"]}).json["releases"][0]
        assert again == row | {"replayed": True}
        assert len(row["values"]) == 3
        assert service.release(body | {"seq": 1, "values": ["gym"]}).status == 200
        page = service.ask("GET", "/v1/users/ann/releases").json["releases"]
        assert [each["events"] for each in page] == [3, 1]
        laws = decode_paths(setting, [tuple(each["path"]) for each in page], 4, smooth=False)
        assert laws.shape == (4, 4)
        assert service.release(body | {"seq": 2, "values": ["home"] * 4}).reason == "malformed"
        assert service.release(body | {"seq": 2, "values": []}).reason == "malformed"
        answer = service.release(body | {"seq": 2, "values": ["home", "zq-secret"]})
        assert answer.status == 200
        assert b"zq-secret" not in answer.content
        assert service.ask("POST", "/v1/release", event("ann", 3)).reason == "malformed"


@pytest.mark.slow
def test_points_of_a_grid_are_pairs(tmp_path):
    chain = ref.random_chain(np.random.default_rng(2), 4)
    model = MarkovModel(*chain, alphabet=Grid.regular(2, 2, bounds=(0, 2, 0, 2)))
    with running(tmp_path, Policy(epsilon=1.0, mechanism="balanced").on(model)) as service:
        row = service.release(event("ann", 0, [0.3, 1.9])).json["releases"][0]
        assert row["value"] in [[x, y] for x in (0.5, 1.5) for y in (0.5, 1.5)]
        for seq, value in enumerate(([9, 9], [0.5], "home", ["home", 1], [0.5, None], 3, [True, 1]), 1):
            assert service.release(event("ann", seq, value)).json["releases"][0]["status"] == "released"


def test_long_text_among_numbers_takes_no_memory():
    wording = Wording(Alphabet([1, 2, 3]))
    values = [1] * 20_000 + ["x" * 1_000_000]
    assert wording.encode(values)[-1] == UNKNOWN
    with pytest.raises(InputError, match="speaks JSON"):
        Wording(Alphabet([0.0, float("inf")]))
    with pytest.raises(InputError, match="speaks JSON"):
        Wording(Alphabet([((1, 2), 3), "a"]))


def test_an_application_is_of_its_store(tmp_path):
    with Streams.open(tmp_path / "s.db", words_setting()) as store, pytest.raises(InputError, match="another setting"):
        create_app(store, words_setting(budget=3.0), ServeConfig(no_auth=True))
