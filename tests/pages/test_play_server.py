"""The server of `play`: what it refuses, its bounds, where it listens, and that it stays up."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
if os.environ.get("CI") != "true":  # in CI a missing package is a failure, not a skip
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")

from tests.serving import GOOD, Server, lines
from tokmix.cli.main import main
from tokmix.pages.play.app import AT_ONCE, STREAMS, Busy
from tokmix.pages.play.engine import CONTEXT, MAP_SAMPLES, MAP_TOKENS, PlayService
from tokmix.pages.play.schemas import BODY, MAX_NEW, TEXT
from tokmix.pages.play.server import is_local, listen, names_of
from tokmix.training import model_folder
from tokmix.training.predict import Predictor

REQUESTS, CLIENTS = 1000, 16


# --- what is refused ---------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[int, Any, str]] = {
    "nothing": (400, "", "empty"),
    "blank": (400, "   ", "empty"),
    "not JSON": (400, "text=a", "not JSON"),
    "half of JSON": (400, '{"text": "a', "not JSON"),
    "a list": (400, [1], "a JSON object, not a list"),
    "a number": (400, "12", "not the number 12"),
    "bytes": (400, b"\xff\xfe\x00", "not JSON"),
    "deep": (400, "[" * 50_000, "not JSON"),
    "a long number": (400, '{"text": ' + "9" * 5000 + "}", "not JSON"),
    "no text": (422, {}, "'text' is missing"),
    "null": (422, {"text": None}, "'text' is missing"),
    "empty text": (422, {"text": ""}, "text is empty"),
    "spaces": (422, {"text": " \n"}, "text is empty"),
    "wrong type": (422, {"text": 3}, "text should be a text, not the number 3"),
    "list of texts": (422, {"text": ["a"]}, "not a list"),
    "half a character": (422, b'{"text": "\\ud800"}', "surrogate"),
    "typo": (422, {"text": "a", "txet": "b"}, "unknown field 'txet'"),
    "second text": (422, {"text": "a", "text2": "b"}, "reads one text"),
    "long text": (413, {"text": "a" * (TEXT + 1)}, f"at most {TEXT:,}"),
    "huge": (413, b'{"text": "' + b"a" * BODY + b'"}', f"at most {BODY:,}"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_get_a_reason(films: Server, case: str) -> None:
    wanted, body, words = BAD[case]
    status, headers, said = films.ask("/api/predict", body)
    assert status == wanted and headers["content-type"] == "application/json" and words in json.loads(said)["error"]


def test_other_ways_to_ask_wrongly(films: Server, writer: Server) -> None:
    assert b"seed should be from 0 to 2,147,483,647" in writer.ask("/api/generate", {"text": "a", "seed": 2**31})[2]
    for path, method, body, headers, wanted in (
        ("/api/predict", "GET", None, {}, 405),
        ("/api/nothing", "POST", GOOD, {}, 404),
        ("/../../etc/passwd", "GET", None, {}, 404),
        ("/docs", "GET", None, {}, 404),
        ("/openapi.json", "GET", None, {}, 404),
        ("/api/predict", "POST", json.dumps(GOOD), {"Content_Type": "text/plain"}, 415),
        ("/api/predict", "POST", "text=a", {"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ("/api/predict", "POST", GOOD, {"Host": "evil.example:8765"}, 421),
        ("/api/generate", "POST", GOOD, {}, 422),
        ("/api/map", "POST", {**GOOD, "layer": 9}, {}, 422),
        ("/api/map", "POST", {**GOOD, "layer": 1.5}, {}, 422),
        ("/api/map", "POST", {**GOOD, "model": "third"}, {}, 422),
    ):
        status, _, said = films.ask(path, body, method, **headers)
        assert status == wanted and json.loads(said)["error"], (path, body, status)
    for wrong in (
        {"max_new": MAX_NEW + 1},
        {"max_new": 0},
        {"max_new": True},
        {"temperature": -1},
        {"temperature": "hot"},
        {"seed": 2**40},
        {"top_k": 0},
    ):
        assert writer.ask("/api/generate", {"text": "a", **wrong})[0] == 422, wrong
    assert writer.ask("/api/generate", '{"text": "a", "temperature": NaN}')[0] == 422
    assert writer.ask("/api/generate", {"text": "x" * TEXT})[0] == 422, "more tokens than there is room for"


def test_a_body_without_a_length_is_bounded_too(films: Server) -> None:
    with socket.create_connection(("127.0.0.1", films.port), timeout=60) as line:
        head = "POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        line.sendall(head.encode())
        for _ in range(BODY // 1024 + 2):
            line.sendall(b"400\r\n" + b"a" * 1024 + b"\r\n")
        assert line.recv(64).startswith(b"HTTP/1.1 413")


def test_prompts_are_bounded(folder: Path) -> None:
    engine = PlayService(model_folder.load(folder / "lm"))
    with pytest.raises(ValueError, match=f"room for {CONTEXT - 1}"):
        engine.tokens("x" * 3 * CONTEXT)
    with pytest.raises(ValueError, match="only one for lm"):
        PlayService(model_folder.load(folder / "films")).tokens("a")
    with pytest.raises(ValueError, match="cannot be compared"):
        PlayService(model_folder.load(folder / "films"), model_folder.load(folder / "lm"))


def test_too_many_at_once_are_told_to_come_again() -> None:
    from fastapi import HTTPException

    busy = Busy(2, "requests")
    with busy.one(), busy.one():
        with pytest.raises(HTTPException) as refused, busy.one():
            pass
        assert refused.value.status_code == 503 and refused.value.headers == {"Retry-After": "1"}
    with busy.one():
        assert busy.now == 1


def test_the_documented_bounds_are_those_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "play.md").read_text()
    directions = f"from {MAP_SAMPLES[0]} to {MAP_SAMPLES[1]} directions"
    written = f"{MAX_NEW} new tokens, {CONTEXT:,} in all"
    for words in (f"{BODY // 1024} KiB", f"{TEXT:,} letters", f"{MAP_TOKENS} tokens", directions, written, f"{AT_ONCE}, {STREAMS} |"):
        assert words in page, words


def test_every_answer_says_that_nothing_may_come_from_outside(films: Server) -> None:
    for path, method in (("/", "GET"), ("/play.js", "GET"), ("/api/model", "GET"), ("/nowhere", "GET"), ("/api/predict", "POST")):
        _, headers, said = films.ask(path, None, method)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and headers["x-content-type-options"] == "nosniff"
        assert b"//" not in said.replace(b"http://www.w3.org", b"") or path.endswith(".js")


def test_the_address(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [is_local(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "192.168.0.1", "example.org")] == [
        True, True, True, True, False, False, False,
    ]  # fmt: skip
    assert "127.0.0.2" in names_of("127.0.0.2") and names_of("127.0.0.1") == ["127.0.0.1", "localhost", "[::1]"]
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["play", str(folder / "films"), "--port", str(port)]) == 1
        said = capsys.readouterr()
        assert f"cannot listen on 127.0.0.1 port {port}" in said.err and said.err.count("\n") == 1
        assert main(["play", str(folder / "films"), "--port", str(port), "--host", "0.0.0.0"]) == 1
        assert "there is no password" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["play", str(folder / "films"), "--host", "192.0.2.1", "--port", "0"]) == 1  # an address for examples: nobody's
    assert "--host '192.0.2.1' is no address of this machine" in capsys.readouterr().err
    assert main(["play", str(folder / "films"), "--port", "70000"]) == 1
    assert main(["play", str(folder / "films"), "--against", str(folder / "lm")]) == 1
    assert main(["play", str(folder / "nowhere")]) == 1


# --- that it stays up --------------------------------------------------------------------------------------------------------


def test_a_thousand_requests_from_sixteen_clients(films: Server, folder: Path) -> None:
    before = contents(folder)
    kinds = [("good", 200, GOOD)] * 3 + [(name, *BAD[name][:2]) for name in ("nothing", "not JSON", "wrong type", "huge", "deep")]
    (known,) = Predictor(model_folder.load(folder / "films"))([GOOD["text"]])
    seen: Counter[tuple[str, int]] = Counter()
    lock = threading.Lock()

    def client(first: int) -> None:
        for number in range(first, REQUESTS, CLIENTS):
            name, wanted, body = kinds[number % len(kinds)]
            status, _, said = films.ask("/api/predict", body)
            assert status == wanted, (name, status, said[:200])
            if wanted == 200:
                assert json.loads(said)["main"]["probabilities"] == pytest.approx(known["probabilities"], abs=1e-6)
            with lock:
                seen[name, status] += 1

    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(client, first) for first in range(CLIENTS)]:
            done.result()
    assert seen.total() == REQUESTS and films.process.poll() is None
    assert films.get("/api/predict", GOOD)["main"]["label"] == known["label"]
    assert contents(folder) == before, "nothing is written"


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_readers_who_leave_make_room(writer: Server) -> None:
    body = json.dumps({"text": "the day", "max_new": MAX_NEW, "seed": 3})
    head = f"POST /api/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(2 * STREAMS):
        with socket.create_connection(("127.0.0.1", writer.port), timeout=60) as line:
            line.sendall((head + body).encode())
            line.recv(1)
    for _ in range(60):
        status, _, said = writer.ask("/api/generate", {"text": "the day", "max_new": 2, "seed": 1})
        if status == 200:
            break
        assert status == 503, said
        time.sleep(0.5)
    assert status == 200 and lines(said)
