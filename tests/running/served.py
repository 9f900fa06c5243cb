"""Services for tests: on a thread of this process, or as the real command in a process of its own."""

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np

from reference import streams as ref
from seqveil.core.model import MarkovModel
from seqveil.engine.policy import Policy
from seqveil.engine.streams import CodeStreams
from seqveil.engine.upkeep import facts_of
from seqveil.interfaces.commands.serve import ServeOptions
from seqveil.interfaces.service import tokens
from seqveil.interfaces.service.app import Service
from seqveil.interfaces.service.limits import Limits
from seqveil.interfaces.service.server import server as http_server
from seqveil.interfaces.service.server import warm

KEY = bytes(range(32))
WORDS = ["home", "work", "gym", "shop"]


def words_model():
    return MarkovModel(*ref.random_chain(np.random.default_rng(1), 4), alphabet=WORDS)


def words_setting(**options):
    return Policy(epsilon=0.7, mechanism="balanced", **options).on(words_model())


def salt_of(path):
    """The salt that a state file draws with."""
    facts = facts_of(path)
    return f"{facts['salt']} {facts['epoch']}".encode()


def event(user, seq, value="home", **more):
    """An event as a request has it."""
    return {"user": user, "seq": seq, "value": value, **more}


class Answer:
    def __init__(self, status, headers, content):
        self.status, self.headers, self.content = status, headers, content

    @property
    def json(self):
        return json.loads(self.content)

    @property
    def reason(self):
        assert self.headers["Content-Type"] == "application/problem+json"
        assert self.json["status"] == self.status
        return self.json["type"].rpartition(":")[2]


class Running:
    """A service on a thread, on a free port of the loopback."""

    def __init__(self, folder, setting, auth=True, key=KEY, **options):
        self.folder = Path(folder)
        self.secret = None
        if auth:
            options["tokens"] = self.folder / "tokens.json"
            self.secret = self.token("admin")
        names = {each.name for each in fields(Limits)}
        limits = {"figures": 0.0} | {name: options.pop(name) for name in names & set(options)}
        self.options, self.limits = ServeOptions(no_auth=not auth, **options), Limits(**limits)
        self.options.check()
        self.store = CodeStreams.open(self.folder / "state.db", setting, key=key, gaps=self.options.gaps)
        self.app = Service(self.store, self.options, self.limits)
        warm(setting)
        self.server = http_server(self.app, self.options, self.limits)
        self.server.config.port = 0
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def token(self, *scopes, **options):
        return tokens.add(self.folder / "tokens.json", scopes, **options)[1]

    def ask(self, method, path, body=None, token="own", headers=None):
        return ask(self.port, method, path, body, self.secret if token == "own" else token, headers)

    def release(self, *events, **options):
        return self.ask("POST", "/v1/release", {"events": list(events)}, **options)

    def close(self):
        self.server.should_exit = True
        self.thread.join()
        self.store.close()


@contextmanager
def running(folder, setting, **options):
    service = Running(folder, setting, **options)
    try:
        yield service
    finally:
        service.close()


def ask(port, method, path, body=None, token=None, headers=None):
    """One request on a connection of its own; a body that is not bytes is sent as JSON."""
    given = {"Content-Type": "application/json"} if body is not None else {}
    if token is not None:
        given["Authorization"] = f"Bearer {token}"
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, content, given | (headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


class Process:
    """`seqveil serve` in a process of its own, over files in a folder."""

    def __init__(self, folder, *options, port=0, policy='epsilon = 0.7\nmechanism = "balanced"\n'):
        self.folder = Path(folder)
        if not (self.folder / "model").exists():
            words_model().save(self.folder / "model")
        (self.folder / "policy.toml").write_text(policy)
        command = [sys.executable, "-m", "seqveil", "serve", "--begin", "--port", str(port)]
        command += ["--model", self.folder / "model", "--policy", self.folder / "policy.toml"]
        command += ["--state", self.folder / "state.db"]
        self.log = self.folder / "log"
        begin = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([str(part) for part in (*command, *options)], stderr=log)
        while not (found := re.search(rb"https?://[^:]*:(\d+)", self.log.read_bytes()[begin:])):
            if self.process.poll() is not None:
                raise RuntimeError(self.log.read_bytes()[begin:].decode())
            time.sleep(0.02)
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(60)
