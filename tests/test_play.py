"""`play`: what the server says, what it refuses, that it stays up, and the page in a real browser."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
if os.environ.get("CI") != "true":  # in CI a missing package is a failure, not a skip
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")

from tests import browser as browsers
from tests.lab import settings, write_scores, write_table, write_text
from tokmix import Model, generate
from tokmix.cli import main
from tokmix.lab import modelfolder
from tokmix.lab.generate import stream
from tokmix.lab.predict import Predictor
from tokmix.lab.train import run as train
from tokmix.play.app import AT_ONCE, STREAMS, Busy
from tokmix.play.app import _texts as texts_of
from tokmix.play.ask import BODY, MAX_NEW, TEXT
from tokmix.play.engine import CONTEXT, MAP_SAMPLES, MAP_TOKENS, Engine, attention_config
from tokmix.play.server import is_local, listen

REQUESTS, CLIENTS = 1000, 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("play")
    short = {"train__steps": 4, "train__evaluations": 1}
    stack = "hypermixing(hidden=16), attention(heads=2)"
    train(write_table(folder / "films.csv", 60), folder / "films", settings(model__stack=stack, **short), quiet=True)
    train(write_scores(folder / "pairs.tsv", 60), folder / "pairs", settings(**short), quiet=True)
    text = write_text(folder / "text", 20)
    for name, stack in (("lm", "hsm*2"), ("lm2", "attention(heads=2)")):
        train(text, folder / name, settings(model__stack=stack, model__length=16, prepare__vocab=300, **short), quiet=True)
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


@pytest.fixture(scope="module")
def films(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("serve") / "films", str(folder / "films")) as server:
        yield server


@pytest.fixture(scope="module")
def writer(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("serve") / "lm", str(folder / "lm"), "--against", str(folder / "lm2")) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsers.open_browser() as found:
        yield found


# --- what is said --------------------------------------------------------------------------------------------------------------


def test_a_prediction_is_that_of_predict(films: Server, folder: Path) -> None:
    found = films.get("/api/predict", {"text": "a fine film"})
    (known,) = Predictor(modelfolder.load(folder / "films"))(["a fine film"])
    assert found["main"]["label"] == known["label"] and found["main"]["probabilities"] == pytest.approx(known["probabilities"], abs=1e-6)
    assert found["tokens"] == 5 and found["main"]["ms"] > 0 and found["main"]["flops"] > 0
    assert set(found["other"]) == {"ms", "flops"}, "an untrained model's opinion is not shown"


def test_the_model_beside_it_is_attention_of_the_same_size(films: Server, folder: Path) -> None:
    status, _, said = films.ask("/api/model", method="GET")
    facts = json.loads(said)
    assert status == 200 and facts["task"] == "classify" and facts["labels"] == ["bad", "good"] and facts["limits"]["text"] == TEXT
    assert facts["other"]["untrained"] and facts["other"]["stack"] == "attention(heads=4)*2"
    assert abs(facts["other"]["parameters"] - facts["main"]["parameters"]) <= 0.005 * facts["main"]["parameters"]
    config = modelfolder.load(folder / "lm").model.config
    assert attention_config(config).causal and Model(attention_config(config)).config.stack == "attention(heads=4)*2"


def test_maps_are_labelled_and_bounded(films: Server) -> None:
    found = films.get("/api/map", {"text": "a fine film"})
    assert found["tokens"] == ["[CLS]", "a", "fine", "film", "[SEP]"] and len(found["maps"]) == 4
    assert len(found["maps"][0]["weights"]) == 5 and found["maps"][0]["estimate"] is False
    long = films.get("/api/map", {"text": "day " * (MAP_TOKENS - 2), "layer": 1, "model": "other"})
    assert long["maps"][0]["estimate"] and "estimate" in long["maps"][0]["title"]
    status, _, said = films.ask("/api/map", {"text": "day " * MAP_TOKENS})
    assert status == 422 and f"at most {MAP_TOKENS}" in json.loads(said)["error"]


def lines(said: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines()]


def test_a_text_goes_on_as_generate_says(writer: Server, folder: Path) -> None:
    asked = {"text": "the day", "max_new": 12, "temperature": 0.9, "seed": 5}
    for name, model in (("lm", "main"), ("lm2", "other")):
        status, headers, said = writer.ask("/api/generate", {**asked, "model": model})
        assert status == 200 and headers["content-type"].startswith("application/x-ndjson")
        tokens = lines(said)
        trained = modelfolder.load(folder / name)
        assert "".join(one["text"] for one in tokens) == "".join(stream(trained, "the day", 12, temperature=0.9, seed=5))
        start = [trained.roles["eot"], *map(int, trained.encoder().documents(["the day"])[0])]
        ids = generate(trained.model, [start], 12, temperature=0.9, seed=5, stop=(trained.roles["eot"],))[0]
        assert len(tokens) == len(ids) and all(one["ms"] > 0 for one in tokens)
        state = trained.model.init_state(1)
        for at, one in enumerate(tokens):
            _, state = trained.model.step(torch.tensor([start if at == 0 else [ids[at - 1]]]), state)
            assert one["read"] == len(start) + at and one["state"] == numbers(state), "the state is what decoding keeps"


def numbers(state: Any) -> int:
    if isinstance(state, torch.Tensor):
        return state.numel()
    return sum(numbers(part) for part in (state.values() if isinstance(state, dict) else state))


def test_the_state_of_shift_mixing_stays_and_that_of_attention_grows(writer: Server) -> None:
    sizes = {}
    for model in ("main", "other"):
        tokens = lines(writer.ask("/api/generate", {"text": "the day was in the house", "max_new": 20, "seed": 1, "model": model})[2])
        assert len(tokens) > 1
        sizes[model] = [one["state"] for one in tokens]
    assert len(set(sizes["main"])) == 1
    assert all(a < b for a, b in zip(sizes["other"], sizes["other"][1:], strict=False))


def test_prompts_are_bounded(folder: Path) -> None:
    engine = Engine(modelfolder.load(folder / "lm"))
    with pytest.raises(ValueError, match=f"room for {CONTEXT - 1}"):
        engine.tokens("x" * 3 * CONTEXT)
    with pytest.raises(ValueError, match="only one for lm"):
        Engine(modelfolder.load(folder / "films")).tokens("a")
    with pytest.raises(ValueError, match="cannot be compared"):
        Engine(modelfolder.load(folder / "films"), modelfolder.load(folder / "lm"))


# --- what is refused -----------------------------------------------------------------------------------------------------------

GOOD = {"text": "a fine film"}
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


def test_every_answer_says_that_nothing_may_come_from_outside(films: Server) -> None:
    for path, method in (("/", "GET"), ("/play.js", "GET"), ("/api/model", "GET"), ("/nowhere", "GET"), ("/api/predict", "POST")):
        _, headers, said = films.ask(path, None, method)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and headers["x-content-type-options"] == "nosniff"
        assert b"//" not in said.replace(b"http://www.w3.org", b"") or path.endswith(".js")


def test_too_many_at_once_are_told_to_come_again() -> None:
    from fastapi import HTTPException

    busy = Busy(2, "requests")
    with busy.one(), busy.one():
        with pytest.raises(HTTPException) as refused, busy.one():
            pass
        assert refused.value.status_code == 503 and refused.value.headers == {"Retry-After": "1"}
    with busy.one():
        assert busy.now == 1


def test_the_address(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [is_local(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "192.168.0.1", "example.org")] == [
        True, True, True, True, False, False, False,
    ]  # fmt: skip
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["play", str(folder / "films"), "--port", str(port)]) == 1
        said = capsys.readouterr()
        assert f"cannot listen on 127.0.0.1 port {port}" in said.err and said.err.count("\n") == 1
        assert main(["play", str(folder / "films"), "--port", str(port), "--host", "0.0.0.0"]) == 1
        assert "there is no password" in capsys.readouterr().err
    assert main(["play", str(folder / "films"), "--port", "70000"]) == 1
    assert main(["play", str(folder / "films"), "--against", str(folder / "lm")]) == 1
    assert main(["play", str(folder / "nowhere")]) == 1


# --- that it stays up ----------------------------------------------------------------------------------------------------------


def test_a_thousand_requests_from_sixteen_clients(films: Server, folder: Path) -> None:
    before = contents(folder)
    kinds = [("good", 200, GOOD)] * 3 + [(name, *BAD[name][:2]) for name in ("nothing", "not JSON", "wrong type", "huge", "deep")]
    (known,) = Predictor(modelfolder.load(folder / "films"))([GOOD["text"]])
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


# --- in a browser --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [browsers.DESKTOP, browsers.PHONE], ids=["desktop", "phone"])
def test_the_page_of_a_classifier(browser: Any, films: Server, size: tuple[int, int]) -> None:
    with browsers.open_page(browser, films.url, size, only=films.url) as page:
        page.wait_for_selector("body[data-ready]")
        assert page.locator("#writing").is_hidden() and page.locator("#second").is_hidden()
        assert "hypermixing" in page.inner_text("#about") and "untrained attention" in page.inner_text("#about")
        page.fill("#text", "a fine <b>film</b>")
        page.wait_for_selector("#map canvas")
        assert page.inner_text("#answer-title") in ("good", "bad") and page.locator(".bar").count() == 2
        shares = [float(share) for share in page.locator(".bar .share").all_inner_texts()]
        assert sum(shares) == pytest.approx(1, abs=1e-3) and shares[0] >= shares[1]
        assert "untrained attention" in page.inner_text("#took") and " ms" in page.inner_text("#took")
        page.locator("#map canvas").hover(position={"x": 3, "y": 3})
        assert page.inner_text("#map .tip").startswith("[CLS] (1) reads [CLS] (1)")
        picture = page.locator("#map canvas").evaluate("canvas => canvas.toDataURL()")
        page.select_option("#layer", label="layer 2, attention")
        page.wait_for_selector("#map select option:nth-child(2)", state="attached")
        assert page.locator("#map option").all_inner_texts() == [
            "layer 2, attention: pseudo-attention",
            "layer 2, attention: softmax weights",
        ]
        page.select_option("#map select", index=1)
        assert page.locator("#map canvas").evaluate("canvas => canvas.toDataURL()") != picture
        page.fill("#text", "")
        page.wait_for_selector("#answer", state="hidden")


def test_the_page_says_why_there_is_no_map(browser: Any, films: Server) -> None:
    with browsers.open_page(browser, films.url, only=films.url) as page:
        page.wait_for_selector("body[data-ready]")
        assert page.locator("#text").get_attribute("maxlength") == str(TEXT)
        page.fill("#text", "fine day")
        page.wait_for_selector("#map canvas")
        page.fill("#text", "day " * MAP_TOKENS)
        page.wait_for_selector("#maps", state="hidden")
        assert page.inner_text("#message") == f"No map: the text has {MAP_TOKENS + 2} tokens, and a map takes at most {MAP_TOKENS}."
        assert page.locator(".bar").count() == 2


@pytest.mark.parametrize("size", [browsers.DESKTOP, browsers.PHONE], ids=["desktop", "phone"])
def test_the_page_of_a_language_model(browser: Any, writer: Server, size: tuple[int, int]) -> None:
    with browsers.open_page(browser, writer.url, size, only=writer.url) as page:
        page.wait_for_selector("body[data-ready]")
        page.fill("#text", "the day")
        page.fill("#max-new", "15")
        page.fill("#seed", "1")
        page.click("#go")
        page.wait_for_selector("#pace svg")
        said = page.inner_text("#main"), page.inner_text("#other")
        assert all(
            "ms (median)" in one and "numbers after" in one and one.startswith(name) for one, name in zip(said, ("lm", "lm2"), strict=True)
        )
        assert "untrained" not in said[1]
        assert page.locator("#pace polyline").count() == 2 and page.locator("#stop").is_disabled() and page.locator("#go").is_enabled()
        page.select_option("#pace select", "milliseconds a token")
        assert "ms" in page.locator("#pace svg").text_content()


def test_a_text_being_written_can_be_stopped(browser: Any, writer: Server) -> None:
    with browsers.open_page(browser, writer.url, only=writer.url) as page:
        page.wait_for_selector("body[data-ready]")
        page.fill("#text", "the day")
        page.fill("#max-new", str(MAX_NEW))
        page.fill("#seed", "3")
        page.click("#go")
        page.wait_for_selector("#main dl dd")
        page.click("#stop")
        page.wait_for_selector("#go:not([disabled])")
        assert page.inner_text("#message") == ""


def test_a_model_of_pairs_asks_for_two_texts(folder: Path) -> None:
    from fastapi import HTTPException

    engine = Engine(modelfolder.load(folder / "pairs"))
    assert engine.facts()["pair"] is True
    with pytest.raises(HTTPException, match="'text2' is missing"):
        texts_of(engine, dict(GOOD))
    texts = texts_of(engine, {**GOOD, "text2": "dull road"})
    (known,) = Predictor(modelfolder.load(folder / "pairs"))([(GOOD["text"], "dull road")])
    found = engine.predict(texts)
    assert found["main"]["score"] == pytest.approx(known["score"], abs=1e-5) and "score" not in found["other"]
    assert engine.maps(texts)["tokens"][-1] == "[SEP]"


def test_the_documented_bounds_are_those_of_the_code() -> None:
    page = (Path(__file__).parent.parent / "docs" / "play.md").read_text()
    directions = f"from {MAP_SAMPLES[0]} to {MAP_SAMPLES[1]} directions"
    written = f"{MAX_NEW} new tokens, {CONTEXT:,} in all"
    for words in (f"{BODY // 1024} KiB", f"{TEXT:,} letters", f"{MAP_TOKENS} tokens", directions, written, f"{AT_ONCE}, {STREAMS} |"):
        assert words in page, words
