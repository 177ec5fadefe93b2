"""Rules of the contract, and errors that say what is wrong, where, with the numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tokmix.contract.cases import DIM, Case, tokens
from tokmix.core.mixer import Mixer

LENGTHS = [7, 12, 3, 1, 20]
NEAR = 1e-10  # float64


class Broken(AssertionError):
    """A rule does not hold."""


@dataclass(frozen=True)
class Rule:
    name: str
    check: Callable[[Case], None]
    applies: Callable[[Case], bool]
    advice: bool = False  # not part of the contract: only reported
    first: bool = False  # if this rule fails, the others are not tried


RULES: list[Rule] = []


def rule(
    name: str, applies: Callable[[Case], bool] = lambda case: True, advice: bool = False, first: bool = False
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    def add(check: Callable[[Case], None]) -> Callable[[Case], None]:
        RULES.append(Rule(name, check, applies, advice, first))
        return check

    return add


def steps(case: Case) -> bool:
    return case.steps


def is_default(case: Case) -> bool:
    return not case.options


def hold(condition: bool, message: str) -> None:
    if not condition:
        raise Broken(message)


def close(found: Tensor, wanted: Tensor, what: str, axes: str = "") -> None:
    """Equal within 1e-10, else an error with the largest difference and its place. axes: names of the dimensions."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        given = f"{found.dtype} of shape {list(found.shape)}"
        raise Broken(f"{what}: {given}, but it should be {wanted.dtype} of shape {list(wanted.shape)}")
    difference = (found.detach() - wanted.detach()).abs()
    if bool((difference <= NEAR).all()):
        return
    worst = torch.where(difference.isnan(), torch.inf, difference)
    place = [int(i) for i in torch.unravel_index(worst.argmax(), worst.shape)]
    at = ", ".join(f"{axis} {i}" for axis, i in zip(axes.split(), place, strict=False)) if axes else str(place)
    a, b = (float(tensor.detach()[tuple(place)]) for tensor in (found, wanted))
    wrong = int((~(difference <= NEAR)).sum())
    raise Broken(f"{what}: {a:.6g} instead of {b:.6g} at {at}; {wrong:,} of {difference.numel():,} numbers differ by more than {NEAR:g}")


def zero(y: Tensor, where: Tensor, what: str) -> None:
    """Exactly zero in these places [B, T]."""
    wrong = (where & (y != 0).any(-1)).nonzero().tolist()
    if wrong:
        row, token = wrong[0]
        raise Broken(f"{what} should be 0, but is {float(y[row, token].detach().abs().max()):.3g} at row {row}, token {token}")


def finite(x: Tensor, what: str) -> None:
    hold(bool(x.isfinite().all()), f"{what} is not finite: {int((~x.isfinite()).sum()):,} of {x.numel():,} numbers")


def refuses(call: Callable[[], object], pattern: str, what: str) -> None:
    """Expect a ValueError whose message matches the pattern."""
    try:
        call()
    except ValueError as error:
        hold(re.search(pattern, str(error)) is not None, f"{what}: the message {str(error)!r} should read like {pattern!r}")
        return
    raise Broken(f"{what} should be refused with a ValueError like {pattern!r}, but nothing was raised")


def alone(mixer: Mixer) -> tuple[list[Tensor], list[Tensor]]:
    """Sequences of several lengths, and the result of each alone."""
    sequences = [tokens(1, n, DIM, seed=n) for n in LENGTHS]
    return sequences, [mixer(sequence) for sequence in sequences]
