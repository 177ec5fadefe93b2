"""The inputs of Hugging Face scripts -> Segments, once per forward pass.

attention_mask  [B, T], 1 = real token; padding on either side
segment_ids     [B, T], 0 = padding, a run of equal numbers = one sequence: several may share a row
position_ids    [B, T] or [1, T], counting the real tokens of each sequence from 0, as the model does for itself: a sequence starts wherever
                the count is 0 (as padding-free collators write it); any other count is an error
segments        a tokmix.Segments, made on the host: spares the device a question
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tokmix.core.checks import nearest
from tokmix.core.model import Model
from tokmix.core.segments import Segments


def read_segments(
    ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, segment_ids: Tensor | None, segments: Segments | None
) -> Segments | None:
    """None if every row is one whole sequence."""
    if segments is not None:
        if attention_mask is not None or segment_ids is not None:
            raise ValueError("segments already says where sequences are: give no attention_mask or segment_ids beside it")
        _check_count(segments, segments.mask, position_ids, ids)
        return segments.to(ids.device)
    if attention_mask is not None:
        _fits("attention_mask", attention_mask, ids)
    if segment_ids is not None:
        _fits("segment_ids", segment_ids, ids)
        if attention_mask is not None:
            segment_ids = torch.where(attention_mask != 0, segment_ids, 0)
        segments = Segments(segment_ids.cpu())
        _check_count(segments, segments.mask, position_ids, ids)
        return segments.to(ids.device)
    if position_ids is not None:
        return _from_positions(position_ids, attention_mask, ids)
    return None if attention_mask is None else _from_mask(attention_mask, ids.device)


def step_segments(ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, **others: object) -> Segments | None:
    """For tokens that continue a cache: the mask also covers those in the cache, which knows the position of each row."""
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} cannot be used with a cache, which continues one sequence a row; use attention_mask")
    if attention_mask is None:
        _check_one_sequence(position_ids, None, ids)
        return None
    if attention_mask.dim() != 2 or attention_mask.shape[0] != ids.shape[0] or attention_mask.shape[1] < ids.shape[1]:
        raise ValueError(f"attention_mask of shape {list(attention_mask.shape)} does not cover input_ids of shape {list(ids.shape)}")
    mask = attention_mask[:, -ids.shape[1] :]
    _check_one_sequence(position_ids, mask, ids)
    return _from_mask(mask, ids.device)


def traced(core: Model, given: Tensor, attention_mask: Tensor) -> tuple[Tensor, Segments]:
    """Model.hidden for torch.export, which cannot ask where sequences end: each row's real tokens move to its front and back."""
    real = attention_mask != 0
    order = real.long().argsort(dim=1, descending=True, stable=True)  # [B, T]
    lengths = real.sum(1).clamp(min=1)
    segments = Segments.padded(lengths, given.shape[1])
    x = core.hidden(_moved(given, order), segments)
    if core.config.head in ("classify", "regress"):  # these pool sequences, which may stay at the front
        return x, segments
    return torch.where(real[..., None], _moved(x, order.argsort(dim=1)), 0), segments


def _moved(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order if x.dim() == 2 else order[..., None].expand(-1, -1, x.shape[2]))


def check_ends(attention_mask: Tensor | None) -> None:
    """Check prompts for generation: each has to end in the last column."""
    if attention_mask is None or attention_mask.dim() != 2 or attention_mask.shape[1] == 0:
        return
    padded = (attention_mask[:, -1] == 0).nonzero().flatten().tolist()
    if padded:
        raise ValueError(f"prompt {padded[0]} ends in padding, which generate() would go on from: pad on the left (padding_side='left')")


def _fits(name: str, given: Tensor, ids: Tensor) -> None:
    if given.shape != ids.shape:
        raise ValueError(f"{name} of shape {list(given.shape)} does not fit input_ids of shape {list(ids.shape)}")


def _from_mask(mask: Tensor, device: torch.device) -> Segments | None:
    host = mask.cpu() != 0
    return None if bool(host.all()) else Segments.from_mask(host).to(device)


def _from_positions(position_ids: Tensor, mask: Tensor | None, ids: Tensor) -> Segments | None:
    """From positions of the mask's tokens: a sequence starts at every 0."""
    real = torch.ones(ids.shape, dtype=torch.bool) if mask is None else mask.cpu() != 0
    number = (real & (_positions(position_ids, ids) == 0)).cumsum(1)
    packed = bool((number > 1).any())
    segments = Segments(torch.where(real, number, 0)) if packed else Segments.from_mask(real)
    _check_count(segments, real, position_ids, ids)
    return segments.to(ids.device) if packed or not bool(real.all()) else None


def _check_count(segments: Segments, real: Tensor, position_ids: Tensor | None, ids: Tensor) -> None:
    """The model counts positions itself, so other positions are an error; at padding they are ignored."""
    if position_ids is not None and not torch.equal(segments.positions.cpu(), torch.where(real.cpu(), _positions(position_ids, ids), 0)):
        raise ValueError("position_ids should count each sequence from 0, one by one; padding is given by attention_mask")


def _check_one_sequence(position_ids: Tensor | None, mask: Tensor | None, ids: Tensor) -> None:
    """The cache knows a row's position. For a single token, the common case, the device is not asked."""
    if position_ids is None or ids.shape[1] < 2:
        return
    real = torch.ones(ids.shape, dtype=torch.bool) if mask is None else mask.cpu() != 0
    start = _positions(position_ids, ids) - real.cumsum(1)
    if bool((real & (start != start.masked_fill(~real, start.max()).amin(1, keepdim=True))).any()):
        raise ValueError("position_ids should count on, one by one, with a cache, which continues one sequence a row")


def _positions(position_ids: Tensor, ids: Tensor) -> Tensor:
    if position_ids.dim() != 2 or position_ids.shape[0] not in (1, ids.shape[0]) or position_ids.shape[1] != ids.shape[1]:
        raise ValueError(f"position_ids of shape {list(position_ids.shape)} does not fit input_ids of shape {list(ids.shape)}")
    return position_ids.cpu().long().expand(ids.shape)


def refuse(forward: Callable[..., object], others: Mapping[str, object], more: tuple[str, ...] = ()) -> None:
    """Raise for an argument that a forward pass does not know, unless it asks for nothing."""
    for name, value in others.items():
        if value is not None and value is not False:
            known = [key for key in inspect.signature(forward).parameters if key != "others"] + list(more)
            raise ValueError(f"this model takes no {name}; it takes: {', '.join(known)}{nearest(name, known)}")
