"""HyperMixing (Mai et al., ACL 2023, arXiv 2203.03691): tokens generate the weights of the MLP that mixes them.

    keys + position ──net_in──> W1 ─┐
    values ─────────────────────────┴─> GELU(W1ᵀ V) ──> W2 · ─> norm ─> y
    queries + position ─net_out─> W2 ───────────────────┘

The causal form (a running, length-normalised hidden state) is our extension: see docs/hypermixing.md.
"""

from __future__ import annotations

from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from tokmix.core import checks, positions
from tokmix.core.mixer import GELU, NORM, SIGMOID, Cost, State, register
from tokmix.core.offload import is_watched
from tokmix.core.rowmixer import RowMixer
from tokmix.core.segments import Rows, Segments
from tokmix.layers import memory
from tokmix.ops import causal_hyper_mix, hyper_mix, shift_mix


class HyperNetwork(nn.Module):
    """For each head an MLP e -> i -> k that turns a token into a row of weights."""

    def __init__(self, heads: int, e: int, i: int, k: int, bias: bool, gain: float):
        super().__init__()
        self.inner = nn.Parameter(_normal(heads, e, i, gain))
        self.outer = nn.Parameter(_normal(heads, i, k, gain))
        self.inner_bias = nn.Parameter(torch.zeros(heads, i)) if bias else None
        self.outer_bias = nn.Parameter(torch.zeros(heads, k)) if bias else None

    def forward(self, x: Tensor) -> hyper_mix.Net:
        """Return the weights, for an op that runs the network on x (wrappers of PEFT forward the arguments of a call)."""
        return hyper_mix.Net(self.inner, self.inner_bias, self.outer, self.outer_bias)


def _normal(heads: int, fan_in: int, out: int, gain: float) -> Tensor:
    """Fan-in counted inside a head. Biases start at zero: large ones would give every token the same row."""
    return torch.empty(heads, fan_in, out).normal_(std=gain * fan_in**-0.5)


class _Options(TypedDict):
    """Arguments of `hyper_mix.mix` that are the same for every body."""

    tokens: Tensor | None
    scale: Tensor | None
    readout: Tensor | None
    norm: hyper_mix.Norm | None


