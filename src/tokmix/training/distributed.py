"""The processes of a run: one, or as many as torchrun started. All communication between them is here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
# Messages of gloo, NCCL and their store if the other side is gone.
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL error", "ncclRemoteError", "recvValue failed")


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """The sum over ranks."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order."""
        if self.size == 1:
            return [value]
        values = [value] * self.size
        dist.all_gather_object(values, value)
        return values

    def agree(self, value: Any) -> Any:
        """The value of the first rank."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def any(self, *flags: bool) -> list[bool]:
        """Each flag, True if it is True on some rank. One small message."""
        if self.size == 1:
            return list(flags)
        message = torch.tensor([float(flag) for flag in flags], device=self.device)
        dist.all_reduce(message, dist.ReduceOp.MAX)
        return [value > 0 for value in message.tolist()]

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextmanager
def join_world(device: str | None) -> Iterator[World]:
    """The world that torchrun describes. It is checked, because two unconnected processes would train two models."""
    size, rank = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0")))
    chosen = device_of(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield World(device=chosen)
        return
    if not 0 <= rank < size:
        raise ValueError(f"RANK={rank} is not below WORLD_SIZE={size}: start several processes with torchrun")
    if "MASTER_ADDR" not in os.environ:
        raise ValueError(f"WORLD_SIZE={size}, but nothing says where the others are: start several processes with torchrun")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        if dist.get_world_size() != size:
            raise ValueError(f"{dist.get_world_size()} processes found each other, not WORLD_SIZE={size}")
        yield World(rank, size, chosen)
    except RuntimeError as error:
        text = " ".join(str(error).split())
        if any(word in text for word in LOST):
            raise ValueError(f"another process of this run was lost; continue with the same command and --resume ({text[:200]})") from error
        raise
    finally:
        dist.destroy_process_group()


def check_alone(why: str) -> None:
    """Refuse torchrun for commands that would run several times on the same files."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(f"{why}: start it without torchrun")


def device_of(asked: str | None, place: int = 0) -> torch.device:
    """The given device, else the first GPU, else the CPU. place: rank among the processes of this machine."""
    if asked is None:
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise ValueError(f"unknown device {asked!r}; for instance: cpu, cuda, cuda:1") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {asked!r} is not there: torch {torch.__version__} finds no GPU")
        if device.index is None:
            device = torch.device("cuda", place)
        if device.index >= torch.cuda.device_count():
            raise ValueError(f"device {str(device)!r} is not there: {torch.cuda.device_count()} GPUs for {place + 1} processes or more")
    return device
