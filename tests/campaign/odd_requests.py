"""Odd requests to the routes of `tokmix play`: an answer, or a status of 4xx with a sentence."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from tests.campaign.children import Tally

PATHS = ["/", "/api/model", "/api/predict", "/api/map", "/api/generate", "/nowhere", "/api/../etc/passwd", "/%00"]
VALUES: list[Any] = [None, True, -1, 0, 3, 2**70, 1e308, "", "a fine day", "\x00\ud800", "x" * 9000, [], {}, [["a"]], {"a": {}}]
NAMES = ["text", "text2", "model", "layer", "max_new", "temperature", "wings"]


def _body(draw: random.Random) -> bytes:
    kind = draw.randrange(6)
    if kind == 0:
        return draw.randbytes(draw.randint(0, 200))
    if kind == 1:
        return draw.choice([b"[" * 50_000, b'{"a":' * 9000, b'{"text": NaN}', b"null", b"3", b"\0", b"x" * 200_000])
    known = {name: draw.choice(VALUES) for name in draw.sample(NAMES, draw.randint(0, 4))}
    return json.dumps({"text": "a fine day", **known} if kind > 3 else known).encode("utf-8", "surrogatepass")


async def _ask(app: Any, method: str, path: str, body: bytes) -> int:
    status, sent = 0, False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.sleep(60)
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    await asyncio.wait_for(app(scope, receive, send), 30)
    return status


def odd_requests(model: Path, count: int, draw: random.Random) -> Tally:
    from tokmix.pages.play.app import create
    from tokmix.pages.play.engine import PlayService
    from tokmix.training import model_folder

    tally, app = Tally("requests to play"), create(PlayService(model_folder.load(model), None), ["127.0.0.1"])

    async def all_of_them() -> None:
        for number in range(count):
            method, path, body = draw.choice(["GET", "POST", "POST", "POST", "PUT"]), draw.choice(PATHS), _body(draw)
            try:
                status = await _ask(app, method, path, body)
            except Exception as error:
                tally.add("wrong", f"request {number}, {method} {path} {body[:60]!r}: {type(error).__name__}: {error}")
                continue
            kind = "held" if status < 400 else "clean" if status < 500 else "wrong"
            tally.add(kind, f"request {number}, {method} {path} {body[:60]!r}: {status}")

    asyncio.run(all_of_them())
    return tally
