"""The layer around a mixer: residuals, norms and the feed-forward net. Drawings: TM the mixer, FM the feed-forward.

    pre          x ─┬─ norm ─ TM ─(+)─┬─ norm ─ FM ─(+)─>
                    └──────────────┘  └──────────────┘
    serialized   x ─┬─ norm ─ TM ─(+)─── norm ─ FM ─(+)─>      the second residual comes from the layer's INPUT
                    ├──────────────┘                 │
                    └────────────────────────────────┘
    post         x ─┬─ TM ─(+)─ norm ─┬─ FM ─(+)─ norm ─>
                    └───────┘         └───────┘
    rezero       x ─┬─ TM ─ ·α ─(+)─┬─ FM ─ ·α ─(+)─>          α starts at 0
                    └────────────┘  └────────────┘
    parallel     x ─┬─ norm ─┬─ TM ─(+)─(+)─>
                    │        └─ FM ──┘   │
                    └────────────────────┘

Without a feed-forward net a layer ends after the mixer's residual. Dropout acts on the layer's input.
Forward and step share one wiring, so that training and decoding cannot differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.core import checks
from tokmix.core.dropout import Dropout
from tokmix.core.linear import Linear
from tokmix.core.mixer import GELU, NORM, Cost, Mixer, PreparedStep, State
from tokmix.core.offload import is_watched, with_weights
from tokmix.core.product import product
from tokmix.core.segments import Segments

Branch = Callable[[Tensor], Tensor]
NORMS: dict[str, type[nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


def make_norm(kind: str, dim: int) -> nn.Module:
    checks.one_of("norm", kind, NORMS)
    return nn.LayerNorm(dim) if kind == "layer" else nn.RMSNorm(dim, eps=1e-5)


class FeedForward(nn.Module):
    """gelu: D -> width -> D.  swiglu: (SiLU(gate) ⊙ up), each D -> width, then -> D, without biases."""

    kinds = ("gelu", "swiglu")

    def __init__(self, dim: int, width: int, kind: str):
        super().__init__()
        self.kind, self.dim, self.width = kind, dim, width
        bias = kind == "gelu"
        self.inner = Linear(dim, width if bias else 2 * width, bias=bias)
        self.outer = Linear(width, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.activated(self.inner(x)))

    def activated(self, hidden: Tensor) -> Tensor:
        if self.kind == "gelu":
            return F.gelu(hidden)
        gate, up = hidden.chunk(2, dim=-1)
        return F.silu(gate) * up

    def prepared(self) -> Branch:
        """A faster `forward` for many single tokens x [D] on a CPU."""
        inner, outer = product(self.inner), product(self.outer)
        if inner is None or outer is None:
            return self
        return lambda x: outer(self.activated(inner(x)))

    def cost(self, length: int) -> Cost:
        products = 2 if self.kind == "gelu" else 3
        return Cost(products * 2 * length * self.dim * self.width, length * self.width * GELU)


class Mixing:
    """The mixer as an argument of `Layer.wire`: mix(h), or mix.onto(x, norm) for x + mix(norm(x)), which some mixers do in one pass."""

    def __init__(self, mixer: Mixer, segments: Segments | None):
        self.mixer, self.segments = mixer, segments

    def __call__(self, h: Tensor) -> Tensor:
        return self.mixer(h, self.segments)

    def onto(self, x: Tensor, norm: nn.Module) -> Tensor:
        # A fused pass calls neither mixer nor norm, so their hooks would not run.
        mixed = None if is_watched(self.mixer) or is_watched(norm) else self._onto(x, norm)
        return x + self(norm(x)) if mixed is None else mixed

    def _onto(self, x: Tensor, norm: nn.Module) -> Tensor | None:
        return self.mixer.add_normed(x, norm, self.segments)


class Stepping(Mixing):
    """The same for the next tokens; `state` becomes the state after them."""

    def __init__(self, mixer: Mixer, segments: Segments | None, state: State):
        super().__init__(mixer, segments)
        self.state = state

    def __call__(self, h: Tensor) -> Tensor:
        y, self.state = with_weights(self.mixer, lambda: self.mixer.step(h, self.state, self.segments))
        return y

    def _onto(self, x: Tensor, norm: nn.Module) -> Tensor | None:
        result = self.mixer.step_normed(x, norm, self.state, self.segments)
        if result is None:
            return None
        y, self.state = result
        return y


class PreparedMixing(Mixing):
    """The same for one token of one row, x [D], with the mixer's `prepared_step`."""

    def __init__(self, mixer: Mixer, step: PreparedStep, state: State, position: int):
        super().__init__(mixer, None)
        self.step, self.state, self.position = step, state, position

    def __call__(self, h: Tensor) -> Tensor:
        y, self.state = self.step(h, self.state, self.position)
        return y

    def onto(self, x: Tensor, norm: nn.Module) -> Tensor:
        return x + self(norm(x))


