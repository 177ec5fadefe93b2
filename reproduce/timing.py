"""Jobs of kind "timing": one token-mixing layer, forward, at several lengths: how long it takes, and what the operation counter says.

    spec   on        "cpu" or "gpu"                          mixers   {name: stack string of one mixer}
           lengths   tokens                                  dim, batch, precision ("float32" or "bf16")

A measurement wants the machine for itself: run such an item with one worker.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.speed.clock import Clock, GpuClock
from reproduce.job import Context
from tokmix.core import stack
from tokmix.core.mixer import Mixer, create
from tokmix.ops import flops as _flops  # noqa: F401  (tells the counter what is inside our own ops)

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}


def run(spec: dict[str, Any], context: Context) -> dict[str, Any]:
    gpu = spec["on"] == "gpu"
    if gpu and context.device.type != "cuda":
        raise ValueError(f"this is timed on a GPU, and the device is {context.device}")
    device = context.device if gpu else torch.device("cpu")
    clock, dtype = GpuClock() if gpu else Clock(), PRECISIONS[spec["precision"]]
    runs = []
    for name, text in spec["mixers"].items():
        for length in spec["lengths"]:
            mixer = _mixer(text, spec["dim"], max(spec["lengths"])).to(device, dtype).eval()
            x = torch.randn(spec["batch"], length, spec["dim"], device=device, dtype=dtype)
            with torch.no_grad():
                timed = clock(lambda mixer=mixer, x=x: mixer(x))  # type: ignore[misc]
            cost = mixer.cost(length)
            context.say(f"{name}, {length} tokens: {timed.us:.0f} us")
            runs.append({
                "mixer": name, "length": length, "state": "finished", "us": timed.us, "low": timed.low, "high": timed.high,
                "wall_us": timed.wall_us, "how": timed.how, "peak_mib": timed.peak_mib, "matmul": cost.matmul, "pointwise": cost.pointwise,
                "matmul_counted": counted(text, spec["dim"], length),
            })  # fmt: skip
    return {"runs": runs, "data": {}, "threads": torch.get_num_threads()}


def _mixer(text: str, dim: int, longest: int) -> Mixer:
    (one,) = stack.parse(text)
    return create(one.name, dim, causal=False, max_len=longest, layer=0, **one.options)


def counted(text: str, dim: int, length: int) -> int:
    """Matrix products of one sequence by torch's own counter, on meta tensors: nothing is computed."""
    with torch.device("meta"):
        mixer, x = _mixer(text, dim, length), torch.empty(1, length, dim)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        mixer(x)
    return counter.get_total_flops()
