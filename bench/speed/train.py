"""`tokmix bench train`: training tokens per second of whole models, next to the same models with attention in every layer.

Both at their best settings, in one run: bfloat16 by autocast and fused AdamW on a GPU, eager and torch.compile, as Python runs it
and as one CUDA graph of the whole step.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.speed.clock import Call
from bench.speed.session import Row, Session
from tokmix.core.model import Model, ModelConfig


@dataclass(frozen=True)
class Trained:
    """attention: stacks of the same model with attention, one for each head size to try."""

    model: str
    config: dict[str, Any]
    stack: str
    attention: tuple[str, ...]


def models(device: str, quick: bool) -> list[Trained]:
    if quick and device == "cpu":
        small = {"dim": 16, "vocab": 50}
        rows, lm = small | {"head": "classify", "causal": False}, small | {"head": "lm", "causal": True}
        return [
            Trained("HyperMixer", rows, "hypermixing(heads=4, hidden=32)*2", ("attention(heads=4)*2",)),
            Trained("LM", lm, "hsm*3, attention(heads=4)", ("attention(heads=4)*4",)),
        ]
    vocab = 16_384 if device == "cuda" else 2048
    dim, heads = (512, (4, 8)) if device == "cuda" else (256, (4,))
    return [
        Trained(
            "HyperMixer",
            {"dim": 256, "vocab": vocab, "head": "classify", "causal": False},
            "hypermixing(heads=4, hidden=512)*6",
            tuple(f"attention(heads={count})*6" for count in ((2, 4) if device == "cuda" else (4,))),
        ),
        Trained(
            "LM",
            {"dim": dim, "vocab": vocab, "head": "lm", "causal": True},
            f"(hsm*3, attention(heads={heads[0]}))*2",
            tuple(f"attention(heads={count})*8" for count in heads),
        ),
    ]


def run(session: Session) -> None:
    """Everything eager first, because compiling takes far longer, and a run may be cut short."""
    wanted = [trained for trained in models(session.device, session.asked.quick) if session.wanted(trained.model)]
    compiled = []
    for length, trained in itertools.product(session.asked.lengths, wanted):
        eager = [time_model(session, trained, stack, "eager", length) for stack in (trained.stack, *trained.attention)]
        rivals = [row for row in eager[1:] if row is not None]
        fastest = max(rivals, key=lambda row: row["best_tokens_per_s"])["name"] if rivals else trained.attention[0]
        compiled.append((length, trained, fastest))
    if session.asked.compiled == "none":
        return
    for length, trained, fastest in compiled:
        for stack in (trained.stack, fastest):
            time_model(session, trained, stack, "compiled", length)


def step_of(session: Session, trained: Trained, stack: str, compiled: bool, length: int) -> tuple[Call, Model, int]:
    """One step of training, its model, and the tokens it reads."""
    rows = max(1, session.asked.tokens // length)
    gpu = session.device == "cuda"
    torch.manual_seed(0)
    model = Model(ModelConfig(stack=stack, max_len=length, **trained.config)).to(session.device)
    ids = torch.randint(0, model.config.vocab, (rows, length), device=session.device)
    targets = torch.randint(0, 2, (rows,), device=session.device) if model.config.head == "classify" else ids.roll(-1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=gpu)

    def loss() -> Tensor:
        with torch.autocast(session.device, torch.bfloat16, enabled=gpu):
            return F.cross_entropy(model(ids).flatten(0, -2), targets.flatten())

    loss_of = torch.compile(loss, dynamic=False) if compiled else loss

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, model, ids.numel()


def time_model(session: Session, trained: Trained, stack: str, setting: str, length: int) -> Row | None:
    if session.late():
        return None
    torch.compiler.reset()
    row = {"model": trained.model, "name": stack, "body": setting, "N": length, "dim": trained.config["dim"]}
    try:
        step, model, tokens = step_of(session, trained, stack, setting == "compiled", length)
    except Exception as failure:  # a failing model must not end the run
        session.note(f"{trained.model}, {stack}, N={length}: {' '.join(str(failure).split())[:120]}")
        return None
    found = session.time(step, row | {"parameters": model.parameter_count(), "tokens": tokens})
    if found is not None:
        found["tokens_per_s"] = tokens / found["wall_us"] * 1e6
        found["graph_tokens_per_s"] = tokens / found["us"] * 1e6 if found["how"] == "graph" else None
        found["best_tokens_per_s"] = max(found["tokens_per_s"], found["graph_tokens_per_s"] or 0)
        session.save()
    return found
