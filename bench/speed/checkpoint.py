"""`tokmix bench checkpoint`: how long training waits for a checkpoint, how long writing it to disk takes, and the memory of the copy.

tokmix bench checkpoint --dim 512                                            # one process
torchrun --nproc-per-node 2 -m tokmix bench checkpoint --dim 512             # each writes a part of a sharded model
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from tokmix.core.model import Model, ModelConfig
from tokmix.runs.files import write_json
from tokmix.training import state
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.distributed import World, join_world
from tokmix.training.optimizers import Optimizers
from tokmix.training.sharding import Replicated, sharding

LAYERS, LENGTH, VOCAB, ROUNDS = 6, 64, 8192, 5


class Found(TypedDict):
    """Seconds as median, least and most."""

    processes: int
    device: str
    dim: int
    bytes: int
    copied_bytes: int
    step_s: list[float]
    step_beside_s: list[float]
    wait_s: list[float]
    pause_s: list[float]
    to_disk_s: list[float]


class _Training:
    """A model with its optimizer, and a step of both."""

    def __init__(self, dim: int, world: World):
        torch.manual_seed(0)
        self.world = world
        self.model = Model(ModelConfig(stack=f"hsm*{LAYERS}", dim=dim, vocab=VOCAB, head="lm", causal=True, max_len=LENGTH)).to(
            world.device
        )
        self.sharding: Replicated = sharding(world.size > 1, world)
        self.sharding.place(self.model)
        self.optimizers = Optimizers(self.model.named_parameters(), 1e-3)
        self.ids = torch.randint(VOCAB, (4, LENGTH), device=world.device)

    def step(self) -> float:
        """-> seconds"""
        began = time.perf_counter()
        self.optimizers.zero_grad()
        self.sharding.backward(self.sharding.module(self.ids).float().logsumexp(-1).mean() / self.world.size)
        self.optimizers.update()
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    def tensors(self) -> dict[str, Tensor]:
        return state.tensors_of(self.model, self.optimizers, [], None)


def run(dim: int = 256, device: str | None = None, out: Path | None = None) -> Found:
    with join_world(device) as world:
        training = _Training(dim, world)
        alone = [training.step() for _ in range(ROUNDS + 3)][3:]
        with tempfile.TemporaryDirectory(prefix="tokmix-bench-") as place:
            checkpoints = Checkpoints(Path(world.agree(place)) / "checkpoints")
            waited, paused, written, beside = [], [], [], []
            for number in range(ROUNDS):
                began = time.perf_counter()
                checkpoints.save(2 * number + 1, training.tensors(), {}, world)
                waited.append(time.perf_counter() - began)
                began = time.perf_counter()
                checkpoints.begin(2 * number + 2, training.tensors(), {}, world)
                paused.append(time.perf_counter() - began)
                while not all(world.gather(checkpoints.written)):
                    beside.append(training.step())
                checkpoints.finish(world)
                written.append(checkpoints.seconds)
            last = checkpoints.last
            assert last is not None
            parts = [one.stat().st_size for one in ([last] if last.is_file() else last.glob("part-*"))]
            world.wait()
        found: Found = {
            "processes": world.size, "device": str(world.device.type), "dim": dim, "bytes": sum(parts), "copied_bytes": max(parts),
            "step_s": _spread(alone), "step_beside_s": _spread(beside), "wait_s": _spread(waited), "pause_s": _spread(paused),
            "to_disk_s": _spread(written),
        }  # fmt: skip
        if world.first:
            _tell(found)
            if out is not None:
                write_json(out, found)
    return found


def _spread(seconds: list[float]) -> list[float]:
    """Median, least and most; empty if nothing was measured."""
    return [statistics.median(seconds), min(seconds), max(seconds)] if seconds else []


def _tell(found: Found) -> None:
    def shown(seconds: list[float]) -> str:
        return "{:.3f} s ({:.3f} to {:.3f})".format(*seconds) if seconds else "none"

    copied = found["copied_bytes"] / 1e6
    print(f"{found['processes']} processes, {found['device']}, dim {found['dim']}: a checkpoint of {found['bytes'] / 1e6:.0f} MB")
    print(f"training waits in the background   {shown(found['pause_s'])}, for a copy of {copied:.0f} MB in each process")
    print(f"training waits for the disk        {shown(found['wait_s'])}")
    print(f"to the disk in the background      {shown(found['to_disk_s'])}")
    print(f"a step alone                       {shown(found['step_s'])}")
    print(f"a step while it is written         {shown(found['step_beside_s'])}")
