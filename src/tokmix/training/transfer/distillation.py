"""A teacher and its swapped copy as one module, whose output is the loss.

Layers    one pass of the teacher shows what each swapped layer would have been given, and what the old attention made of it; all
          swapped layers learn that side by side. Loss: the squared error, as a share of the target's variance, mean over the layers.
Whole     the copy runs by itself. Loss: with a vocabulary the divergence KL(teacher ‖ copy) of the next (or hidden) token; else the
          relative squared error of the hidden states from the first swapped layer on, of tokens and of their mean over the sequence.

The teacher is no part of the module: it is neither trained nor saved, and neither is the embedding, which both share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from tokmix.core.mixer import Cost
from tokmix.core.model import ModelConfig
from tokmix.core.segments import Segments


@dataclass(frozen=True)
class Pair:
    """The teacher, its swapped copy, and which layers differ."""

    teacher: PreTrainedModel
    student: PreTrainedModel
    layers: tuple[int, ...]
    old: tuple[nn.Module, ...]  # the teacher's attention in those layers
    new: tuple[nn.Module, ...]  # what stands there in the student


class Distillation(nn.Module):
    """ids [B, T] of whole rows -> the loss, mean over the tokens. It never drops anything out: the teacher does not either."""

    def __init__(self, pair: Pair, config: ModelConfig):
        super().__init__()
        self.__dict__["pair"] = pair  # not registered
        self.pair: Pair
        self.config = config

    def forward(self, ids: Tensor, segments: Segments | None = None) -> Tensor:
        raise NotImplementedError

    def train(self, mode: bool = True) -> Distillation:
        super().train(False)
        return self

    def named_parameters(self, *args: object, **kwargs: object) -> Iterator[tuple[str, nn.Parameter]]:
        """Those that learn."""
        frozen = set(map(id, self.pair.student.get_input_embeddings().parameters()))
        return ((name, p) for name, p in super().named_parameters(*args, **kwargs) if id(p) not in frozen)  # type: ignore[arg-type]

    def state_dict(self, *args: object, **kwargs: object) -> dict[str, Tensor]:  # type: ignore[override]
        """What a step changes."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *args: object, **kwargs: object) -> None:  # type: ignore[override]
        known = dict(self.named_parameters())
        if known.keys() != state_dict.keys():
            raise ValueError(f"the checkpoint is of another model: {sorted(known.keys() ^ state_dict.keys())[:3]}")
        with torch.no_grad():
            for name, tensor in state_dict.items():
                known[name].copy_(tensor)

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def cost(self, length: int) -> Cost:
        """Of one sequence. The teacher's products count once, beside the three times of what is trained."""
        import tokmix.ops.flops  # noqa: F401 - what our own ops cost

        from torch.utils.flop_counter import FlopCounterMode  # isort: skip

        ids = torch.zeros(1, length, dtype=torch.long, device=next(self.parameters()).device)
        counts = []
        for run in (lambda: self._teach(ids), lambda: self(ids)):
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                run()
            counts.append(int(counter.get_total_flops()))
        teacher, both = counts
        return Cost(matmul=both - teacher, recomputed=teacher)

    def _teach(self, ids: Tensor) -> object:
        raise NotImplementedError


class Layers(Distillation):
    """What the teacher's attention was given, and gave, in the swapped layers."""

    def __init__(self, pair: Pair, config: ModelConfig):
        super().__init__(pair, config)
        self.layers: Sequence[nn.Module] = nn.ModuleList(pair.new)  # type: ignore[assignment]

    def forward(self, ids: Tensor, segments: Segments | None = None) -> Tensor:
        errors = []
        for layer, (args, kwargs, target) in zip(self.layers, self._teach(ids), strict=True):
            errors.append(relative_error(layer(*args, **kwargs)[0], target))
        return torch.stack(errors).mean()

    @torch.no_grad()
    def _teach(self, ids: Tensor) -> list[tuple[tuple[object, ...], dict[str, object], Tensor]]:
        seen: dict[int, tuple[tuple[object, ...], dict[str, object], Tensor]] = {}

        def watch(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: tuple[Tensor, ...]) -> None:
            seen[id(module)] = args, kwargs, output[0]

        with ExitStack() as hooks:
            for module in self.pair.old:
                hooks.callback(module.register_forward_hook(watch, with_kwargs=True).remove)
            self.pair.teacher.base_model(input_ids=ids, **no_cache(self.pair.teacher))
        return [seen[id(module)] for module in self.pair.old]


class Whole(Distillation):
    """The copy from end to end."""

    def __init__(self, pair: Pair, config: ModelConfig):
        super().__init__(pair, config)
        self.student = pair.student

    def forward(self, ids: Tensor, segments: Segments | None = None) -> Tensor:
        targets, logits = self._teach(ids)
        done = self.student(input_ids=ids, output_hidden_states=logits is None, **no_cache(self.student))
        if logits is not None:
            return divergence(done.logits, logits)
        found = done.hidden_states[self.pair.layers[0] + 1 :]
        errors = [relative_error(a, b) for a, b in zip(found, targets, strict=True)]
        pooled = relative_error(found[-1].float().mean(1), targets[-1].float().mean(1))
        return torch.stack(errors).mean() + pooled

    @torch.no_grad()
    def _teach(self, ids: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """(hidden states from the first swapped layer on, logits where there are)"""
        teacher = self.pair.teacher
        vocabulary = teacher.get_output_embeddings() is not None
        done = teacher(input_ids=ids, output_hidden_states=not vocabulary, **no_cache(teacher))
        return ((), done.logits) if vocabulary else (done.hidden_states[self.pair.layers[0] + 1 :], None)


def no_cache(model: PreTrainedModel) -> dict[str, bool]:
    return {"use_cache": False} if model.can_generate() else {}


def relative_error(found: Tensor, target: Tensor) -> Tensor:
    """Squared error as a share of the target's variance around its mean over the tokens. [..., D] -> []"""
    found, target = found.float().flatten(0, -2), target.float().flatten(0, -2)
    spread = (target - target.mean(0)).square().sum()
    return (found - target).square().sum() / spread.clamp(min=1e-12)


def divergence(found: Tensor, target: Tensor) -> Tensor:
    """KL(target ‖ found) of logits [B, T, V], mean over the tokens -> []"""
    logs = [F.log_softmax(logits.float().flatten(0, -2), -1) for logits in (found, target)]
    return F.kl_div(logs[0], logs[1], log_target=True, reduction="batchmean")
