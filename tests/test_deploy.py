"""The files of deploy/: well formed, hardened, and naming no option, metric or page that is not there."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
import yaml
from starlette.requests import Request

from seqveil.engine.streams import CodeStreams
from seqveil.interfaces import figures
from seqveil.interfaces.bridge.core import BridgeCounts
from seqveil.interfaces.cli import app
from seqveil.interfaces.service.limits import Limits
from seqveil.interfaces.service.messages import REASONS
from seqveil.interfaces.service.monitoring import HttpCall, Metrics
from served import words_setting

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def text_of(name):
    return (DEPLOY / name).read_text(encoding="utf-8")


def yaml_of(name):
    return yaml.safe_load(text_of(name))


def assert_understood(words):
    """A command has all options that it is given."""
    command, given = typer.main.get_command(app), list(words)
    while given[0] in getattr(command, "commands", {}):
        command = command.commands[given.pop(0)]
    used = {word.partition("=")[0] for word in given if word.startswith("-")}
    assert used
    assert used <= {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The name of every sample that the service or a bridge can export."""
    folder = tmp_path_factory.mktemp("state")
    with CodeStreams.open(folder / "state.db", words_setting()) as store:
        service = Metrics(store, 60.0, lambda: 0)
        call = HttpCall(Request({"type": "http", "method": "POST", "headers": []}), reason="busy", events=1)
        service.note(call, 200, 0.1)
        service.text()
        counts = figures.CountFigures(BridgeCounts(refused={"order": 1}), lambda: 0)
        state = figures.StateFigures(store, folder / "state.db")
        families = [family for each in (service.registry, state, counts) for family in each.collect()]
    return {sample.name for family in families for sample in family.samples} | {"up"}


def named(expression):
    """The metrics that an expression names."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]|\bby \([^)]*\)', " ", expression)
    return set(re.findall(r"\b(?:seqveil|process)_\w+|\bup\b", bare))


def test_the_dashboard_names_metrics_that_there_are(exported):
    board = json.loads(text_of("grafana.json"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    assert all(named(each) for each in expressions)
    assert {name for each in expressions for name in named(each)} <= exported


def test_alerts_name_metrics_reasons_and_pages_that_there_are(exported):
    scraped = {job["job_name"] for job in yaml_of("prometheus.yml")["scrape_configs"]}
    assert scraped == {"seqveil-service", "seqveil-bridge"}
    rules = [rule for group in yaml_of("alerts.yml")["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert named(rule["expr"]) <= exported
        assert named(rule["expr"])
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["runbook"] == f"operations.md#{rule['alert'].lower()}"
        assert f"\n#### {rule['alert']}\n" in OPERATIONS
        for reason in re.findall(r'seqveil_refusals_total\{reason=~?"([^"]*)"', rule["expr"]):
            assert set(reason.split("|")) <= set(REASONS)


def test_every_metric_of_ours_is_documented(exported):
    own = {name for name in exported if name.startswith("seqveil_") and not name.endswith("_created")}
    plain = {re.sub(r"_(bucket|count|sum|gcount|gsum)$", "", name) for name in own}
    assert {name for name in plain if f"`{name}" not in OPERATIONS} == set()


def test_the_image_is_built_in_stages_and_runs_as_nobody_of_note():
    plain = re.sub(r"^\s*#.*\n", "", text_of("Dockerfile"), flags=re.MULTILINE)
    lines = [line.strip() for line in plain.replace("\\\n", " ").splitlines()]
    found = [tuple(line.split(None, 1)) for line in lines if line]
    names = [name for name, _ in found]
    assert names.count("FROM") == 2
    last = dict(found[len(names) - names[::-1].index("FROM") :])
    assert re.fullmatch(r"\d{5}:\d{5}", last["USER"])
    assert last["VOLUME"] == last["WORKDIR"] == "/var/lib/seqveil"
    assert all(":" in words for name, words in found if name == "FROM")  # no image without a version
    assert_understood(json.loads(last["CMD"]))
    probe = json.loads(last["HEALTHCHECK"].partition("CMD")[2])
    compile(probe[2], "healthcheck", "exec")
    copied = [words.split()[:-1] for name, words in found if name == "COPY" and "--from" not in words]
    assert all((ROOT / path).exists() for paths in copied for path in paths)
    assert {f"!{path}" for paths in copied for path in paths} <= set(text_of("Dockerfile.dockerignore").split())


def test_containers_are_hardened_and_given_options_that_there_are():
    compose = yaml_of("compose.yml")
    for name in ("bridge", "service"):
        made = compose["services"][name]
        assert made["read_only"] is True
        assert made["cap_drop"] == ["ALL"]
        assert made["user"].split(":")[0] != "0"
        assert "no-new-privileges:true" in made["security_opt"]
        assert_understood(made["command"])
        assert [word for word in made["command"] if word == "--policy=/etc/seqveil/policy.toml"]
    for made in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in made["ports"])
        for volume in made["volumes"]:
            source = volume.split(":")[0]
            given = source.startswith("./config") or source in compose["volumes"]
            assert given or (DEPLOY / source).exists()


def test_the_broker_of_the_containers_has_the_rules_of_the_docs():
    page = (ROOT / "docs" / "bridges.md").read_text(encoding="utf-8")
    rules = [line for line in text_of("mosquitto.acl").splitlines() if line and not line.startswith("#")]
    assert all(f"\n{line}\n" in page for line in rules)
    assert "allow_anonymous false" in text_of("mosquitto.conf")


def test_the_unit_runs_a_command_that_there_is():
    read = configparser.RawConfigParser(strict=False, delimiters=("=",))
    read.optionxform = str
    read.read_string(text_of("seqveil.service"))
    unit = read["Service"]
    words = shlex.split(unit["ExecStart"])
    assert Path(words[0]).name == "seqveil"
    assert_understood(words[1:])
    assert float(unit["TimeoutStopSec"]) > Limits().grace
    assert words[words.index("--policy") + 1] == "/etc/seqveil/policy.toml"
    assert words[words.index("--state") + 1].startswith(f"/var/lib/{unit['StateDirectory']}/")


def test_the_proxy_asks_for_no_more_than_the_service_gives():
    page, limits = text_of("nginx.conf"), Limits()
    assert int(re.search(r"client_max_body_size (\d+)m;", page)[1]) << 20 == limits.body
    assert int(re.search(r"proxy_read_timeout (\d+)s;", page)[1]) <= limits.connection
    assert int(re.search(r"keepalive_timeout (\d+)s;", page)[1]) < limits.connection


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is missing (Debian: apt-get install systemd)"
)
def test_systemd_finds_no_fault_and_little_exposure(tmp_path):
    copy = tmp_path / "seqveil.service"
    copy.write_text(text_of("seqveil.service").replace("/opt/seqveil/bin/seqveil", sys.executable))
    checked = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", copy]
    rated = subprocess.run(command, capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout[-400:]
