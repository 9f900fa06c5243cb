"""The page for tests: on a thread of this process, or as the real command in a process of its own."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import uvicorn

from seqveil.interfaces.studio.sandbox import Sandbox
from seqveil.interfaces.studio.serving import create_app
from served import ask

KEY = "the-key-of-these-tests"


class Studio:
    """A page on a free port of the loopback."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        options = uvicorn.Config(create_app(sandbox, KEY), log_config=None, access_log=False, ws="none")
        self.server = uvicorn.Server(options)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self.port}/#key={KEY}"

    def ask(self, method, path, body=None, token=KEY, headers=None):
        return ask(self.port, method, path, body, token, headers)

    def show(self, **given):
        return self.ask("POST", "/v1/page/show", given)

    def close(self):
        self.server.should_exit = True
        self.thread.join()
        self.listener.close()


@contextmanager
def studio(*own, sandbox=None):
    page = Studio(sandbox or Sandbox(own))
    try:
        yield page
    finally:
        page.close()


class Process:
    """`seqveil studio` in a process of its own."""

    def __init__(self, *options, folder=None):
        command = [sys.executable, "-m", "seqveil", "studio", "--port", "0", "--no-browser", *map(str, options)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, cwd=folder, **pipes)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.communicate()[1])
        self.url = line.split()[1]
        self.port, self.key = re.search(r":(\d+)/#key=(.+)", self.url).groups()

    def end(self, how=signal.SIGINT):
        self.process.send_signal(how)
        said = self.process.communicate(timeout=60)
        return self.process.returncode, said[1]


def finish(show, **given):
    """The whole picture, asked for until it is complete."""
    while True:
        answer = show(given)
        if answer["complete"]:
            return answer


def parsed(answer):
    assert answer.status == 200, answer.content
    return json.loads(answer.content)
