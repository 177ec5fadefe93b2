"""/v1/completions: the text of one row, whole or piece by piece, up to a stop word."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Literal

from tokmix.pages.serve.schemas import Choice, Completion, Usage
from tokmix.pages.serve.writer import Row
from tokmix.runtime.text import Decodes, TextStream

Reason = Literal["stop", "length"]


class Stops:
    """Text up to the first stop word. The end of a piece that may begin one is held back."""

    def __init__(self, words: Sequence[str]):
        self.words, self.held, self.found = list(words), "", False

    def add(self, piece: str) -> str:
        text = self.held + piece
        places = [text.find(word) for word in self.words if word in text]
        if places:
            self.found, self.held = True, ""
            return text[: min(places)]
        kept = max((n for word in self.words for n in range(1, len(word)) if text.endswith(word[:n])), default=0)
        self.held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def end(self) -> str:
        rest, self.held = self.held, ""
        return rest


async def pieces(row: Row, tokenizer: Decodes, stops: Stops) -> AsyncIterator[tuple[str, Reason | None]]:
    """(text, None) as it comes, then (the rest, why it ended). Whoever stops reading frees the row's place."""
    stream = TextStream(tokenizer, row.prompt[1:])
    try:
        while (token := await row.tokens.get()) is not None:
            if isinstance(token, Exception):
                raise token
            if text := stops.add(stream.add(token)):
                yield text, None
            if stops.found:
                yield "", "stop"
                return
        rest = stops.add(stream.end())
        ended: Reason = "stop" if stops.found or row.ended else "length"
        yield rest + ("" if stops.found else stops.end()), ended
    finally:
        row.gone = True


class Answer:
    """The parts that all pieces of one completion share."""

    def __init__(self, model: str):
        self.model, self.id, self.created = model, f"cmpl-{uuid.uuid4().hex}", int(time.time())

    def event(self, index: int, text: str, ended: Reason | None) -> str:
        choice = Choice(index=index, text=text, finish_reason=ended)
        return f"data: {self._completion([choice], None).model_dump_json()}\n\n"

    def whole(self, choices: list[Choice], rows: Sequence[Row]) -> Completion:
        read, made = sum(len(row.prompt) for row in rows), sum(row.made for row in rows)
        return self._completion(choices, Usage(prompt_tokens=read, completion_tokens=made, total_tokens=read + made))

    def _completion(self, choices: list[Choice], usage: Usage | None) -> Completion:
        return Completion(id=self.id, created=self.created, model=self.model, choices=choices, usage=usage)