class Layer(nn.Module, ABC):
    """A mixer and a feed-forward net (or None), connected as a layout says."""

    norms = 0  # number of norms that the layout uses

    def __init__(self, mixer: Mixer, feed_forward: FeedForward | None, norm: str, dropout: float):
        super().__init__()
        self.mixer, self.feed_forward, self.dropout = mixer, feed_forward, Dropout(dropout)
        used = self.norms if feed_forward is not None else min(1, self.norms)
        self.norm = nn.ModuleList(make_norm(norm, mixer.dim) for _ in range(used))

    @abstractmethod
    def wire(self, x: Tensor, mix: Mixing, feed: Branch | None) -> Tensor: ...

    def forward(self, x: Tensor, segments: Segments | None = None) -> Tensor:
        return self.wire(self.dropout(x), Mixing(self.mixer, segments), self.feed_forward)

    def step(self, x: Tensor, state: State, segments: Segments | None = None) -> tuple[Tensor, State]:
        mix = Stepping(self.mixer, segments, state)
        return with_weights(self, lambda: self.wire(self.dropout(x), mix, self.feed_forward)), mix.state

    def cost(self, length: int) -> Cost:
        norms = Cost(0, len(self.norm) * NORM * length * self.mixer.dim)
        feed_forward = self.feed_forward.cost(length) if self.feed_forward is not None else Cost()
        return self.mixer.cost(length) + feed_forward + norms


class PreparedLayer:
    """`Layer.step` for many tokens of one row on a CPU, x [D]."""

    def __init__(self, layer: Layer):
        self.layer, self.mixer = layer, layer.mixer
        self.step = layer.mixer.prepared_step() or self._plain_step
        self.feed = None if layer.feed_forward is None else layer.feed_forward.prepared()

    def _plain_step(self, x: Tensor, state: State, position: int) -> tuple[Tensor, State]:
        y, state = self.mixer.step(x[None, None], state)
        return y[0, 0], state

    def __call__(self, x: Tensor, state: State, position: int) -> tuple[Tensor, State]:
        mix = PreparedMixing(self.mixer, self.step, state, position)
        return self.layer.wire(x, mix, self.feed), mix.state


class Pre(Layer):
    norms = 2

    def wire(self, x: Tensor, mix: Mixing, feed: Branch | None) -> Tensor:
        mixed = mix.onto(x, self.norm[0])
        return mixed if feed is None else mixed + feed(self.norm[1](mixed))


class Serialized(Layer):
    norms = 2

    def wire(self, x: Tensor, mix: Mixing, feed: Branch | None) -> Tensor:
        mixed = mix.onto(x, self.norm[0])
        return mixed if feed is None else x + feed(self.norm[1](mixed))


class Post(Layer):
    norms = 2

    def wire(self, x: Tensor, mix: Mixing, feed: Branch | None) -> Tensor:
        mixed = self.norm[0](x + mix(x))
        return mixed if feed is None else self.norm[1](mixed + feed(mixed))


class ReZero(Layer):
    def __init__(self, mixer: Mixer, feed_forward: FeedForward | None, norm: str, dropout: float):
        super().__init__(mixer, feed_forward, norm, dropout)
        self.alpha = nn.Parameter(torch.zeros(1))

    def wire(self, x: Tensor, mix: Mixing, feed: Branch | None) -> Tensor:
        mixed = x + self.alpha * mix(x)
        return mixed if feed is None else mixed + self.alpha * feed(mixed)


class Parallel(Layer):
    norms = 1

    def wire(self, x: Tensor, mix: Mixing, feed: Branch | None) -> Tensor:
        if feed is None:
            return mix.onto(x, self.norm[0])
        normed = self.norm[0](x)
        return x + mix(normed) + feed(normed)


LAYOUTS: dict[str, type[Layer]] = {"pre": Pre, "serialized": Serialized, "post": Post, "rezero": ReZero, "parallel": Parallel}
