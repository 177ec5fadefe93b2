"""The ops under test: inputs, the public function, the definition in plain torch, and the number of products.

FLOPs are those of the form with the fewest products, forward, and three times that with the backward pass. Recomputation and
pointwise work are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.speed.rule import Body, Tensors
from tokmix.ops import causal_hyper_mix as causal_op
from tokmix.ops import hyper_mix as hyper
from tokmix.ops import hyper_mlp as mlp
from tokmix.ops import shift_mix as shift
from tokmix.ops.causal_hyper_mix import blocks
from tokmix.ops.causal_hyper_mix import reference as causal_reference
from tokmix.ops.hyper_mix import reassociated
from tokmix.ops.hyper_mix import reference as hyper_reference
from tokmix.ops.hyper_mlp import reference as mlp_reference
from tokmix.ops.shift_mix import reference as shift_reference

Shapes = dict[str, tuple[int, ...]]
SHIFT, RANK, EPS = 16, 16, 1e-5
BLOCK = 64  # tokens of a block of causal HyperMixing
WIDE = 8  # times the width: the large d' that one head is also timed with
MATRICES = ("U", "V", "U2", "V2", "W", "Wq", "Wk", "Wv", "Wo", "A", "B")


class Size(NamedTuple):
    rows: int
    length: int
    dim: int
    head: int  # channels of a head, where an op has heads

    @property
    def heads(self) -> int:
        return self.dim // self.head


@dataclass(frozen=True)
class Case:
    """reference_most: the longest sequence at which its plain torch is timed. unrolls: it loops over chunks, which torch.compile would
    unroll into thousands of operations."""

    name: str
    causal: bool
    shapes: Callable[[Size], Shapes]
    body: Body
    plain: Body
    flops: Callable[[Size], int]
    reference_most: int = 2**20
    unrolls: bool = False


def draw(shapes: Shapes, dtype: torch.dtype, device: str) -> Tensors:
    """New random inputs with the scale that they have in a layer."""
    made = {}
    for name, shape in shapes.items():
        x = torch.randn(*shape, device=device)
        if name in MATRICES:
            x = x * shape[-2] ** -0.5
        elif name in ("down", "up", "down2", "up2", "diagonal", "diagonal2"):
            x = x * 0.1
        elif name in ("control", "control2"):
            x = x.sigmoid()
        elif name == "log_decay":
            x = F.logsigmoid(4 + x)  # memories of some fifty tokens
        made[name] = x.to(dtype)
    return made


# --- HyperMixing -----------------------------------------------------------------------------------------------------


def _net(t: Tensors, second: str = "") -> hyper.Net:
    return hyper.Net(t["U" + second], t["b" + second], t["V" + second], t["c" + second])


def _hyper(t: Tensors) -> Tensor:
    norm = hyper.Norm(t["gain"], t["bias"], EPS)
    return hyper.mix(t["x"], _net(t), _net(t, "2") if "U2" in t else None, norm=norm)


def _textbook(t: Tensors) -> Tensor:
    first = _net(t)
    y = hyper_reference.hyper_mix(t["x"], t["x"], t["x"], first, _net(t, "2") if "U2" in t else first)
    return F.layer_norm(y, y.shape[-1:], t["gain"], t["bias"], EPS)


def _hyper_shapes(one: bool, tied: bool, wide: int = 1) -> Callable[[Size], Shapes]:
    """wide: d' over d."""

    def shapes(size: Size) -> Shapes:
        H = 1 if one else size.heads
        e, k = size.dim // H, wide * size.dim // H
        net: Shapes = {"U": (H, e, e), "b": (H, e), "V": (H, e, k), "c": (H, k)}
        second = {} if tied else {name + "2": shape for name, shape in net.items()}
        return {"x": (size.rows, size.length, size.dim), **net, **second, "gain": (size.dim,), "bias": (size.dim,)}

    return shapes


