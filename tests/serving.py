"""Small trained models and servers of them for the tests of play."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tests.lab import settings, write_table, write_text
from tokmix.training.train import run as train

SHORT = {"train__steps": 4, "train__evaluations": 1}
GOOD = {"text": "a fine film"}


def train_models(folder: Path) -> Path:
    """`films` tells two classes apart, `lm` and `lm2` write."""
    stack = "hypermixing(hidden=16), attention(heads=2)"
    train(write_table(folder / "films.csv", 60), folder / "films", settings(model__stack=stack, **SHORT), quiet=True)
    text = write_text(folder / "text", 20)
    for name, stack in (("lm", "hsm*2"), ("lm2", "attention(heads=2)")):
        train(text, folder / name, settings(model__stack=stack, model__length=16, prepare__vocab=300, **SHORT), quiet=True)
    return folder


class Server:
    def __init__(self, port: int, process: subprocess.Popen[str], folder: Path):
        self.port, self.process, self.folder = port, process, folder

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, path: str, body: Any = None, method: str = "POST", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """The answer to one request; a body that is no text or bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            sent = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
            connection.request(
                method, path, sent, {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
            )
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path: str, body: Any) -> Any:
        status, _, said = self.ask(path, body)
        assert status == 200, said
        return json.loads(said)


@contextmanager
def served(place: Path, *words: str) -> Iterator[Server]:
    """A server of its own in an empty folder, in which it leaves nothing."""
    place.mkdir()
    command = [sys.executable, "-m", "tokmix", "play", *words, "--port", "0"]
    process = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), (line, process.stderr.read() if process.stderr else "")
        yield Server(int(line.split(":")[2].split()[0]), process, place)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            said = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0 and said[1] == "", said
    assert not list(place.iterdir())


def serve_films(folder: Path) -> AbstractContextManager[Server]:
    return served(folder.with_name(f"{folder.name}-films"), str(folder / "films"))


def serve_writer(folder: Path) -> AbstractContextManager[Server]:
    return served(folder.with_name(f"{folder.name}-lm"), str(folder / "lm"), "--against", str(folder / "lm2"))


def lines(said: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines()]
