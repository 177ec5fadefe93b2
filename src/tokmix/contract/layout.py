"""Rules about padding, packing, shapes and refused input."""

from __future__ import annotations

import torch

from tokmix.contract.cases import DIM, Case, lay_out, tokens
from tokmix.contract.rules import LENGTHS, Broken, alone, close, finite, hold, is_default, refuses, rule, zero
from tokmix.core.segments import Segments

LAYOUTS = {
    "padded": Segments.from_lengths(LENGTHS).ids,
    "padded wider": Segments.from_lengths(LENGTHS, 23).ids,
    "left padded": Segments.from_lengths(LENGTHS).ids.flip(1),
    "an empty row": Segments.from_lengths([7, 12, 0, 3, 1, 0, 20]).ids,
    "packed": Segments.from_lengths([LENGTHS]).ids,
    "packed rows": Segments.from_lengths([[7, 12], [3, 1], [], [20]], 22).ids,
    "packed with gaps": torch.tensor([[0] * 2 + [5] * 7 + [0] + [5] * 12 + [9] * 3 + [2] + [0] * 3 + [1] * 20]),
}


def padded(case: Case) -> bool:
    return case.has("padded")


def packed(case: Case) -> bool:
    return case.has("packed")


def crosses(case: Case) -> bool:
    return case.has("cross") and not case.causal and not case.options


def agrees_in(case: Case, layout: str) -> None:
    mixer, ids = case.make(), LAYOUTS[layout]
    sequences, outputs = alone(mixer)
    y = mixer(lay_out(sequences, ids), Segments(ids))
    hold(y.shape == (*ids.shape, DIM), f"{layout}: the output has shape {list(y.shape)} instead of {[*ids.shape, DIM]}")
    close(y[ids != 0], torch.cat(outputs, dim=1)[0], f"{layout}, against each sequence alone", "token channel")
    zero(y, ids == 0, f"{layout}: the output at padding")


@rule("the output has the shape of the input, and repeats", first=True)
def output_fits_and_repeats(case: Case) -> None:
    """Runs first, because a failure here would make most other rules fail."""
    mixer, x = case.make(), tokens(2, 6, DIM).requires_grad_()
    y = mixer(x)
    hold(isinstance(y, torch.Tensor), f"tokens come out as {type(y).__name__} instead of a tensor")
    hold(y.shape == x.shape, f"tokens of shape {list(x.shape)} come out as {list(y.shape)}")
    hold(y.requires_grad, "no gradient flows back to the tokens")
    close(mixer(x), y, "a second call with the same tokens", "row token channel")


@rule("padded sequences come out as they do alone", padded)
def padded_agrees(case: Case) -> None:
    for layout in ("padded", "padded wider", "left padded", "an empty row"):
        agrees_in(case, layout)


@rule("packed sequences come out as they do alone", packed)
def packed_agrees(case: Case) -> None:
    for layout in ("packed", "packed rows", "packed with gaps"):
        agrees_in(case, layout)


@rule("holes in a mask are skipped", padded)
def skips_holes(case: Case) -> None:
    mixer = case.make()
    mask = torch.tensor([[True, False, True, True, False, False, True], [False, True, True, True, True, True, False]])
    sequences = [tokens(1, int(row.sum()), DIM, seed=i) for i, row in enumerate(mask)]
    y = mixer(lay_out(sequences, mask), Segments.from_mask(mask))
    close(y[mask], torch.cat([mixer(sequence) for sequence in sequences], dim=1)[0], "a mask with holes", "token channel")


@rule("padding gets no gradient and gives none", packed)
def padding_has_no_gradient(case: Case) -> None:
    mixer, ids = case.make(), LAYOUTS["packed rows"]
    x = lay_out(alone(mixer)[0], ids).requires_grad_()
    flows_back = tokens(*ids.shape, DIM, seed=5).masked_fill((ids == 0)[..., None], torch.nan)  # into padding: must not matter
    mixer(x, Segments(ids)).backward(flows_back)
    if x.grad is None:
        raise Broken("no gradient flows back to the tokens")
    zero(x.grad, ids == 0, "the gradient of padding")
    finite(x.grad[ids != 0], "the gradient of tokens, where padding holds NaN,")
    for name, parameter in mixer.named_parameters():
        if parameter.grad is not None:
            finite(parameter.grad, f"the gradient of {name}, where padding holds NaN,")


