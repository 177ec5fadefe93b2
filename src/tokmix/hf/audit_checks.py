"""The checks of an audit. Each runs the model in two ways that must give the same, and returns pairs of (found, expected)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tokmix.hf.audit_subject import NotHere, Subject

LENGTHS = (13, 7, 2, 10)
Pairs = list[tuple[list[Tensor], list[Tensor]]]


def _batch(subject: Subject, lengths: tuple[int, ...], left: bool) -> tuple[list[Tensor], Tensor, Tensor]:
    """(rows of these lengths, the same padded to one width, its mask)"""
    shape, rows = (len(lengths), max(lengths)), [subject.ids(1, n)[0] for n in lengths]
    ids = subject.ids(*shape) if subject.pad is None else torch.full(shape, subject.pad)
    mask = torch.zeros(shape, dtype=torch.long)
    for number, row in enumerate(rows):
        at = slice(shape[1] - len(row), None) if left else slice(len(row))
        ids[number, at], mask[number, at] = row, 1
    return rows, ids, mask


def _padded(subject: Subject, left: bool, together: bool) -> Pairs:
    rows, ids, mask = _batch(subject, LENGTHS, left)
    expected, more = subject.alone(rows), {"position_ids": subject.positions(mask)} if left else {}
    if together:
        found = subject.run(ids, attention_mask=mask, **more)
        return [(found.of(i, mask[i] != 0), expected[i].of(0, slice(None))) for i in range(len(rows))]
    singles = [subject.run(ids[i : i + 1], attention_mask=mask[i : i + 1], **_row(more, i)) for i in range(len(rows))]
    return [(singles[i].of(0, mask[i] != 0), expected[i].of(0, slice(None))) for i in range(len(rows))]


def _row(more: dict[str, Tensor | None], i: int) -> dict[str, Tensor | None]:
    return {name: None if value is None else value[i : i + 1] for name, value in more.items()}


def right_padding(subject: Subject) -> Pairs:
    return _padded(subject, left=False, together=True)


def left_padding(subject: Subject) -> Pairs:
    if not (subject.causal or subject.own):
        raise NotHere("encoders of transformers pad on the right")
    return _padded(subject, left=True, together=True)


def one_row_with_mask(subject: Subject) -> Pairs:
    pairs = _padded(subject, left=False, together=False)
    return pairs + (_padded(subject, left=True, together=False) if subject.causal or subject.own else [])


def padding_inside(subject: Subject) -> Pairs:
    """Rows whose padding stands between their tokens, as after a second turn of a chat: at once and, with a cache, in two pieces."""
    if not (subject.decodes and "position_ids" in subject.takes):
        raise NotHere("padding stands at an end")
    lengths, first = ((5, 6), (3, 4), (2, 6)), max(n for n, _ in ((5, 6), (3, 4), (2, 6)))
    rows = [subject.ids(1, sum(both))[0] for both in lengths]
    ids = subject.ids(len(rows), first + 6) if subject.pad is None else torch.full((len(rows), first + 6), subject.pad)
    mask = torch.zeros_like(ids)
    for number, (before, _) in enumerate(lengths):
        for at, part in ((0, rows[number][:before]), (first, rows[number][before:])):
            ids[number, at : at + len(part)], mask[number, at : at + len(part)] = part, 1
    expected, positions = subject.alone(rows), subject.positions(mask)
    runs = [subject.run(ids, attention_mask=mask, position_ids=positions).hidden, _with_cache(subject, ids, mask, [first, 6])]
    return [([x[i][mask[i] != 0] for x in run], expected[i].of(0, slice(None))) for run in runs for i in range(len(rows))]


def padded_cache(subject: Subject) -> Pairs:
    """A batch padded on the left, read in pieces: one row is still padding when the second piece begins."""
    if not subject.decodes:
        raise NotHere("the model has no cache")
    rows, ids, mask = _batch(subject, (13, 7, 3), left=True)
    expected, found = subject.alone(rows), _with_cache(subject, ids, mask, [8, 3, 1, 1])
    return [([x[i][mask[i] != 0] for x in found], expected[i].of(0, slice(None))) for i in range(len(rows))]


def _with_cache(subject: Subject, ids: Tensor, mask: Tensor, sizes: list[int]) -> list[Tensor]:
    """Hidden states of ids read in pieces of these sizes, joined."""
    cache, pieces, stop, positions = None, [], 0, subject.positions(mask)
    for size in sizes:
        start, stop = stop, stop + size
        more = {} if positions is None else {"position_ids": positions[:, start:stop]}
        run = subject.run(ids[:, start:stop], attention_mask=mask[:, :stop], past_key_values=cache, use_cache=True, **more)
        cache = run.cache
        if cache is None:
            raise NotHere("the model returns no cache")
        pieces.append(run.hidden)
    return [torch.cat(parts, dim=1) for parts in zip(*pieces, strict=True)]


def batch_composition(subject: Subject) -> Pairs:
    if subject.text:
        first, others = subject.ids(1, 11), [subject.ids(2, 11) for _ in range(2)]
    else:
        size, channels = subject.config.image_size, getattr(subject.config, "num_channels", 3)
        draw = [torch.randn(n, channels, size, size, generator=subject.generator, dtype=torch.float64) for n in (1, 2, 2)]
        first, others = draw[0], draw[1:]
    runs = [subject.run(torch.cat([first, more])) for more in others]
    return [(runs[0].of(0, slice(None)), runs[1].of(0, slice(None)))]


def packed_rows(subject: Subject) -> Pairs:
    if not (subject.own or (subject.decodes and "position_ids" in subject.takes)):
        raise NotHere("the model is given no document borders")
    lengths = (5, 8, 3)
    rows = [subject.ids(1, n)[0] for n in lengths]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    found = subject.run(torch.cat(rows)[None], position_ids=positions)
    expected, start, pairs = subject.alone(rows), 0, []
    for run, n in zip(expected, lengths, strict=True):
        at = slice(start, start + n)
        whole, start = run.of(0, slice(None)), start + n
        pairs.append((found.of(0, at)[: len(whole) - 1], whole[:-1]) if whole[-1].dim() < 2 else (found.of(0, at), whole))
    return pairs


def _in_pieces(subject: Subject, sizes: list[int]) -> Pairs:
    if not subject.decodes:
        raise NotHere("the model has no cache")
    ids = subject.ids(2, sum(sizes))
    return [(_with_cache(subject, ids, torch.ones_like(ids), sizes), subject.run(ids).hidden)]


def chunked_prefill(subject: Subject) -> Pairs:
    return _in_pieces(subject, [5, 6, 3])


def cache_token_by_token(subject: Subject) -> Pairs:
    return _in_pieces(subject, [4] + [1] * 8)


def future_gradient(subject: Subject) -> Pairs:
    """What a token's hidden states and output owe to later tokens: nothing, in a causal model."""
    if not subject.causal:
        raise NotHere("the model reads both ways")
    vectors = subject.model.get_input_embeddings()(subject.ids(1, 9)).detach().requires_grad_()
    with torch.enable_grad():
        seen = [x[:, 4] if x.dim() == 3 else x[:, :0] for x in subject.run(vectors).hidden]  # an output of the whole sequence owes to all
        grads = [torch.autograd.grad(x.sum() + x.square().sum(), vectors, retain_graph=True, allow_unused=True)[0] for x in seen]
    pairs: tuple[list[Tensor], list[Tensor]] = ([], [])
    for grad in grads:
        grad = torch.zeros_like(vectors) if grad is None else grad
        clean = grad.clone()
        clean[:, 5:] = 0
        pairs[0].append(grad)
        pairs[1].append(clean)
    return [pairs]


def compiled(subject: Subject) -> Pairs:
    ids = subject.ids(2, 12)
    expected = subject.run(ids)
    mask = torch.ones_like(ids)
    torch._dynamo.reset()
    quick: Any = torch.compile(subject.model)
    other = copy.copy(subject)
    other.model = quick
    return [(other.run(ids).hidden, expected.hidden), (other.run(ids, attention_mask=mask).hidden, expected.hidden)]


def half_precision(subject: Subject) -> Pairs:
    ids = subject.ids(2, 12)
    expected = subject.run(ids)
    other = copy.copy(subject)
    other.model = copy.deepcopy(subject.model).to(torch.bfloat16)  # type: ignore[arg-type]
    return [(other.run(ids).hidden, expected.hidden)]


CHECKS: dict[str, Callable[[Subject], Pairs]] = {
    "right padding": right_padding,
    "left padding": left_padding,
    "batch composition": batch_composition,
    "one row with a mask": one_row_with_mask,
    "padding inside": padding_inside,
    "packed rows": packed_rows,
    "chunked prefill": chunked_prefill,
    "cache": cache_token_by_token,
    "cache with padding": padded_cache,
    "gradient of the future": future_gradient,
    "half precision": half_precision,
    "compile": compiled,
}
