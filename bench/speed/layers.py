"""`tokmix bench layers`: the mixers as layers, projections included, forward and backward with every gradient, next to the
fastest attention and flash-linear-attention. A layer's kernels are checked against float64 first, as in `ops`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

import torch
from torch import Tensor, nn

from bench.speed import rule
from bench.speed.cases import BLOCK, Size, hyper_flops
from bench.speed.clock import Call
from bench.speed.ops import best_of, linear, size_of
from bench.speed.rivals import attention_layers, linear_layer
from bench.speed.rule import Body, Tensors
from bench.speed.session import BenchSettings, Session, moved
from tokmix.core.mixer import Mixer, create, mixer_class
from tokmix.ops.dispatch import implementation

WAY = "forward+backward"
TOKENS = 999  # least numbers of a check: in HyperMLP a score rounded to the other sign switches a gradient on or off


class Options(TypedDict, total=False):
    tied: bool
    heads: int
    hidden: int
    block: int
    variant: str
    shift: int


@dataclass(frozen=True)
class Made:
    name: str
    mixer: str
    causal: bool
    options: Options = field(default_factory=lambda: Options())


def layers(dim: int, head: int) -> list[Made]:
    heads = dim // head
    found = [
        Made(f"hypermixing, {said}, {'tied' if tied else 'untied'}", "hypermixing", False, {"tied": tied, "heads": count, "hidden": dim})
        for said, count in (("one head", 1), (f"heads of {head}", heads))
        for tied in (True, False)
    ]
    causal = f"hypermixing, causal, heads of {head}"
    found.append(Made(causal, "hypermixing", True, {"heads": heads, "hidden": dim}))
    found.append(Made(f"{causal}, blocks of {BLOCK}", "hypermixing", True, {"heads": heads, "hidden": dim, "block": BLOCK}))
    found += [Made(f"hsm, {kind}", "hsm", True, {"variant": kind, "shift": 16}) for kind in ("vector", "ab", "gate", "matrix")]
    found += [Made(name, name, True) for name in ("hypermlp", "hyperglu")]
    found += [
        Made(f"linear_attention, {'causal' if ahead else 'full'}", "linear_attention", ahead, {"heads": heads}) for ahead in (False, True)
    ]
    return [*found, Made("fnet", "fnet", False)]  # fmt: skip


def run(session: Session) -> None:
    session.measure_ceilings()
    for causal in (False, True):
        name = f"attention, {'causal' if causal else 'full'}"
        if session.wanted(name):
            best_of(session, name, attention_layers(session.asked.dim, causal, session.device), (WAY,))
    for made in layers(session.asked.dim, session.asked.head):
        if session.wanted(made.name) and not session.late() and _passes(session, made):
            for length in session.asked.lengths:
                if session.late():
                    return
                _time(session, made, length)
    if session.wanted("flash-linear-attention") and not session.late():
        linear(session, linear_layer, (WAY,))  # last, as in ops, because it tries many settings


def _build(session: Session, made: Made, length: int) -> Mixer:
    return create(made.mixer, session.asked.dim, causal=made.causal, max_len=length, **made.options).to(session.device, session.dtype)


def as_body(mixer: nn.Module, plainly: bool) -> Body:
    """The mixer as a function of its weights and x."""

    def body(t: Tensors) -> Tensor:
        weights = {name: tensor for name, tensor in t.items() if name != "x"}
        with implementation("reference" if plainly else None):
            return torch.func.functional_call(mixer, weights, (t["x"],))

    return body


def _passes(session: Session, made: Made) -> bool:
    return all(_holds(session, made, length) for length in checked_lengths(session.asked, made, session.device))


def checked_lengths(asked: BenchSettings, made: Made, device: str) -> list[int]:
    """An odd one, and the shortest that is timed: short sequences may take another way. On a GPU the longest, too, of what sums over all
    tokens at a cost that float64 can bear: sums of many tokens can lose digits."""
    found = {37 if asked.quick else 333, min(asked.lengths)}
    if device == "cuda" and not made.causal and mixer_class(made.mixer).order == "T":
        found.add(max(asked.lengths))
    return sorted(found)


def _holds(session: Session, made: Made, length: int) -> bool:
    shape = (max(3, TOKENS // length), length, session.asked.dim)
    try:
        mixer = _build(session, made, length)
        given = {"x": torch.randn(shape, device=session.device).to(session.dtype), **dict(mixer.named_parameters())}
        return session.checked(made.name, shape, rule.check(as_body(mixer, False), as_body(mixer, True), given, session.dtype))
    except Exception as failure:
        session.failed(made.name, shape, failure)
        return False


def _time(session: Session, made: Made, length: int) -> None:
    size = size_of(session, length)
    row = {"name": made.name, "body": made.mixer, "way": WAY, "N": length, "rows": size.rows, "dim": size.dim, "causal": made.causal}
    try:
        mixer = _build(session, made, length)
        x = torch.randn(size.rows, length, size.dim, device=session.device).to(session.dtype).requires_grad_()
        call = _both(mixer, x)
    except Exception as failure:  # a failing layer must not end the run
        session.note(f"{made.name}, N={length}: {type(failure).__name__}: {' '.join(str(failure).split())[:120]}")
        return
    session.time(call, row, 3 * _flops(made, mixer, size), moved([x, *mixer.parameters()], x, True))


def _both(mixer: Mixer, x: Tensor) -> Call:
    inputs, dy = [x, *mixer.parameters()], torch.randn_like(x)
    return lambda: torch.autograd.grad(mixer(x), inputs, dy)


def _flops(made: Made, mixer: Mixer, size: Size) -> int:
    if made.mixer == "hypermixing" and not made.causal:  # of the form with the fewest products, whatever runs
        return hyper_flops(size, made.options["heads"], made.options["hidden"], made.options["tied"])
    causal = mixer.cost(size.length).causal
    assert causal is not None
    return size.rows * causal
