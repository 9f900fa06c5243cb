"""The service over real sockets: what it answers is what the store holds, and a refusal changes nothing."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import seqveil as sv
from seqveil.core.alphabet import Alphabet
from seqveil.core.errors import InputError
from seqveil.engine.budget import Budget
from seqveil.engine.policy import Policy
from seqveil.engine.stream import UNKNOWN, State, observe
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


NAME = "a user of 1 to 256 characters, without control characters and ends of lines"
UTF8, ONCE, EXACTLY = "JSON in UTF-8", "every field once", "user, seq and value"
TIMES = "time to be a number or ISO 8601 text"
WHOLE = "seq to be a whole number from 0 to 9007199254740991"
MALFORMED = {  # what is sent, and how the answer says what was expected
    "no JSON": (b'{"events": [{"user": "u", "seq"', UTF8),
    "no UTF-8": (b'{"events": [{"user": "\xff\xfe", "seq": 0, "value": "home"}]}', UTF8),
    "half a character": (b'{"events": [{"user": "\\ud800", "seq": 0, "value": "home"}]}', NAME),
    "a key twice": (b'{"events": [{"user": "u", "seq": 0, "seq": 0, "value": "home"}]}', ONCE),
    "twice within a value": (b'{"events": [{"user": "u", "seq": 0, "value": {"a": 1, "a": 2}}]}', ONCE),
    "another member": ({"events": [event("u", 0)], "zq-secret": 5}, "an object with events alone"),
    "deep": (b'{"events":[{"user":"u","seq":0,"value":' + b"[" * 50_000 + b"]" * 50_000 + b"}]}", UTF8),
    "no events": ({"events": []}, "a list that is not empty"),
    "one event alone": (event("u", 0), "an object with events"),
    "seq beyond digits": (b'{"events":[{"user":"u","value":"home","seq":' + b"9" * 5000 + b"}]}", UTF8),
}
WRONG = {
    "a word": ("home", "an object"),
    "no value": ({"user": "u", "seq": 0}, EXACTLY),
    "another field": (event("u", 0) | {"zq-secret": 1}, EXACTLY),
    **{f"user {name!r}": (event(name, 0), NAME) for name in ("", "u" * 257, "u\n", "u\x85b", "u\u2028b", "u\x00b", 5)},
    **{f"seq {seq!r}": (event("u", seq), WHOLE) for seq in ("0", 0.5, True, -1, 2**63)},
    **{f"time {time!r}": (event("u", 0, time=time), TIMES) for time in (["zq-secret"], True)},
}
MALFORMED |= {name: ({"events": [one]}, expected) for name, (one, expected) in WRONG.items()}


@pytest.mark.parametrize(("body", "expected"), MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_not_as_documented_is_400(service, body, expected):
    answer = service.ask("POST", "/v1/release", body)
    assert (answer.status, answer.reason) == (400, "malformed")
    assert b"zq-secret" not in answer.content
    assert expected in answer.json["detail"]
    assert service.ask("GET", "/v1/users/u").status == 404


def test_what_is_too_large_or_of_another_kind_is_refused(service):
    for most, events in (
        (300, [event(f"large {k}", 0) for k in range(301)]),
        (200, [event("large", k) for k in range(201)]),
    ):
        answer = service.release(*events)
        assert (answer.status, answer.reason) == (413, "too-large")
        assert f"at most {most} events" in answer.json["detail"]
    assert service.ask("POST", "/v1/release", b" " * 200_001).status == 413
    text = service.release(event("large", 0), headers={"Content-Type": "text/plain"})
    assert (text.status, text.reason) == (415, "wrong-type")
    packed = service.ask("POST", "/v1/release", b"\x1f\x8b\x08\x00", headers={"Content-Encoding": "GZIP"})
    assert (packed.status, packed.reason) == (415, "wrong-type")
    assert service.ask("GET", "/v1/release").reason == "wrong-method"
    for path in ("/v1/nothing", "/v1/release/", "/v1/users", "/healthz/"):  # and nobody is sent elsewhere
        assert service.ask("GET", path).reason == "not-found"
    assert service.ask("GET", "/v1/users/large").status == 404


def test_a_receiver_reads_pages(service):
    made = service.release(*(event("read/me ü", k, WORDS[k % 4]) for k in range(150))).json["releases"]
    address = "/v1/users/read%2Fme%20%C3%BC"
    page = service.ask("GET", f"{address}?since=20&limit=100").json
    assert (page["next"], page["more"], len(page["releases"])) == (120, True, 100)
    page["releases"] += service.ask("GET", f"{address}?since=120").json["releases"]
    assert [row["value"] for row in page["releases"]] == [row["value"] for row in made[20:]]
    end = service.ask("GET", f"{address}?since=150").json
    assert (end["account"]["events"], end["releases"], end["next"], end["more"]) == (150, [], 150, False)
    assert service.ask("GET", f"{address}?limit=0").json["releases"] == []
    wrong = ("since=-1", "limit=10001", "since=x", "since=", "since=9007199254740992", "since=%C2%B2", "limt=5")
    for query in (*wrong, "since=0&since=1"):
        assert service.ask("GET", f"{address}?{query}").reason == "malformed"
    assert service.ask("GET", "/v1/users/nobody").reason == "not-found"


def test_a_name_that_no_user_has_is_refused_in_a_path(service):
    assert service.release(event("zoe", 0)).status == 200
    for method in ("GET", "DELETE"):
        for wrong in ("zoe%C2%85", "zoe%7F", "zoe%0A", "zoe%FF", "z" * 257, ""):
            answer = service.ask(method, f"/v1/users/{wrong}")
            assert (answer.status, answer.reason) == (400, "malformed")
    assert answer.json["detail"] == f"expected {NAME}"
    asked = service.ask("DELETE", "/v1/users/zoe?forget_account=true")
    assert asked.json["detail"] == "expected no query"
    assert service.ask("GET", "/v1/users/zoe").status == 200


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
    assert time.time() - float(counts["seqveil_last_commit_timestamp_seconds"]) < 600
    assert "counted" not in re.findall(r'="([^"]*)"', text)


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
            answer = service.release(
                event("bob", 0, time=1.0), event("ann", 3, time=200.0), event("ann", 4, time=150.0)
            )
            assert (answer.status, answer.reason, answer.json["position"]) == (409, "time-went-back", 2)
            assert service.ask("GET", "/v1/users/bob").status == 404
            assert service.ask("GET", "/v1/users/ann?since=2").json["releases"][0]["time"] == 102.0


@pytest.mark.slow
def test_batches_are_released_with_their_paths(tmp_path):
    setting = Policy(epsilon=2.0, batch=3, mechanism="tree").on(words_model())
    with running(tmp_path, setting) as service:
        body = event("ann", 0, ["home", "home", "work"])
        row = service.release(body).json["releases"][0]
        again = service.release(body | {"value": ["gym"]}).json["releases"][0]
        assert again == row | {"replayed": True}
        assert len(row["values"]) == 3
        assert service.release(body | {"seq": 1, "value": ["gym"]}).status == 200
        page = service.ask("GET", "/v1/users/ann").json["releases"]
        assert [each["events"] for each in page] == [3, 1]
        distributions = decode_paths(setting, [tuple(each["path"]) for each in page], 4, smooth=False)
        assert distributions.shape == (4, 4)
        assert service.release(body | {"seq": 2, "value": ["home"] * 4}).reason == "malformed"
        assert service.release(body | {"seq": 2, "value": []}).reason == "malformed"
        answer = service.release(body | {"seq": 2, "value": ["home", "zq-secret"]})
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


@pytest.fixture
def tester():
    """What makes requests from the document: loaded before a server's thread runs, and only where it is used.

    Python 3.11 may fail to read source while another thread does.
    """
    import schemathesis.specs.openapi.schemas

    return schemathesis


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_answer_is_as_documented(tester, tmp_path, mode):
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    with running(tmp_path, words_setting(), body=200_000, events=300) as service:
        document = tester.openapi.from_url(f"{service.url}/openapi.json")
        operations = [found.ok() for found in document.get_all_operations()]
        assert len(operations) == 6
        for operation in operations:
            if mode == "negative" and operation.path in ("/healthz", "/readyz", "/metrics"):
                continue  # nothing about them can be wrong

            @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=tester.GenerationMode(mode)))
            def check(case):
                headers = {"Authorization": f"Bearer {service.secret}"}
                # the schema cannot tell which values are in the alphabet
                case.call_and_validate(headers=headers, timeout=20, excluded_checks=[positive_data_acceptance])

            check()
        release = service.ask("GET", "/openapi.json", token=None).json["paths"]["/v1/release"]["post"]
        assert release["security"] == [{"token": ["release"]}]
        example = release["requestBody"]["content"]["application/json"]["example"]
        assert service.ask("POST", "/v1/release", example).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("key", [KEY, None])
def test_an_account_comes_with_the_terms_that_really_run(tmp_path, key):
    """Without a key nothing of raw streams can be kept, so kernels go by symbol alone, whatever the policy asks for."""
    terms = sv.Policy(secrets=sv.secrets.ever("gym", epsilon=0.5, window=4), side_information=math.inf).on(
        words_model()
    )
    with running(tmp_path, terms, key=key) as service:
        service.release(event("ann", 0, "gym"), event("ann", 1))
        found = service.ask("GET", "/v1/users/ann").json
        assert found["terms"]["side_information"] == ("inf" if key else 0.0)
        assert found["terms"]["model"] == terms.model.fingerprint
        own, values = terms if key else terms.by_symbol, [row["value"] for row in found["releases"]]
        state = State.start(own)
        for value in values:
            _, state = observe(own, state, np.array([WORDS.index(value)]))
        assert found["account"]["secrets"][0]["log_odds"] == state.trackers[0].worst()[0].latest.log_odds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "said"), [("waiting", "0 events wait, of at most 0"), ("free", "bytes free; free some")]
)
def test_not_ready_says_why_in_plain_words(tmp_path, limit, said):
    with running(tmp_path, words_setting(), **{limit: 0 if limit == "waiting" else 1 << 62}) as service:
        answer = service.ask("GET", "/readyz", token=None)
        assert (answer.status, answer.reason) == (503, "busy" if limit == "waiting" else "store")
        assert said in answer.json["detail"]
        assert service.ask("GET", "/healthz", token=None).status == 200
