"""The service over real sockets: what it answers is what the store holds, and a refusal changes nothing."""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.store import StoreError
from seqveil.engine.stream import UNKNOWN
from seqveil.engine.streams import CodeStreams
from seqveil.interfaces.events import Wording
from seqveil.interfaces.service.messages import REASONS
from seqveil.receiver.decode import decode_paths
from served import KEY, WORDS, event, running, words_model, words_setting


@pytest.fixture(scope="module")
def service(tmp_path_factory, one_salt):
    with running(tmp_path_factory.mktemp("served"), words_setting(), body=200_000, events=300) as found:
        yield found


@pytest.mark.slow
def test_what_is_answered_is_what_a_store_with_this_key_releases(service, tmp_path):
    raw = [WORDS[k] for k in np.random.default_rng(3).integers(0, 4, 40)]
    users, seqs = [f"twin {k % 4}" for k in range(40)], [k // 4 for k in range(40)]
    events = [event(*each) for each in zip(users, seqs, raw, strict=True)]
    first = service.release(events[0]).json["releases"]
    rest = service.release(*events[1:]).json["releases"]
    with CodeStreams.open(tmp_path / "s.db", words_setting(), key=KEY) as twin:
        made = twin.release(users, [WORDS.index(value) for value in raw], seqs)
        ledger = twin.account("twin 0")
    assert [row["value"] for row in first + rest] == [WORDS[code] for code in made.codes]
    assert [row["epsilon"] for row in first + rest] == made.epsilons.tolist()
    assert {row["status"] for row in first + rest} == {"released"}
    assert not any(row["replayed"] for row in first + rest)
    account = service.ask("GET", "/v1/users/twin%200").json["account"]
    assert account == json.loads(json.dumps({name: getattr(ledger, name) for name in account}))
    assert account["events"] == 10
    assert account["leakage"] > 0


def test_the_same_event_again_gives_the_same_release(service):
    first = service.release(event("again", 0, "gym"), event("again", 1, "home")).json["releases"]
    again = service.release(*(event("again", k % 2, WORDS[k % 4]) for k in range(12)), event("again", 2)).json[
        "releases"
    ]
    assert [row["value"] for row in again[:12]] == [row["value"] for row in first] * 6
    assert [row["replayed"] for row in again] == [True] * 12 + [False]
    assert service.ask("GET", "/v1/users/again").json["account"]["releases"] == 3


NAME = "a user of 1 to 256 characters, without control characters and ends of lines"
UTF8 = "JSON in UTF-8"
TIMES = "a time as a number or as ISO 8601 text"
MALFORMED = {  # what is sent, and how the answer says what was expected, where that is promised
    "no JSON": (b'{"events": [{"user": "u", "seq"', UTF8),
    "no UTF-8": (b'{"events": [{"user": "\xff\xfe", "seq": 0, "value": "home"}]}', UTF8),
    "half a character": (b'{"events": [{"user": "\\ud800", "seq": 0, "value": "home"}]}', ""),
    "a list": (b"[]", "an object"),
    "nothing": (b"", UTF8),
    "deep": (b'{"events":[{"user":"u","seq":0,"value":' + b"[" * 50_000 + b"]" * 50_000 + b"}]}", UTF8),
    "no events": ({"events": []}, "a list that is not empty"),
    "one event alone": (event("u", 0), "this field"),
    "seq beyond digits": (b'{"events":[{"user":"u","value":"home","seq":' + b"9" * 5000 + b"}]}", UTF8),
}
WRONG = {
    "a word": ("home", "an object"),
    "no user": ({"seq": 0, "value": "home"}, "this field"),
    "no value": ({"user": "u", "seq": 0}, "this field"),
    "empty user": (event("", 0), "text of at least 1 character"),
    "long user": (event("u" * 257, 0), "text of at most 256 characters"),
    **{f"user {name!r}": (event(name, 0), NAME) for name in ("u\n", "u\x85b", "u\u2028b", "u\x7f", "u\x00b")},
    "user a number": (event(5, 0), "text"),
    "seq text": (event("u", "0"), "a whole number"),
    "seq a fraction": (event("u", 0.5), "a whole number"),
    "seq true": (event("u", True), "a whole number"),
    "seq below 0": (event("u", -1), "greater than or equal to 0"),
    "seq huge": (event("u", 2**63), "less than or equal to"),
    "another field": (event("u", 0) | {"zq-secret": 1}, "no other fields"),
    "time text": (event("u", 0, time="zq-secret"), TIMES),
    "time true": (event("u", 0, time=True), TIMES),
    "a batch": ({"user": "u", "seq": 0, "values": ["home"]}, "this field"),
}
MALFORMED |= {name: ({"events": [one]}, expected) for name, (one, expected) in WRONG.items()}


@pytest.mark.parametrize(("body", "expected"), MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_not_as_documented_is_400(service, body, expected):
    answer = service.ask("POST", "/v1/release", body)
    assert (answer.status, answer.reason) == (400, "malformed")
    assert b"zq-secret" not in answer.content
    disclosed = [answer.json["detail"], *(each["expected"] for each in answer.json.get("errors", []))]
    assert any(expected in each for each in disclosed)
    assert service.ask("GET", "/v1/users/u").status == 404


def test_a_gap_is_409_and_nothing_of_the_request_is_released(service):
    answer = service.release(event("gap", 0), event("gap", 1), event("gap", 3))
    assert (answer.status, answer.reason, answer.json["position"], answer.json["next"]) == (409, "out-of-order", 2, 0)
    assert service.ask("GET", "/v1/users/gap").status == 404
    service.release(event("gap", 0))
    assert service.release(event("gap", 2)).json["next"] == 1


def test_what_is_too_large_or_of_another_kind_is_refused(service):
    for most, events in (
        (300, [event(f"large {k}", 0) for k in range(301)]),
        (200, [event("large", k) for k in range(201)]),
    ):
        answer = service.release(*events)
        assert (answer.status, answer.reason, answer.json["most"]) == (413, "too-large", most)
    assert service.ask("POST", "/v1/release", b" " * 200_001).status == 413
    text = service.release(event("large", 0), headers={"Content-Type": "text/plain"})
    assert (text.status, text.reason) == (415, "wrong-type")
    packed = service.ask("POST", "/v1/release", b"\x1f\x8b\x08\x00", headers={"Content-Encoding": "GZIP"})
    assert (packed.status, packed.reason) == (415, "wrong-type")
    assert service.ask("GET", "/v1/release").reason == "wrong-method"
    for path in ("/v1/nothing", "/v1/release/", "/v1/users", "/healthz/"):  # and nobody is sent elsewhere
        assert service.ask("GET", path).reason == "not-found"
    other = service.ask("POST", "/v1/release", {"events": [event("large", 0)], "model": "0" * 64})
    assert (other.status, other.reason) == (409, "wrong-model")
    assert service.ask("GET", "/v1/users/large").status == 404
    known = {"events": [event("fits", 0)], "model": words_model().fingerprint}
    assert service.ask("POST", "/v1/release", known).status == 200


def test_a_receiver_reads_pages_and_the_model(service):
    made = service.release(*(event("read/me ü", k, WORDS[k % 4]) for k in range(150))).json["releases"]
    address = "/v1/users/read%2Fme%20%C3%BC"
    page = service.ask("GET", f"{address}?since=20&limit=100").json
    assert (page["next"], page["more"], len(page["releases"])) == (120, True, 100)
    page["releases"] += service.ask("GET", f"{address}?since=120").json["releases"]
    assert [row["value"] for row in page["releases"]] == [row["value"] for row in made[20:]]
    end = service.ask("GET", f"{address}?since=150").json
    assert (end["account"]["events"], end["releases"], end["next"], end["more"]) == (150, [], 150, False)
    assert service.ask("GET", f"{address}?limit=0").json["releases"] == []
    for query in ("since=-1", "limit=10001", "since=x", "since=", "since=9007199254740992", "since=%C2%B2"):
        assert service.ask("GET", f"{address}?{query}").reason == "malformed"
    assert service.ask("GET", "/v1/users/nobody").reason == "not-found"
    facts = service.ask("GET", "/v1/model").json
    assert facts["setting"] == words_setting().to_dict()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "m").write_bytes(base64.b64decode(facts["file"]))
        assert MarkovModel.load(Path(folder, "m")).fingerprint == facts["fingerprint"] == words_model().fingerprint


def test_a_name_that_no_user_has_is_refused_in_a_path(service):
    assert service.release(event("zoe", 0)).status == 200
    for method in ("GET", "DELETE"):
        for wrong in ("zoe%C2%85", "zoe%7F", "zoe%0A", "zoe%FF", "z" * 257, ""):
            answer = service.ask(method, f"/v1/users/{wrong}")
            assert (answer.status, answer.reason) == (400, "malformed")
    assert [(each["where"], each["expected"]) for each in answer.json["errors"]] == [(["user"], NAME)]
    [disclosed] = service.ask("DELETE", "/v1/users/zoe?forget_ledger=perhaps").json["errors"]
    assert (disclosed["where"], disclosed["expected"]) == (["forget_ledger"], "true or false")
    assert service.ask("GET", "/v1/users/zoe").status == 200


def test_requests_at_once_share_transactions_and_fail_alone(service):
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


def test_metrics_count_and_health_is_disclosed(service):
    for path in ("/readyz", "/healthz"):
        assert service.ask("GET", path, token=None).json == {"status": "ok"}
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
    assert float(counts["seqveil_state_file_bytes"]) > 4096
    assert time.time() - float(counts["seqveil_last_commit_timestamp_seconds"]) < 600
    assert float(counts["seqveil_ledger_new"]) == 1.0
    for name in ("seqveil_disk_free_bytes", "process_open_fds", "process_cpu_seconds_total"):
        assert float(counts[name]) > 0
    assert "counted" not in re.findall(r'="([^"]*)"', text)


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
        assert service.ask("GET", "/readyz").reason == "store"  # though a few bytes would still fit
        sql.execute("PRAGMA max_page_count = 1000000")
        assert service.ask("GET", "/readyz").status == 200
        assert service.release(event("ann", 1)).status == 200
        service.store.close()
        assert service.release(event("ann", 2)).reason == "store"
        assert service.ask("GET", "/readyz").reason == "store"
        assert service.ask("GET", "/healthz").status == 200


BUDGETS = {"stop": Budget(total=2.0, when_spent="stop"), "seconds": Budget(per_window=1.0, seconds=10.0)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUDGETS)
def test_a_budget_is_kept_and_disclosed(tmp_path, kind):
    with running(tmp_path, words_setting(budget=BUDGETS[kind])) as service:
        timed = [event("ann", k, WORDS[k % 4], time=100.0 + k) for k in range(30)]
        if kind == "stop":
            rows = service.release(*timed).json["releases"]
            assert [row["status"] for row in rows].count("withheld") > 5
            assert all(row["value"] is None for row in rows if row["status"] == "withheld")
            page = service.ask("GET", "/v1/users/ann").json["releases"]
            assert [row["status"] for row in page] == [row["status"] for row in rows]
        else:
            assert service.release(event("ann", 0)).reason == "malformed"
            assert service.release(*timed[:3]).status == 200
            answer = service.release(event("bob", 0, time=1.0), event("ann", 3, time=50.0))
            assert (answer.status, answer.reason) == (409, "time-went-back")
            assert service.ask("GET", "/v1/users/bob").status == 404
            assert service.ask("GET", "/v1/users/ann?since=2").json["releases"][0]["time"] == 102.0


@pytest.mark.slow
def test_gaps_may_be_skipped(tmp_path):
    with running(tmp_path, words_setting(), gaps="skip", rate=10.0) as service:
        rows = service.release(event("ann", 2), event("ann", 0)).json["releases"]
        assert [row["status"] for row in rows] == ["released", "given-up"]
        page = service.ask("GET", "/v1/users/ann").json["releases"]
        assert [row["status"] for row in page] == ["given-up", "given-up", "released"]
        wrong = service.release(event("ann", 900_000))
        assert wrong.reason == "out-of-order"
        assert "leaves more than 10000 others" in wrong.json["detail"]
        assert service.release(event("ann", 3)).status == 200  # a clumsy number costs no more than any event


@pytest.mark.slow
def test_batches_are_released_with_their_paths(tmp_path):
    setting = Policy(epsilon=2.0, batch=3, mechanism="tree").on(words_model())
    with running(tmp_path, setting) as service:
        body = {"user": "ann", "seq": 0, "values": ["home", "home", "work"]}
        row = service.release(body).json["releases"][0]
        again = service.release(body | {"values": ["gym"]}).json["releases"][0]
        assert again == row | {"replayed": True}
        assert len(row["values"]) == 3
        assert service.release(body | {"seq": 1, "values": ["gym"]}).status == 200
        page = service.ask("GET", "/v1/users/ann").json["releases"]
        assert [each["events"] for each in page] == [3, 1]
        distributions = decode_paths(setting, [tuple(each["path"]) for each in page], 4, smooth=False)
        assert distributions.shape == (4, 4)
        assert service.release(body | {"seq": 2, "values": ["home"] * 4}).reason == "malformed"
        assert service.release(body | {"seq": 2, "values": []}).reason == "malformed"
        answer = service.release(body | {"seq": 2, "values": ["home", "zq-secret"]})
        assert answer.status == 200
        assert b"zq-secret" not in answer.content
        assert service.release(event("ann", 3)).reason == "malformed"


def test_long_text_among_numbers_takes_no_memory():
    wording = Wording(Alphabet([1, 2, 3]))
    values = [1] * 20_000 + ["x" * 1_000_000]
    assert wording.encode(values)[-1] == UNKNOWN
    with pytest.raises(InputError, match="come as JSON"):
        Wording(Alphabet([0.0, float("inf")]))
    with pytest.raises(InputError, match="come as JSON"):
        Wording(Alphabet([((1, 2), 3), "a"]))


def test_every_refusal_is_in_the_table_of_the_docs():
    table = Path(__file__).parents[3].joinpath("docs/service.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")]
    disclosed = {
        (int(status), reason.strip(" `"))
        for status, many in rows
        if status.strip().isdecimal()
        for reason in many.split(",")
    }
    assert disclosed == {(status, reason) for reason, (status, _) in REASONS.items()}


