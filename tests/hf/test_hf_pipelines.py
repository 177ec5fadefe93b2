"""Pipelines of Hugging Face on our models: the numbers of the core."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, pipeline

import tokmix
from tests.hf_models import MAX_LEN, made
from tokmix.hf import wrap_tokenizer

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "<|endoftext|>",
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "dog",
    "it",
    "was",
    "not",
    "very",
    "good",
]
ROLES = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "eot": 4}


def tokenizer(pairs: bool) -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(WORDS[:5])
    if pairs:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return made


TEXTS = ["the cat sat on a mat", "it was not very good", "dog"]


def test_the_classification_pipeline_gives_the_numbers_of_the_core(tmp_path: Path) -> None:
    wrapped = wrap_tokenizer(tokenizer(pairs=True), ROLES, max_len=MAX_LEN)
    assert wrapped("the [SEP] cat").input_ids.count(3) == 1, "text that spells a special token stays text"
    for head in ("classify", "regress"):
        names = {0: "no", 1: "yes", 2: "perhaps"} if head == "classify" else None
        model = made(head=head, causal=False, vocab=len(WORDS), id2label=names, dtype=torch.float32)
        model.save_pretrained(tmp_path / head)
        wrapped.save_pretrained(tmp_path / head)
        classify = pipeline("text-classification", model=str(tmp_path / head), top_k=None, device="cpu")
        encode = tokenizer(pairs=True).encode
        alone = [model.core(torch.tensor([encode(text).ids]))[0].detach() for text in TEXTS]
        for found in (classify(TEXTS), classify(TEXTS, batch_size=3)):
            for row, logits in zip(found, alone, strict=True):
                scores = {entry["label"]: entry["score"] for entry in row}
                expected = logits.softmax(-1).tolist() if names else [float(logits)]
                assert scores == pytest.approx(dict(zip(names.values() if names else ["LABEL_0"], expected, strict=True)), abs=1e-5)
        first = classify({"text": TEXTS[0], "text_pair": TEXTS[1]})[0]
        logits = model.core(torch.tensor([encode(TEXTS[0], TEXTS[1]).ids]))[0].detach()
        assert first["score"] == pytest.approx(float(logits.softmax(-1).max() if names else logits), abs=1e-5)


def test_the_fill_mask_pipeline_gives_the_numbers_of_the_core(tmp_path: Path) -> None:
    words = tokenizer(pairs=True)
    words.add_special_tokens(["[MASK]"])
    hidden = words.token_to_id("[MASK]")
    model = made(head="mlm", causal=False, vocab=hidden + 1, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    wrap_tokenizer(words, {**ROLES, "mask": hidden}, spelled=True).save_pretrained(tmp_path)
    found = pipeline("fill-mask", model=str(tmp_path), device="cpu")("the [MASK] sat", top_k=1)[0]
    best = model.core(torch.tensor([[2, 5, hidden, 7, 3]]))[0, 2].softmax(-1).detach().max(-1)
    assert (found["token"], found["score"]) == (int(best.indices), pytest.approx(float(best.values), abs=1e-5))


def test_the_generation_pipeline_gives_the_tokens_of_the_core(tmp_path: Path) -> None:
    model = made(vocab=len(WORDS), tie=False, dtype=torch.float32)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = 4
    model.save_pretrained(tmp_path)
    wrap_tokenizer(tokenizer(pairs=False), ROLES, left=True).save_pretrained(tmp_path)
    write = pipeline("text-generation", model=str(tmp_path), device="cpu")
    assert write.model.generation_config.eos_token_id == 4 and AutoTokenizer.from_pretrained(tmp_path).padding_side == "left"
    prompts = [tokenizer(pairs=False).encode(text).ids for text in TEXTS]
    expected = tokmix.generate(model.core, prompts, max_new=6, stop=[4])
    for size in (1, 3):
        found = write(TEXTS, max_new_tokens=6, do_sample=False, return_tensors=True, batch_size=size)
        for row, prompt, new in zip(found, prompts, expected, strict=True):
            padding = max(map(len, prompts)) - len(prompt) if size > 1 else 0
            assert list(row[0]["generated_token_ids"])[padding:][: len(prompt) + len(new)] == prompt + new
