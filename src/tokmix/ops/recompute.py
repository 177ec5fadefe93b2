"""Recompute intermediate results in the backward pass instead of keeping them: less memory, more time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch.utils.checkpoint import checkpoint

from tokmix.ops.dispatch import transformed

Result = TypeVar("Result")


def recomputed(body: Callable[..., Result], *given: object) -> Result:
    """body(*given), recomputed in the backward pass. Under torch.func and forward-mode differentiation, which torch's checkpoints do not
    support, everything is kept."""
    if not torch.is_grad_enabled() or transformed():
        return body(*given)
    return cast(Result, checkpoint(body, *given, use_reentrant=False, preserve_rng_state=False))