PLAIN = ("/healthz", "/readyz", "/metrics", "/v1/model")


@pytest.fixture
def own(tmp_path):
    with running(tmp_path, words_setting(), body=200_000, events=300) as found:
        yield found


@pytest.fixture
def tester():
    """What makes requests from the document: loaded before a server's thread runs, and only where it is used.

    Python 3.11 may fail to read source while another thread does.
    """
    import schemathesis.specs.openapi.schemas

    return schemathesis


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_answer_is_as_documented(tester, own, mode):
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    wrong = mode == "negative"
    document = tester.openapi.from_url(f"{own.url}/openapi.json")
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) == 7
    for operation in operations:
        if wrong and operation.path in PLAIN:
            continue  # nothing about them can be wrong

        @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=tester.GenerationMode(mode)))
        def check(case):
            headers = {"Authorization": f"Bearer {own.secret}"}
            # the schema cannot tell which values are in the alphabet
            case.call_and_validate(headers=headers, timeout=20, excluded_checks=[positive_data_acceptance])

        check()


def test_the_document_has_examples_scopes_and_refusals(own):
    document = own.ask("GET", "/openapi.json", token=None).json
    release = document["paths"]["/v1/release"]["post"]
    assert release["security"] == [{"token": ["release"]}]
    example = release["requestBody"]["content"]["application/json"]["example"]
    assert own.ask("POST", "/v1/release", example).status == 200
    for status in ("400", "401", "403", "409", "413", "415", "429", "503"):
        assert list(release["responses"][status]["content"]) == ["application/problem+json"]


