"""Text from single tokens. A token may hold a part of a character, which waits for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

TAIL = 8  # tokens of the prompt that are decoded with the first new ones


class Decodes(Protocol):
    def decode(self, ids: list[int]) -> str: ...


class TextStream:
    """Only the last few tokens are decoded at each step: the text of a long prompt is not read again for every token."""

    def __init__(self, tokenizer: Decodes, prompt: Sequence[int]):
        self.tokenizer, self.ids = tokenizer, list(prompt[-TAIL:])
        self.start, self.known = 0, len(self.ids)  # ids from start on are decoded; those before known have been shown

    def add(self, token: int) -> str:
        """The new text since the last token; "" while a character is incomplete."""
        self.ids.append(token)
        text = self._new()
        if text.endswith("\ufffd"):
            return ""
        self.start, self.known = self.known, len(self.ids)
        return text

    def end(self) -> str:
        """The remaining text at the end, including an incomplete character."""
        text = self._new()
        self.start, self.known = self.known, len(self.ids)
        return text

    def _new(self) -> str:
        before = self.tokenizer.decode(self.ids[self.start : self.known])
        return self.tokenizer.decode(self.ids[self.start :])[len(before) :]
