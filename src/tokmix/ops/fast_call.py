"""The fastest way into an op. torch's dispatcher takes more time in Python than a fast kernel does on a GPU.

A custom op can be compiled, exported, counted and traced. Otherwise `KernelOp.entry` returns the function that launches
the kernels, wrapped in an autograd function if gradients are needed: the same kernels, the same numbers.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch._library.custom_ops import CustomOpDef

from tokmix.ops.dispatch import transformed

R = TypeVar("R")
Launch = Callable[..., R]
Gradients = tuple["Tensor | None", ...]
_PLAIN = (Tensor, nn.Parameter)
Inputs = TypeVar("Inputs", bound=tuple)
Made = TypeVar("Made", bound=tuple)


class Context(Protocol):
    """autograd's context, passed from the forward to the backward pass. `numbers` holds the arguments that are not tensors."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    numbers: tuple[object, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...
    def __setattr__(self, name: str, value: object) -> None: ...


def save(ctx: Context, inputs: Sequence[object], made: Sequence[Tensor] = ()) -> None:
    """Save an op's inputs and its extra outputs for `restore` in the backward pass."""
    ctx.numbers = tuple(None if isinstance(one, Tensor) else one for one in inputs)
    ctx.save_for_backward(*(one if isinstance(one, Tensor) else None for one in inputs), *made)
    if made:
        ctx.mark_non_differentiable(*made)
        ctx.set_materialize_grads(False)  # None, not zeros, for outputs without a gradient


def restore(ctx: Context, inputs: type[Inputs], made: type[Made]) -> tuple[Inputs, Made]:
    """The tensors that `save` stored, by name."""
    kept = ctx.saved_tensors  # read once: checkpointing allows only that
    count = len(ctx.numbers)
    given = (number if tensor is None else tensor for tensor, number in zip(kept[:count], ctx.numbers, strict=True))
    return inputs(*given), made(*kept[count:])


def no_gradients(ctx: Context) -> Gradients:
    """None for every input: no gradient flows into the result."""
    return (None,) * len(ctx.needs_input_grad)


def unwatched(given: Sequence[object]) -> bool:
    """Whether only autograd is involved in a call with these arguments: no compiler or tracer, no dispatch mode, no function transform, no
    tensor subclass."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or transformed():
        return False
    if torch._C._get_tracing_state() is not None:
        return False
    for one in given:
        if isinstance(one, list):
            if not all(type(each) in _PLAIN for each in one):
                return False
        elif isinstance(one, Tensor) and type(one) not in _PLAIN:
            return False
    return True


def on_its_device(launch: Launch[R]) -> Launch[R]:
    """Launch on the GPU of the first argument. torch's ops switch to that GPU; Triton uses the current one."""

    @functools.wraps(launch)
    def run(*given: Tensor) -> R:
        if _is_current(given[0].device):
            return launch(*given)
        with torch.cuda.device(given[0].device):
            return launch(*given)

    return run


def _is_current(device: torch.device) -> bool:
    return device.type != "cuda" or device.index == torch.cuda.current_device()


@dataclass(frozen=True)
class KernelOp(Generic[R]):
    """A custom op and the function that launches its kernels, both with the same arguments.

    launch     "module:function"; importing it imports triton
    keep       saves tensors for the backward pass: (ctx, inputs, output); None for an op without gradients
    gradients  of all inputs: (ctx, *gradients of the outputs)
    """

    op: CustomOpDef
    launch: str
    keep: Callable[..., None] | None = None
    gradients: Callable[..., Gradients] | None = None

    def __post_init__(self) -> None:
        if self.gradients is not None:
            self.op.register_autograd(self.gradients, setup_context=self.keep)

    def entry(self, *given: object) -> Launch[R]:
        """The function to call with these tensors and any numbers after them."""
        if not unwatched(given) or not _is_current(given[0].device):  # type: ignore[attr-defined]
            return self.op
        if not torch.is_grad_enabled():
            return self._launch
        # An op without gradients of its own, such as a backward op, refuses to be differentiated.
        return self.op if self.gradients is None else self._apply

    @functools.cached_property
    def _launch(self) -> Launch[R]:
        module, _, name = self.launch.partition(":")
        found: Launch[R] = getattr(importlib.import_module(module), name)
        return found

    @functools.cached_property
    def _apply(self) -> Launch[R]:
        parts: dict[str, Callable[..., object] | None] = {"forward": self._launch, "setup_context": self.keep, "backward": self.gradients}
        function = type("Fast", (torch.autograd.Function,), {name: staticmethod(part) for name, part in parts.items() if part is not None})
        # Function.apply would first bind arguments to the signature, which takes as long as several kernels.
        return super(torch.autograd.Function, function).apply  # type: ignore[misc, no-any-return]
