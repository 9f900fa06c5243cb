"""Declared secrets wherever else releases are made: over HTTP, at an MQTT broker, and in a job of Spark."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import seqveil as sv
import sparks
from bridges import KEY, VALUES, chain
from seqveil.client import Client
from seqveil.engine.stream import Terms
from seqveil.engine.streams import CodeStreams
from seqveil.engine.terms import NO_BOUND
from seqveil.interfaces.bridge.payloads import Payloads
from seqveil.interfaces.spark.job import SparkJob
from seqveil.interfaces.spark.operator import SparkStore
from served import WORDS, running, words_model


def guarded(model, value, **more) -> Terms:
    return sv.Policy(secrets=sv.secrets.ever(value, epsilon=0.5, window=4), mechanism="guarded", **more).on(model)


def disclosed(tracker) -> tuple[object, ...]:
    return (
        tracker.name,
        tracker.sentence,
        tracker.epsilon,
        tracker.log_odds,
        tracker.lowest,
        tracker.highest,
        tracker.posterior,
    )


@pytest.mark.slow
def test_a_service_keeps_secrets_and_tells_where_users_stand(tmp_path):
    setting = guarded(words_model(), "gym")
    with running(tmp_path, setting) as service:
        with Client(service.url, service.secret) as client:
            made = client.release_many([("ann", seq, WORDS[seq % 4]) for seq in range(6)])
            assert {each.status for each in made} == {"released"}
            assert {each.epsilon for each in made} == {None}
            account, again = client.account("ann"), list(client.releases("ann"))
        assert [each.value for each in again] == [each.value for each in made]
        answer = service.ask("GET", "/v1/users/ann").json["account"]
        facts = service.ask("GET", "/v1/model").json
    assert account.whole_sequence == answer["whole_sequence"] == NO_BOUND
    assert abs(account.secrets[0].log_odds) <= 0.5
    assert facts["setting"]["secret"] == [setting.secrets[0].to_dict()]
    with CodeStreams.open(tmp_path / "state.db", setting, key=bytes(range(32))) as store:
        mine = store.account("ann").secrets
    assert [disclosed(each) for each in account.secrets] == [disclosed(each) for each in mine]


@pytest.mark.slow
def test_a_service_says_where_something_is_withheld(tmp_path):
    setting = guarded(words_model(), "gym", withhold=True)
    with running(tmp_path, setting) as service, Client(service.url, service.secret) as client:
        made = client.release_many([("ann", seq, "gym") for seq in range(4)])
        assert {(each.status, each.value) for each in made} <= {("withheld", None), ("released", "gym")}
        assert "withheld" in {each.status for each in made}
        assert [each.status for each in client.releases("ann")] == [each.status for each in made]


@pytest.mark.slow
def test_a_client_reads_a_setting_with_observers_where_it_has_their_models(tmp_path):
    model = words_model()
    other = sv.MarkovModel.mixture([model, model], [0.5, 0.5])
    setting = guarded(model, "gym", observers=[other])
    with running(tmp_path, setting) as service, Client(service.url, service.secret) as client:
        with pytest.raises(sv.errors.ModelError, match="name the models of all of them") as refused:
            client.setting()
        assert "\n" not in str(refused.value)
        assert client.setting([other]).to_dict() == setting.to_dict()
        assert client.setting(observers=[model, other]).to_dict() == setting.to_dict()


def test_a_message_says_null_where_there_is_no_epsilon():
    payloads = Payloads(guarded(chain(), VALUES[0]))
    assert json.loads(payloads.write(3, [1], float("inf"), (1,))) == {"seq": 3, "value": VALUES[1], "epsilon": None}
    assert json.loads(payloads.write(4, [], float("inf"), None))["value"] is None


def test_a_job_of_spark_keeps_secrets_from_one_micro_batch_to_the_next():
    setting = guarded(words_model(), "gym")
    kept, users, codes = sparks.MapState(), ["ann", "bob"], []
    job = SparkJob(setting, setting.model.alphabet, KEY, ("user", "seq", "value"))
    for seq in range(6):
        rows = pd.DataFrame({"user": users, "seq": [seq] * 2, "v0": [WORDS[seq % 4], "gym"]})
        codes.append(job.release(rows, SparkStore(kept, b"salt"))["value"].tolist())
    twin = CodeStreams(setting.by_symbol)  # a store without a seal remembers nothing
    twin.observe(users * 6, setting.model.alphabet.encode([value for pair in codes for value in pair]))
    with sparks.bucket(setting, kept) as streams:
        for user in users:
            mine, theirs = streams.account(user).secrets, twin.account(user).secrets
            assert [disclosed(each) for each in mine] == [disclosed(each) for each in theirs]
            assert abs(mine[0].log_odds) <= 0.5
