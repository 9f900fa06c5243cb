"""The options of both bridges: one core, one configuration file, each option in one place; a line for each bad one."""

import inspect
from pathlib import Path

import pytest

from bridges import chain
from seqveil.interfaces.cli import main
from seqveil.interfaces.commands import bridge

OWN = {
    "mqtt": ['broker = "localhost:1"', 'raw = "a/{user}"', 'released = "b/{user}"'],
    "kafka": ['bootstrap = "localhost:1"', 'raw = "a"', 'released = "b"', 'group = "g"'],
}
BAD = {"mqtt": ('errors = "a/{user}"', "raw and errors topics"), "kafka": ('errors = "a"', "must differ")}


@pytest.fixture
def said(tmp_path, capfd, monkeypatch):
    """What a command says of a configuration file; nothing is reached, as it is refused before."""
    pytest.importorskip("paho")
    pytest.importorskip("confluent_kafka")
    monkeypatch.chdir(tmp_path)
    chain().save(tmp_path / "m.model")

    def call(kind, *lines, options=()):
        (tmp_path / "seqveil.toml").write_text("\n".join([*OWN[kind], *lines]))
        assert main(["bridge", kind, "--config", "seqveil.toml", *options]) == 2
        told = capfd.readouterr().err
        assert len(told.splitlines()) == 1
        return told

    return call


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mqtt", "kafka"])
def test_both_take_their_options_from_a_configuration_file(said, kind):
    common = ['model = "m.model"', 'state = "s.db"', "epsilon = 1.0", 'mechanism = "balanced"', 'on_refused = "stop"']
    line, text = BAD[kind]
    assert text in said(kind, *common, line)
    assert "is no option of this command" in said(kind, *common, "epsilom = 1.0")
    assert "expected partitions" in said("kafka", *common, 'partitions = "x"')
    assert "payload" in said(kind, *common, 'payload = "xml"')
    assert "payload" in said(kind, *common, options=["--payload", "xml"])  # the command line too, and it wins
    assert "expected epsilon" in said(kind, *common, options=["--epsilon", "-1"])
    assert "epsilon is a number" in said(kind, *common[:2], 'epsilon = "much"')
    assert not Path("s.db").exists()


def test_no_option_of_the_bridges_is_written_twice():
    """What both commands have comes from the same group, but for the topics, which are patterns in one of them."""
    both = [set(inspect.signature(command).parameters) for command in (bridge.mqtt, bridge.kafka)]
    own = (bridge.StoreOptions, bridge.PayloadOptions, bridge.PolicyOptions, bridge.MetricsOptions)
    groups = (*own, bridge.o.SettingOptions)
    shared = {name for group in groups for name in inspect.signature(group).parameters}
    assert both[0] & both[1] - shared == {"raw", "released", "errors", "config", "json"}


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
        ("--payload json:a --batch 3", "batches"),
        ("--payload owntracks", "Grid"),
        ("--on-refused maybe", "on_refused"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options", "text"), [(kind, *case) for kind, all in REFUSED.items() for case in all])
def test_the_command_refuses_in_one_line(said, kind, options, text):
    words = ["--raw", "a b"] if options == "--raw" else options.split()
    assert text in said(kind, 'model = "m.model"', 'state = "s.db"', "epsilon = 1.0", options=words)
