"""The options of both bridges: one core, each option in one place; a line for each bad one."""

import pytest

from bridges import chain
from seqveil.interfaces.cli import main

OWN = {
    "mqtt": ["--broker", "localhost:1", "--raw", "a/{user}", "--released", "b/{user}"],
    "kafka": ["--bootstrap", "localhost:1", "--raw", "a", "--released", "b", "--group", "g"],
}


@pytest.fixture
def said(tmp_path, capfd, monkeypatch):
    """What a command says; nothing is reached, as it is refused before."""
    pytest.importorskip("paho")
    pytest.importorskip("confluent_kafka")
    monkeypatch.chdir(tmp_path)
    chain().save(tmp_path / "m.model")

    def call(kind, options, policy="epsilon = 1.0"):
        (tmp_path / "policy.toml").write_text(policy)
        kept = ["--model", "m.model", "--policy", "policy.toml", "--state", "s.db"]
        assert main(["bridge", kind, *OWN[kind], *kept, *options]) == 2
        told = capfd.readouterr().err
        assert len(told.splitlines()) == 1
        return told

    return call


REFUSED = {
    "mqtt": [
        ("--broker mqtt://x", "HOST"),
        ("--protocol 4", "3.1.1"),
        ("--gaps maybe", "gaps"),
        ("--on-refused maybe", "on_refused"),
        ("--on-unknown maybe", "on_unknown"),
        ("--raw raw/+", "topic"),
        ("--ca missing.pem", "missing.pem: cannot be used for TLS"),
        ("--cert-key missing.pem", "--cert"),
        ("--password-file missing", "--username"),
        ("--username u --password-file missing", "missing: the password cannot be read"),
        ("--password p", "No such option"),
    ],
    "kafka": [
        ("--raw", "topics"),
        ("--released a", "differ"),
        ("--partitions 3-1", "partitions"),
        ("--client missing", "missing: cannot be read"),
        ("--payload json", "payload"),
        ("--mapping missing", "missing: cannot be read"),
        ("--payload owntracks", "Grid"),
        ("--on-refused maybe", "on_refused"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options", "text"), [(kind, *case) for kind, all in REFUSED.items() for case in all])
def test_the_command_refuses_in_one_line(said, kind, options, text):
    assert text in said(kind, ["--raw", "a b"] if options == "--raw" else options.split())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mqtt", "kafka"])
def test_so_it_does_a_bad_policy(said, kind):
    assert "policy.toml: 'epsilom' is no line of a policy" in said(kind, [], "epsilom = 1.0")
    assert "policy.toml: expected epsilon to be a finite number" in said(kind, [], 'epsilon = "much"')
    assert "batches" in said(kind, ["--payload", "json:a"], "epsilon = 3.0\nbatch = 3")
