"""What is pretrained: stacks of equal parameters, and the settings of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tokmix.core.budget import match_parameters
from tokmix.core.model import ModelConfig

DIM, VOCAB, LENGTH, PARAMETERS = 256, 16384, 128, 8_200_000
FUSION = "hsm(variant='fusion', hidden=128)"
HYPER = "hypermixing(heads=4, hidden=256)"
SHIFTED = "hypermixing(heads=4, hidden=256, shift=1)"
ATTENTION = "attention(heads=4, rotary=True)"


@dataclass(frozen=True)
class Arm:
    """A stack with a short name."""

    name: str
    stack: str
    attention_free: bool = True


TWIN = Arm("attention", f"{ATTENTION}*6", False)
ARMS = (
    TWIN,
    Arm("hyper", f"{HYPER}*6"),
    Arm("shifted", f"{SHIFTED}*6"),
    Arm("coded", "hypermixing(heads=4, hidden=256, shift=1, position='sinusoidal')*6"),
    Arm("untied", "hypermixing(heads=4, hidden=256, shift=1, tied=False)*6"),
    Arm("wide", "hypermixing(heads=4, hidden=512, shift=1)*6"),
    Arm("heads8", "hypermixing(heads=8, hidden=256, shift=1)*6"),
    Arm("fusion", f"{FUSION}*6"),
    Arm("fusion-hyper", f"({FUSION}, {HYPER})*3"),
    Arm("fusion-shifted", f"({FUSION}, {SHIFTED})*3"),
    Arm("two-fusion-shifted", f"({FUSION}*2, {SHIFTED})*2"),
    Arm("fusion-attention", f"({FUSION}, {ATTENTION})*3", False),
    Arm("shifted-attention", f"({SHIFTED}*2, {ATTENTION})*2", False),
    Arm("fusion-one-attention", f"{FUSION}*2, {SHIFTED}, {ATTENTION}, {FUSION}, {SHIFTED}", False),
)
BY_NAME = {arm.name: arm for arm in ARMS}
# What is shipped, and the attention model beside it: they learn the hidden states of a teacher, in its vocabulary.
TEACHER, WORDS, TAUGHT_PARAMETERS = "teacher", 30523, 30523 * DIM + 3_950_000
TAUGHT = (
    Arm("small", f"({FUSION}, {SHIFTED})*3"),
    Arm("hybrid", f"({FUSION}, {ATTENTION})*3", False),
    Arm("twin", f"{ATTENTION}*6", False),
)


@cache
def width_of(stack: str, smoke: bool = False, taught: bool = False) -> int:
    """The feed-forward width that gives the stack as many parameters as the others."""
    dim, vocab, most = (40, 600, 120_000) if smoke else (DIM, WORDS, TAUGHT_PARAMETERS) if taught else (DIM, VOCAB, PARAMETERS)
    config = ModelConfig(stack=stack, dim=dim, vocab=vocab, head="mlm", causal=False, max_len=LENGTH)
    width = match_parameters(config, most).feed_forward
    assert isinstance(width, int)
    return width


def settings(arm: Arm, smoke: bool = False, **more: Any) -> dict[str, Any]:
    """Of `tokmix pretrain`, or of `tokmix distill`. Batches of 65,536 tokens and a triangle, as in the recipe `encoder`."""
    stack = arm.stack.replace("=256", "=40").replace("=128", "=40").replace("=512", "=80") if smoke else arm.stack
    width = width_of(stack, smoke, arm in TAUGHT)
    return {
        "model.stack": stack, "model.dim": 40 if smoke else DIM, "model.feed_forward": width, "model.length": LENGTH,
        "train.tokens": 1024 if smoke else 65536, "train.evaluations": 4, "train.warmup": 0.1, "train.lr": 1e-3, "train.epochs": 1000,
        "train.baseline": False, "train.save_seconds": 1e6, **more,
    }  # fmt: skip
