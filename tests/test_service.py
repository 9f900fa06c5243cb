"""The service over real sockets: what it answers is what the store holds, and a refusal changes nothing."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import schemathesis
import schemathesis.specs.openapi.schemas  # now, since Python 3.11 may fail to read source while a server's thread does
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

import reference_streams as ref
from seqveil import SeqveilError
from seqveil.client import Client
from seqveil.core.alphabet import Alphabet, Grid
from seqveil.core.errors import InputError
from seqveil.core.model import MarkovModel
from seqveil.interfaces.events import Wording
from seqveil.interfaces.service.app import create_app
from seqveil.interfaces.service.config import ServeConfig
from seqveil.interfaces.service.monitoring import OPEN
from seqveil.receive.decode import decode_paths
from seqveil.release.accounting import Budget
from seqveil.release.stream import UNKNOWN, Setting
from seqveil.release.streams import Streams
from served import KEY, WORDS, Process, ask, running, words_model, words_setting


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("served"), words_setting(), max_body=200_000, max_events=300) as found:
        yield found


def event(user, seq, value="home", **more):
    return {"user": user, "seq": seq, "value": value, **more}


@pytest.mark.slow
def test_what_is_answered_is_what_a_store_with_this_key_releases(service, tmp_path):
    raw = [WORDS[k] for k in np.random.default_rng(3).integers(0, 4, 40)]
    users, seqs = [f"twin {k % 4}" for k in range(40)], [k // 4 for k in range(40)]
    events = [event(*each) for each in zip(users, seqs, raw, strict=True)]
    first = service.ask("POST", "/v1/release", events[0]).json["releases"]  # the form of one event
    rest = service.release(*events[1:]).json["releases"]
    with Streams.open(tmp_path / "s.db", words_setting(), key=KEY) as twin:
        made = twin.release(users, [WORDS.index(value) for value in raw], seqs)
        ledger = twin.standing("twin 0")
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
    assert all(service.store.standing(f"crowd {k}").events == 2 for k in range(60))
    assert all(service.store.standing(f"bad {k}") is None for k in range(20))
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
        service.app.state.service._probed = -1e9
        assert service.ask("GET", "/healthz").status == 503


BUDGETS = {
    "error": Budget(total=2.0, when_spent="error"),
    "stop": Budget(total=2.0, when_spent="stop"),
    "seconds": Budget(per_window=1.0, seconds=10.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUDGETS)
def test_a_budget_is_kept_and_told(tmp_path, kind):
    with running(tmp_path, words_setting(budget=BUDGETS[kind])) as service:
        timed = [event("ann", k, WORDS[k % 4], time=100.0 + k) for k in range(30)]
        if kind == "error":
            answer = service.release(*timed)
            assert (answer.status, answer.reason) == (409, "budget-spent")
            rows, spent = answer.json["releases"], answer.json["position"]
            assert answer.json["refused"] == list(range(spent, 30))
            assert [row["seq"] for row in rows] == list(range(spent))
            again = service.release(*timed).json
            assert again == answer.json | {"releases": [row | {"replayed": True} for row in rows]}
            statuses = [service.release(each).status for each in timed]
            assert statuses == [200] * spent + [409] * (30 - spent)
            beside = service.release(timed[spent], event("bob", 0, time=1.0)).json
            assert (beside["refused"], [row["user"] for row in beside["releases"]]) == ([0], ["bob"])
            assert service.ask("GET", "/v1/users/ann/account").json["budget_left"] < 0.7
        elif kind == "stop":
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
    setting = Setting.of(words_model(), "tree", 2.0, batch=3)
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
    with running(tmp_path, Setting.of(model, "balanced", 1.0)) as service:
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


# the whole interface, as OpenAPI tells it


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=str)
def test_every_answer_is_as_documented(service, mode):
    document = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) == 11
    for operation in operations:
        if mode == schemathesis.GenerationMode.NEGATIVE and operation.path in OPEN:
            continue  # nothing about them can be wrong

        @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case):
            headers = {"Authorization": f"Bearer {service.secret}"}
            # the schema cannot tell which values are in the alphabet
            case.call_and_validate(headers=headers, timeout=20, excluded_checks=[positive_data_acceptance])

        check()


def test_the_document_has_examples_scopes_and_refusals(service):
    document = service.ask("GET", "/openapi.json", token=None).json
    release = document["paths"]["/v1/release"]["post"]
    assert release["security"] == [{"token": ["release"]}]
    examples = release["requestBody"]["content"]["application/json"]["examples"]
    assert service.ask("POST", "/v1/release", examples["one"]["value"]).status == 200
    assert service.ask("POST", "/v1/release", examples["many"]["value"]).status == 200
    for status in ("400", "401", "403", "409", "413", "415", "429", "503"):
        assert list(release["responses"][status]["content"]) == ["application/problem+json"]


# real processes


def load(url, user, count, answers, clock=None):
    """Release a user's stream one event after another, whatever happens to the server, and note every answer."""
    with Client(url, attempts=200, backoff=0.05, timeout=20) as client:
        for seq in range(count):
            made = client.release(user, seq, WORDS[(seq * 7 + len(user)) % 4])
            answers.append((user, seq, made.value))


