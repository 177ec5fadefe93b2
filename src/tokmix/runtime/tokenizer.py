"""Texts to ids and back for models that are served: without the package `tokenizers` and the ten others that it brings.

PlainTokenizer reads a tokenizer.json of the kinds that tokmix trains (wordpiece, bpe, bytes) and gives the same ids as the library. Any
other kind needs the library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tokmix.core.checks import at_least
from tokmix.core.optional import np
from tokmix.data.prepare.tokenize import Encoder, load_tokenizer
from tokmix.runtime.words import BytePairs, Cut, WordPieces

Template = list[int | str]  # ids, and the texts "A" and "B"


class Tokenizer(Protocol):
    """The methods of a tokenizer that serving needs."""

    def rows(self, texts: Sequence[tuple[str, ...]]) -> tuple[list[np.ndarray], list[int]]: ...
    def documents(self, texts: Sequence[str]) -> list[np.ndarray]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def words(self) -> list[str]: ...


def load(folder: Path, max_len: int | None) -> Tokenizer:
    """max_len: tokens of a row; longer ones are cut."""
    path = folder / "tokenizer.json"
    try:
        return PlainTokenizer(json.loads(path.read_text(encoding="utf-8")), max_len)
    except Unknown as error:
        try:
            return LibraryTokenizer(folder, max_len)
        except ImportError:
            raise ImportError(f"{path} needs the package tokenizers ({error}): pip install tokenizers") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a tokenizer.json: {error!r}") from None


class Unknown(Exception):
    """A part of a tokenizer.json that this module does not support."""


def known(what: str, given: Mapping[str, object] | None, wanted: Mapping[str, tuple[object, ...]]) -> Mapping[str, object]:
    """A part of which all settings are supported."""
    if given is None:
        raise Unknown(f"it has no {what}")
    for name, values in wanted.items():
        if given.get(name) not in values:
            raise Unknown(f"its {what} has {name}={given.get(name)!r}")
    return given


class PlainTokenizer:
    def __init__(self, file: dict, max_len: int | None):
        self.special = {one["content"]: one["id"] for one in file["added_tokens"]}
        if any(not one["special"] for one in file["added_tokens"]):
            raise Unknown("it has added tokens that are not special")
        self.cut, self.vocab = _cutter(file)
        self.names = {place: name for name, place in (self.vocab | self.special).items()}
        self.hidden = set(self.special.values())
        templates = _templates(file.get("post_processor"), self.special)
        self.templates, self.max_len = templates, max_len
        if max_len is not None:
            at_least("max_len", max_len, len(templates["pair"]) - 2 + 1)

    def rows(self, texts: Sequence[tuple[str, ...]]) -> tuple[list[np.ndarray], list[int]]:
        """One or two texts each -> (ids with special tokens, which rows were cut)"""
        found, short = [], []
        for i, row in enumerate(texts):
            parts = [self.cut.ids(text) for text in row]
            template = self.templates["single" if len(row) == 1 else "pair"]
            if self.max_len is not None:
                room = self.max_len - (len(template) - len(row))
                if sum(map(len, parts)) > room:
                    short.append(i)
                    parts = [part[:most] for part, most in zip(parts, _shares([len(part) for part in parts], room), strict=True)]
            ids: list[int] = []
            for one in template:
                ids += [one] if isinstance(one, int) else parts["AB".index(one)]
            found.append(np.array(ids, dtype=np.uint32))
        return found, short

    def documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(self.cut.ids(text), dtype=np.uint32) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return self.cut.text([self.names[i] for i in ids if i not in self.hidden and i in self.names])

    def words(self) -> list[str]:
        return list(self.vocab)


def _shares(lengths: list[int], room: int) -> list[int]:
    """How many tokens of one text or of two are kept: the longer one is cut first, then both to halves."""
    if len(lengths) == 1:
        return [room]
    short, long = sorted(lengths)
    long = short if short > room else max(short, room - short)
    if short + long > room:
        short, long = room // 2, room // 2 + room % 2
    return [long, short] if lengths[0] > lengths[1] else [short, long]


def _cutter(file: dict) -> tuple[Cut, dict[str, int]]:
    model, before, normal = file["model"], file["pre_tokenizer"], file["normalizer"]
    vocab: dict[str, int] = model["vocab"]
    if model.get("type") == "WordPiece":
        known("model", model, {"continuing_subword_prefix": ("##",)})
        known("pre_tokenizer", before, {"type": ("BertPreTokenizer",)})
        known("decoder", file["decoder"], {"type": ("WordPiece",), "prefix": ("##",), "cleanup": (True,)})
        known("normalizer", normal, {"type": ("BertNormalizer",), "clean_text": (True,), "handle_chinese_chars": (True,)})
        lower = bool(normal["lowercase"])
        accents = lower if normal["strip_accents"] is None else bool(normal["strip_accents"])
        return WordPieces(vocab, vocab[model["unk_token"]], int(model["max_input_chars_per_word"]), lower, accents), vocab
    known("model", model, {
        "type": ("BPE",), "dropout": (None, 0.0), "continuing_subword_prefix": (None, ""), "end_of_word_suffix": (None, ""),
        "fuse_unk": (False, None), "byte_fallback": (False, None), "ignore_merges": (False, None),
    })  # fmt: skip
    known("pre_tokenizer", before, {"type": ("ByteLevel",), "add_prefix_space": (False,)})
    known("decoder", file["decoder"], {"type": ("ByteLevel",)})
    if normal is not None:
        raise Unknown(f"its normalizer is {normal.get('type')}")
    merges = [tuple(one.split(" ")) if isinstance(one, str) else tuple(one) for one in model["merges"]]
    pairs = BytePairs(vocab, merges, bool(before.get("use_regex", True)))
    if not pairs.complete:
        raise Unknown("its vocabulary lacks bytes")
    return pairs, vocab


def _templates(given: dict | None, special: dict[str, int]) -> dict[str, Template]:
    if given is not None and given.get("type") == "ByteLevel":  # sets offsets alone
        given = None
    if given is None:
        return {"single": ["A"], "pair": ["A", "B"]}
    known("post_processor", given, {"type": ("TemplateProcessing",)})
    found: dict[str, Template] = {}
    for name in ("single", "pair"):
        parts = [next(iter(one.items())) for one in given[name]]
        found[name] = [special[part["id"]] if kind == "SpecialToken" else part["id"] for kind, part in parts]
    if [one for one in found["single"] if one == "A"] != ["A"] or [one for one in found["pair"] if isinstance(one, str)] != ["A", "B"]:
        raise Unknown("its template repeats a text or turns two around")
    return found


class LibraryTokenizer:
    """Any tokenizer.json, by the package `tokenizers`."""

    def __init__(self, folder: Path, max_len: int | None):
        self.known = load_tokenizer(folder)
        self.encoder = Encoder(self.known, max_len)
        self.rows, self.documents = self.encoder.rows, self.encoder.documents

    def decode(self, ids: Sequence[int]) -> str:
        return self.known.decode(list(ids))

    def words(self) -> list[str]:
        return list(self.known.get_vocab(with_added_tokens=False))