@pytest.mark.parametrize(
    ("limit", "said"), [("waiting", "0 events wait, of at most 0"), ("free", "bytes free, of at least")]
)
def test_not_ready_says_why_in_plain_words(tmp_path, limit, said):
    with running(tmp_path, words_setting(), **{limit: 0 if limit == "waiting" else 1 << 62}) as service:
        answer = service.ask("GET", "/readyz", token=None)
        assert (answer.status, answer.reason) == (503, "busy" if limit == "waiting" else "store")
        assert said in answer.json["detail"]
        assert service.ask("GET", "/healthz", token=None).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("how", ["removed", "older copy"])
def test_nothing_is_released_into_a_file_that_is_gone(tmp_path, how):
    with running(tmp_path, words_setting()) as service:
        assert service.release({"user": "ann", "seq": 0, "value": "gym"}).status == 200
        service.store.backup(tmp_path / "older.db")
        assert service.release({"user": "ann", "seq": 1, "value": "gym"}).status == 200
        os.link(tmp_path / "state.db", tmp_path / "kept")
        if how == "removed":
            os.unlink(tmp_path / "state.db")
        else:
            os.replace(tmp_path / "older.db", tmp_path / "state.db")
        answer = service.release({"user": "ann", "seq": 2, "value": "gym"})
        assert (answer.status, answer.reason) == (503, "store")
        assert service.ask("GET", "/v1/users/ann").status == 503
        assert service.ask("GET", "/metrics").status in (200, 503)
        with pytest.raises(StoreError, match="taken away"):
            service.store.release(["bob"], [0])
        with pytest.raises(StoreError, match="taken away"):
            service.store.backup(tmp_path / "copy.db")
        health = service.ask("GET", "/readyz", token=None)
        assert (health.status, health.reason) == (503, "store")
        os.replace(tmp_path / "kept", tmp_path / "state.db")  # the right one again
        assert service.release({"user": "ann", "seq": 2, "value": "gym"}).status == 200
