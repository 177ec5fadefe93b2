"""The model behind the routes: requests that have been checked become rows of batches, and what comes of them JSON."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from tokmix.pages.requests import Refusal
from tokmix.pages.serve import schemas
from tokmix.pages.serve.batcher import Batcher, Found
from tokmix.pages.serve.door import AGAIN, noted
from tokmix.pages.serve.metrics import Metrics
from tokmix.pages.serve.writer import Row, Writer
from tokmix.runtime.model import TextModel
from tokmix.runtime.sampling import Sampling

QUICK = 1 << 16  # bytes; a large body that is wrong is not read twice
Asked = TypeVar("Asked", bound=schemas.RowsRequest)
Quick = Callable[[bytes], Awaitable[bytes] | None]  # the body of a request -> that of the answer; None: not well-formed


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
    def __init__(self, model: TextModel, name: str, bounds: Bounds):
        self.model, self.name, self.bounds, self.metrics = model, name, bounds, Metrics()
        kind = Writer if model.about.task == "lm" else Batcher
        self.worker: Writer | Batcher = kind(model, bounds.batch, bounds.queue, self.metrics.batch_rows.observe)
        self.ready = True

    def quick(self) -> dict[str, Quick]:
        """Routes whose well-formed requests are answered without FastAPI, whose routing takes longer than a small model."""
        pair, task = self.model.about.pair, self.model.about.task
        if task == "lm":
            return {}
        found = {"/v1/embeddings": _reader(schemas.PairsToEmbed if pair else schemas.TextsToEmbed, self.embeddings)}
        if task != "mlm":
            found["/v1/classify"] = _reader(schemas.PairsRequest if pair else schemas.TextsRequest, self.classify)
        return found

    async def classify(self, asked: schemas.RowsRequest) -> bytes:
        found = await self._rows(asked)
        return self._listed([{"index": i, **(one.answer or {}), "truncated": one.cut} for i, one in enumerate(found)], found)

    async def embeddings(self, asked: schemas.EmbeddingsRequest) -> bytes:
        found, data = await self._rows(asked), list[dict[str, object]]()
        for i, one in enumerate(found):
            packed = asked.encoding_format == "base64"
            vector = base64.b64encode(one.vector.astype("<f4").tobytes()).decode() if packed else one.vector.tolist()
            data.append({"object": "embedding", "index": i, "embedding": vector})
        return self._listed(data, found)

    def _listed(self, data: list[dict[str, object]], found: list[Found]) -> bytes:
        total = sum(one.tokens for one in found)
        usage = {"prompt_tokens": total, "completion_tokens": 0, "total_tokens": total}
        return json.dumps({"object": "list", "model": self.name, "data": data, "usage": usage}).encode()

    async def _rows(self, asked: schemas.RowsRequest) -> list[Found]:
        assert isinstance(self.worker, Batcher)
        self._check_name(asked.model)
        given = asked.rows()
        noted.get().texts = [" | ".join(row) for row in given]
        rows = [self.model.row(row) for row in given]
        answer = self.worker.submit(rows)
        late = asyncio.get_running_loop().call_later(self.bounds.seconds, self._give_up, answer)
        try:
            found = await answer
        finally:
            late.cancel()
        self.count(sum(one.tokens for one in found), 0, rows=len(rows))
        return found

    def _give_up(self, answer: asyncio.Future[list[Found]]) -> None:
        if not answer.done():
            answer.set_exception(Refusal(503, f"no answer within {self.bounds.seconds:g} s", AGAIN))

    def write(self, asked: schemas.CompletionRequest) -> list[Row]:
        assert isinstance(self.worker, Writer)
        self._check_name(asked.model)
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
        self.metrics.read.inc(read)
        if made:
            self.metrics.written.inc(made)
        noted.get().numbers = {**more, "tokens_read": read, "tokens_written": made}

    def _check_name(self, given: str | None) -> None:
        if given is not None and given != self.name:
            raise Refusal(404, f"this server has the model {self.name!r}, not {given[:80]!r}")


def _reader(kind: type[Asked], answer: Callable[[Asked], Awaitable[bytes]]) -> Quick:
    def read(body: bytes) -> Awaitable[bytes] | None:
        try:
            return None if len(body) > QUICK else answer(kind.model_validate_json(body))
        except ValidationError:  # FastAPI says what is wrong with it
            return None

    return read
