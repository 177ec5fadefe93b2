"""The routes. Each exists only where the model can answer it, so the OpenAPI page lists what this server does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from tokmix.pages.requests import Refusal
from tokmix.pages.serve import schemas
from tokmix.pages.serve.completions import Answer, Stops, pieces
from tokmix.pages.serve.door import AGAIN, REFUSALS, Door, failure, failure_of
from tokmix.pages.serve.service import Bounds, Service
from tokmix.pages.serve.writer import Row
from tokmix.runtime.model import TextModel

WHY = {
    400: "not JSON", 401: "no token, or a wrong one", 404: "no such model", 408: "the body came too slowly", 413: "too large",
    421: "another host was meant", 422: "a field is missing, unknown or out of bounds", 429: "too many rows wait: come again",
    503: "out of time, or about to end: come again",
}  # fmt: skip
Responses = dict[int | str, dict[str, Any]]
ERRORS: Responses = {status: {"model": schemas.Error, "description": why} for status, why in WHY.items()}
PLAIN_ERRORS: Responses = {status: ERRORS[status] for status in (401, 413, 408, 421)}
TOO_LONG = ("string_too_long", "too_long")  # as pydantic calls it


def create(model: TextModel, name: str, bounds: Bounds, hosts: Sequence[str] | None, token: str | None, log: str) -> Door:
    service = Service(model, name, bounds)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.ready = False
        await asyncio.to_thread(service.worker.close)

    app = FastAPI(title="tokmix", description=f"`{model.about.stack}`, a model for {model.about.task}", docs_url=None, redoc_url=None,
                  lifespan=lifespan)  # fmt: skip
    _add_errors(app)
    _add_status(app, service)
    if model.about.task == "lm":
        _add_completions(app, service)
    else:
        _add_rows(app, service)
    paths = frozenset(path for route in app.routes if (path := getattr(route, "path", None)))
    return Door(app, hosts, None if token is None else token.encode(), service.metrics, paths, log, service.quick())


def _add_errors(app: FastAPI) -> None:
    async def refused(request: Request, error: Exception) -> Response:
        return failure_of(error)

    for kind in REFUSALS:
        app.add_exception_handler(kind, refused)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        """Without the input, which may be long, and may hold what JSON cannot."""
        found = error.errors()
        # One too long says so, whatever else it could have been instead.
        large = [one for one in found if one["type"] in TOO_LONG and one["ctx"]["max_length"] > 2]  # three texts are no large pair
        first = (large or found)[0]
        if first["type"] == "json_invalid":
            return failure(400, "the body is not JSON")
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return failure(413 if large else 422, f"{place[:200] or 'the body'}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        return failure(error.status_code, str(error.detail), dict(error.headers or {}))


def _add_status(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", responses=PLAIN_ERRORS)
    async def healthz() -> schemas.Status:
        """Whether the process answers."""
        return schemas.Status(status="ok")

    @app.get("/readyz", responses={**PLAIN_ERRORS, 503: ERRORS[503]})
    async def readyz() -> schemas.Status:
        """Whether requests are taken."""
        if not service.ready or not service.worker.thread.is_alive():
            raise Refusal(503, "the server is about to end", AGAIN)
        return schemas.Status(status="ready")

    @app.get("/metrics", response_class=Response, responses={**PLAIN_ERRORS, 200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(await asyncio.to_thread(service.metrics.text), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_rows(app: FastAPI, service: Service) -> None:
    """Requests that are well-formed are answered before FastAPI (door.py); it answers the others, and writes the OpenAPI page."""
    model = service.model

    async def classify(asked: schemas.RowsRequest) -> Response:
        """A label, or several, and probabilities of each text, or its score."""
        return Response(await service.classify(asked), media_type="application/json")

    async def embeddings(asked: schemas.EmbeddingsRequest) -> Response:
        """A vector of each text."""
        return Response(await service.embeddings(asked), media_type="application/json")

    # FastAPI reads what a route takes from its annotations; which it is depends on the model.
    classify.__annotations__["asked"] = schemas.PairsRequest if model.about.pair else schemas.TextsRequest
    embeddings.__annotations__["asked"] = schemas.PairsToEmbed if model.about.pair else schemas.TextsToEmbed
    if model.about.task != "mlm":
        app.post("/v1/classify", responses=ERRORS, response_model=schemas.Classifications, response_model_exclude_none=True)(classify)
    app.post("/v1/embeddings", responses=ERRORS, response_model=schemas.Embeddings)(embeddings)


def _add_completions(app: FastAPI, service: Service) -> None:
    events: Responses = {200: {"content": {"text/event-stream": {}}}}

    @app.post("/v1/completions", responses={**ERRORS, **events}, response_model=schemas.Completion)
    async def completions(asked: schemas.CompletionRequest) -> Response:
        """How a text goes on: whole, or with `stream` as server-sent events."""
        rows, answer = service.write(asked), Answer(service.name)
        if asked.stream:
            return StreamingResponse(_events(service, asked, rows, answer), media_type="text/event-stream")
        try:
            async with asyncio.timeout(service.bounds.seconds):
                choices = [await _whole(service, asked, i, row) for i, row in enumerate(rows)]
        except TimeoutError:
            raise Refusal(503, f"no answer within {service.bounds.seconds:g} s", AGAIN) from None
        finally:
            for row in rows:
                row.gone = True
        service.count(sum(len(row.prompt) for row in rows), sum(row.made for row in rows), rows=len(rows))
        return Response(answer.whole(choices, rows).model_dump_json(), media_type="application/json")


async def _whole(service: Service, asked: schemas.CompletionRequest, index: int, row: Row) -> schemas.Choice:
    found = [one async for one in pieces(row, service.model.tokenizer, Stops(asked.stops()))]
    return schemas.Choice(index=index, text="".join(text for text, _ in found), finish_reason=found[-1][1])


async def _events(service: Service, asked: schemas.CompletionRequest, rows: list[Row], answer: Answer) -> AsyncIterator[str]:
    """One event a piece, as the texts come; [DONE] at the end. A reader who leaves frees the rows."""
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    async def follow(index: int, row: Row) -> None:
        try:
            async for text, ended in pieces(row, service.model.tokenizer, Stops(asked.stops())):
                queue.put_nowait(answer.event(index, text, ended))
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(follow(i, row)) for i, row in enumerate(rows)]
    left = len(tasks)
    try:
        async with asyncio.timeout(service.bounds.seconds):
            while left:
                event = await queue.get()
                if event is None:
                    left -= 1
                else:
                    yield event
        yield "data: [DONE]\n\n"
    except TimeoutError:
        yield f'data: {{"error": {{"message": "no more within {service.bounds.seconds:g} s", "type": "server_error", "code": 503}}}}\n\n'
    finally:
        for task, row in zip(tasks, rows, strict=True):
            row.gone = True
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        service.count(sum(len(row.prompt) for row in rows), sum(row.made for row in rows), rows=len(rows))
