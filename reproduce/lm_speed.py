"""Jobs of kind "lm_speed": how fast stacks train and decode, one after the other and alone on the device.

spec    models     name -> settings of ModelConfig, as in kind "lm"
        batch      windows of a training step, or batch_tokens; steps: how many are timed, in `turns` turns of which the median counts
        optimizer  as in kind "lm"
        tokens     decoded in a row by a batch of one, the last of the model's context

Training is replicas.py: one model, whole steps with the optimizer, a CUDA graph on a GPU. Decoding is Model.step as generation calls it,
in bfloat16 on a GPU: as a CUDA graph where it can be recorded (what the device takes), and in plain Python (what a user waits for).
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from bench.speed.clock import Clock, GpuClock, Timing
from reproduce import lm
from reproduce.job import Context
from tokmix.core.mixer import State, inplace_states
from tokmix.core.model import Model
from tokmix.training import replicas
from tokmix.training.step import Forward


def run(spec: dict[str, Any], context: Context) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, model in spec["models"].items():
        try:
            found[name] = {"tokens_per_s": trained(model, spec, context.device), **decoded(model, spec["tokens"], context.device)}
        except (RuntimeError, ValueError) as error:  # one stack that does not work must not end the others
            found[name] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        context.say(f"{name}: {found[name]}")
    return {"runs": [], "speeds": found}


def trained(model: dict[str, Any], spec: dict[str, Any], device: torch.device) -> float:
    """Tokens a second. What the tokens are does not matter."""
    length, steps, turns = model["max_len"], spec["steps"], spec["turns"]
    batch = spec["batch"] if "batch" in spec else max(1, spec["batch_tokens"] // length)
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(model["vocab"], (64 * batch, length + 1), generator=chance).to(device)
    times: list[float] = []

    def loss(forward: Forward, index: Tensor, width: int) -> Tensor:
        return lm.window_loss(forward, ids[index])

    def batches() -> Any:
        while True:
            yield length, torch.randint(len(ids), (1, batch), generator=chance)

    every = max(1, steps // turns)
    recipe = replicas.Recipe(every * (turns + 1), schedule="constant", precision=spec.get("precision", "bf16"))
    report = lambda step, losses: times.append(time.perf_counter())
    alone = replicas.Replica(lm.build(model, 0), loss, 1e-4, optimizer=spec.get("optimizer", "adamw"))
    replicas.train([alone], batches(), recipe, device, every=every, report=report)
    # The first turn records and compiles: it is none of those counted.
    return every * batch * length / statistics.median(after - before for before, after in itertools.pairwise(times))


def decoded(model: dict[str, Any], tokens: int, device: torch.device) -> dict[str, Any]:
    """Microseconds a token near the end of the context, and the numbers and bytes that are kept there."""
    gpu = device.type == "cuda"
    net = lm.build(model, 0).to(device, torch.bfloat16 if gpu else torch.float32).eval().requires_grad_(False)
    length = model["max_len"]
    ids = torch.randint(model["vocab"], (1, length), generator=torch.Generator().manual_seed(1)).to(device)
    with torch.no_grad():
        _, state = net.step(ids[:, : length - tokens], net.init_state(1))
    size = sum(part.numel() * part.element_size() for part in tree_leaves(state))
    clock = GpuClock() if gpu else Clock()
    timing: Timing = clock(lambda: _decode(net, ids[:, length - tokens :], state))
    return {"decode_us": timing.us / tokens, "decode_wall_us": timing.wall_us / tokens, "decode_by": timing.how,
            "state_numbers": net.cost(length).state, "state_bytes": size}  # fmt: skip


@torch.inference_mode()
def _decode(net: Model, ids: Tensor, state: State) -> Tensor:
    """One token at a time. The given state is copied, so that every call begins at the same place."""
    now = tree_map(lambda part: part.clone(), state)
    logits = ids
    with inplace_states():
        for column in range(ids.shape[1]):
            logits, now = net.step(ids[:, column : column + 1], now)
    return logits
