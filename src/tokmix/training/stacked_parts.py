"""What models are made of beside their mixers, for K members at once: rows of a member follow those of the one before."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Place = tuple[nn.Parameter, int | None]  # where a member's parameter stands: in this one, at this index (None: it is all of it)


class Places:
    """Makes the stack's parameters, and remembers where those of the members went."""

    def __init__(self) -> None:
        self.of: dict[Tensor, Place] = {}

    def together(self, parts: Sequence[Tensor]) -> nn.Parameter:
        """[K, ...]"""
        whole = nn.Parameter(torch.stack([part.detach() for part in parts]))
        self.of |= {part: (whole, place) for place, part in enumerate(parts)}
        return whole

    def optional(self, parts: Sequence[Tensor | None]) -> nn.Parameter | None:
        given = [part for part in parts if part is not None]
        return self.together(given) if given else None

    def apart(self, part: nn.Module) -> nn.Module:
        """A copy of its own."""
        own = copy.deepcopy(part)
        for theirs, ours in zip(part.parameters(), own.parameters(), strict=True):
            self.of[theirs] = (ours, None)
        return own


class Linears(nn.Module):
    def __init__(self, parts: Sequence[nn.Linear], places: Places):
        super().__init__()
        self.weight = places.together([part.weight for part in parts])  # [K, out, in]
        self.bias = places.optional([part.bias for part in parts])

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [K * B, ..., in], weight [K, out, in], bias [K, out] -> [K * B, ..., out]"""
    flat = x.reshape(len(weight), -1, x.shape[-1])
    return _Linear.apply(flat, weight, bias).view(*x.shape[:-1], -1)  # type: ignore[no-any-return, no-untyped-call]


class _Linear(torch.autograd.Function):
    """So that the weight's gradient has the weight's own layout: that of bmm with the transposed weight is transposed, and would be
    copied on its way to the optimizer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return products(x, weight.mT, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return torch.bmm(dy, weight), torch.bmm(dy.mT, x), dy.sum(1) if ctx.needs_input_grad[2] else None


def products(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [K, rows, in], weight [K, in, out], bias [K, out]. Not baddbmm, which writes the bias to every row first."""
    y = torch.bmm(x, weight)
    return y if bias is None else y + bias[:, None]


class Norms(nn.Module):
    """LayerNorm or RMSNorm over the last dimension."""

    def __init__(self, parts: Sequence[nn.LayerNorm | nn.RMSNorm], places: Places):
        super().__init__()
        self.size, self.eps, self.centred = list(parts[0].normalized_shape), parts[0].eps, isinstance(parts[0], nn.LayerNorm)
        self.weight = places.optional([part.weight for part in parts])
        self.bias = places.optional([getattr(part, "bias", None) for part in parts])

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x, self.size, eps=self.eps or 0.0) if self.centred else F.rms_norm(x, self.size, eps=self.eps)
        if self.weight is None:
            return y
        y = y.view(len(self.weight), -1, x.shape[-1]) * self.weight[:, None]
        return (y if self.bias is None else y + self.bias[:, None]).view_as(x)


class Embeddings(nn.Module):
    def __init__(self, parts: Sequence[nn.Embedding], places: Places):
        super().__init__()
        self.weight = places.together([part.weight for part in parts])  # [K, vocab, D]

    def forward(self, ids: Tensor) -> Tensor:
        K, vocab, D = self.weight.shape
        first = torch.arange(0, K * vocab, vocab, device=ids.device).repeat_interleave(len(ids) // K)
        return F.embedding(ids + first[:, None], self.weight.view(K * vocab, D))


class Scores(nn.Module):
    """The output matrices of tied models: their embeddings."""

    def __init__(self, embeddings: Embeddings):
        super().__init__()
        self.embeddings = [embeddings]  # in a list: its weights are counted where they are

    def forward(self, x: Tensor) -> Tensor:
        weight = self.embeddings[0].weight
        return linear(x, weight)


WHOLE = 2**24


class Dropouts(nn.Module):
    kept: Tensor

    def __init__(self, parts: Sequence[nn.Dropout], places: Places):
        super().__init__()
        self.rates = [part.p for part in parts]
        # Shares that are kept, in whole numbers: a model in half precision would round them. Made here, and not at each step, whose
        # recording may not fetch anything from the host.
        self.register_buffer("kept", torch.tensor([round((1 - rate) * WHOLE) for rate in self.rates]))

    def forward(self, x: Tensor) -> Tensor:
        if len(set(self.rates)) == 1:
            return F.dropout(x, self.rates[0], self.training)
        if not self.training:
            return x
        kept = (self.kept / WHOLE).repeat_interleave(len(x) // len(self.rates)).view(-1, *[1] * (x.dim() - 1))
        return torch.where(torch.rand_like(x, dtype=torch.float32) < kept, x / kept.to(x.dtype), 0)


PARTS = {
    nn.Linear: Linears, nn.LayerNorm: Norms, nn.RMSNorm: Norms, nn.Embedding: Embeddings, nn.Dropout: Dropouts,
}  # fmt: skip
