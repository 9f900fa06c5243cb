"""The page for tests: on a thread of this process, or as the real command in a process of its own."""

import json
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

from seqveil.interfaces.studio.answers import Studio
from seqveil.interfaces.studio.serving import PageServer
from served import ask

KEY = "the-key-of-these-tests"


class Page:
    """A page on a free port of the loopback."""

    def __init__(self, studio):
        self.studio = studio
        self.server = PageServer(studio, 0, KEY)
        self.port, self.url = self.server.listener.getsockname()[1], self.server.url
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def ask(self, method, path, body=None, token=KEY, headers=None):
        return ask(self.port, method, path, body, token, headers)

    def show(self, source="clicks", policy=None, **more):
        return self.ask("POST", "/v1/page/show", asked(source, policy or {"epsilon": 1.0}, **more))

    def close(self):
        self.server.should_exit = True
        self.thread.join()


@contextmanager
def studio(answers=None):
    page = Page(answers or Studio())
    try:
        yield page
    finally:
        page.close()


class Process:
    """`seqveil studio` in a process of its own."""

    def __init__(self, *options, folder=None):
        command = [sys.executable, "-m", "seqveil", "studio", "--port", "0", *map(str, options)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, cwd=folder, **pipes)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.communicate()[1])
        self.url = line.split()[1]
        self.port, self.key = re.search(r":(\d+)/#key=(.+)", self.url).groups()

    def ask(self, name, **body):
        return parsed(ask(int(self.port), "POST", f"/v1/page/{name}", json.dumps(body).encode(), self.key))

    def end(self, how=signal.SIGINT):
        self.process.send_signal(how)
        said = self.process.communicate(timeout=60)
        return self.process.returncode, said[1]


def asked(source, policy, events=20, person=None, seed=1):
    return {"source": source, "policy": policy, "person": person, "events": events, "seed": seed}


def finish(studio, source, policy, **more):
    """The whole picture, asked for until it is complete."""
    while not (shown := studio.show(**asked(source, policy, **more)))["complete"]:
        pass
    return shown


def parsed(answer):
    assert answer.status == 200, answer.content
    return json.loads(answer.content)
