"""The rule for fast implementations, in the tests and in every run that reports their time:

the relative L2 error is at most twice that of plain torch in the same dtype plus that dtype's eps, both against float64,
for the result and for every gradient
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

FEW = 16  # numbers, such as the two weights of a shift mix, each a sum over all tokens

Tensors = dict[str, Tensor]
Body = Callable[[Tensors], Tensor]


class Verdict(NamedTuple):
    what: str  # one tensor, or several small ones
    error: float
    plain: float  # torch's own error
    allowed: float

    @property
    def holds(self) -> bool:
        return self.error <= self.allowed  # false for NaN

    def __str__(self) -> str:
        return f"{self.what}: {self.error:.2e}, torch {self.plain:.2e}, allowed {self.allowed:.2e}"


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm().clamp(min=1e-300))


def judge(ours: Tensors, plain: Tensors, exact: Tensors, dtype: torch.dtype) -> list[Verdict]:
    """Relative errors of a few numbers depend on luck, so small tensors are judged together; for very few numbers twice as much is
    allowed."""
    groups: dict[str, list[str]] = {}
    for name, tensor in exact.items():
        groups.setdefault(name if tensor.numel() >= 256 else "small ones", []).append(name)
    verdicts = []
    for group, names in groups.items():
        found, torchs = (math.hypot(*(error(result[name], exact[name]) for name in names)) for result in (ours, plain))
        what = f"{group} ({', '.join(names)})" if group == "small ones" else group
        slack = 2 if sum(exact[name].numel() for name in names) < FEW else 1
        verdicts.append(Verdict(what, found, torchs, slack * (2 * torchs + torch.finfo(dtype).eps * len(names) ** 0.5)))
    return verdicts


def with_gradients(body: Body, given: Tensors, dy: Tensor, dtype: torch.dtype) -> Tensors:
    """y and the gradients of everything given, all taken to dtype. dy lies in memory as y does: torch (2.11) keeps cuDNN's plan of
    attention's backward pass by the strides of q, k and v alone, and reads a dy that lies another way than the first one did wrongly."""
    leaves = {name: tensor.detach().to(dtype).requires_grad_() for name, tensor in given.items()}
    y = body(leaves)
    grads = torch.autograd.grad(y, list(leaves.values()), torch.empty_like(y).copy_(dy))
    return {"y": y.detach(), **dict(zip(leaves, grads, strict=True))}


@contextmanager
def poisoned() -> Iterator[None]:
    """Inside, new memory is filled with NaN, and torch warns about nondeterminism."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check(body: Body, plain: Body, given: Tensors, dtype: torch.dtype) -> list[Verdict]:
    """`given` in dtype, so that every body starts from the same numbers; `plain` defines the op."""
    with torch.no_grad():
        dy = torch.randn_like(plain(given))
    exact = with_gradients(plain, given, dy, torch.float64)
    in_torch = with_gradients(plain, given, dy, dtype)
    with poisoned(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rivals may be nondeterministic
        ours = with_gradients(body, given, dy, dtype)
    return judge(ours, in_torch, exact, dtype)