def hyper_flops(size: Size, heads: int, hidden: int, tied: bool) -> int:
    """FLOPs of the textbook or the re-associated form, whichever has fewer."""
    sizes = (size.length, size.length, heads, size.dim // heads, hidden // heads, tied)
    return size.rows * min(hyper_reference.matmul_flops(*sizes), reassociated.matmul_flops(*sizes))


def _causal_with(op: Callable[..., tuple[Tensor, Tensor, causal_op.Carry]]) -> Body:
    def body(t: Tensors) -> Tensor:
        B, H, _, k = t["w_in"].shape
        wide = torch.promote_types(t["w_in"].dtype, torch.float32)
        empty = causal_op.Carry(t["w_in"].new_zeros(B, H, k, t["values"].shape[3], dtype=wide), t["w_in"].new_zeros(B, H, dtype=wide))
        return op(t["w_in"], t["w_out"], t["values"].transpose(1, 2), t["log_decay"], None, None, empty)[0]

    return body


def _blocks_with(op: Callable[..., tuple[Tensor, Tensor]]) -> Body:
    return lambda t: op(t["w_in"], t["w_out"], t["values"].transpose(1, 2), t["log_decay"], None, None, BLOCK)[0]


def _causal_shapes(size: Size) -> Shapes:
    weights = (size.rows, size.heads, size.length, size.head)
    values = (size.rows, size.length, size.heads, size.head)  # as heads lie in a layer
    return {"w_in": weights, "w_out": weights, "values": values, "log_decay": weights[:3]}


def causal_flops(size: Size) -> int:
    """FLOPs of writing each token to the state and reading it."""
    return 4 * size.rows * size.length * size.dim * size.head


def _blocks_flops(size: Size) -> int:
    return size.rows * causal_op.block_flops(size.length, BLOCK, size.heads, size.head, size.head, decay=True)


# --- shift mixing ----------------------------------------------------------------------------------------------------


def _weighted(t: Tensors) -> Tensor:
    return shift.shift_mix(t["x"], [t["a"], t["b"]], (SHIFT,))


def _plain_weighted(t: Tensors) -> Tensor:
    x, others = _partners(t["x"])
    return shift_reference.weighted(x, others, [t["a"], t["b"]])[:, :, 0]


def _normed(t: Tensors) -> Tensor:
    return shift.norm_shift_mix(t["x"], [t["a"], t["b"]], t["gain"], t["bias"], EPS, (SHIFT,))


def _plain_normed(t: Tensors) -> Tensor:
    return t["x"] + _plain_weighted(t | {"x": F.layer_norm(t["x"], t["x"].shape[-1:], t["gain"], t["bias"], EPS)})


def _gate(t: Tensors) -> Tensor:
    return shift.gate_shift_mix(t["x"], t["W"], t["c"], (SHIFT,))


def _plain_gate(t: Tensors) -> Tensor:
    x, others = _partners(t["x"])
    return shift_reference.gated(x, others, t["W"], t["c"], both=False)[:, :, 0]


def _matrix(t: Tensors) -> Tensor:
    return shift.matrix_shift_mix(t["x"], [t["A"], t["B"]], (SHIFT,))


def _plain_matrix(t: Tensors) -> Tensor:
    x, others = _partners(t["x"])
    return shift_reference.matrix(x, others, [t["A"], t["B"]])[:, :, 0]


def _partners(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """x as one head [B, L, 1, d], and the partners of its tokens."""
    x = x[:, :, None]
    return x, [shift_reference.partners(x, (SHIFT,))]


def _shift_shapes(more: Callable[[int], Shapes]) -> Callable[[Size], Shapes]:
    return lambda size: {"x": (size.rows, size.length, size.dim), **more(size.dim)}


def _products(count: int) -> Callable[[Size], int]:
    return lambda size: 2 * count * size.rows * size.length * size.dim**2


# --- HyperMLP and HyperGLU -------------------------------------------------------------------------------------------

MLP_HEADS = 2


def _mlp_with(op: Callable[..., Tensor]) -> Body:
    def body(t: Tensors) -> Tensor:
        q, k, v = (t[name].transpose(1, 2) for name in ("q", "k", "v"))
        first, second = (mlp.Bank(t["down" + n], t["up" + n], t["diagonal" + n], t["control" + n].transpose(1, 2)) for n in ("", "2"))
        return op(q, k, v, None, first, second, True, q.shape[2])

    return body


def _mlp_widths(size: Size, branches: int) -> tuple[int, int, int]:
    """Heads of scores, their channels, channels of the values: the layer's own, a quarter of the width for scores."""
    score_heads = MLP_HEADS * branches
    return score_heads, max(1, size.dim // 4 // score_heads), size.dim // MLP_HEADS


def _mlp_shapes(branches: int) -> Callable[[Size], Shapes]:
    def shapes(size: Size) -> Shapes:
        B, L, H = size.rows, size.length, MLP_HEADS
        Hq, e, f = _mlp_widths(size, branches)
        first: Shapes = {"down": (Hq, L, RANK), "up": (Hq, RANK, L), "diagonal": (Hq, L), "control": (B, L, Hq, RANK)}
        second: Shapes = {"down2": (H, L, RANK), "up2": (H, RANK, L), "diagonal2": (H, L), "control2": (B, L, H, RANK)}
        return {"q": (B, L, Hq, e), "k": (B, L, Hq, e), "v": (B, L, H, f), **first, **second}

    return shapes


def _mlp_flops(branches: int) -> Callable[[Size], int]:
    def flops(size: Size) -> int:
        Hq, e, f = _mlp_widths(size, branches)
        dense = mlp.matmul_flops(size.length, size.length, Hq, MLP_HEADS, e, f, RANK, RANK)
        return size.rows * dense * (size.length + 1) // (2 * size.length)  # without the part that the causal mask removes

    return flops


def cases(head: int) -> list[Case]:
    vector: Callable[[int], Shapes] = lambda d: {"a": (1, d), "b": (1, d)}
    norm: Callable[[int], Shapes] = lambda d: {"gain": (d,), "bias": (d,)}
    found = []
    for one in (True, False):
        for tied in (True, False):
            count = lambda size, one=one, tied=tied: hyper_flops(size, 1 if one else size.heads, size.dim, tied)
            name = f"hyper_mix, {'one head' if one else f'heads of {head}'}, {'tied' if tied else 'untied'}"
            found.append(Case(name, False, _hyper_shapes(one, tied), _hyper, _textbook, count))
    large = f"hyper_mix, one head, untied, d' = {WIDE} d", False, _hyper_shapes(True, False, WIDE), _hyper, _textbook
    found.append(Case(*large, lambda size: hyper_flops(size, 1, WIDE * size.dim, False)))
    scan = _causal_with(causal_op.causal_hyper_mix), _causal_with(causal_reference.causal_hyper_mix)
    in_blocks = _blocks_with(causal_op.block_hyper_mix), _blocks_with(blocks.block_hyper_mix)
    found += [
        Case(f"causal_hyper_mix, heads of {head}", True, _causal_shapes, *scan, causal_flops, 2048, unrolls=True),
        Case(f"causal_hyper_mix, heads of {head}, blocks of {BLOCK}", True, _causal_shapes, *in_blocks, _blocks_flops),
        Case("shift_mix, vector", True, _shift_shapes(vector), _weighted, _plain_weighted, _products(0)),
        Case("shift_mix, ab", True, _shift_shapes(lambda d: {"a": (1, 1), "b": (1, 1)}), _weighted, _plain_weighted, _products(0)),
        Case("shift_mix, gate", True, _shift_shapes(lambda d: {"W": (1, d, d), "c": (1, d)}), _gate, _plain_gate, _products(1)),
        Case("shift_mix, matrix", True, _shift_shapes(lambda d: {"A": (1, d, d), "B": (1, d, d)}), _matrix, _plain_matrix, _products(2)),
        Case("norm_shift_mix, vector", True, _shift_shapes(lambda d: vector(d) | norm(d)), _normed, _plain_normed, _products(0)),
    ]
    both = _mlp_with(mlp.hyper_mlp), _mlp_with(mlp_reference.hyper_mlp)
    for name, branches in (("hyper_mlp", 1), ("hyper_glu", 2)):
        found.append(Case(name, True, _mlp_shapes(branches), *both, _mlp_flops(branches), 2048))
    return found
