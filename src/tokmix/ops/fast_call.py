"""Custom ops, and the fastest way into one. torch's dispatcher takes more time in Python than a fast kernel does on a GPU.

A custom op can be compiled, exported, counted and traced. Otherwise `KernelOp.entry` returns the function that launches
the kernels, wrapped in an autograd function if gradients are needed: the same kernels, the same numbers.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, Signature
from itertools import accumulate
from typing import Generic, NamedTuple, Protocol, TypeVar, get_type_hints

import torch
from torch import Tensor, nn
from torch._library.custom_ops import CustomOpDef

from tokmix.ops.dispatch import transformed

R = TypeVar("R")
Launch = Callable[..., R]
Gradients = tuple["Tensor | None", ...]
_PLAIN = (Tensor, nn.Parameter)
Inputs = TypeVar("Inputs", bound=tuple)
Saved = TypeVar("Saved", bound=tuple)


class Context(Protocol):
    """autograd's context, passed from the forward to the backward pass. `numbers` holds the arguments that are not tensors."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    numbers: tuple[object, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...
    def __setattr__(self, name: str, value: object) -> None: ...


class Gradient(NamedTuple):
    """First argument of a backward op."""

    dy: Tensor


class Nothing(NamedTuple):
    """The forward pass saves no intermediate tensors."""


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


class KernelOp(Generic[R]):
    """A custom op and the function that launches its kernels, both with the same arguments.

    name     of the op: a literal, which the kernel repository replaces
    launch   "module:function"; importing it imports triton
    takes    groups of arguments, NamedTuples; their fields and types are the schema of the op
    gives    the number of tensors that it returns
    empty    (*groups) -> empty tensors like those that it returns, for the compiler
    changes  names of the arguments that it changes in place
    """

    def __init__(
        self,
        name: str,
        launch: str,
        takes: Sequence[Callable[..., tuple[object, ...]]],
        gives: int,
        empty: Callable[..., object],
        changes: Sequence[str] = (),
    ):
        self.name, self.launch, self.takes = name, launch, takes
        self.autograd: tuple[Callable[..., None], Callable[..., Gradients]] | None = None
        hints = [get_type_hints(group) for group in takes]
        self._ends = list(accumulate(map(len, hints)))

        @on_its_device
        def run(*given: Tensor) -> R:
            return self._launch(*given)

        parameters = [Parameter(one, Parameter.POSITIONAL_OR_KEYWORD, annotation=hint[one]) for hint in hints for one in hint]
        returned = Tensor if gives == 1 else tuple[(Tensor,) * gives]  # type: ignore[misc]
        run.__signature__ = Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
        self.op: CustomOpDef = torch.library.custom_op(name, run, mutates_args=changes)
        self.op.register_fake(lambda *given: empty(*self.grouped(given)))

    def grouped(self, given: Sequence[object]) -> Iterator[tuple[object, ...]]:
        """The arguments in their groups."""
        begin = 0
        for group, end in zip(self.takes, self._ends, strict=True):
            yield group(*given[begin:end])
            begin = end

    def differentiate(
        self, gradients: Callable[..., Gradients], inputs: type[Inputs], saved: type[Saved], *, smooth: int = 1, unread: Sequence[str] = ()
    ) -> None:
        """Give the op a backward pass.

        gradients  (gradients of the first `smooth` outputs, saved, inputs) -> those of the inputs
        saved      the last outputs, which have no gradient unless they are among the first `smooth`
        unread     inputs that `gradients` does not read; they are not kept, and None there
        """
        names, kept = list(get_type_hints(inputs)), len(get_type_hints(saved))

        def keep(ctx: Context, inputs: tuple[object, ...], output: Tensor | tuple[Tensor, ...]) -> None:
            made = (output,) if isinstance(output, Tensor) else output
            ctx.numbers = tuple(None if isinstance(one, Tensor) else one for one in inputs)
            read = (one if isinstance(one, Tensor) and name not in unread else None for name, one in zip(names, inputs, strict=True))
            ctx.save_for_backward(*read, *made[len(made) - kept :])
            if len(made) > smooth:
                ctx.mark_non_differentiable(*made[smooth:])
                ctx.set_materialize_grads(smooth > 1)  # else None, not zeros, for outputs without a gradient

        def pull(ctx: Context, *dy: Tensor | None) -> Gradients:
            if dy[0] is None:  # no gradient flows into the result
                return (None,) * len(names)
            found = ctx.saved_tensors  # read once: checkpointing allows only that
            given = (number if tensor is None else tensor for tensor, number in zip(found, ctx.numbers, strict=False))
            return gradients(*dy[:smooth], saved(*found[len(names) :]), inputs(*given))

        self.autograd = keep, pull
        self.op.register_autograd(pull, setup_context=keep)

    def entry(self, *given: object) -> Launch[R]:
        """The function to call with these tensors and any numbers after them."""
        if not unwatched(given) or not _is_current(given[0].device):  # type: ignore[attr-defined]
            return self.op
        if not torch.is_grad_enabled():
            return self._launch
        # An op without gradients of its own, such as a backward op, refuses to be differentiated.
        return self.op if self.autograd is None else self._apply

    @functools.cached_property
    def _launch(self) -> Launch[R]:
        module, _, name = self.launch.partition(":")
        found: Launch[R] = getattr(importlib.import_module(module), name)
        return found

    @functools.cached_property
    def _apply(self) -> Launch[R]:
        assert self.autograd is not None
        parts = zip(("forward", "setup_context", "backward"), (self._launch, *self.autograd), strict=True)
        function = type("Fast", (torch.autograd.Function,), {name: staticmethod(part) for name, part in parts})
        # Function.apply would first bind arguments to the signature, which takes as long as several kernels.
        return super(torch.autograd.Function, function).apply  # type: ignore[misc, no-any-return]