@register("hypermixing")
class HyperMixing(RowMixer):
    """tied      one hypernetwork for both generated matrices, the paper's main setting
    heads     slices of the width, each with a hypernetwork of its own; divides dim and hidden
    hidden    the generated MLP's inner size d' (default: 2 dim)
    inner     the hypernetworks' own inner size (default: dim)
    bias      in the hypernetworks
    norm      of the output: layer (LayerNorm), length (a fixed factor by the number of tokens), none
    position  code added to the hypernetworks' input, never to the values: none, learned, sinusoidal
    power     norm length, and the causal state: divide by the number of tokens to this power (the paper's is 1);
              None divides so that the scale stays near 1 at any length (ours)
    decay     causal only: the state forgets at a learned rate per head, or by a gate the token sets (the default)
    shift     first blend each token with the one this many places back, and if bidirectional with the one as far ahead
              (0 = off; default: 1 where causal, else 0)
    block     causal only: blocks of this many tokens, which are read linearly inside a block: faster (0 = the exact scan)
    """

    modes = frozenset({"bidirectional", "causal", "cross", "padded", "packed", "step"})
    order = "T"

    def __init__(
        self,
        dim: int,
        *,
        causal: bool,
        max_len: int,
        layer: int = 0,
        tied: bool = True,
        heads: int = 1,
        hidden: int | None = None,
        inner: int | None = None,
        bias: bool = True,
        norm: Literal["none", "layer", "length"] = "layer",
        position: positions.Code = "none",
        power: float | None = None,
        decay: Literal["none", "learned", "gate"] | None = None,
        shift: int | None = None,
        block: int = 0,
    ):
        super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
        hidden = 2 * dim if hidden is None else hidden
        checks.divides("heads", heads, "dim", dim)
        checks.divides("heads", heads, "hidden", hidden)
        self.inner = dim if inner is None else inner
        checks.divides("heads", heads, "inner", self.inner)
        if not causal and (decay not in (None, "none") or block):
            raise ValueError(f"decay={decay!r} and block={block} work with causal=True only: leave them out")
        # Without these the causal form learns much more slowly (docs/log.md).
        decay = ("gate" if causal else "none") if decay is None else decay
        shift = int(causal) if shift is None else shift
        checks.at_least("shift", shift, 0)
        checks.at_least("block", block, 0)
        self.heads, self.hidden, self.tied, self.norm, self.power = heads, hidden, tied, norm, power
        self.decay, self.shift, self.block = decay, shift, block
        self.code = positions.PositionCode(position, dim, max_len)
        # Length normalisation counts on generated weights of scale 1, which the GELU between needs this gain for. A
        # LayerNorm takes any scale, so nn.Linear's own will do. Without a norm the sum over tokens grows with their
        # number, and a small start keeps it near 1 at the usual lengths of a sentence.
        gain = {"length": 1.25, "layer": 3**-0.5, "none": 0.3}[norm]
        sizes = (dim // heads, self.inner // heads, hidden // heads)
        self.net_in = HyperNetwork(heads, *sizes, bias, gain)
        self.net_out = None if tied else HyperNetwork(heads, *sizes, bias, gain)
        self.output_norm = nn.LayerNorm(dim) if norm == "layer" else None
        if shift:
            self.blend = nn.Parameter(torch.full((dim,), 0.5))
        if decay != "none":
            # Heads start with memories of about 8 to 512 tokens.
            span = torch.logspace(3, 9, heads, base=2.0) if heads > 1 else torch.tensor([64.0])
            self.decay_bias = nn.Parameter(torch.log(span - 1))
        if decay == "gate":
            self.decay_weight = nn.Parameter(torch.empty(dim, heads).normal_(std=0.02))

    @property
    def limit(self) -> int | None:
        return self.max_len if self.code.kind == "learned" else None

    def mix_in_layout(self, x: Tensor, segments: Segments | None) -> Tensor | None:
        """Whole rows always; a padded or packed batch if there is a kernel that reads it directly."""
        if self.causal or (segments is not None and segments.chunks is None):
            return None
        if self.output_norm is not None and is_watched(self.output_norm):  # its bias would fill the padding
            return None
        places = None if segments is None else segments.places
        if self.shift and segments is not None and places is None:  # a mask with holes: neighbours are not adjacent
            return None
        x = self._blended(x, places)
        net_in, net_out = self.net_in(x), None if self.net_out is None else self.net_out(x)
        longest = x.shape[1] if segments is None else segments.longest
        body = hyper_mix.select_body(x, net_in, tied=self.tied, normed=self.norm == "layer", longest=longest)
        if segments is not None and not body.takes_chunks:
            return None
        counts = None if segments is None else segments.cu_seqlens.diff()
        chunks, real = (None, None) if segments is None else (segments.chunks, segments.mask)
        options = self._options(x, positions.within(segments, x), counts, self.output_norm)
        return hyper_mix.mix(x, net_in, net_out, **options, chunks=chunks, longest=longest, real=real, body=body)

    def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
        if self.causal:
            return self._causal(x, self.empty_state(x.shape[0], x), rows, whole=True)[0]
        x = self._blended_rows(x, rows)
        at, counts = positions.count(x.shape[1], None, x.device), None if rows is None else rows.lengths
        fused, after = self.output_norm, None
        if fused is not None and is_watched(fused):
            fused, after = None, fused
        y = hyper_mix.mix(x, self.net_in(x), None if self.net_out is None else self.net_out(x), **self._options(x, at, counts, fused))
        return y if after is None else after(y)

    def _blended(self, x: Tensor, places: Tensor | None) -> Tensor:
        """x_t + blend * (mean of x_{t-shift} and x_{t+shift} - x_t), zeros beyond a sequence's ends."""
        if not self.shift:
            return x
        share = self.blend[None]
        return shift_mix.shift_mix(x, [1 - share, share / 2, share / 2], (self.shift,), places=places)

    def _blended_rows(self, x: Tensor, rows: Rows | None) -> Tensor:
        blended = self._blended(x, None)
        return blended if rows is None or not self.shift else rows.zero(blended)  # the last token has moved past its row's end

    def _options(self, x: Tensor, at: Tensor, counts: Tensor | None, norm: nn.LayerNorm | None) -> _Options:
        """at: positions; counts: tokens of each sequence; None: all of a row."""
        scale, readout = self.scales(x, counts)
        return {
            "tokens": None if self.code.kind == "none" else x + self.code(at, x.dtype),
            "scale": scale,
            "readout": readout,
            "norm": None if norm is None else hyper_mix.Norm(norm.weight, norm.bias, norm.eps),
        }

    def scales(self, x: Tensor, counts: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Factors of the hidden state and of the readout of each sequence, [S] or [1]; counts: its tokens."""
        if self.norm != "length":
            return None, None
        e, k, sum_dtype = self.dim // self.heads, self.hidden // self.heads, positions.at_least_float32(x.dtype)
        counts = x.new_full((1,), x.shape[1], dtype=sum_dtype) if counts is None else counts.clamp(min=1).to(sum_dtype)
        scale = hyper_mix.length_scale(counts, e, self.power)
        return scale, hyper_mix.readout_scale(scale, e, k, own=self.tied) if self.power is None else None

    def cross(self, x: Tensor, rows: Rows | None, keys: Tensor, values: Tensor, key_rows: Rows | None) -> Tensor:
        self._check_length(max(x.shape[1], keys.shape[1]))
        x, keys, values = self._blended_rows(x, rows), self._blended_rows(keys, key_rows), self._blended_rows(values, key_rows)
        queries, keys = (t + self.code(positions.count(t.shape[1], None, t.device), t.dtype) for t in (x, keys))
        net_in = self.net_in(x)
        net_out = net_in if self.net_out is None else self.net_out(x)
        scale = None if self.norm != "length" else self._length_scale(values, key_rows)
        y = hyper_mix.hyper_mix(queries, keys, values, net_in, net_out, scale)
        return self._normed(y, None if scale is None else scale[:, 0], own=False)

    def _length_scale(self, values: Tensor, key_rows: Rows | None) -> Tensor:
        """Factor of the hidden state, [S, 1, 1, 1]."""
        sum_dtype = positions.at_least_float32(values.dtype)
        if key_rows is None:
            counts = values.new_full((1,), values.shape[1], dtype=sum_dtype)
        else:
            counts = key_rows.lengths.clamp(min=1).to(sum_dtype)
        return hyper_mix.length_scale(counts, self.dim // self.heads, self.power)[:, None, None, None]

    def _normed(self, y: Tensor, scale: Tensor | None, own: bool) -> Tensor:
        """y [S, L, D]; scale (of the hidden state) broadcastable to it."""
        if self.output_norm is not None:
            return self.output_norm(y)
        if self.norm == "none" or self.power is not None or scale is None:
            return y
        return y * hyper_mix.readout_scale(scale, self.dim // self.heads, self.hidden // self.heads, own).to(y.dtype)

    def empty_state(self, batch: int, like: Tensor) -> State:
        e, k = self.dim // self.heads, self.hidden // self.heads
        sum_dtype = positions.at_least_float32(like.dtype)
        state = {
            "hidden": like.new_zeros(batch, self.heads, k, e, dtype=sum_dtype),
            "count": like.new_zeros(batch, self.heads, dtype=sum_dtype),
            "position": memory.start(batch, like),
        }
        if self.block:
            hidden, count = state["hidden"], state["count"]
            state |= {"added": hidden.clone(), "number": count.clone(), "log_kept": count.clone()}
        if self.shift:
            state["last"] = like.new_zeros(batch, self.shift, self.dim)
        return state

    def advance(self, x: Tensor, state: State, rows: Rows | None) -> tuple[Tensor, State]:
        if self.limit is not None:
            memory.check_room(self.kind, self.limit, state["position"], memory.new_counts(x, rows))
        return self._causal(x, state, rows, whole=False)

    def _causal(self, x: Tensor, state: State, rows: Rows | None, whole: bool) -> tuple[Tensor, State]:
        """The next tokens from any state: training starts from an empty one, so that it cannot drift from decoding.
        whole: from an empty one, and the last state is not used."""
        after = {"position": state["position"] + memory.new_counts(x, rows)}
        tokens = x
        if self.shift:
            before = torch.cat([state["last"].to(x.dtype), x], dim=1)[:, : x.shape[1]]
            after["last"] = memory.recent(state["last"], x, rows)
            tokens = x + self.blend * (before - x)
        at = positions.count(x.shape[1], state["position"], x.device)
        if self.limit is not None:  # padding may lie beyond the last position of the code
            at = at.clamp(max=self.limit - 1)
        coded = tokens + self.code(at, x.dtype)
        net_in = self.net_in(x)
        coded_heads = hyper_mix.split_heads(coded, self.heads)
        w_in = hyper_mix.generate(coded_heads, net_in)
        w_out = w_in if self.net_out is None else hyper_mix.generate(coded_heads, self.net_out(x))
        values, real = hyper_mix.split_heads(tokens, self.heads), None if rows is None else rows.mask
        given = (w_in, w_out, values, self._log_decay(tokens), real, self.power)
        carry: causal_hyper_mix.Carry | causal_hyper_mix.Border
        if not self.block:
            y, counts, carry = causal_hyper_mix.causal_hyper_mix(*given, causal_hyper_mix.Carry(state["hidden"], state["count"]))
            after["hidden"], after["count"] = carry
        elif whole:
            y, counts = causal_hyper_mix.block_hyper_mix(*given, self.block)
        else:
            carry = causal_hyper_mix.Border(*(state[name] for name in causal_hyper_mix.Border._fields))
            y, counts, carry = causal_hyper_mix.block_step(*given, self.block, carry, state["position"])
            after |= zip(causal_hyper_mix.Border._fields, carry, strict=True)
        e = self.dim // self.heads
        scale = hyper_mix.length_scale(counts.clamp(min=1), e, self.power)  # [B, H, L]
        return self._normed(hyper_mix.merge_heads(y), scale.transpose(1, 2).repeat_interleave(e, dim=2), own=self.tied), after

    def _log_decay(self, tokens: Tensor) -> Tensor | None:
        """[B, H, L]"""
        if self.decay == "none":
            return None
        logits = self.decay_bias.expand(*tokens.shape[:2], self.heads)
        if self.decay == "gate":
            logits = logits + tokens @ self.decay_weight
        return nn.functional.logsigmoid(logits.float() if tokens.dtype.itemsize < 4 else logits).transpose(1, 2)

    def cost(self, length: int) -> Cost:
        H, e, i, k = self.heads, self.dim // self.heads, self.inner // self.heads, self.hidden // self.heads
        nets = 1 if self.tied else 2
        pointwise = length * (nets * GELU * self.inner + (NORM * self.dim if self.output_norm is not None else 0))
        if not self.causal:
            gpu = self.net_in.inner.is_cuda
            body = hyper_mix.expected(length, H, e, k, self.tied, i, gpu)
            matmul = body.matmul_flops(length, length, H, e, k, self.tied, i)
            return Cost(matmul, pointwise + GELU * self.hidden * e + length * 5 * self.dim * bool(self.shift))
        matmul = nets * length * H * 2 * (e * i + i * k)
        if self.decay == "gate":
            matmul += length * 2 * self.dim * H
        decays, again = self.decay != "none", 0
        pointwise += length * (SIGMOID * H * decays + 3 * self.dim * bool(self.shift))
        state = self.hidden * e + H
        if self.block:
            matmul += causal_hyper_mix.block_flops(length, self.block, H, e, k, decays)
            pointwise += length // self.block * (GELU + 1) * self.hidden * e  # of the borders
            pointwise += length * (self.hidden + (5 if decays else 3) * self.block * H)  # of the scores
            state = 2 * state + H
        else:
            matmul += causal_hyper_mix.matmul_flops(length, H, e, k, decays)
            pointwise += length * ((GELU + 3) * self.hidden * e + causal_hyper_mix.CHUNK * H * decays)
            again = causal_hyper_mix.recomputed_flops(length, H, e, k, decays)
        return Cost(matmul, pointwise, state + 1 + self.shift * self.dim, recomputed=again)
