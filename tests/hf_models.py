"""Models and batches for the tests of tokmix.hf."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification

from tests.cases import Case
from tokmix.hf import (
    MODELS,
    TokmixConfig,
    TokmixForCausalLM,
    TokmixForMaskedLM,
    TokmixForSequenceClassification,
    TokmixModel,
)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VOCAB, DIM, MAX_LEN = 23, 16, 40
MIXED = "hsm(variant='gate'), attention(heads=2), hypermixing(heads=2)"
AUTO = {
    TokmixForCausalLM: AutoModelForCausalLM,
    TokmixForMaskedLM: AutoModelForMaskedLM,
    TokmixForSequenceClassification: AutoModelForSequenceClassification,
    TokmixModel: AutoModel,
}


def made(stack: str = MIXED, head: str = "lm", causal: bool = True, dtype: torch.dtype = torch.float64, **more: Any) -> Any:
    """With parameters drawn afresh, so that zero-initialised ones take part."""
    torch.manual_seed(1)
    config = TokmixConfig(**{"stack": stack, "dim": DIM, "vocab": VOCAB, "head": head, "causal": causal, "max_len": MAX_LEN, **more})
    model = MODELS[head](config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def of(case: Case, **more: Any) -> Any:
    given = ", ".join(f"{key}={value!r}" for key, value in case.options.items())
    return made(f"{case.name}({given})*2", causal=case.causal, **more)


def batch(left: bool, lengths: tuple[int, ...] = (4, 7, 1)) -> tuple[Tensor, Tensor, list[list[int]]]:
    """(ids, mask, the prompts as lists); what stands at padding is no known id."""
    prompts = [torch.randint(VOCAB, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in lengths]
    width = max(lengths)
    ids, mask = torch.zeros(len(prompts), width, dtype=torch.long), torch.zeros(len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        place = slice(width - len(prompt), width) if left else slice(0, len(prompt))
        ids[row, place], mask[row, place] = torch.tensor(prompt), 1
    return ids, mask, prompts


def joined(prompts: list[list[int]]) -> list[int]:
    return [token for prompt in prompts for token in prompt]


def generated(model: Any, ids: Tensor, mask: Tensor, **how: Any) -> Tensor:
    torch.manual_seed(3)
    return model.generate(ids, attention_mask=mask, **{"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, **how})
