"""Weights in half or a quarter of the bytes: how a model folder is stored to be shipped. It loads as float32.

float16   every tensor
int8      matrices as whole numbers from -127 to 127 with a float32 scale for each row, NAME.scale; the rest as float16
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from tokmix.runs.files import Damaged

Value = TypeVar("Value")
KINDS = ("float16", "int8")
SCALE = ".scale"
SMALLEST = 4096  # numbers of a matrix from which int8 pays


def compressed(tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            found[name] = tensor
        elif kind == "int8" and tensor.dim() > 1 and tensor.numel() >= SMALLEST:
            scale = (tensor.float().abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
            found[name], found[name + SCALE] = (tensor.float() / scale).round().to(torch.int8), scale
        else:
            found[name] = tensor.half()
    return found


def without_scales(stored: Mapping[str, Value]) -> dict[str, Value]:
    return {name: one for name, one in stored.items() if not (name.endswith(SCALE) and name.removesuffix(SCALE) in stored)}


def expanded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As float32; tensors that are stored whole stay as they are."""
    found: dict[str, Tensor] = {}
    for name, tensor in without_scales(tensors).items():
        if tensor.dtype == torch.int8:
            if name + SCALE not in tensors or tensors[name + SCALE].shape != (*tensor.shape[:-1], 1):
                raise Damaged(f"{name} has no {name}{SCALE} that fits")
            found[name] = tensor.float() * tensors[name + SCALE]
        else:
            found[name] = tensor.float() if tensor.dtype == torch.float16 else tensor
    return found
