"""`tokmix bench decode`: the next token after a context: time per token and layer, and the size of a layer's state.

Layers are stepped as generation does it, TOKENS tokens in a row, each through all layers, as one CUDA graph where there is a GPU.
hsm has all shifts that cover the context. Attention comes as the mixer's own step, whose cache is copied when it
grows, and as one would write it by hand around a cache of fixed size, with torch's fastest backend, which is what the others
should be compared with; its core is that without projections. Whole models, next to GPT-2: decode_models.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from bench.speed import decode_models
from bench.speed.clock import Call
from bench.speed.session import Session, tensors_bytes
from tokmix.core.mixer import Mixer, State, create, inplace_states

TOKENS = 8
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
Chain = tuple[Call, int, float]  # the call, its layers, bytes of state a sequence and layer


def run(session: Session) -> None:
    batches = (1, 2) if session.asked.quick else (1, 32 if session.device == "cuda" else 8)
    for batch in batches:
        for context in session.asked.lengths:
            for name, make in _mixers(session, context).items():
                if session.wanted(name) and not session.late():
                    _time(session, name, "Mixer.step", batch, context, functools.partial(_stepped_new, make, batch, context))
            for core in (False, True):
                if session.wanted("attention") and not session.late():
                    _attention(session, batch, context, core)
    if not session.late():
        decode_models.run(session)


def _mixers(session: Session, context: int) -> dict[str, Callable[[], list[Mixer]]]:
    dim, heads = session.asked.dim, session.asked.dim // session.asked.head
    ladder = max(1, math.ceil(math.log2(context)))
    few = 1 if session.asked.quick else 2

    def made(count: int, name: str, **options: int) -> Callable[[], list[Mixer]]:
        make = lambda layer: create(name, dim, causal=True, max_len=context, layer=layer, **options)
        return lambda: [make(layer).to(session.device, session.dtype).requires_grad_(False) for layer in range(count)]

    return {
        "hsm, ladder": made(ladder, "hsm"),
        "hsm, shift 1": made(ladder, "hsm", shift=1),
        "hypermixing": made(few, "hypermixing", heads=heads, hidden=dim),
        "linear_attention": made(few, "linear_attention", heads=heads),
        "attention": made(few, "attention", heads=heads),
    }


def state_after(mixer: Mixer, batch: int, context: int, like: Tensor) -> State:
    """A state of random numbers as after `context` tokens, because reading them would take long."""

    def filled(part: Tensor) -> Tensor:
        if not part.dtype.is_floating_point:
            return torch.full_like(part, context)
        return torch.rand_like(part) + 0.5  # denominators stay positive

    state = mixer.init_state(batch, like)
    if isinstance(state, dict) and "k" in state and "v" in state:
        grown = {key: torch.randn(batch, context, *state[key].shape[2:], dtype=like.dtype, device=like.device) for key in ("k", "v")}
        state = {**state, **grown}
        return {key: part if key in grown else filled(part) for key, part in state.items()}
    return tree_map(filled, state)


def stepped(mixers: list[Mixer], batch: int, context: int) -> Chain:
    like = next(mixers[0].parameters())
    x = torch.randn(batch, 1, mixers[0].dim, device=like.device).to(like.dtype)
    states = [state_after(mixer, batch, context, like) for mixer in mixers]
    size = tensors_bytes(tree_leaves(states)) / batch / len(mixers)

    def call() -> Tensor:
        y, now = x, states
        with torch.inference_mode(), inplace_states():  # as in generation
            for _ in range(TOKENS):
                y, after = x, []
                for mixer, state in zip(mixers, now, strict=True):
                    y, state = mixer.step(y, state)
                    after.append(state)
                now = after
        return y

    return call, len(mixers), size


def _stepped_new(make: Callable[[], list[Mixer]], batch: int, context: int) -> Chain:
    return stepped(make(), batch, context)


class FixedCache(nn.Module):
    """An attention layer for one token at a time with a cache of fixed address."""

    def __init__(self, dim: int, e: int, batch: int, context: int, core: bool, backend: SDPBackend | None, dtype: torch.dtype):
        super().__init__()
        self.e, self.context, self.core, self.backend = e, context, core, backend
        self.qkv, self.out = (nn.Linear(dim, width, bias=False, dtype=dtype) for width in (3 * dim, dim))
        self.k: Tensor
        self.v: Tensor
        for name in ("k", "v"):
            self.register_buffer(name, torch.randn(batch, dim // e, context + TOKENS, e, dtype=dtype))

    def forward(self, x: Tensor, at: int) -> Tensor:
        """x [B, 1, D], the token at context + at."""
        parts = [x, x, x] if self.core else self.qkv(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (-1, self.e)).transpose(1, 2) for part in parts)
        there = self.context + at
        self.k[:, :, there : there + 1], self.v[:, :, there : there + 1] = k, v
        keys, values = self.k[:, :, : there + 1], self.v[:, :, : there + 1]
        if self.backend is None:
            y = F.scaled_dot_product_attention(q, keys, values)
        else:
            with sdpa_kernel(self.backend):
                y = F.scaled_dot_product_attention(q, keys, values)
        y = y.transpose(1, 2).flatten(2)
        return y if self.core else self.out(y)


def fixed(session: Session, e: int, batch: int, context: int, core: bool, backend: SDPBackend | None) -> Chain:
    with torch.device(session.device):
        layer = FixedCache(session.asked.dim, e, batch, context, core, backend, session.dtype).requires_grad_(False)
    x = torch.randn(batch, 1, session.asked.dim, device=session.device).to(session.dtype)

    def call() -> Tensor:
        y = x
        for at in range(TOKENS):
            y = layer(x, at)
        return y

    return call, 1, 2 * context * session.asked.dim * session.dtype.itemsize


def _attention(session: Session, batch: int, context: int, core: bool) -> None:
    """The fastest backend and head size."""
    name, glances = "attention core, fixed cache" if core else "attention, fixed cache", {}
    sizes = [e for e in (128, 64) if session.asked.dim % e == 0] or [session.asked.dim // 2]
    for backend in BACKENDS if session.device == "cuda" else [None]:
        for e in sizes:
            try:
                chain = fixed(session, e, batch, context, core, None if backend is None else BACKENDS[backend])
                glances[backend, e] = session.glance(chain[0]).us
            except RuntimeError:
                continue  # this backend does not take the shape
    if not glances:
        session.note(f"{name}, batch {batch}, N={context}: no backend takes it")
        return
    backend, e = min(glances, key=lambda key: glances[key])
    best = lambda: fixed(session, e, batch, context, core, None if backend is None else BACKENDS[backend])
    _time(session, name, f"{backend or 'torch'}, head {e}", batch, context, best)


def _time(session: Session, name: str, body: str, batch: int, context: int, chain: Callable[[], Chain]) -> None:
    row = {"name": name, "body": body, "batch": batch, "N": context, "dim": session.asked.dim, "tokens": TOKENS}
    try:
        call, layers, size = chain()
    except Exception as failure:  # a failing layer must not end the run
        session.note(f"{name}, batch {batch}, N={context}: {' '.join(str(failure).split())[:120]}")
        return
    found = session.time(call, row | {"layers": layers, "state_bytes": size})
    if found is not None:
        found |= {"us_step": found["us"] / TOKENS / layers, "wall_us_step": found["wall_us"] / TOKENS / layers}
        session.save()
