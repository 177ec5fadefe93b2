"""`tokmix serve`: answers, batches, bounds, hostile clients, the token, the end."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from pydantic import ValidationError

import tokmix
from tests.lab import settings, write_text
from tests.serve.running import Client, process, running
from tokmix.cli.main import main
from tokmix.export import export
from tokmix.export.torch_model import load
from tokmix.pages.serve import door, server
from tokmix.pages.serve.bench import cpu_seconds
from tokmix.pages.serve.schemas import INPUTS, LETTERS, MAX_TOKENS, CompletionRequest, PairsRequest, Request, TextsToEmbed
from tokmix.training.train import run as train

TEXTS = ["a fine film", "the awful day was cold and grey so then", "film", "house of the dull road 7", "so it was"]
CLIENTS = 16


@pytest.fixture(scope="module")
def rows(folder: Path) -> Iterator[Client]:
    with running(folder / "films") as client:
        yield client


@pytest.fixture(scope="module")
def words(folder: Path) -> Iterator[Client]:
    with running(folder / "lm") as client:
        yield client


# --- answers -------------------------------------------------------------------------------------------------------------------


def test_labels_are_those_of_the_model(rows: Client, folder: Path) -> None:
    model = tokmix.load(folder / "films")
    found = rows.get("/v1/classify", {"input": TEXTS})
    assert found["model"] == "films" and found["usage"]["total_tokens"] > 0
    for one, known in zip(found["data"], model.answers(TEXTS), strict=True):
        assert one["label"] == known["label"] and one["probabilities"] == pytest.approx(known["probabilities"], abs=1e-5)
        assert one["truncated"] is False
    vectors = rows.get("/v1/embeddings", {"input": TEXTS, "model": "films", "encoding_format": "float"})
    assert [one["index"] for one in vectors["data"]] == list(range(len(TEXTS)))
    for one, vector in zip(vectors["data"], model.embed(TEXTS), strict=True):
        assert one["embedding"] == pytest.approx(vector.tolist(), abs=1e-5)


def test_vectors_in_base64_are_those_in_numbers(rows: Client) -> None:
    """The package openai asks for base64 unless told otherwise."""
    numbers, packed = (rows.get("/v1/embeddings", {"input": TEXTS, "encoding_format": kind})["data"] for kind in ("float", "base64"))
    for one, other in zip(numbers, packed, strict=True):
        assert np.frombuffer(base64.b64decode(other["embedding"]), "<f4") == pytest.approx(np.array(one["embedding"]), abs=1e-5)
    assert rows.ask("/v1/embeddings", {"input": "a", "encoding_format": "hex"})[0] == 422
    assert rows.ask("/v1/classify", {"input": "a", "encoding_format": "float"})[0] == 422


def test_many_at_once_get_what_each_would_get_alone(rows: Client, folder: Path) -> None:
    """None lost, none wrong, and they were computed together."""
    known = dict(zip(TEXTS, tokmix.load(folder / "films").answers(TEXTS), strict=True))

    def client(first: int) -> int:
        for number in range(first, 480, CLIENTS):
            text = TEXTS[number % len(TEXTS)]
            (found,) = rows.get("/v1/classify", {"input": text})["data"]
            assert found["probabilities"] == pytest.approx(known[text]["probabilities"], abs=1e-5)
        return len(range(first, 480, CLIENTS))

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert sum(pool.map(client, range(CLIENTS))) == 480
    told = rows.ask("/metrics")[2].decode()
    batches = float(next(line for line in told.splitlines() if line.startswith("tokmix_batch_rows_count")).split()[1])
    computed = float(next(line for line in told.splitlines() if line.startswith("tokmix_batch_rows_sum")).split()[1])
    assert computed > 1.5 * batches, "batches of more than a row"
    assert 'tokmix_requests_total{path="/v1/classify",status="200"}' in told


def test_texts_written_together_are_those_written_alone(words: Client, folder: Path) -> None:
    prompts = ["the day", "one film with a house and so", "it", "road"]
    model = load(folder / "lm")
    alone = {prompt: "".join(model.generate(prompt, 12)) for prompt in prompts}

    def client(number: int) -> None:
        prompt = prompts[number % len(prompts)]
        time.sleep(0.003 * (number % 5))  # rows join while others are being written
        found = words.get("/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0})
        assert found["choices"][0]["text"] == alone[prompt]

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(60)))
    both = words.get("/v1/completions", {"prompt": prompts, "max_tokens": 12, "temperature": 0})
    assert [one["text"] for one in both["choices"]] == [alone[prompt] for prompt in prompts]


@pytest.mark.slow
def test_rows_of_a_hybrid_join_and_leave_between_steps(tmp_path: Path) -> None:
    """HSM, causal HyperMixing and attention in one model: 200 requests of unequal prompts and lengths, 24 at a time in 6 places."""
    stack = "hsm(heads=2), hypermixing(hidden=16), attention(heads=2)"
    given = settings(model__stack=stack, model__length=32, prepare__vocab=300, train__steps=4, train__evaluations=1)
    train(write_text(tmp_path / "text", 20), tmp_path / "lm", given, quiet=True)
    model = load(tmp_path / "lm")
    words = ["the", "day", "one", "film", "with", "a", "house", "and", "so", "it", "road"]
    asked = [(" ".join((words * 3)[i % 11 : i % 11 + 1 + i % 13]), 1 + i % 17) for i in range(200)]
    alone = {one: "".join(model.generate(*one)) for one in set(asked)}
    with running(tmp_path / "lm", batch=6) as client, ThreadPoolExecutor(24) as pool:
        bodies = [{"prompt": prompt, "max_tokens": most, "temperature": 0} for prompt, most in asked]
        found = list(pool.map(lambda body: client.get("/v1/completions", body)["choices"][0]["text"], bodies))
    assert found == [alone[one] for one in asked]


def test_a_seed_gives_the_same_text_whoever_else_writes(words: Client) -> None:
    asked = {"prompt": "the day", "max_tokens": 10, "temperature": 1.0, "top_p": 0.9, "seed": 5}
    first = words.get("/v1/completions", asked)["choices"][0]
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda seed: words.get("/v1/completions", asked | {"seed": seed})["choices"][0]["text"], [5, 1, 5, 2, 5, 3]))
    assert texts[0] == texts[2] == texts[4] == first["text"] and len(set(texts)) > 1


def events(said: bytes) -> list[dict[str, Any]]:
    parts = said.decode().removesuffix("\n\n").split("\n\n")
    assert parts[-1] == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-1]]


def test_a_stream_is_the_whole_in_pieces(words: Client) -> None:
    asked = {"prompt": ["the day", "a film"], "max_tokens": 12, "temperature": 0}
    whole = words.get("/v1/completions", asked)
    status, headers, said = words.ask("/v1/completions", asked | {"stream": True})
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    for choice in whole["choices"]:
        parts = [one["choices"][0] for one in events(said) if one["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts][-1] == choice["finish_reason"] in ("stop", "length")


def test_a_stop_word_ends_a_text(words: Client) -> None:
    asked = {"prompt": "the day", "max_tokens": 12, "temperature": 1, "seed": 3}
    text = words.get("/v1/completions", asked)["choices"][0]["text"]
    stop = text[3:5]
    found = words.get("/v1/completions", asked | {"stop": stop})["choices"][0]
    assert found["text"] == text[: text.index(stop)] and found["finish_reason"] == "stop"


# --- what is refused -----------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[int, Any]] = {
    "nothing": (422, b""), "not JSON": (400, "input=a"), "half of JSON": (400, '{"input": "a'), "a list": (422, [1]),
    "bytes": (400, b"\xff\xfe\x00"), "deep": (400, "[" * 100_000),
    "a long number": (400, '{"input": ' + "9" * 5000 + "}"), "no input": (422, {}),
    "null": (422, {"input": None}), "empty": (422, {"input": ""}), "empty list": (422, {"input": []}), "number": (422, {"input": 3}),
    "half a character": (422, b'{"input": "\\ud800"}'), "typo": (422, {"input": "a", "imput": "b"}),
    "a pair": (422, {"input": [["a", "b"]]}),
    "three": (422, {"input": [["a", "b", "c"]]}), "other model": (404, {"input": "a", "model": "gpt"}),
    "many": (413, {"input": ["a"] * (INPUTS + 1)}), "long": (413, {"input": "a" * (LETTERS + 1)}),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_get_a_reason(rows: Client, case: str) -> None:
    wanted, body = BAD[case]
    status, headers, said = rows.ask("/v1/classify", body, "POST")
    assert status == wanted and headers["content-type"] == "application/json", said
    assert json.loads(said)["error"]["code"] == wanted and len(said) < 1000


@pytest.mark.parametrize("kind", [TextsToEmbed, PairsRequest, CompletionRequest])
def test_a_large_bad_body_has_few_errors(kind: type[Request]) -> None:
    """Every error takes time in which nobody else is served."""
    wrong = [dict.fromkeys(map(str, range(50_000))), {"input": [1] * 200_000, "prompt": [[]] * 200_000, "stop": [1] * 200_000}]
    for body in wrong:
        for read in (lambda given: kind.model_validate_json(json.dumps(given)), kind.model_validate):
            with pytest.raises(ValidationError) as failed:
                read(body)
            assert failed.value.error_count() < 600


def test_bad_completions(words: Client) -> None:
    for wrong in (
        {"max_tokens": 0}, {"max_tokens": MAX_TOKENS + 1}, {"max_tokens": True}, {"temperature": -1}, {"temperature": "hot"}, {"top_p": 0},
        {"seed": 2**40}, {"stop": []}, {"n": 2}, {"stream": "yes"},
    ):  # fmt: skip
        assert words.ask("/v1/completions", {"prompt": "a", **wrong})[0] == 422, wrong
    assert words.ask("/v1/completions", '{"prompt": "a", "temperature": NaN}')[0] in (400, 422)
    assert words.ask("/v1/completions", {"prompt": "x " * 40_000})[0] == 413
    for path, status in (("/v1/classify", 404), ("/v1/embeddings", 404), ("/../../etc/passwd", 404)):
        assert words.ask(path, {"input": "a"})[0] == status
    assert words.ask("/v1/completions", None, "GET")[0] == 405
    assert words.ask("/v1/completions", {"prompt": "a"}, Host="evil.example")[0] == 421


def test_a_full_queue_says_come_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(folder / "films", queue=2, seconds=5.0) as client:
        held, go = threading.Event(), threading.Event()
        original = tokmix.runtime.model.TextModel.run

        def slow(self: Any, rows: Any) -> Any:
            held.set()
            go.wait(30)
            return original(self, rows)

        monkeypatch.setattr(tokmix.runtime.model.TextModel, "run", slow)
        with ThreadPoolExecutor(8) as pool:
            first = pool.submit(client.ask, "/v1/classify", {"input": "a"})
            held.wait(30)
            rest = [pool.submit(client.ask, "/v1/classify", {"input": "a"}) for _ in range(5)]
            deadline = time.monotonic() + 30
            while sum(one.done() for one in rest) < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            refused = [one.result() for one in rest if one.done()]
            go.set()
            assert first.result()[0] == 200
            assert len(refused) == 3 and all(status == 429 and headers["retry-after"] == "1" for status, headers, _ in refused)
            assert sorted(one.result()[0] for one in rest) == [200, 200, 429, 429, 429]


def test_time_runs_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokmix.runtime.model.TextModel, "run", lambda self, rows: time.sleep(1) or 1 / 0)
    with running(folder / "films", seconds=0.2) as client:
        status, headers, said = client.ask("/v1/classify", {"input": "a"})
        assert status == 503 and headers["retry-after"] == "1" and b"within 0.2 s" in said


def test_a_body_over_the_bound_is_not_read(rows: Client) -> None:
    head = "POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", rows.port), timeout=30) as line:
        line.sendall(f"{head}Content-Length: 10000000\r\n\r\n".encode())
        assert line.recv(64).startswith(b"HTTP/1.1 413")
    with socket.create_connection(("127.0.0.1", rows.port), timeout=30) as line:
        line.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(door.BODY // 65536 + 1):
            line.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        assert line.recv(64).startswith(b"HTTP/1.1 413")


# --- hostile clients -----------------------------------------------------------------------------------------------------------


def test_slow_headers_and_bodies_are_cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(door, "BODY_SECONDS", 0.5)
    with running(folder / "films") as client:
        lines = [socket.create_connection(("127.0.0.1", client.port), timeout=30) for _ in range(200)]
        try:
            for line in lines:
                line.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
            assert client.ask("/v1/classify", {"input": "a"})[0] == 200, "others are served meanwhile"
            assert all(line.recv(1) == b"" for line in lines), "closed by the server"
        finally:
            for line in lines:
                line.close()
        with socket.create_connection(("127.0.0.1", client.port), timeout=30) as line:
            line.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{")
            assert line.recv(64).startswith(b"HTTP/1.1 408")


def test_readers_who_leave_make_room(folder: Path) -> None:
    with running(folder / "lm", batch=2) as client:
        body = json.dumps({"prompt": "the day", "max_tokens": MAX_TOKENS, "stream": True, "temperature": 5, "seed": 3})
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        for _ in range(12):
            with socket.create_connection(("127.0.0.1", client.port), timeout=60) as line:
                line.sendall((head + body).encode())
                line.recv(1)
        assert client.ask("/v1/completions", {"prompt": "the day", "max_tokens": 2, "temperature": 0})[0] == 200


# --- the token, the log, the address ---------------------------------------------------------------------------------------------


def test_nothing_gets_past_the_door_without_the_token(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    secret = "a-long-secret-token-0123456789"
    (tmp_path / "token").write_text(secret + "\n")
    with running(folder / "films", token=str(tmp_path / "token"), log="requests") as client:
        assert client.ask("/v1/classify", {"input": "a private text"})[0] == 200
        stranger = Client(client.port)
        for path in ("/v1/classify", "/v1/embeddings", "/metrics", "/openapi.json", "/nowhere", "/"):
            for wrong in ({}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {secret}x"}, {"Authorization": f"Basic {secret}"},
                          {"Authorization": secret}, {"Authorization": f"Bearer {secret[:-1]}"}):  # fmt: skip
                status, headers, _ = stranger.ask(path, {"input": "a"}, **wrong)
                assert status == 401 and headers["www-authenticate"] == "Bearer", (path, wrong)
        assert stranger.ask("/healthz")[0] == 200 and stranger.ask("/readyz")[0] == 200
    log = capfd.readouterr().err
    assert '"path": "/v1/classify", "status": 200' in log and '"rows": 1' in log
    assert "private" not in log and secret not in log


def test_texts_are_logged_only_when_asked(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with running(folder / "films", log="texts") as client:
        client.get("/v1/classify", {"input": "a known text"})
    assert '"texts": ["a known text"]' in capfd.readouterr().err


def test_settings_that_cannot_work(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short").write_text("abc")
    for words, why in (
        (["--port", "70000"], "port=70000"), (["--workers", "0"], "workers=0"), (["--token", str(tmp_path / "short")], "at least 16"),
        (["--token", str(tmp_path / "none")], "no such file"), (["--seconds", "0"], "seconds=0"), (["--batch", "0"], "batch=0"),
    ):  # fmt: skip
        assert main(["serve", str(folder / "films"), *words]) == 1
        said = capsys.readouterr().err
        assert why in said and said.count("\n") == 1
    assert main(["serve", str(folder / "nowhere")]) == 1


# --- the end ---------------------------------------------------------------------------------------------------------------------


def test_sigterm_finishes_what_is_in_flight(folder: Path, tmp_path: Path) -> None:
    with process(tmp_path, folder / "lm") as (started, client):
        asked = {"prompt": "the day", "max_tokens": 300, "temperature": 5, "seed": 4, "stream": True}
        body = json.dumps(asked)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", client.port), timeout=60) as line:
            line.sendall((head + body).encode())
            said = line.recv(100)
            started.send_signal(signal.SIGTERM)
            while not said.endswith(b"0\r\n\r\n") and (more := line.recv(65536)):
                said += more
        assert b"data: [DONE]" in said
        assert started.wait(30) in (0, -signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["films", "lm"])
def test_the_benchmark_loses_nothing(folder: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--requests", "240", "--clients", "32", "--out", str(tmp_path / "found.json")]
    assert main(["bench", "serve", "--model", str(folder / name), *words]) == 0
    assert "batched over one by one" in capsys.readouterr().out
    for one in json.loads((tmp_path / "found.json").read_text())["servers"]:
        assert (one["requests"], one["wrong"], one["lost"]) == (240, 0, 0) and one["memory_after_mb"] > 0
    assert main(["bench", "serve"]) == 1 and "--model MODEL" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_server_of_an_exported_model_serves_again_in_five_seconds(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    run = tmp_path / "films"
    shutil.copytree(folder / "films", run)
    export(run, run / "exported")
    for _ in range(2):
        with process(tmp_path, run) as (started, client):
            assert client.get("/v1/classify", {"input": "a"})["data"]
            assert 0 < cpu_seconds(started.pid) < 3, "of a core: on a machine with nothing else to do these are the seconds"
            started.kill()
    (run / "model" / "training.json").write_text((run / "model" / "training.json").read_text() + " ")
    with process(tmp_path, run) as (_, client):
        assert "exported is not of this model" in (tmp_path / "log").read_text(), "torch computes it, as it is another"
        assert client.get("/v1/classify", {"input": "a"})["data"]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_started_again(folder: Path, tmp_path: Path) -> None:
    with process(tmp_path, folder / "films", "--workers", "2") as (started, client):
        assert client.get("/v1/classify", {"input": "a"})["data"]
        children = [int(one) for one in Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()]
        workers = [one for one in children if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        for _ in range(10):
            assert client.get("/v1/classify", {"input": "a"})["data"]
        assert b"tokmix_requests_total" in client.ask("/metrics")[2]
        line, until = f"worker {workers[0]} ended with -9", time.monotonic() + 30
        while line not in (tmp_path / "log").read_text():  # a worker is looked at now and then
            assert time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.1)
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0


@pytest.mark.slow
def test_workers_end_with_a_killed_supervisor(folder: Path, tmp_path: Path) -> None:
    with process(tmp_path, folder / "films", "--workers", "2") as (started, client):
        started.kill()
        until = time.monotonic() + 60
        with pytest.raises(OSError):  # nobody listens any more: the port is free for the next server
            while time.monotonic() < until:
                socket.create_connection(("127.0.0.1", client.port), timeout=5).close()
                time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["films", "lm"])
def test_the_openapi_page_tells_the_truth(folder: Path, name: str) -> None:
    """schemathesis makes up requests from the page: no 5xx, no status and no answer that is not on it."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings

    with running(folder / name) as client:
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{client.port}/openapi.json")
        for operation in schema.get_all_operations():

            @given(case=operation.ok().as_strategy())
            @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
            def check(case: Any) -> None:
                case.call_and_validate(base_url=f"http://127.0.0.1:{client.port}", timeout=60)

            check()
