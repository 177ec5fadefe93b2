"""The contract of every token mixer, and the registry of the known ones.

A mixer maps [B, T, D] to [B, T, D] and lets the tokens of a sequence talk to each other. Its output projection is
its own; norm, residual and feed-forward belong to the block around it.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from tokmix.core import checks
from tokmix.core.segments import Segments

MODES = ("bidirectional", "causal", "cross", "padded", "packed", "step")

State = Any  # a pytree of tensors, batch first
# (x [D], the state before, the position on the host) -> (y [D], the state after); called inside `inplace_states`
PreparedStep = Callable[[torch.Tensor, State, int], tuple[torch.Tensor, State]]

# Floating-point operations of one element, as the HyperMixer paper counts them where it does.
GELU, SOFTMAX, SIGMOID, NORM = 9, 3, 4, 8


@dataclass(frozen=True)
class Cost:
    """Forward pass over one sequence, in floating-point operations (a multiply-add is two), and its decoding state.

    matmul     matrix products, with causal attention counted dense, as operation counters do
    pointwise  everything else, about
    state      elements that decoding keeps for one sequence after that many tokens
    causal     matmul without the half of the scores that a causal mask throws away
    recomputed matrix products that the backward pass repeats, where not everything is kept for it
    constant   the part of matmul whose one factor is a constant, which takes no gradient
    """

    matmul: int = 0
    pointwise: int = 0
    state: int = 0
    causal: int | None = None
    recomputed: int = 0
    constant: int = 0

    def __post_init__(self) -> None:
        if self.causal is None:
            object.__setattr__(self, "causal", self.matmul)

    def __add__(self, other: Cost) -> Cost:
        assert self.causal is not None and other.causal is not None
        return Cost(
            self.matmul + other.matmul,
            self.pointwise + other.pointwise,
            self.state + other.state,
            self.causal + other.causal,
            self.recomputed + other.recomputed,
            self.constant + other.constant,
        )

    @property
    def training(self) -> int:
        """Matrix products of forward and backward pass: each product has two gradients, either as large as itself; one with
        a constant has one."""
        return 3 * self.matmul - self.constant + self.recomputed


@dataclass(frozen=True)
class InPlace:
    """What a caller of `step` allows and knows.

    position  the position of all rows, known on the host; None: rows have different positions
    room      slots that growing caches should get at once
    fixed     caches keep their size, which is large enough: for CUDA graphs
    """

    position: int | None = None
    room: int = 0
    fixed: bool = False


_in_place: ContextVar[InPlace | None] = ContextVar("in_place", default=None)


@contextmanager
def inplace_states(*, position: int | None = None, room: int = 0, fixed: bool = False) -> Iterator[None]:
    """Inside, `step` may change the given state and return it, and caches are written in place. For a caller that needs only the
    newest state, such as generation. The options are those of `InPlace`."""
    before = _in_place.set(InPlace(position, room, fixed))
    try:
        yield
    finally:
        _in_place.reset(before)


def in_place() -> InPlace | None:
    """What the caller allows; None where a state must stay as it is."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return None
    return _in_place.get()


class Mixer(nn.Module, ABC):
    """What all token mixers share. Most are easier to write as a `RowMixer`, which takes care of padding and packing.

    A subclass declares `modes` and `order` and takes (dim, *, causal, max_len, layer, its own options with types
    and defaults). `causal` has no default: a hidden one leaks the future sooner or later.
    """

    modes: ClassVar[frozenset[str]]
    order: ClassVar[str]  # time in length: "T", "T log T", "T^2"
    mixes_channels: ClassVar[bool] = False
    kind: ClassVar[str] = ""  # the registry name

    dim: int
    causal: bool
    max_len: int
    layer: int

    def __init__(self, dim: int | None = None, *, causal: bool | None = None, max_len: int | None = None, layer: int = 0):
        super().__init__()
        self._remember(dim, causal, max_len, layer)

    def _remember(self, dim: int | None, causal: bool | None, max_len: int | None, layer: int) -> None:
        for name, value in (("dim", dim), ("causal", causal), ("max_len", max_len), ("layer", layer)):
            if value is not None:
                setattr(self, name, value)

    @property
    def limit(self) -> int | None:
        """The longest sequence it takes; None where it owns no length-sized weights."""
        return None

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        segments: Segments | None = None,
        *,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        key_segments: Segments | None = None,
    ) -> Tensor:
        """x [B, T, D] -> [B, T, D], zero at padding. With keys [B, M, D] (and values, which default to them) the
        tokens of x are mixed with those instead of with each other."""

    @abstractmethod
    def cost(self, length: int) -> Cost:
        """What a forward pass over one sequence of that length costs."""

    def init_state(self, batch: int, like: Tensor) -> State:
        """The state before the first token, for `step`: a pytree of tensors, batch first, of like's device."""
        raise self.lacks("step")

    def step(self, x: Tensor, state: State, segments: Segments | None = None) -> tuple[Tensor, State]:
        """The next T >= 1 tokens of each row -> (y [B, T, D], new state). Padding leaves a row's state as it was. The state
        given stays as it is, except inside `inplace_states`."""
        raise self.lacks("step")

    def add_normed(self, x: Tensor, norm: nn.Module, segments: Segments | None = None) -> Tensor | None:
        """x + self(norm(x)) in one pass; None where this mixer has no faster way than three separate steps."""
        return None

    def step_normed(self, x: Tensor, norm: nn.Module, state: State, segments: Segments | None = None) -> tuple[Tensor, State] | None:
        """As `add_normed`, for `step`."""
        return None

    def prepared_step(self) -> PreparedStep | None:
        """`step` for many tokens of one row on a CPU, with weights that stay as they are; None where `step` itself will do."""
        return None

    def reach(self) -> int | None:
        """How many tokens back one layer sees; None = everything."""
        return None

    def lacks(self, mode: str) -> ValueError:
        has = ", ".join(mode for mode in MODES if mode in self.modes)
        if mode in self.modes:  # offered by the mixer, but not by this instance of it
            return ValueError(f"mixer {self.kind!r} was made with causal={self.causal} and has no {mode!r} mode then; its modes: {has}")
        return ValueError(f"mixer {self.kind!r} has no {mode!r} mode; its modes: {has}")

    def extra_repr(self) -> str:
        return f"dim={self.dim}, causal={self.causal}, max_len={self.max_len}, layer={self.layer}"


