"""Rivals of the ops and layers: the fastest softmax attention, and flash-linear-attention if it is installed.

The fastest backend, layout and head size depend on the GPU and the length, so all are tried at every length.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.speed.cases import Shapes, Size
from bench.speed.rule import Body, Tensors

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
HEADS = (128, 64)


@dataclass(frozen=True)
class Rival:
    name: str
    causal: bool
    shapes: Callable[[Size], Shapes]
    body: Body
    plain: Body
    flops: Callable[[Size], int]


def softmax(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attention by its definition in plain torch; [B, H, N, e] each."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -torch.inf)
    return scores.softmax(-1) @ v


def attention_flops(size: Size, causal: bool) -> int:
    """FLOPs of both products, without the half that a causal mask removes."""
    dense = 4 * size.rows * size.length**2 * size.dim
    return dense * (size.length + 1) // (2 * size.length) if causal else dense


def settings(dim: int, device: str) -> Iterator[tuple[str, SDPBackend | None, int]]:
    """(name, backend, head size) to try; on a CPU torch has only one."""
    for e in [e for e in HEADS if dim % e == 0] or [dim // 2]:
        for name, backend in BACKENDS.items() if device == "cuda" else [("torch", None)]:
            yield f"{name}, head {e}", backend, e


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, backend: SDPBackend | None) -> Tensor:
    if backend is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def attention_cores(dim: int, causal: bool, device: str) -> list[Rival]:
    """Between the projections: q, k, v in the layout of a projection [B, N, H, e], or by head [B, H, N, e]."""
    found = []
    for name, backend, e in settings(dim, device):
        for layout in ("rows", "heads"):
            heads_first = layout == "heads"

            def shapes(size: Size, e: int = e, heads_first: bool = heads_first) -> Shapes:
                H = size.dim // e
                return dict.fromkeys("qkv", (size.rows, H, size.length, e) if heads_first else (size.rows, size.length, H, e))

            def with_op(op: Callable[..., Tensor], heads_first: bool = heads_first) -> Body:
                def body(t: Tensors) -> Tensor:
                    q, k, v = (t[key] if heads_first else t[key].transpose(1, 2) for key in "qkv")
                    return op(q, k, v)

                return body

            ours = with_op(lambda q, k, v, backend=backend: _sdpa(q, k, v, causal, backend))
            plain = with_op(lambda q, k, v: softmax(q, k, v, causal))
            found.append(Rival(f"{name}, {layout}", causal, shapes, ours, plain, lambda size: attention_flops(size, causal)))
    return found


def attention_layers(dim: int, causal: bool, device: str) -> list[Rival]:
    """With its projections: three products, or one whose result is split in three."""
    found = []
    for name, backend, e in settings(dim, device):
        for fused in (False, True):

            def with_op(op: Callable[..., Tensor], e: int = e, fused: bool = fused) -> Body:
                def body(t: Tensors) -> Tensor:
                    B, N, d = t["x"].shape
                    parts = (t["x"] @ t["W"]).chunk(3, -1) if fused else [t["x"] @ t[key] for key in ("Wq", "Wk", "Wv")]
                    q, k, v = (part.view(B, N, d // e, e).transpose(1, 2) for part in parts)
                    return op(q, k, v).transpose(1, 2).reshape(B, N, d) @ t["Wo"]

                return body

            def shapes(size: Size, fused: bool = fused) -> Shapes:
                d = size.dim
                maps: Shapes = {"W": (d, 3 * d)} if fused else dict.fromkeys(("Wq", "Wk", "Wv"), (d, d))
                return {"x": (size.rows, size.length, d), **maps, "Wo": (d, d)}

            ours = with_op(lambda q, k, v, backend=backend: _sdpa(q, k, v, causal, backend))
            plain = with_op(lambda q, k, v: softmax(q, k, v, causal))
            flops = lambda size: attention_flops(size, causal) + 8 * size.rows * size.length * size.dim**2
            found.append(Rival(f"{name}, {'one projection' if fused else 'three projections'}", causal, shapes, ours, plain, flops))
    return found


def _linear_op() -> Callable[..., Tensor]:
    """flash-linear-attention's causal linear attention, without its normalisation; ImportError if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what else could be installed
            from fla.ops.linear_attn import chunk_linear_attn
    except ImportError as error:
        raise ImportError(f"flash-linear-attention is not installed ({error}): pip install flash-linear-attention") from error

    def op(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found: tuple[Tensor, Tensor | None] = chunk_linear_attn(q, k, v, normalize=False)
        return found[0]

    return op


def _linear_plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by its definition; [B, N, H, e] each."""
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    return ((q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).tril() @ v).transpose(1, 2)


def linear_core(head: int) -> Rival:
    """Between the projections."""
    with_op: Callable[[Callable[..., Tensor]], Body] = lambda op: lambda t: op(t["q"], t["k"], t["v"])
    shapes: Callable[[Size], Shapes] = lambda size: dict.fromkeys("qkv", (size.rows, size.length, size.heads, size.head))
    return Rival(f"linear attention, heads of {head}", True, shapes, with_op(_linear_op()), with_op(_linear_plain), _linear_flops)


def linear_layer(head: int) -> Rival:
    """With its four projections, without feature map, gate and norm: the smallest such layer."""

    def with_op(op: Callable[..., Tensor]) -> Body:
        def body(t: Tensors) -> Tensor:
            B, N, d = t["x"].shape
            q, k, v = ((t["x"] @ t[key]).view(B, N, d // head, head) for key in ("Wq", "Wk", "Wv"))
            return op(q, k, v).reshape(B, N, d) @ t["Wo"]

        return body

    def shapes(size: Size) -> Shapes:
        return {"x": (size.rows, size.length, size.dim), **dict.fromkeys(("Wq", "Wk", "Wv", "Wo"), (size.dim, size.dim))}

    flops: Callable[[Size], int] = lambda size: _linear_flops(size) + 8 * size.rows * size.length * size.dim**2
    return Rival(f"linear attention, heads of {head}", True, shapes, with_op(_linear_op()), with_op(_linear_plain), flops)


def _linear_flops(size: Size) -> int:
    return 4 * size.rows * size.length * size.dim * size.head
