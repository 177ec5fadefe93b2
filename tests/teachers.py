"""A tiny sentence encoder with random weights, as a teacher of distillation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from tokmix.data.prepare.tokenize import train_tokenizer


def write_teacher(folder: Path, words: Sequence[str], width: int = 16, longest: int = 80) -> Path:
    tokenizer = train_tokenizer("wordpiece", lambda: [" ".join(words)] * 3, 120, True)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(), num_hidden_layers=2, hidden_size=width, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=longest,
    )  # fmt: skip
    model = transformers.BertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder
