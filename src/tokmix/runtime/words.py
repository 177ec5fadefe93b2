"""Texts to ids and back as the library `tokenizers` does it: BERT's word pieces and byte-level byte pairs, in plain Python.

characters.json holds the classes of characters as the library has them (its tables are those of other versions of Unicode than
Python's): [first, last] of each range.
"""

from __future__ import annotations

import heapq
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from typing import Protocol

WORDS = 50_000  # words whose ids are cached
LONGEST = 60  # most letters of such a word
CLEANED = ((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" do not", " don't"),
           (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"))  # fmt: skip


class Cut(Protocol):
    def ids(self, text: str) -> list[int]: ...
    def text(self, tokens: Sequence[str]) -> str: ...


@lru_cache(maxsize=1)
def ranges() -> dict[str, list[tuple[int, int]]]:
    return json.loads((resources.files("tokmix.runtime") / "characters.json").read_text())


def _members(kind: str) -> frozenset[int]:
    return frozenset(code for first, last in ranges()[kind] for code in range(first, last + 1))


class Translation(dict[int, str]):
    """For str.translate: the replacement of a character, computed when it first occurs."""

    def __init__(self, rule: Callable[[str], str]):
        super().__init__()
        self.rule = rule

    def __missing__(self, code: int) -> str:
        self[code] = found = self.rule(chr(code))
        return found


class WordPieces:
    def __init__(self, vocab: dict[str, int], unknown: int, longest: int, lower: bool, accents: bool):
        self.vocab, self.unknown, self.longest, self.lower, self.accents = vocab, unknown, longest, lower, accents
        removed, space, ideograph, accent, mark = map(_members, ("removed", "space", "ideograph", "accent", "punctuation"))

        def clean(letter: str) -> str:
            code = ord(letter)
            return "" if code in removed else " " if code in space else f" {letter} " if code in ideograph else letter

        self.cleaned = Translation(clean)
        self.bare = Translation(lambda letter: "" if ord(letter) in accent else letter)
        self.lowered = Translation(str.lower)
        self.parted = Translation(lambda letter: f" {letter} " if ord(letter) in mark else letter)
        self.word = lru_cache(WORDS)(self._word)

    def ids(self, text: str) -> list[int]:
        text = text.translate(self.cleaned)
        if self.accents and not text.isascii():
            text = unicodedata.normalize("NFD", text).translate(self.bare)
        if self.lower:
            text = text.lower() if text.isascii() else text.translate(self.lowered)
        found: list[int] = []
        for word in text.translate(self.parted).split(" "):
            if word:
                found += self.word(word) if len(word) <= LONGEST else self._word(word)
        return found

    def _word(self, word: str) -> list[int]:
        """The longest pieces from the left; one unknown token if a rest has none."""
        if len(word) > self.longest:
            return [self.unknown]
        found, start = [], 0
        while start < len(word):
            for stop in range(len(word), start, -1):
                place = self.vocab.get(word[start:stop] if start == 0 else f"##{word[start:stop]}")
                if place is not None:
                    break
            else:
                return [self.unknown]
            found.append(place)
            start = stop
        return found

    def text(self, tokens: Sequence[str]) -> str:
        shown = [token if i == 0 else token[2:] if token.startswith("##") else f" {token}" for i, token in enumerate(tokens)]
        return "".join(_tidy(one) for one in shown)


def _tidy(token: str) -> str:
    for old, new in CLEANED:
        token = token.replace(old, new)
    return token


class BytePairs:
    def __init__(self, vocab: dict[str, int], merges: Sequence[tuple[str, ...]], split: bool):
        """split: at words, as GPT-2 does"""
        self.vocab = vocab
        self.letters = _byte_letters()
        self.bytes = {letter: byte for byte, letter in enumerate(self.letters)}
        self.complete = all(letter in vocab for letter in self.letters)
        self.merges = {
            (vocab[left], vocab[right]): (rank, vocab[left + right]) for rank, (left, right) in reversed(list(enumerate(merges)))
        }
        self.pattern = _gpt2_pattern() if split else None
        self.word = lru_cache(WORDS)(self._word)

    def ids(self, text: str) -> list[int]:
        if not text:
            return []
        found: list[int] = []
        for word in [text] if self.pattern is None else self.pattern.findall(text):
            found += self.word(word) if len(word) <= LONGEST else self._word(word)
        return found

    def _word(self, word: str) -> list[int]:
        """Join neighbours in the order of the merges, equal ones from the left."""
        ids = [self.vocab[self.letters[byte]] for byte in word.encode()]
        if not self.merges or len(ids) < 2:
            return ids
        after, before = [*range(1, len(ids)), -1], list(range(-1, len(ids) - 1))
        heap = [(self.merges[pair][0], i, pair) for i, pair in enumerate(pairwise(ids)) if pair in self.merges]
        heapq.heapify(heap)
        while heap:
            _, i, pair = heapq.heappop(heap)
            j = after[i]
            if j < 0 or (ids[i], ids[j]) != pair:  # one of the two was joined with another
                continue
            ids[i], ids[j] = self.merges[pair][1], -1
            after[i] = after[j]
            if after[j] >= 0:
                before[after[j]] = i
            for left, right in ((before[i], i), (i, after[i])):
                if left >= 0 and right >= 0 and (two := (ids[left], ids[right])) in self.merges:
                    heapq.heappush(heap, (self.merges[two][0], left, two))
        return [one for one in ids if one >= 0]

    def text(self, tokens: Sequence[str]) -> str:
        found = bytearray()
        for token in tokens:
            codes = [self.bytes.get(letter) for letter in token]
            found += token.encode() if None in codes else bytes(code for code in codes if code is not None)
        return found.decode(errors="replace")


def _byte_letters() -> list[str]:
    """The letter of each byte: printable Latin-1 for itself, the rest from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]


def _gpt2_pattern() -> re.Pattern[str]:
    letter, number, gap = ("".join(f"{chr(a)}-{chr(b)}" for a, b in _escapable(kind)) for kind in ("letter", "number", "gap"))
    return re.compile(f"'s|'t|'re|'ve|'m|'ll|'d| ?[{letter}]+| ?[{number}]+| ?[^{gap}{letter}{number}]+|[{gap}]+(?![^{gap}])|[{gap}]+")


def _escapable(kind: str) -> list[tuple[int, int]]:
    return ranges()[kind]  # no character at an end of a range is special in a set
