"""Text from tokens as they come: a token may hold a part of a character, which waits for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Decodes(Protocol):
    def decode(self, ids: list[int]) -> str: ...


class TextStream:
    def __init__(self, tokenizer: Decodes, prompt: Sequence[int]):
        self.tokenizer, self.ids, self.shown = tokenizer, list(prompt), 0
        self.before = len(tokenizer.decode(self.ids))

    def add(self, token: int) -> str:
        """What can be shown since the last token; "" while a character is incomplete."""
        self.ids.append(token)
        text = self._text()
        return "" if text.endswith("\ufffd") else self._show(text)

    def end(self) -> str:
        """What is left when no token follows, an incomplete character included."""
        return self._show(self._text())

    def _text(self) -> str:
        return self.tokenizer.decode(self.ids)[self.before :]

    def _show(self, text: str) -> str:
        new, self.shown = text[self.shown :], max(self.shown, len(text))
        return new
