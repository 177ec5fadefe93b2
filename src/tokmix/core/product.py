"""A linear map of one token. Its time is that of reading the weights, which torch does fastest in column order."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tokmix.core.linear import Linear
from tokmix.core.offload import is_watched


class Product:
    """x [in] -> [out], with copies of the weights in column order. Several maps of one x are concatenated into one."""

    def __init__(self, weights: list[Tensor], biases: list[Tensor | None]):
        with torch.no_grad():
            self.weight = torch.cat([weight.t() for weight in weights], dim=1).contiguous().t()
            present = [bias for bias in biases if bias is not None]
            self.bias = torch.cat(present) if present else None

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mv(self.weight, x) if self.bias is None else torch.addmv(self.bias, self.weight, x)


def product(*maps: nn.Module) -> Product | None:
    """For unchanged linear layers of torch in float32 or float64, all with a bias or all without; None for anything else."""
    plain = [
        linear
        for linear in maps
        if (type(linear) is nn.Linear or type(linear) is Linear) and is_plain(linear.weight) and not is_watched(linear)
    ]
    biases: list[Tensor | None] = [linear.bias for linear in plain]
    if len(plain) < len(maps) or len({bias is None for bias in biases}) > 1:
        return None
    return Product([linear.weight for linear in plain], biases)


def table_product(embedding: nn.Embedding) -> Product | None:
    """An embedding as an output matrix; None where `product` would be None."""
    plain = type(embedding) is nn.Embedding and is_plain(embedding.weight) and not is_watched(embedding)
    return Product([embedding.weight], [None]) if plain else None


def is_plain(weight: Tensor) -> bool:
    """A parameter on a CPU, in float32 or float64."""
    return type(weight) is nn.Parameter and weight.dtype in (torch.float32, torch.float64) and weight.device.type == "cpu"
