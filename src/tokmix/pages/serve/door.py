"""Everything that happens to a request before a route sees it, and to every answer: host, token, bounds, log, metrics."""

from __future__ import annotations

import asyncio
import hmac
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokmix.pages.requests import Refusal, check_host, read_body
from tokmix.pages.serve.batcher import Closed, Full
from tokmix.pages.serve.metrics import Metrics

BODY = 1 << 20  # bytes
BODY_SECONDS = 10.0
OPEN_PATHS = ("/healthz", "/readyz")  # what watches a server has no token
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass
class Noted:
    """What a route tells the log: never a text, unless the log is asked for them."""

    numbers: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)


noted: ContextVar[Noted] = ContextVar("noted")


def failure(status: int, why: str, headers: dict[str, str] | None = None) -> JSONResponse:
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return JSONResponse({"error": {"message": why, "type": kind, "code": status}}, status, headers)


AGAIN = {"Retry-After": "1"}
REFUSALS = (Refusal, Full, Closed, ValueError)


def failure_of(error: Exception) -> JSONResponse:
    if isinstance(error, Refusal):
        return failure(error.status, error.why, error.headers)
    if isinstance(error, Full):
        return failure(429, "too many rows wait: come again", AGAIN)
    if isinstance(error, Closed):
        return failure(503, "the server is about to end", AGAIN)
    return failure(422, str(error))


@dataclass(eq=False)
class Door:
    """hosts: what a request's Host may say, None: anything. token: what `Authorization: Bearer` has to give, None: nothing.
    quick: paths whose well-formed requests are answered here; the app answers all others."""

    app: ASGIApp
    hosts: Sequence[str] | None
    token: bytes | None
    metrics: Metrics
    paths: frozenset[str]
    log: str
    quick: Mapping[str, Callable[[bytes], Awaitable[bytes] | None]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begin, status, note = time.perf_counter(), 500, Noted()
        noted.set(note)

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        self.metrics.open.inc()
        try:
            await self._answer(scope, receive, sent)
        finally:
            took = time.perf_counter() - begin
            self.metrics.open.dec()
            path = scope["path"] if scope["path"] in self.paths else "other"  # strangers must not make up label values
            requests, seconds = self.metrics.of(path, status)
            requests.inc()
            seconds.observe(took)
            self._write_log(scope, status, took, note)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        try:
            check_host(headers.get(b"host", ""), self.hosts)
            self._check_token(scope["path"], headers.get(b"authorization", ""))
            body = await read_body(headers, receive, BODY, BODY_SECONDS)
        except Refusal as refused:
            return await failure_of(refused)(scope, receive, send)
        quick = self.quick.get(scope["path"]) if scope["method"] == "POST" else None
        if quick is not None and headers.get(b"content-type", "").partition(";")[0].strip().lower() == "application/json":
            answer = quick(body)
            if answer is not None:
                return await _send(answer, scope, receive, send)
        return await self.app(scope, _again(body, receive), send)

    def _check_token(self, path: str, given: str) -> None:
        if self.token is None or path in OPEN_PATHS:
            return
        kind, _, token = given.partition(" ")
        # Both are compared whole, in a time that does not tell how far they agree.
        if not hmac.compare_digest(token.strip().encode("latin-1"), self.token) or kind.lower() != "bearer":
            raise Refusal(401, "this server needs a token: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    def _write_log(self, scope: Scope, status: int, took: float, note: Noted) -> None:
        if self.log == "none" or scope["path"] in OPEN_PATHS:
            return
        client = scope.get("client")
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "client": client[0] if client else None,
            "method": scope["method"], "path": scope["path"][:200], "status": status, "ms": round(took * 1000, 2), **note.numbers,
        }  # fmt: skip
        if self.log == "texts":
            line["texts"] = note.texts
        print(json.dumps(line), file=sys.stderr, flush=True)


async def _send(answer: Awaitable[bytes], scope: Scope, receive: Receive, send: Send) -> None:
    try:
        body = await answer
    except REFUSALS as error:
        await failure_of(error)(scope, receive, send)
        return
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


def _again(body: bytes, receive: Receive) -> Callable[[], asyncio.Future[Message]]:
    """A `receive` that gives the body that was read, then what comes after it: the end of the connection."""
    first = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        return next(first, None) or await receive()

    return replay  # type: ignore[return-value]
