"""Servers for the tests of `tokmix serve`: in this process, where bounds can be changed, or one of their own, which can be killed."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokmix.pages.listen import listen
from tokmix.pages.serve.server import ServeSettings, make_server, read_token


@dataclass
class Client:
    port: int
    token: str | None = None

    def ask(self, path: str, body: Any = None, method: str | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.token}"} if self.token else {}) | headers
        try:
            sent = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
            connection.request(method or ("GET" if body is None else "POST"), path, sent, given)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path: str, body: Any = None) -> Any:
        status, _, said = self.ask(path, body)
        assert status == 200, said
        return json.loads(said)


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[Client]:
    given = ServeSettings(str(folder), port=0, **({"log": "none"} | settings))
    token = read_token(given.token)
    with listen(given.host, 0) as listener:
        server = make_server(given, token, listener)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield Client(listener.getsockname()[1], token)
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def process(place: Path, folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    with open(place / "log", "w") as log:
        command = [sys.executable, "-m", "tokmix", "serve", str(folder), "--port", "0", *words]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert started.stdout is not None
            line = started.stdout.readline()
            assert line.startswith("http://127.0.0.1:"), (line, (place / "log").read_text())
            yield started, Client(int(line.split(":")[2].split()[0]))
        finally:
            if started.poll() is None:
                started.kill()
            started.wait()
            assert started.stdout is not None
            started.stdout.close()