@rule("a batch may have no rows, no tokens, or one token")
def takes_small_shapes(case: Case) -> None:
    for shape in ((0, 5), (3, 0), (2, 1)):
        takes_shape(case, shape)


def takes_shape(case: Case, shape: tuple[int, int]) -> None:
    mixer, x = case.make(), tokens(*shape, DIM)
    hold(mixer(x).shape == x.shape, f"a batch of shape {list(x.shape)} comes out as {list(mixer(x).shape)}")
    if case.has("padded"):
        y = mixer(x, Segments(torch.ones(shape, dtype=torch.long)))
        hold(y.shape == x.shape, f"a batch of shape {list(x.shape)} with segments comes out as {list(y.shape)}")
    if case.steps:
        y = mixer.step(x, mixer.init_state(shape[0], x))[0]
        hold(y.shape == x.shape, f"a step of shape {list(x.shape)} comes out as {list(y.shape)}")


@rule("a batch of padding alone is zero", padded)
def padding_alone_is_zero(case: Case) -> None:
    mixer, x = case.make(), torch.full((2, 5, DIM), torch.nan, dtype=torch.float64, requires_grad=True)
    nowhere = torch.ones(2, 5, dtype=torch.bool)
    y = mixer(x, Segments(torch.zeros(2, 5, dtype=torch.long)))
    zero(y, nowhere, "the output of padding alone")
    y.sum().backward()
    if x.grad is None:
        raise Broken("no gradient flows back to padding: it should be 0")
    zero(x.grad, nowhere, "the gradient of padding alone")


@rule("cross mixing pads and packs", crosses)
def cross_pads_and_packs(case: Case) -> None:
    mixer = case.make()
    queries, keys = [3, 1, 5], [4, 6, 2]
    xs, ks, vs = ([tokens(1, n, DIM, seed=s * 10 + n) for n in lengths] for s, lengths in ((1, queries), (2, keys), (3, keys)))
    each = torch.cat([mixer(x, keys=k, values=v) for x, k, v in zip(xs, ks, vs, strict=True)], dim=1)[0]
    for rows in ([[0], [1], [2]], [[0, 1], [2]], [[0, 1, 2]]):
        ids, key_ids = (Segments.from_lengths([[lengths[i] for i in row] for row in rows], 13).ids for lengths in (queries, keys))
        y = mixer(lay_out(xs, ids), Segments(ids), keys=lay_out(ks, key_ids), values=lay_out(vs, key_ids), key_segments=Segments(key_ids))
        close(y[ids != 0], each, f"queries in rows {rows}, against each alone", "token channel")
        zero(y, ids == 0, "the output at padding")


@rule("what is not offered is refused by name", is_default)
def refuses_other_modes(case: Case) -> None:
    mixer, x = case.make(), tokens(2, 5, DIM)
    if not (case.has("cross") and not case.causal):
        refuses(lambda: mixer(x, keys=x), f"{case.name}.*cross.*modes", "keys without the mode 'cross'")
    if not case.steps:
        refuses(lambda: mixer.init_state(2, x), f"{case.name}.*step.*modes", "init_state without the mode 'step'")
        refuses(lambda: mixer.step(x, {}), f"{case.name}.*step.*modes", "step without the mode 'step'")


@rule("a sequence beyond the limit is refused")
def refuses_long_sequences(case: Case) -> None:
    mixer = case.make(max_len=8)
    x = tokens(1, 12, DIM)
    if case.has("packed"):
        y = mixer(x, Segments.from_lengths([[8, 4]]))
        hold(y.shape == x.shape, "max_len bounds a sequence, not a packed row")
    if mixer.limit is None:
        hold(mixer(x).shape == x.shape, f"limit is None, but 12 tokens with max_len=8 come out as {list(mixer(x).shape)}")
        return
    refuses(lambda: mixer(x), "12 tokens.*max_len=8", "12 tokens with max_len=8")
    if case.steps:
        _, state = mixer.step(x[:, :8], mixer.init_state(1, x))
        refuses(lambda: mixer.step(x[:, 8:9], state), "9 tokens.*max_len=8", "a ninth token by step with max_len=8")
