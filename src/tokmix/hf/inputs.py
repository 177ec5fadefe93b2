"""What Hugging Face scripts hand to a model -> Segments, once a forward pass.

attention_mask  [B, T], 1 = real token; padding on either side
segment_ids     [B, T], 0 = padding, a run of equal numbers = one sequence: several may share a row
position_ids    [B, T] without a mask: a sequence starts wherever the count is 0 (as padding-free collators write it)
segments        a tokmix.Segments, made on the host: spares the device a question
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tokmix.checks import nearest
from tokmix.segments import Segments


def read_segments(
    ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, segment_ids: Tensor | None, segments: Segments | None
) -> Segments | None:
    """None where every row is one whole sequence."""
    if segments is not None:
        if attention_mask is not None or segment_ids is not None:
            raise ValueError("segments already says where sequences are: give no attention_mask or segment_ids beside it")
        return segments.to(ids.device)
    if segment_ids is not None:
        _fits("segment_ids", segment_ids, ids)
        if attention_mask is not None:
            _fits("attention_mask", attention_mask, ids)
            segment_ids = torch.where(attention_mask != 0, segment_ids, 0)
        return Segments(segment_ids.cpu()).to(ids.device)
    if attention_mask is not None:
        _fits("attention_mask", attention_mask, ids)
        return _from_mask(attention_mask, ids.device)
    return None if position_ids is None else _from_positions(position_ids, ids)


def step_segments(ids: Tensor, attention_mask: Tensor | None, **others: object) -> Segments | None:
    """For tokens that continue a cache: the mask covers those in the cache too."""
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} cannot be used with a cache, which continues one sequence a row; use attention_mask")
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2 or attention_mask.shape[0] != ids.shape[0] or attention_mask.shape[1] < ids.shape[1]:
        raise ValueError(f"attention_mask of shape {list(attention_mask.shape)} does not cover input_ids of shape {list(ids.shape)}")
    return _from_mask(attention_mask[:, -ids.shape[1] :], ids.device)


def _fits(name: str, given: Tensor, ids: Tensor) -> None:
    if given.shape != ids.shape:
        raise ValueError(f"{name} of shape {list(given.shape)} does not fit input_ids of shape {list(ids.shape)}")


def _from_mask(mask: Tensor, device: torch.device) -> Segments | None:
    host = mask.cpu() != 0
    return None if bool(host.all()) else Segments.from_mask(host).to(device)


def _from_positions(position_ids: Tensor, ids: Tensor) -> Segments | None:
    """Each sequence counts from 0; anything else is an error, since the model counts for itself."""
    host = position_ids.cpu().expand(ids.shape)
    segments = Segments((host == 0).cumsum(1))
    if not torch.equal(segments.positions, host.long()):
        raise ValueError("position_ids should count each sequence from 0, one by one; padding is given by attention_mask")
    return segments.to(ids.device) if segments.packed else None


def refuse(forward: Callable[..., Any], others: dict[str, Any]) -> None:
    """Raise for an argument that a forward pass does not know, unless it asks for nothing."""
    for name, value in others.items():
        if value is not None and value is not False:
            known = [key for key in inspect.signature(forward).parameters if key != "others"]
            raise ValueError(f"this model takes no {name}; it takes: {', '.join(known)}{nearest(name, known)}")
