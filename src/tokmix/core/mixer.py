"""The contract of every token mixer, and the registry of the known ones.

A mixer maps [B, T, D] to [B, T, D] and mixes the tokens of each sequence. It has its own output projection. Norm, residual
and feed-forward belong to the block around it.
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
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from tokmix.core import checks
from tokmix.core.segments import Segments

MODES = ("bidirectional", "causal", "cross", "padded", "packed", "step")

State = Any  # a pytree of tensors, batch first
# (x [D], the state before, the position on the host) -> (y [D], the state after); called inside `inplace_states`
PreparedStep = Callable[[torch.Tensor, State, int], tuple[torch.Tensor, State]]

# Floating-point operations of one element. The numbers are those of the HyperMixer paper, where it has them.
GELU, SOFTMAX, SIGMOID, NORM = 9, 3, 4, 8


@dataclass(frozen=True)
class Cost:
    """Floating-point operations of a forward pass over one sequence (a multiply-add is two), and the size of its decoding state.

    matmul     matrix products, with causal attention counted dense, as operation counters do
    pointwise  everything else, approximately
    state      elements that decoding keeps for one sequence after that many tokens
    causal     matmul without the half of the scores that a causal mask removes
    recomputed matrix products that the backward pass computes again instead of saving them
    constant   the part of matmul that multiplies by a constant, which needs no gradient
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
        return Cost(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def training(self) -> int:
        """Matrix products of the forward and the backward pass. The backward pass has two products of the same size for each, or
        one if a factor is constant."""
        return 3 * self.matmul - self.constant + self.recomputed


@dataclass(frozen=True)
class InPlace:
    """The options of `inplace_states`.

    position  the position of all rows, on the host; None if rows have different positions
    room      slots to allocate at once for a cache that grows
    fixed     caches keep their size, which is large enough: for CUDA graphs
    """

    position: int | None = None
    room: int = 0
    fixed: bool = False


_in_place: ContextVar[InPlace | None] = ContextVar("in_place", default=None)


@contextmanager
def inplace_states(*, position: int | None = None, room: int = 0, fixed: bool = False) -> Iterator[None]:
    """Inside, `step` may change the given state and return it, and writes caches in place. For callers that need only the newest
    state, such as generation. The options are those of `InPlace`."""
    before = _in_place.set(InPlace(position, room, fixed))
    try:
        yield
    finally:
        _in_place.reset(before)


def in_place() -> InPlace | None:
    """The options of the innermost `inplace_states`; None where `step` must not change a state."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return None
    return _in_place.get()


class Mixer(nn.Module, ABC):
    """The base of all token mixers. Most are easier to write as a `RowMixer`, which handles padding and packing.

    A subclass declares `modes` and `order` and takes (dim, *, causal, max_len, layer, its own options with types
    and defaults). `causal` has no default, since a hidden default sooner or later leaks the future.
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
        self._set_shape(dim, causal, max_len, layer)

    def _set_shape(self, dim: int | None, causal: bool | None, max_len: int | None, layer: int) -> None:
        for name, value in (("dim", dim), ("causal", causal), ("max_len", max_len), ("layer", layer)):
            if value is not None:
                setattr(self, name, value)

    @property
    def limit(self) -> int | None:
        """The longest sequence it accepts; None if none of its weights has a size that depends on the length."""
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
        """x [B, T, D] -> [B, T, D], zero at padding. With keys [B, M, D] (and values, which default to the keys) the
        tokens of x are mixed with the keys instead of with each other."""

    @abstractmethod
    def cost(self, length: int) -> Cost:
        """The cost of a forward pass over one sequence of that length."""

    def init_state(self, batch: int, like: Tensor) -> State:
        """The state before the first token, for `step`: a pytree of tensors, batch first, on the device of `like`."""
        raise self.lacks("step")

    def step(self, x: Tensor, state: State, segments: Segments | None = None) -> tuple[Tensor, State]:
        """The next T >= 1 tokens of each row -> (y [B, T, D], new state). Padding does not change a row's state. The given state
        is not changed, except inside `inplace_states`."""
        raise self.lacks("step")

    def add_normed(self, x: Tensor, norm: nn.Module, segments: Segments | None = None) -> Tensor | None:
        """x + self(norm(x)) in one pass; None if this mixer has no faster way than the three separate steps."""
        return None

    def step_normed(self, x: Tensor, norm: nn.Module, state: State, segments: Segments | None = None) -> tuple[Tensor, State] | None:
        """As `add_normed`, for `step`."""
        return None

    def prepared_step(self) -> PreparedStep | None:
        """A faster `step` for many tokens of one row on a CPU, with constant weights; None if this mixer has none."""
        return None

    def reach(self) -> int | None:
        """How many tokens back one layer sees; None = everything."""
        return None

    def lacks(self, mode: str) -> ValueError:
        has = ", ".join(mode for mode in MODES if mode in self.modes)
        if mode in self.modes:  # other instances of this mixer have it
            return ValueError(f"mixer {self.kind!r} made with causal={self.causal} has no {mode!r} mode; its modes: {has}")
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
    """Add a mixer to the registry: `@register("name")`, or bare `@register` to name it after its class (MyMixer: my_mixer)."""
    if isinstance(name, type):
        return register(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.__name__).lower())(name)

    def add(cls: M) -> M:
        if not name.isidentifier():
            raise ValueError(f"mixer name {name!r} should be a Python identifier")
        other = _REGISTRY.get(name)
        if other is not None and other is not cls:
            raise ValueError(f"mixer name {name!r} is taken by {other.__module__}.{other.__qualname__}")
        if not (isinstance(cls, type) and issubclass(cls, Mixer)):
            raise ValueError(f"mixer {name!r} should be a class derived from tokmix.Mixer")
        for mode in getattr(cls, "modes", None) or ["none"]:
            checks.one_of(f"mode declared by mixer {name!r}:", mode, MODES)
        cls.kind = name
        _REGISTRY[name] = cls
        return cls

    return add


