"""LoRA for our models and for models with swapped layers: which modules and weights PEFT should reach."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel

from tokmix.core.mixer import Mixer
from tokmix.hf.base import TokmixPreTrainedModel

if TYPE_CHECKING:
    from peft import LoraConfig

TASKS = {"lm": "CAUSAL_LM", "classify": "SEQ_CLS", "regress": "SEQ_CLS", "tag": "TOKEN_CLS", "span": "QUESTION_ANS"}


def lora_config(model: PreTrainedModel, r: int = 8, **more: object) -> LoraConfig:
    """A peft.LoraConfig for the model: all linear layers below the head, the mixers' matrices that are plain parameters (HyperMixing's
    hypernetworks, HyperMLP's banks), and the head of a classifier of ours trained whole. more: whatever else a LoraConfig takes."""
    from peft import LoraConfig

    own = isinstance(model, TokmixPreTrainedModel)
    root, prefix = (model.core.layers, "layers.") if isinstance(model, TokmixPreTrainedModel) else (model.base_model, "")
    assert isinstance(root, nn.Module)
    head = model.config.head if own else "lm" if model.can_generate() else ""
    given: dict[str, object] = {
        "r": r,
        "target_modules": sorted(f"{prefix}{name}" for name, part in root.named_modules() if isinstance(part, nn.Linear)),
        "target_parameters": sorted(f"{prefix}{name}" for name in _matrices(root)),
        "task_type": TASKS.get(head),
    }
    if head in ("classify", "regress", "tag", "span"):
        given["modules_to_save"] = ["head"]
    return LoraConfig(**{**given, **more})  # type: ignore[arg-type]


def _matrices(root: nn.Module) -> list[str]:
    """Parameters [heads, in, out] of modules that are called with the tokens; PEFT wraps such a module."""
    found = []
    for name, part in root.named_modules():
        if isinstance(part, (nn.Linear, Mixer)) or not inspect.signature(part.forward).parameters:
            continue
        found += [f"{name}.{key}" for key, value in part.named_parameters(recurse=False) if value.dim() == 3]
    return found