@pytest.mark.slow
def test_killed_and_started_again_nothing_is_lost_or_doubled(tmp_path):
    users, count, answers = [f"user {k}" for k in range(4)], 60, []
    process = Process(tmp_path, "--no-auth")
    threads = [threading.Thread(target=load, args=(process.url, user, count, answers)) for user in users]
    for thread in threads:
        thread.start()
    for kill in range(1, 4):
        while len(answers) < kill * 50:
            assert any(thread.is_alive() for thread in threads)
            threading.Event().wait(0.005)
        assert process.end(signal.SIGKILL) == -signal.SIGKILL
        process = Process(tmp_path, "--no-auth", port=process.port)
    for thread in threads:
        thread.join()
    with Client(process.url) as client:
        for user in users:
            told = [(user, made.seq, made.value) for made in client.releases(user)]
            assert [seq for _, seq, _ in told] == list(range(count))
            assert told == [answer for answer in answers if answer[0] == user]
            assert client.account(user).releases == count
            assert client.account(user).by_composition == pytest.approx(0.7 * count, abs=1e-6)
    assert process.end() == 0


@pytest.mark.slow
def test_what_was_accepted_is_finished_before_the_end(tmp_path):
    process = Process(tmp_path, "--no-auth")
    answers, stop = [], threading.Event()

    def work(user):
        for seq in range(10_000):
            try:
                answer = ask(process.port, "POST", "/v1/release", event(user, seq))
            except OSError:
                return  # nobody listens any more
            assert answer.status == 200 or answer.reason == "stopping"
            if answer.status == 200:
                answers.append((user, seq, answer.json["releases"][0]["value"]))

    threads = [threading.Thread(target=work, args=(f"user {k}",)) for k in range(6)]
    for thread in threads:
        thread.start()
    while len(answers) < 60:
        stop.wait(0.01)
    assert process.end() == 0
    for thread in threads:
        thread.join()
    with Streams.open(tmp_path / "state.db", words_setting()) as store:
        stored = {(u, s.seq): WORDS[s.code] for u in {a[0] for a in answers} for s in store.releases(u)}
    assert {(user, seq): value for user, seq, value in answers} == stored
    assert not (tmp_path / "state.db-wal").exists()


@pytest.mark.slow
def test_a_second_server_on_one_state_is_refused(tmp_path):
    process = Process(tmp_path, "--no-auth")
    try:
        with pytest.raises(RuntimeError, match="another process has this state file open"):
            Process(tmp_path, "--no-auth")
        assert ask(process.port, "POST", "/v1/release", event("ann", 0)).status == 200
        command = [sys.executable, "-m", "seqveil", "serve", "--no-auth", "--port", str(process.port)]
        command += ["--model", str(tmp_path / "model"), "--epsilon", "1", "--state", str(tmp_path / "other.db")]
        taken = subprocess.run(command, capture_output=True, text=True)
        assert taken.returncode == 2
        assert taken.stderr.count("\n") == 1
        assert "cannot listen" in taken.stderr
    finally:
        assert process.end() == 0
    command[command.index("1")] = "2"
    command[command.index(str(tmp_path / "other.db"))] = str(tmp_path / "state.db")
    other = subprocess.run(command, capture_output=True, text=True)
    assert other.returncode == 2
    assert "was begun with another" in other.stderr
    with sqlite3.connect(tmp_path / "state.db") as sql:
        assert sql.execute("SELECT count(*) FROM users").fetchone() == (1,)
    sql.close()
    assert issubclass(InputError, SeqveilError)
    assert json.loads((tmp_path / "log").read_text().splitlines()[0])["event"] == "listening"
    assert os.stat(tmp_path / "state.db").st_mode & 0o077 == 0
