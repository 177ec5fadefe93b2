"""The tokenizers in plain Python give the very ids and texts of the library."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

library = pytest.importorskip("tokenizers")
pytest.importorskip("onnxruntime")

from tests.lab import BAD, GOOD, REST  # noqa: E402
from tokmix.data.prepare.tokenize import Encoder, make_ready, train_tokenizer, vocab_size  # noqa: E402
from tokmix.runtime import tokenizer as reader  # noqa: E402
from tokmix.runtime.tokenizer import LibraryTokenizer, PlainTokenizer, Unknown  # noqa: E402
from tokmix.runtime.words import ranges  # noqa: E402

LINES = [f"{one} {other}, it's {third}." for one in REST.split() for other in GOOD.split() for third in BAD.split()]
KINDS = [("wordpiece", True), ("wordpiece", False), ("bpe", True), ("bytes", True)]
ODD = [*"abc DE'st.,!?-\n\t 1 2 _", "\u00b2", "e\u0301", "\u00c5", "\u0130", "\u00df", "\u4e2d", "\ufffd", "\x00", "\x85", "\u2028",
       "\U0001f600", "[SEP]", "<|endoftext|>", " n't", " do not", "\u0301", "\u200d", "\u3000"]  # fmt: skip


def draw(pick: random.Random) -> str:
    kind = pick.randrange(5)
    if kind == 0:
        letters = (chr(pick.choice([pick.randrange(0x110000), pick.randrange(0x3000), pick.randrange(256)])) for _ in range(30))
        return "".join(letter for letter in letters if not 0xD800 <= ord(letter) < 0xE000)
    if kind == 1:
        return pick.choice(["a", "ab ", "1", " ", "\n", "x'll"]) * pick.randrange(300)
    if kind == 2:
        return "".join(pick.choices(ODD, k=pick.randrange(80)))
    return " ".join(pick.choices((REST + " " + GOOD).split(), k=pick.randrange(60)))


@pytest.mark.parametrize(("kind", "lower"), KINDS)
def test_ids_and_texts_are_those_of_the_library(kind: str, lower: bool) -> None:
    pick = random.Random(0)
    made = train_tokenizer(kind, lambda: iter(LINES), 600, lower)
    make_ready(made, "classify", pair=True)
    for max_len in (24, 512):
        plain, known = PlainTokenizer(json.loads(made.to_str()), max_len), Encoder(made, max_len)
        texts = [draw(pick) for _ in range(150)]
        rows = [(text,) if pick.random() < 0.5 else (text, pick.choice(texts)) for text in texts]
        (found, cut), (wanted, short) = plain.rows(rows), known.rows(rows)
        for row, one, other in zip(rows, found, wanted, strict=True):
            assert one.tolist() == other.tolist() and one.dtype == other.dtype, row
        assert cut == short
    for _ in range(150):
        ids = [pick.randrange(vocab_size(made)) for _ in range(pick.randrange(30))]
        assert plain.decode(ids) == made.decode(ids)
    make_ready(made, "lm")
    plain, known = PlainTokenizer(json.loads(made.to_str()), None), Encoder(made)
    assert [one.tolist() for one in plain.documents(texts)] == [one.tolist() for one in known.documents(texts)]


@pytest.mark.slow
def test_characters_are_those_of_the_library() -> None:
    """Every character there is, by the library's own rules."""
    normal = library.normalizers.BertNormalizer(handle_chinese_chars=True, strip_accents=False, lowercase=False)
    bare = library.normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    words, pairs = library.pre_tokenizers.BertPreTokenizer(), library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found: dict[str, list[int]] = {name: [] for name in ranges()}
    for code in (*range(0xD800), *range(0xE000, 0x110000)):
        letter = chr(code)
        cleaned = normal.normalize_str(f"a{letter}b")
        kind = {"ab": "removed", "a b": "space", f"a {letter} b": "ideograph"}.get(cleaned)
        if kind is not None:
            found["space" if letter == " " else kind].append(code)
        if bare.normalize_str(f"a{letter}") == "a":
            found["accent"].append(code)
        if [part for part, _ in words.pre_tokenize_str(f"a{letter}b")] == ["a", letter, "b"]:
            found["punctuation"].append(code)
        alone = [len(pairs.pre_tokenize_str(before + letter)) == 1 for before in "a1."]
        if True not in alone[:2] and not alone[2]:
            found["gap"].append(code)
        elif not alone[2]:
            found["letter" if alone[0] else "number"].append(code)
    for name, known in ranges().items():
        assert {code for first, last in known for code in range(first, last + 1)} == set(found[name]), name


def test_other_tokenizers_need_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = library.Tokenizer(library.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(Unknown, match="model has type='WordLevel'"):
        PlainTokenizer(json.loads(made.to_str()), None)
    assert isinstance(reader.load(tmp_path, None), LibraryTokenizer) and reader.load(tmp_path, None).documents(["a a"])[0].tolist() == [
        1,
        1,
    ]

    def absent(*given: Any) -> None:
        raise ImportError("no tokenizers")

    monkeypatch.setattr(reader, "LibraryTokenizer", absent)
    with pytest.raises(ImportError, match="needs the package tokenizers .*WordLevel.*: pip install tokenizers"):
        reader.load(tmp_path, None)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a tokenizer.json"):
        reader.load(tmp_path, None)


def test_a_long_word_takes_no_long_time() -> None:
    made = train_tokenizer("bpe", lambda: iter(["ab" * 400]), 300)
    plain = PlainTokenizer(json.loads(made.to_str()), None)
    text = "ab" * 50_000
    assert plain.documents([text])[0].tolist() == Encoder(made).documents([text])[0].tolist()
