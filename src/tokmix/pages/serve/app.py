"""The routes. Each exists only where the model can answer it, so the OpenAPI page lists what this server does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from tokmix.pages.serve import schemas
from tokmix.pages.serve.batcher import Batcher, Closed, Full
from tokmix.pages.serve.completions import Answer, Stops, pieces
from tokmix.pages.serve.door import Door, Refusal, failure, noted
from tokmix.pages.serve.metrics import Metrics
from tokmix.pages.serve.writer import Row, Writer
from tokmix.runtime.model import Outputs, TextModel
from tokmix.runtime.sampling import Sampling

WHY = {
    400: "not JSON", 401: "no token, or a wrong one", 404: "no such model", 408: "the body came too slowly", 413: "too large",
    421: "another host was meant", 422: "a field is missing, unknown or out of bounds", 429: "too many rows wait: come again",
    503: "out of time, or about to end: come again",
}  # fmt: skip
Responses = dict[int | str, dict[str, Any]]
ERRORS: Responses = {status: {"model": schemas.Error, "description": why} for status, why in WHY.items()}
PLAIN_ERRORS: Responses = {status: ERRORS[status] for status in (401, 413, 408, 421)}
AGAIN = {"Retry-After": "1"}
TOO_LONG = ("string_too_long", "too_long")  # as pydantic calls it


@dataclass(frozen=True)
class Bounds:
    """batch    rows computed at once, or texts written at once
    queue    rows that may wait for them
    seconds  for one request
    context  tokens of a prompt and what follows it
    """

    batch: int = 64
    queue: int = 1024
    seconds: float = 30.0
    context: int = 4096


class Service:
    """The model and what computes with it."""

    def __init__(self, model: TextModel, name: str, bounds: Bounds):
        self.model, self.name, self.bounds, self.metrics = model, name, bounds, Metrics()
        kind = Writer if model.about.task == "lm" else Batcher
        self.worker: Writer | Batcher = kind(model, bounds.batch, bounds.queue, self.metrics.batch_rows.observe)
        self.ready = True

    def check_name(self, given: str | None) -> None:
        if given is not None and given != self.name:
            raise Refusal(404, f"this server has the model {self.name!r}, not {given[:80]!r}")

    async def rows(self, asked: schemas.RowsRequest) -> Outputs:
        assert isinstance(self.worker, Batcher)
        self.check_name(asked.model)
        given = asked.rows()
        noted.get().texts = [" | ".join(row) for row in given]
        rows = [self.model.row(row) for row in given]
        try:
            found = await asyncio.wait_for(self.worker.submit(rows), self.bounds.seconds)
        except TimeoutError:
            raise Refusal(503, f"no answer within {self.bounds.seconds:g} s", AGAIN) from None
        self.count(sum(found.tokens), 0, rows=len(rows))
        return found

    def write(self, asked: schemas.CompletionRequest) -> list[Row]:
        assert isinstance(self.worker, Writer)
        self.check_name(asked.model)
        prompts = asked.prompts()
        noted.get().texts = prompts
        begun: list[Row] = []
        try:
            for i, (ids, room) in enumerate([self.model.prompt(text, asked.max_tokens) for text in prompts]):
                if len(ids) + room > self.bounds.context:
                    raise Refusal(413, f"prompt {i} has {len(ids)} tokens; with max_tokens at most {self.bounds.context} are taken")
                seed = None if asked.seed is None else asked.seed + i
                begun.append(self.worker.submit(ids, room, Sampling(asked.temperature, asked.top_k, asked.top_p, seed)))
        except BaseException:
            for row in begun:
                row.gone = True
            raise
        return begun

    def count(self, read: int, made: int, **more: int) -> None:
        self.metrics.tokens.labels("read").inc(read)
        self.metrics.tokens.labels("written").inc(made)
        noted.get().numbers = {**more, "tokens_read": read, "tokens_written": made}


def create(model: TextModel, name: str, bounds: Bounds, hosts: Sequence[str] | None, token: str | None, log: str) -> FastAPI:
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
    paths = [path for route in app.routes if (path := getattr(route, "path", None))]
    app.add_middleware(Door, hosts=hosts, token=token, metrics=service.metrics, paths=paths, log=log)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return failure(error.status, error.why, error.headers)

    @app.exception_handler(Full)
    async def full(request: Request, error: Full) -> Response:
        return failure(429, "too many rows wait: come again", AGAIN)

    @app.exception_handler(Closed)
    async def closed(request: Request, error: Closed) -> Response:
        return failure(503, "the server is about to end", AGAIN)

    @app.exception_handler(ValueError)
    async def wrong(request: Request, error: ValueError) -> Response:
        return failure(422, str(error))

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
    model = service.model

    async def classify(asked: schemas.RowsRequest) -> JSONResponse:
        """A label and probabilities of each text, or its score."""
        found = await service.rows(asked)
        assert found.outputs is not None
        data = []
        for i, (output, cut) in enumerate(zip(found.outputs, found.cut, strict=True)):
            answer = model.answer("", output)
            data.append({"index": i, **{key: value for key, value in answer.items() if key != "text"}, "truncated": cut})
        return JSONResponse({"object": "list", "model": service.name, "data": data, "usage": _usage(found)})

    async def embeddings(asked: schemas.RowsRequest) -> JSONResponse:
        """A vector of each text."""
        found = await service.rows(asked)
        data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(found.pooled.tolist())]
        return JSONResponse({"object": "list", "model": service.name, "data": data, "usage": _usage(found)})

    # FastAPI reads what a route takes from its annotations; which it is depends on the model.
    classify.__annotations__["asked"] = schemas.PairsRequest if model.about.pair else schemas.TextsRequest
    embeddings.__annotations__["asked"] = schemas.PairsToEmbed if model.about.pair else schemas.TextsToEmbed
    if model.about.task in ("classify", "regress"):
        app.post("/v1/classify", responses=ERRORS, response_model=schemas.Classifications, response_model_exclude_none=True)(classify)
    app.post("/v1/embeddings", responses=ERRORS, response_model=schemas.Embeddings)(embeddings)


def _usage(found: Outputs) -> dict[str, int]:
    total = sum(found.tokens)
    return {"prompt_tokens": total, "completion_tokens": 0, "total_tokens": total}


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