def mixers() -> list[str]:
    """The names of all registered mixers."""
    importlib.import_module("tokmix.layers")  # registers the built-in ones
    return sorted(_REGISTRY)


def mixer_class(name: str) -> type[Mixer]:
    checks.one_of("mixer", name, mixers())
    return _REGISTRY[name]


def options(name: str) -> dict[str, inspect.Parameter]:
    """A mixer's own options: the keyword arguments of its constructor without the four that every mixer has."""
    parameters = inspect.signature(mixer_class(name).__init__).parameters
    return {key: value for key, value in parameters.items() if key not in ("self", "dim", "causal", "max_len", "layer")}


def check_options(name: str, values: Mapping[str, object]) -> None:
    own = options(name)
    hints = typing.get_type_hints(mixer_class(name).__init__)
    for key, value in values.items():
        if key not in own:
            names = ", ".join(own) or "none"
            raise ValueError(f"mixer {name!r} has no option {key!r}; its options: {names}{checks.nearest(key, own)}")
        checks.typed(f"option {key} of mixer {name!r}: {key}", value, hints.get(key, object))
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"option {key} of mixer {name!r}: {key}={value} should be a finite number")


def create(name: str, dim: int, *, causal: bool, max_len: int, layer: int = 0, **own: object) -> Mixer:
    """A mixer by its registry name. `layer` counts the mixers of the same name in a stack, from 0."""
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
        has = ", ".join(own for own in MODES if own in cls.modes)
        raise ValueError(f"mixer {name!r} has no {mode!r} mode; its modes: {has}; mixers that have it: {having}")
    mixer = cls(dim, causal=causal, max_len=max_len, layer=layer, **own)
    mixer._set_shape(dim, causal, max_len, layer)  # also where a subclass did not pass them on
    return mixer
