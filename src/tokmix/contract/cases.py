"""A mixer with every option it declares, one option at a time. Options come from the constructor, so no mixer is named here."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tokmix.core.mixer import Mixer, State, create, mixer_class, mixers, options

DIM, MAX_LEN = 16, 40


@dataclass(frozen=True)
class Case:
    name: str
    causal: bool
    options: dict[str, object] = field(default_factory=dict)

    def make(self, dim: int = DIM, max_len: int = MAX_LEN, layer: int = 1, dtype: torch.dtype = torch.float64) -> Mixer:
        """Make it with new random parameters, so that zero-initialised ones are tested too."""
        torch.manual_seed(0)
        mixer = create(self.name, dim, causal=self.causal, max_len=max_len, layer=layer, **self.options)
        with torch.no_grad():
            for parameter in mixer.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return mixer.to(dtype)

    def has(self, mode: str) -> bool:
        return mode in mixer_class(self.name).modes

    @property
    def steps(self) -> bool:
        return self.causal and self.has("step")

    def __str__(self) -> str:
        given = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}-{'causal' if self.causal else 'both'}-{given or 'default'}"


def other_values(hint: object, default: object) -> list[object]:
    """Values of an option to try in addition to its default, from its type."""
    if typing.get_origin(hint) is typing.Literal:
        return [value for value in typing.get_args(hint) if value != default]
    if typing.get_origin(hint) is tuple:
        return [(3, 1)]
    if hint is bool:
        return [not default]
    if hint is int:
        return [2, 1] if default not in (1, 2) else [3 - default]
    if hint is float:
        return [0.5]
    if typing.get_args(hint):
        values = [value for part in typing.get_args(hint) if part is not type(None) for value in other_values(part, default)]
        return list(dict.fromkeys(8 if type(value) is int else value for value in values))
    return []


def cases(names: Iterable[str] | None = None) -> tuple[list[Case], dict[str, ValueError]]:
    """(cases that can be made, refused cases and their message). An option may ask for another one or for the causal form.
    Raises what the constructor raises with its defaults."""
    found: list[Case] = []
    refused: dict[str, ValueError] = {}
    for name in mixers() if names is None else names:
        cls = mixer_class(name)
        hints = typing.get_type_hints(cls.__init__)
        for causal in (False, True):
            if ("causal" if causal else "bidirectional") not in cls.modes:
                continue
            default = Case(name, causal)
            default.make()
            found.append(default)
            for option, parameter in options(name).items():
                for value in other_values(hints.get(option), parameter.default):
                    case = Case(name, causal, {option: value})
                    try:
                        case.make()
                        found.append(case)
                    except ValueError as error:
                        refused[str(case)] = error
    return found, refused


def tokens(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def lay_out(sequences: list[Tensor], ids: Tensor) -> Tensor:
    """Sequences [1, n, D] laid out where ids [B, T] are not zero, in reading order; NaN at padding."""
    x = torch.full((*ids.shape, sequences[0].shape[-1]), torch.nan, dtype=sequences[0].dtype)
    x[ids != 0] = torch.cat(sequences, dim=1)[0]
    return x


def leaves(state: State) -> list[Tensor]:
    return list(torch.utils._pytree.tree_leaves(state))
