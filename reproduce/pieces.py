"""Long runs in pieces: the members of a job (training/replicas.py) stop, their tensors go to a file, and the next call goes on there.

A run in pieces reaches the same weights as one in a single piece: batches, dropout and the rate depend on the step alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reproduce.job import Context, PausedError
from tokmix.runs.files import replacing
from tokmix.training.capture import Captured
from tokmix.training.replicas import Member
from tokmix.training.step import Step

OFTEN = 120.0  # seconds between two checkpoints of a run that is not stopped


class Pieces:
    """Where the members of one job stand, in memory and on disk. With a context that has no checkpoint, nothing is kept."""

    def __init__(self, context: Context, mark: str):
        """mark: of what is trained, so that the checkpoint of another job is refused."""
        self.context, self.mark, self.saved = context, mark, time.monotonic()
        self.members: Sequence[Member] = ()
        path = context.checkpoint
        self.found: dict[str, Any] | None = None
        if path is not None and path.is_file():
            self.found = torch.load(path, map_location="cpu", weights_only=True)
            if self.found["mark"] != mark:
                raise ValueError(f"{path} is the checkpoint of another job: remove it")

    @property
    def step(self) -> int:
        """How many steps earlier calls have made."""
        return 0 if self.found is None else self.found["step"]

    @property
    def notes(self) -> dict[str, Any] | None:
        return None if self.found is None else self.found["notes"]

    def begin(self, members: Sequence[Member]) -> None:
        """The `begin` of replicas.train."""
        self.members = members
        if self.found is not None:
            for member, tensors in zip(members, self.found["members"], strict=True):
                restore(member, self.step, tensors)
                member.left_out = self.found["left_out"][members.index(member)]
            self.found = self.found | {"members": []}

    def due(self) -> bool:
        return self.context.checkpoint is not None and time.monotonic() - self.saved > OFTEN

    def save(self, notes: dict[str, Any]) -> None:
        """After a report, or after the last step of a piece. notes: what else the job has to remember, in plain values."""
        assert self.context.checkpoint is not None
        kept = {
            "mark": self.mark, "step": self.members[0].done, "notes": notes, "left_out": [member.left_out for member in self.members],
            "members": [{name: tensor.detach().cpu() for name, tensor in tensors_of(member).items()} for member in self.members],
        }  # fmt: skip
        self.context.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.context.checkpoint) as partial:
            torch.save(kept, partial)
        self.saved = time.monotonic()

    def pause(self, notes: dict[str, Any]) -> None:
        self.save(notes)
        raise PausedError

    def end(self) -> None:
        if self.context.checkpoint is not None:
            self.context.checkpoint.unlink(missing_ok=True)


def step_of(member: Member) -> Step[Any]:
    return member.update.step if isinstance(member.update, Captured) else member.update


def tensors_of(member: Member) -> dict[str, Tensor]:
    step = step_of(member)
    return {f"weights.{name}": tensor for name, tensor in step.model.state_dict().items()} | step.optimizers.state()


@torch.no_grad()
def restore(member: Member, done: int, kept: dict[str, Tensor]) -> None:
    """In place: a CUDA graph repeats addresses."""
    step = step_of(member)
    if not step.optimizers.tensors():  # there are some already where the first step was recorded
        step.optimizers.allocate(kept, done)
    own = tensors_of(member)
    if set(own) != set(kept):
        raise ValueError(f"the checkpoint does not fit the model: it differs in {sorted(set(own) ^ set(kept))[:3]}")
    for name, tensor in own.items():
        tensor.copy_(kept[name])
    for part in step.optimizers.parts:
        for state in part.state.values():
            if "step" in state:  # of AdamW
                state["step"].fill_(done)
    if step.copy is not None:
        torch._foreach_copy_(list(step.copy.parameters()), list[Tensor](step.parameters))
    member.done = done
