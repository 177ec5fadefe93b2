"""Tokenizers: trained the same way twice, taken without their presets, and never fooled by text that spells a special token."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
tokenizers = pytest.importorskip("tokenizers")

from tokmix.data.prepare.tokenize import Encoder, _bounded, begun, byte_tokenizer, load_tokenizer, make_ready, train_tokenizer, vocab_size  # noqa: E402

TEXTS = [
    f"the {a} {b} sat on the {c}, didn't it? {n}"
    for n, a in enumerate(["old", "new", "red"] * 30)
    for b in ("cat", "dog")
    for c in ("mat", "täble")
]


def train(kind, vocab=400):
    return train_tokenizer(kind, lambda: iter(TEXTS), vocab)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_training_twice_gives_the_same_tokenizer(kind):
    assert len({train(kind).to_str() for _ in range(6)}) == 1


def test_trainers_get_long_words_in_pieces():
    # Their time is quadratic in a word's length: hours for a megabyte of DNA.
    text = "so " + "acgt" * 600 + " " * 1500 + "end"
    pieces = list(_bounded(text))
    assert "".join(pieces) == text
    assert max(len(word) for piece in pieces for word in piece.split()) == 1000
    assert list(_bounded("as it was")) == ["as it was"]
    learned = train_tokenizer("bpe", lambda: ["a" * 4000], 300).get_vocab()
    assert max(map(len, learned), default=0) <= 1000 and "aaaa" in learned


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "bytes"])
@pytest.mark.parametrize("pair", [False, True])
def test_rows_have_their_special_tokens(kind, pair):
    tokenizer = train(kind)
    roles = make_ready(tokenizer, "classify", pair)
    rows, cut = Encoder(tokenizer, 64).rows([("the cat", "a dog")[: 1 + pair]])
    assert not cut
    ids = rows[0].tolist()
    assert ids[0] == roles["cls"] and ids[-1] == roles["sep"]
    assert ids.count(roles["sep"]) == 1 + pair
    plain = [Encoder(tokenizer).documents([text])[0].tolist() for text in ("the cat", "a dog")]
    expected = [roles["cls"], *plain[0], roles["sep"]] + ([*plain[1], roles["sep"]] if pair else [])
    assert ids == expected
    assert vocab_size(tokenizer) > max(roles.values())


BYTES, BPE = byte_tokenizer(), train("bpe")
TO_BYTES, TO_BPE = Encoder(BYTES), Encoder(BPE)


@given(st.text(max_size=40))
def test_bytes_are_bytes(text):
    assert TO_BYTES.documents([text])[0].tolist() == list(text.encode())
    assert TO_BYTES.tokenizer.encode(text, add_special_tokens=False).ids == list(text.encode())
    assert BYTES.decode(list(text.encode())) == text


@given(st.text(max_size=40))
def test_bpe_gives_every_text_back(text):
    assert BPE.decode(TO_BPE.documents([text])[0].tolist()) == text


def test_text_that_spells_a_special_token_stays_text():
    for kind in ("wordpiece", "bpe", "bytes"):
        tokenizer = train(kind)
        roles = make_ready(tokenizer, "classify")
        special = {roles[role] for role in ("cls", "sep", "mask", "pad", "eot")}
        rows, _ = Encoder(tokenizer, 100).rows([("a [SEP] b [CLS] c [MASK] <|endoftext|>",)])
        assert not special & set(rows[0][1:-1].tolist())
        assert not special & set(Encoder(tokenizer).documents(["a <|endoftext|> [PAD]"])[0].tolist())


def test_long_rows_are_cut_and_counted():
    tokenizer = train("wordpiece")
    roles = make_ready(tokenizer, "classify", pair=True)
    rows, cut = Encoder(tokenizer, 12).rows([("the cat " * 20, "the dog"), ("cat", "dog"), ("cat " * 5, "dog " * 30)])
    assert cut == [0, 2]
    assert [len(row) for row in rows] == [12, 5, 12]
    for row in rows:
        assert row[0] == roles["cls"] and row[-1] == roles["sep"] and row.tolist().count(roles["sep"]) == 2
    assert rows[0].tolist()[-3:-1] == Encoder(tokenizer).documents(["the dog"])[0].tolist()  # the longer text was cut, not the shorter


def test_a_long_text_does_not_leak_its_cut_into_the_saved_tokenizer(tmp_path):
    tokenizer = train("wordpiece")
    make_ready(tokenizer, "classify")
    Encoder(tokenizer, 8).rows([("the cat " * 20,)])
    tokenizer.save(str(tmp_path / "t.json"))
    assert load_tokenizer(tmp_path / "t.json").truncation is None


def hostile(path: Path, **changes: object) -> Path:
    """A tokenizer.json in which a part is another one."""
    tokenizer = train("wordpiece")
    make_ready(tokenizer, "classify")
    known = json.loads(tokenizer.to_str())
    known["model"] |= changes.pop("model", {})
    path.write_text(json.dumps(known | changes))
    return path


def longer(times: int) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * times}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": [longer(1000)] * 3}}, "texts up to 1,000,000,000 times as long"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [longer(11)] * 2}]}}, "up to 121 times"),
        ({"model": {"max_input_chars_per_word": 2**40}}, "splits words of more than 1,000 characters"),
    ],
)
def test_a_tokenizer_made_to_harm_is_refused(changes, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        load_tokenizer(hostile(tmp_path / "t.json", **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}}, "retry-limit"),
        ({"model": {"unk_token": "nowhere"}}, "Missing"),
    ],
)
def test_a_text_that_a_tokenizer_breaks_at_is_an_error(changes, words, tmp_path):
    """Also where its library panics, which is no Exception."""
    tokenizer = load_tokenizer(hostile(tmp_path / "t.json", **changes))
    with pytest.raises(ValueError, match=f"the tokenizer cannot read a text: .*{words}"):
        Encoder(tokenizer, 16).rows([("a" * 2000 + "!\u2603",)])


def test_a_template_longer_than_a_row_is_refused(tmp_path):
    """Of single texts and of pairs."""
    many = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 40
    template = {
        "type": "TemplateProcessing",
        "single": many,
        "pair": [],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["x"]}},
    }
    with pytest.raises(ValueError, match="max_len=16"):
        Encoder(load_tokenizer(hostile(tmp_path / "t.json", post_processor=template)), 16)


def test_presets_of_a_taken_tokenizer_are_turned_off(tmp_path):
    tokenizer = train("wordpiece")
    tokenizer.enable_truncation(7)
    tokenizer.enable_padding(length=20)
    tokenizer.save(str(tmp_path / "t.json"))
    taken = load_tokenizer(tmp_path / "t.json")
    assert taken.truncation is None and taken.padding is None
    assert len(taken.encode("cat " * 30, add_special_tokens=False).ids) == 30


def test_a_tokenizer_without_roles_is_given_them(tmp_path):
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    bare.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    roles = make_ready(bare, "classify", pair=True)
    assert vocab_size(bare) == 3 + 4
    assert Encoder(bare, 16).rows([("a b", "b")])[0][0].tolist() == [roles["cls"], 0, 1, roles["sep"], 1, roles["sep"]]
    for_lm = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    roles = make_ready(for_lm, "lm")
    assert roles["eot"] == roles["pad"] == 1 and vocab_size(for_lm) == 2


@pytest.mark.parametrize("own", [None, tokenizers.processors.ByteLevel(trim_offsets=False)])
def test_a_tokenizer_of_a_language_model_is_one_to_prepare_with(own):
    tokenizer = train("bpe", 300)
    tokenizer.post_processor = own
    roles = make_ready(tokenizer, "lm")
    plain, saved = tokenizer.to_str(), begun(tokenizer, roles["eot"])
    assert saved.encode("the cat").ids == [roles["eot"], *tokenizer.encode("the cat").ids] and tokenizer.to_str() == plain
    assert Encoder(saved).documents(["the cat"])[0].tolist() == tokenizer.encode("the cat").ids
    make_ready(saved, "lm")
    assert saved.to_str() == plain
    rows = begun(tokenizer, roles["eot"])
    make_ready(rows, "classify")
    assert rows.encode("the cat").ids == [roles["cls"], *tokenizer.encode("the cat").ids, roles["sep"]]


def test_limits_are_checked():
    with pytest.raises(ValueError, match="vocab=100"):
        train("bpe", 100)
    with pytest.raises(ValueError, match="max_len=2"):
        tokenizer = train("bytes")
        make_ready(tokenizer, "classify")
        Encoder(tokenizer, 2)


@pytest.mark.skipif("TOKMIX_DATA" not in os.environ, reason="TOKMIX_DATA does not name the folder of real data sets")
def test_known_tokenizers():
    folder = Path(os.environ["TOKMIX_DATA"]) / "tokenizers"
    bert = load_tokenizer(folder / "bert-base-uncased.json")
    roles = make_ready(bert, "classify", pair=True)
    assert vocab_size(bert) == 30522
    rows, cut = Encoder(bert, 512).rows([("Hello world", "good " * 200)])
    assert rows[0].tolist()[:4] == [101, 7592, 2088, 102] and len(rows[0]) == 205 and not cut
    assert (roles["cls"], roles["sep"], roles["mask"]) == (101, 102, 103)
    gpt2 = load_tokenizer(folder / "gpt2.json")
    roles = make_ready(gpt2, "lm")
    assert roles["eot"] == 50256 and vocab_size(gpt2) == 50257
    assert Encoder(gpt2).documents(["Hello world"])[0].tolist() == [15496, 995]
    make_ready(gpt2, "classify", pair=True)
    assert vocab_size(gpt2) == 50257 + 4
    assert len(Encoder(gpt2, 512).rows([("Hello world", "Hello")])[0][0]) == 6
