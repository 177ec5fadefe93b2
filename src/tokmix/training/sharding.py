"""How a model lies on the ranks, and how their gradients become one.

    Replicated   a whole model on every rank (one rank included): torch's DistributedDataParallel, which sums gradients while it goes back
    Sharded      weights, gradients and moments in parts, a part a rank: torch's fully_shard (FSDP2), a layer at a time

A sharded layer's weights are gathered just before it runs and freed after it. The numbers are those of a replicated model, and
checkpoints hold whole tensors, so any number of ranks continues them, sharded or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from tokmix.core.model import Model
from tokmix.training.distributed import World

ALONE = (
    "train.shard spreads a model over several processes, and there is one: start it with torchrun --nproc-per-node N -m tokmix train ...,"
    " or leave train.shard out"
)


class Replicated:
    module: nn.Module  # what a training step calls; evaluations call the model itself

    def __init__(self, world: World):
        self.world = world

    def place(self, model: Model) -> None:
        """In place; parameters are to be listed afterwards."""
        self.module = model
        if self.world.size > 1:
            from torch.nn.parallel import DistributedDataParallel

            self.module = DistributedDataParallel(
                model, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=_has_unused(model)
            )

    def synchronized(self, last: bool) -> AbstractContextManager[object]:
        """Around the forward and backward pass of a batch: gradients pass between the ranks with the last batch of a step alone."""
        if last or self.world.size == 1:
            return nullcontext()
        return self.module.no_sync()  # type: ignore[operator, no-any-return]

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the ranks' losses, summed, to those that are there; torch takes the mean over the ranks."""
        (loss * self.world.size).backward()  # type: ignore[no-untyped-call]

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
        self.module = model

    def synchronized(self, last: bool) -> AbstractContextManager[object]:
        self.module.set_requires_gradient_sync(last)  # type: ignore[operator]
        return nullcontext()

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


def _has_unused(model: Model) -> bool:
    """Whether some weight gets no gradient, which DistributedDataParallel has to know: tried on a few tokens."""
    ids = torch.zeros(1, min(4, model.config.max_len), dtype=torch.long, device=model.embedding.weight.device)
    with torch.random.fork_rng(devices=[]):
        model(ids).float().sum().backward()
    unused = any(parameter.grad is None for parameter in model.parameters())
    model.zero_grad()
    return unused
