"""How a model lies on the ranks, and how their gradients become one.

    Replicated   a whole model on every rank (one rank included); gradients are summed
    Sharded      weights, gradients and moments in parts, a part a rank: torch's fully_shard (FSDP2), a layer at a time

A sharded layer's weights are gathered just before it runs and freed after it. The numbers are those of a replicated model, and
checkpoints hold whole tensors, so any number of ranks continues them, sharded or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tokmix.core.model import Model
from tokmix.training.distributed import World

ALONE = (
    "train.shard spreads a model over several processes, and there is one: start it with torchrun --nproc-per-node N -m tokmix train ...,"
    " or leave train.shard out"
)


class Replicated:
    def __init__(self, world: World):
        self.world = world

    def place(self, model: Model) -> None:
        """In place; parameters are to be listed afterwards."""

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of this rank's loss to those that are there."""
        loss.backward()  # type: ignore[no-untyped-call]

    def reduce(self, parameters: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        """Sum the gradients over the ranks, once all of a step's batches have gone backward -> the sum of the ranks' losses."""
        return self.world.sum_gradients(parameters, loss)

    def clip(self, parameters: Sequence[nn.Parameter], most: float) -> Tensor:
        """Scale the gradients to a norm of at most `most` (0: any), over all parameters and ranks -> the norm before."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = self.whole(nn.utils.get_total_norm(gradients))
        nn.utils.clip_grads_with_norm_(parameters, most or math.inf, norm)
        return norm

    def whole(self, tensor: Tensor) -> Tensor:
        """The full tensor, on every rank; every rank has to ask."""
        return tensor

    def like(self, tensor: Tensor, full: Tensor) -> Tensor:
        """Of a full tensor what this rank keeps, laid out as `tensor` is."""
        return full

    def gather(self, model: Model) -> Model | None:
        """The model in one piece on the first rank, None elsewhere; every rank has to ask."""
        return model if self.world.first else None


class Sharded(Replicated):
    def __init__(self, world: World):
        if world.size == 1:
            raise ValueError(ALONE)
        super().__init__(world)

    def place(self, model: Model) -> None:
        from torch.distributed.fsdp import fully_shard  # takes a second to import

        for layer in model.layers:
            fully_shard(layer)
        # The embedding is the output matrix too where these are tied, so it stays with the root. Let go of after each pass: weights
        # that change after an evaluation must not be remembered from it.
        fully_shard(model, reshard_after_forward=True)

    def backward(self, loss: Tensor) -> None:
        (loss * self.world.size).backward()  # type: ignore[no-untyped-call]  # FSDP takes the mean over the ranks

    def reduce(self, parameters: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        return self.world.sum(loss)  # FSDP has summed the gradients on the way

    def whole(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def like(self, tensor: Tensor, full: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(tensor, DTensor):  # a buffer
            return full
        # Nothing is sent: every rank has read the full one.
        return distribute_tensor(full.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)

    def gather(self, model: Model) -> Model | None:
        tensors: dict[str, Tensor] = {}
        for name, tensor in model.state_dict().items():
            full = self.whole(tensor)
            if self.world.first:
                tensors[name] = full.cpu()
        if not self.world.first:
            return None
        with torch.random.fork_rng(devices=[]):
            plain = Model(model.config)
        plain.load_state_dict(tensors)
        return plain.eval()


def sharding(shard: bool, world: World) -> Replicated:
    return Sharded(world) if shard else Replicated(world)
