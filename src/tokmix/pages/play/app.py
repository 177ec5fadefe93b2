"""The routes of the page. Everything is answered from memory and from the package's own files; nothing is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import resources
from typing import TypeVar

import anyio.to_thread
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokmix.pages.play import schemas
from tokmix.pages.play.engine import Facts, PlayService
from tokmix.pages.requests import Refusal, check_host

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
FILES = {
    "/": ("tokmix.pages.play", "page.html", "text/html"),
    "/play.css": ("tokmix.pages.play", "play.css", "text/css"),
    "/play.js": ("tokmix.pages.play", "play.js", "text/javascript"),
    "/style.css": ("tokmix.pages.report", "style.css", "text/css"),
    "/charts.js": ("tokmix.pages.report", "charts.js", "text/javascript"),
}
AT_ONCE = 32  # requests that compute or wait; further ones get status 503
STREAMS = 8  # of those, texts being generated
Answer = TypeVar("Answer")


class Busy:
    """Counts the current requests, and refuses more than `most`."""

    def __init__(self, most: int, what: str):
        self.most, self.what, self.now = most, what, 0

    @contextmanager
    def one(self) -> Iterator[None]:
        if self.now >= self.most:
            raise HTTPException(503, f"{self.what}: {self.most} at once are all there is room for; try again", {"Retry-After": "1"})
        self.now += 1
        try:
            yield
        finally:
            self.now -= 1


class Guard:
    """Sends the headers with every answer, and refuses requests for other hosts."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str] | None):
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((name.encode(), value.encode()) for name, value in HEADERS.items())]
            await send(message)

        try:
            check_host(next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), ""), self.hosts)
        except Refusal as refusal:
            return await _refused(refusal)(scope, receive, sent)
        return await self.app(scope, receive, sent)


def create(engine: PlayService, hosts: Sequence[str] | None = None) -> FastAPI:
    """hosts: allowed Host headers of a request; None: any."""
    app = FastAPI(title="tokmix play", docs_url=None, redoc_url=None, openapi_url=None)
    requests, streams = Busy(AT_ONCE, "requests"), Busy(STREAMS, "texts being written")
    app.add_middleware(Guard, hosts=hosts)

    @app.exception_handler(AnyHTTPException)
    async def refused(request: Request, error: AnyHTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    for path, (package, name, kind) in FILES.items():
        content = (resources.files(package) / name).read_bytes()
        app.add_route(path, _file(content, kind), methods=["GET"])

    @app.get("/api/model")
    async def model() -> Response:
        return JSONResponse({**engine.facts(), "limits": {"text": schemas.TEXT, "max_new": schemas.MAX_NEW}})

    @app.exception_handler(Refusal)
    async def unfit(request: Request, error: Refusal) -> Response:
        return _refused(error)

    @app.post("/api/predict")
    async def predict(request: Request) -> Response:
        texts = (await schemas.read(request, schemas.PredictRequest)).texts(engine.pair)
        with requests.one():
            return JSONResponse(await _compute(lambda: engine.predict(texts)))

    @app.post("/api/words")
    async def words(request: Request) -> Response:
        texts = (await schemas.read(request, schemas.PredictRequest)).texts(engine.pair)
        with requests.one():
            return JSONResponse(await _compute(lambda: engine.words(texts)))

    @app.post("/api/map")
    async def maps(request: Request) -> Response:
        asked = await schemas.read(request, schemas.MapRequest)
        texts = asked.texts(engine.pair)
        with requests.one():
            return JSONResponse(await _compute(lambda: engine.maps(texts, asked.model, asked.layer)))

    @app.post("/api/generate")
    async def generate(request: Request) -> Response:
        asked = await schemas.read(request, schemas.GenerateRequest)
        settings = asked.model_dump(exclude={"text", "model"})
        room = streams.one()
        room.__enter__()
        try:
            tokens = await _compute(lambda: engine.tokens(asked.text, asked.model, **settings))
        except BaseException:
            room.__exit__(None, None, None)
            raise
        return StreamingResponse(_lines(tokens, room), media_type="application/x-ndjson")

    return app


def _file(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def send(request: Request) -> Response:
        return Response(content, media_type=kind)

    return send


def _refused(refusal: Refusal) -> Response:
    return JSONResponse({"error": refusal.why}, refusal.status, refusal.headers)


async def _compute(work: Callable[[], Answer]) -> Answer:
    """Run in a thread, so that other requests are answered meanwhile. A ValueError is about the text: status 422."""
    try:
        return await anyio.to_thread.run_sync(work)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None


async def _lines(tokens: Iterator[Facts], room: AbstractContextManager[None]) -> AsyncIterator[str]:
    """One line of JSON per token; ends early if the client has gone."""
    try:
        while (token := await anyio.to_thread.run_sync(next, tokens, None)) is not None:
            yield json.dumps(token) + "\n"
            await asyncio.sleep(0)
    finally:
        room.__exit__(None, None, None)