_REGISTRY: dict[str, type[Mixer]] = {}
M = TypeVar("M", bound=type[Mixer])


@typing.overload
def register(name: str) -> Callable[[M], M]: ...
@typing.overload
def register(name: M) -> M: ...
def register(name: str | M) -> Callable[[M], M] | M:
    """Make a mixer known: `@register("name")`, or bare `@register` to name it after its class (MyMixer: my_mixer)."""
    if isinstance(name, type):
        return register(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.__name__).lower())(name)

    def add(cls: M) -> M:
        if not name.isidentifier():
            raise ValueError(f"mixer name {name!r} should be a Python identifier")
        known = _REGISTRY.get(name)
        if known is not None and known is not cls:
            raise ValueError(f"mixer name {name!r} is taken by {known.__module__}.{known.__qualname__}")
        if not (isinstance(cls, type) and issubclass(cls, Mixer)):
            raise ValueError(f"mixer {name!r} should be a class derived from tokmix.Mixer")
        for mode in getattr(cls, "modes", None) or ["none"]:
            checks.one_of(f"mode declared by mixer {name!r}:", mode, MODES)
        cls.kind = name
        _REGISTRY[name] = cls
        return cls

    return add


def mixers() -> list[str]:
    """The names of all known mixers."""
    importlib.import_module("tokmix.layers")  # registers the built-in ones
    return sorted(_REGISTRY)


def mixer_class(name: str) -> type[Mixer]:
    checks.one_of("mixer", name, mixers())
    return _REGISTRY[name]


def options(name: str) -> dict[str, inspect.Parameter]:
    """A mixer's own options: all keyword arguments of its constructor beyond the four that every mixer has."""
    parameters = inspect.signature(mixer_class(name).__init__).parameters
    return {key: value for key, value in parameters.items() if key not in ("self", "dim", "causal", "max_len", "layer")}


def check_options(name: str, given: Mapping[str, object]) -> None:
    known = options(name)
    hints = typing.get_type_hints(mixer_class(name).__init__)
    for key, value in given.items():
        if key not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"mixer {name!r} has no option {key!r}; its options: {names}{checks.nearest(key, known)}")
        checks.typed(f"option {key} of mixer {name!r}: {key}", value, hints.get(key, object))
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"option {key} of mixer {name!r}: {key}={value} should be a finite number")


def create(name: str, dim: int, *, causal: bool, max_len: int, layer: int = 0, **own: object) -> Mixer:
    """A mixer by its registry name. `layer` is its place among its kind in a stack, from 0."""
    cls = mixer_class(name)
    check_options(name, own)
    checks.at_least("dim", dim, 1)
    checks.at_least("max_len", max_len, 1)
    checks.at_least("layer", layer, 0)
    if not isinstance(causal, bool):
        raise ValueError(f"causal={causal!r} should be True or False")
    mode = "causal" if causal else "bidirectional"
    if mode not in cls.modes:
        having = ", ".join(other for other in mixers() if mode in _REGISTRY[other].modes)
        has = ", ".join(known for known in MODES if known in cls.modes)
        raise ValueError(f"mixer {name!r} has no {mode!r} mode; its modes: {has}; mixers that have it: {having}")
    mixer = cls(dim, causal=causal, max_len=max_len, layer=layer, **own)
    mixer._remember(dim, causal, max_len, layer)  # also where a subclass did not pass them on
    return mixer
