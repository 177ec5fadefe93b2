"""LoRA for our models: which modules and weights PEFT should reach."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch import nn

from tokmix.core.mixer import Mixer
from tokmix.hf.base import TokmixPreTrainedModel

if TYPE_CHECKING:
    from peft import LoraConfig

TASKS = {"lm": "CAUSAL_LM", "classify": "SEQ_CLS", "regress": "SEQ_CLS", "tag": "TOKEN_CLS", "span": "QUESTION_ANS"}


def lora_config(model: TokmixPreTrainedModel, r: int = 8, **more: Any) -> LoraConfig:
    """A peft.LoraConfig for the model: all linear layers, the mixers' matrices that are plain parameters (HyperMixing's hypernetworks,
    HyperMLP's banks), and the head of a classifier trained whole. more: whatever else a LoraConfig takes."""
    from peft import LoraConfig

    linear = [name for name, part in model.core.layers.named_modules() if isinstance(part, nn.Linear)]  # type: ignore[attr-defined]
    given: dict[str, Any] = {
        "r": r,
        "target_modules": sorted({f"layers.{name}" for name in linear}),
        "target_parameters": sorted(f"layers.{name}" for name in _matrices(model)),
        "task_type": TASKS.get(model.core.config.head),
    }
    if model.core.config.head in ("classify", "regress", "tag", "span"):
        given["modules_to_save"] = ["head"]
    return LoraConfig(**{**given, **more})


def _matrices(model: TokmixPreTrainedModel) -> list[str]:
    """Parameters [heads, in, out] of modules that are called with the tokens; PEFT wraps such a module."""
    found = []
    for name, part in model.core.layers.named_modules():  # type: ignore[attr-defined]
        if isinstance(part, (nn.Linear, Mixer)) or not inspect.signature(part.forward).parameters:
            continue
        found += [f"{name}.{key}" for key, value in part.named_parameters(recurse=False) if value.dim() == 3]
    return found
