"""Memory for time: what a function made inside is made again in the backward pass, and not kept until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tokmix.ops.dispatch import transformed


def recomputed(body: Callable[..., Any], *given: Any) -> Any:
    """body(*given). Under torch.func and forward-mode differentiation everything is kept: torch 2.11's checkpoints know no tangents."""
    if not torch.is_grad_enabled() or transformed():
        return body(*given)
    return checkpoint(body, *given, use_reentrant=False, preserve_rng_state=False)
