"""What every registered mixer must hold, in every mode it offers and with every option it declares."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tokmix
from tests.cases import ALL, CAUSAL, DEFAULTS, DIM, MAX_LEN, Case, leaves, spread, tokens
from tokmix import Segments

LENGTHS = [7, 12, 3, 1, 20]


def by_name(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def alone(mixer: tokmix.Mixer) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    sequences = [tokens(1, n, DIM, seed=n) for n in LENGTHS]
    return sequences, [mixer(sequence) for sequence in sequences]


LAYOUTS = {
    "padded": Segments.from_lengths(LENGTHS).ids,
    "padded wider": Segments.from_lengths(LENGTHS, 23).ids,
    "left padded": Segments.from_lengths(LENGTHS).ids.flip(1),
    "an empty row": Segments.from_lengths([7, 12, 0, 3, 1, 0, 20]).ids,
    "packed": Segments.from_lengths([LENGTHS]).ids,
    "packed rows": Segments.from_lengths([[7, 12], [3, 1], [], [20]], 22).ids,
    "packed with gaps": torch.tensor([[0] * 2 + [5] * 7 + [0] + [5] * 12 + [9] * 3 + [2] + [0] * 3 + [1] * 20]),
}


@by_name(ALL)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_padded_packed_and_alone_agree(case: Case, layout: str) -> None:
    mixer, ids = case.make(), LAYOUTS[layout]
    sequences, outputs = alone(mixer)
    y = mixer(spread(sequences, ids), Segments(ids))
    assert y.shape == (*ids.shape, DIM)
    close(y[ids != 0], torch.cat(outputs, dim=1)[0])
    assert (y[ids == 0] == 0).all()


@by_name(ALL)
def test_holes_in_a_mask_are_skipped(case: Case) -> None:
    mixer = case.make()
    mask = torch.tensor([[True, False, True, True, False, False, True], [False, True, True, True, True, True, False]])
    sequences = [tokens(1, int(row.sum()), DIM, seed=i) for i, row in enumerate(mask)]
    y = mixer(spread(sequences, mask), Segments.from_mask(mask))
    close(y[mask], torch.cat([mixer(sequence) for sequence in sequences], dim=1)[0])


@by_name(ALL)
def test_padding_gets_no_gradient_and_gives_none(case: Case) -> None:
    mixer, ids = case.make(), LAYOUTS["packed rows"]
    x = spread(alone(mixer)[0], ids).requires_grad_()
    flows_back = tokens(*ids.shape, DIM, seed=5).masked_fill((ids == 0)[..., None], torch.nan)  # into padding: must not matter
    mixer(x, Segments(ids)).backward(flows_back)
    assert x.grad is not None and (x.grad[ids == 0] == 0).all() and x.grad[ids != 0].isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in mixer.parameters())


@by_name(CAUSAL)
def test_ragged_chunks_by_step_agree_with_the_whole(case: Case) -> None:
    mixer = case.make()
    sequences, outputs = alone(mixer)
    done, state = [0] * len(LENGTHS), mixer.init_state(len(LENGTHS), sequences[0])
    for chunk, flip in enumerate([False, True, False, True, False, False, True]):
        counts = [min(n - d, (row * 2 + chunk * 3) % 6) for row, (n, d) in enumerate(zip(LENGTHS, done, strict=True))]
        ids = Segments.from_lengths(counts, 6).ids
        ids = ids.flip(1) if flip else ids  # new tokens stand left in some chunks, right in others
        given = [s[:, d : d + c] for s, d, c in zip(sequences, done, counts, strict=True)]
        y, state = mixer.step(spread(given, ids), state, Segments(ids))
        expected = [o[:, d : d + c] for o, d, c in zip(outputs, done, counts, strict=True)]
        close(y[ids != 0], torch.cat(expected, dim=1)[0])
        assert (y[ids == 0] == 0).all()
        done = [d + c for d, c in zip(done, counts, strict=True)]
    assert done[:2] == [7, 12] and sum(done) > 35, "the chunks should have covered most tokens"


@by_name(CAUSAL)
def test_token_by_token_agrees_and_states_can_be_reordered(case: Case) -> None:
    mixer, x = case.make(), tokens(3, 11, DIM)
    whole = mixer(x)
    first, state = mixer.step(x[:, :4], mixer.init_state(3, x))
    close(first, whole[:, :4])
    order = torch.tensor([2, 0, 0])  # as beam search does
    state = torch.utils._pytree.tree_map(lambda leaf: leaf[order], state)
    for t in range(4, 11):
        y, state = mixer.step(x[order, t : t + 1], state)
        close(y, whole[order, t : t + 1])


@by_name(CAUSAL)
def test_padding_leaves_a_state_as_it_was(case: Case) -> None:
    mixer, x = case.make(), tokens(2, 9, DIM)
    _, before = mixer.step(x[:, :5], mixer.init_state(2, x))
    kept = [leaf.clone() for leaf in leaves(before)]
    _, after = mixer.step(torch.full_like(x, torch.nan), before, Segments(torch.zeros(2, 9, dtype=torch.long)))
    assert all(torch.equal(a, b) for a, b in zip(leaves(after), kept, strict=True))
    _, one = mixer.step(x[:, 5:8], before, Segments.from_lengths([3, 0]))
    again, _ = mixer.step(x[:, 5:9], one, Segments.from_lengths([0, 4]))
    close(again[1], mixer(x)[1, 5:9])
    assert all(torch.equal(a, b) for a, b in zip(leaves(before), kept, strict=True)), "step changed the state it was given"


@by_name(CAUSAL)
def test_a_row_may_end_at_max_len_while_others_go_on(case: Case) -> None:
    """Padding then stands behind the last position that anything of that size knows."""
    mixer, lengths = case.make(), [MAX_LEN, MAX_LEN - 9]
    sequences = [tokens(1, n, DIM, seed=n) for n in lengths]
    first, rest = ([s[:, :-2] for s in sequences], [sequences[0][:, -2:], sequences[1][:, -2:]])
    ids = Segments.from_lengths([s.shape[1] for s in first]).ids
    _, state = mixer.step(spread(first, ids), mixer.init_state(2, first[0]), Segments(ids))
    ids = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 1, 1]])
    y, _ = mixer.step(spread(rest, ids), state, Segments(ids))
    close(y[ids != 0], torch.cat([mixer(s)[0, -2:] for s in sequences]))


@by_name([case for case in DEFAULTS if case in CAUSAL])
def test_a_state_of_other_rows_is_refused(case: Case) -> None:
    mixer, x = case.make(), tokens(3, 2, DIM)
    for rows in (1, 2):
        state = mixer.init_state(rows, x)
        if leaves(state):
            with pytest.raises(ValueError, match=f"a state of {rows} rows does not fit"):
                mixer.step(x, state)


@by_name(DEFAULTS)
def test_forward_mode_and_batched_gradients_agree_with_plain_ones(case: Case) -> None:
    mixer, x = case.make(), tokens(1, 5, DIM)
    whole = lambda given: mixer(given[None])[0]
    plain = torch.autograd.functional.jacobian(whole, x[0])
    close(torch.autograd.functional.jacobian(whole, x[0], vectorize=True), plain)
    along = tokens(5, DIM, seed=3)
    close(torch.func.jvp(whole, (x[0],), (along,))[1], torch.einsum("tdsc,sc->td", plain, along))


@by_name([case for case in ALL if case.causal])
def test_the_future_has_exactly_zero_gradient(case: Case) -> None:
    mixer = case.make()
    ids = torch.tensor([[1] * 9 + [2] * 6])
    for t in range(15):
        x = tokens(1, 15, DIM).requires_grad_()
        (gradient,) = torch.autograd.grad(mixer(x, Segments(ids))[0, t].sum(), x)
        start = 0 if t < 9 else 9
        assert (gradient[0, t + 1 :] == 0).all() and (gradient[0, :start] == 0).all()


@by_name(ALL)
def test_reach_is_how_far_a_layer_sees(case: Case) -> None:
    mixer, T = case.make(), 24
    if mixer.reach() is None:
        return
    x = tokens(1, T, DIM).requires_grad_()
    (gradient,) = torch.autograd.grad((mixer(x)[0, -1] * tokens(DIM, seed=9)).sum(), x)
    seen = (gradient[0].abs().sum(-1) > 0).nonzero().flatten().tolist()
    assert T - 1 - min(seen) == min(mixer.reach(), T - 1)


@by_name(ALL)
@pytest.mark.parametrize("length", [1, 2, 17, 32, 39])
def test_cost_equals_the_operation_counter(case: Case, length: int) -> None:
    mixer = case.make().to("meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        mixer(torch.empty(1, length, DIM, device="meta", dtype=torch.float64))
    cost = mixer.cost(length)
    assert cost.matmul == counter.get_total_flops()
    assert cost.pointwise >= 0 and 0 <= cost.causal <= cost.matmul


@by_name(ALL)
def test_cost_states_the_size_of_the_state(case: Case) -> None:
    mixer = case.make()
    if not case.causal:
        assert mixer.cost(9).state == 0
        return
    x = tokens(3, 9, DIM)
    _, state = mixer.step(x, mixer.init_state(3, x))
    assert sum(leaf.numel() for leaf in leaves(state)) == 3 * mixer.cost(9).state
    assert all(leaf.shape[0] == 3 for leaf in leaves(state))


@by_name(ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_near_float64(case: Case, dtype: torch.dtype) -> None:
    exact = case.make()
    half = case.make(dtype=dtype)
    half.load_state_dict(exact.state_dict())
    exact.load_state_dict(half.state_dict())  # the same rounded weights in both
    bar = 10 * torch.finfo(dtype).eps * DIM**0.5
    # Where a score is so near zero that rounding turns its sign, a ReLU jumps by more than any eps; this seed has none.
    x = tokens(2, 15, DIM, seed=1).to(dtype)
    weight = tokens(2, 15, DIM, seed=4).to(dtype)
    results = []
    for mixer, given in ((half, x.clone()), (exact, x.double())):
        given.requires_grad_()
        y = mixer(given)
        assert y.dtype == given.dtype
        (y * weight.to(y.dtype)).sum().backward()
        results.append([y, given.grad, *(p.grad for p in mixer.parameters() if p.grad is not None)])
    # Some gradients are zero in theory (the bias of attention's keys): they are judged by the size of all of them.
    scale = torch.cat([b.flatten() for b in results[1][2:]]).norm() if len(results[1]) > 2 else torch.tensor(0.0)
    for place, (a, b) in enumerate(zip(*results, strict=True)):
        assert a.isfinite().all()
        assert (a.double() - b).norm() <= bar * torch.maximum(b.norm(), (0.1 * scale if place > 1 else 0) * torch.ones(()))


@by_name(ALL)
def test_compiles_as_one_graph(case: Case) -> None:
    mixer = case.make()
    torch._dynamo.reset()
    x = tokens(2, 9, DIM).requires_grad_()
    segments = Segments.from_lengths([9, 4])
    packed = Segments.from_lengths([[2, 7], [4, 3]], 9)
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager" if not case.options else "eager")
    close(compiled(x, segments), mixer(x, segments))
    close(compiled(x, packed), mixer(x, packed))
    compiled(x, segments).sum().backward()
    if not case.options:  # one graph for any length, from the second one on
        for length in (9, 11, 7):
            other = tokens(2, length, DIM).requires_grad_()
            y = compiled(other)
            close(y, mixer(other))
            y.sum().backward()
    if case.causal and case.has("step"):
        step = torch.compile(mixer.step, fullgraph=True, backend="eager")
        y, _ = step(x.detach(), mixer.init_state(2, x), segments)
        close(y, mixer(x.detach(), segments))


@by_name([case for case in ALL if not case.options])
def test_exports_with_any_length(case: Case) -> None:
    """One graph from torch.export for all lengths. The causal scan of HyperMixing is a loop over its tokens, and has one."""
    mixer = case.make().eval()
    lengths = {1: torch.export.Dim("T", min=2, max=MAX_LEN - 1)}
    if case.name == "hypermixing" and case.causal:
        with pytest.raises(torch._dynamo.exc.UserError, match="specialized it to be a constant"):
            torch.export.export(mixer, (tokens(2, 9, DIM),), dynamic_shapes={"x": lengths})
        return
    exported = torch.export.export(mixer, (tokens(2, 9, DIM),), dynamic_shapes={"x": lengths}).module()
    for length in (2, 3, 17, MAX_LEN - 1):
        x = tokens(2, length, DIM)
        close(exported(x), mixer(x))


@by_name(ALL)
def test_state_dict_round_trip(case: Case) -> None:
    one, two, x = case.make(), case.make(layer=1), tokens(2, 8, DIM)
    with torch.no_grad():
        for parameter in two.parameters():
            parameter.zero_()
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(x), two(x))


@by_name(ALL)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (2, 1)], ids=str)
def test_small_shapes(case: Case, shape: tuple[int, int]) -> None:
    mixer, x = case.make(), tokens(*shape, DIM)
    assert mixer(x).shape == x.shape
    assert mixer(x, Segments(torch.ones(shape, dtype=torch.long))).shape == x.shape
    if case.causal and case.has("step"):
        assert mixer.step(x, mixer.init_state(shape[0], x))[0].shape == x.shape


@by_name(ALL)
def test_a_batch_of_padding_alone_is_zero(case: Case) -> None:
    mixer, x = case.make(), torch.full((2, 5, DIM), torch.nan, dtype=torch.float64, requires_grad=True)
    y = mixer(x, Segments(torch.zeros(2, 5, dtype=torch.long)))
    assert (y == 0).all()
    y.sum().backward()
    assert x.grad is not None and (x.grad == 0).all()


@by_name(ALL)
def test_gradcheck(case: Case) -> None:
    mixer = case.make()
    ids = torch.tensor([[1, 1, 1, 0], [1, 2, 2, 2]])
    x = tokens(2, 4, DIM)[:, :, :].requires_grad_()
    assert torch.autograd.gradcheck(lambda given: mixer(given, Segments(ids))[:, :, :3], (x,), fast_mode=True, atol=1e-6)
    first = next(iter(mixer.parameters()), None)
    if first is not None:
        name = next(name for name, _ in mixer.named_parameters())

        def of_parameter(value: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(mixer, {name: value}, (x.detach(),))

        assert torch.autograd.gradcheck(of_parameter, (first.detach().clone().requires_grad_(),), fast_mode=True, atol=1e-6)


@by_name([case for case in DEFAULTS if case.has("cross") and not case.causal])
def test_cross_mixing_pads_and_packs(case: Case) -> None:
    mixer = case.make()
    queries, keys = [3, 1, 5], [4, 6, 2]
    xs, ks, vs = ([tokens(1, n, DIM, seed=s * 10 + n) for n in lengths] for s, lengths in ((1, queries), (2, keys), (3, keys)))
    each = torch.cat([mixer(x, keys=k, values=v) for x, k, v in zip(xs, ks, vs, strict=True)], dim=1)[0]
    for rows in ([[0], [1], [2]], [[0, 1], [2]], [[0, 1, 2]]):
        ids, key_ids = (Segments.from_lengths([[lengths[i] for i in row] for row in rows], 13).ids for lengths in (queries, keys))
        y = mixer(spread(xs, ids), Segments(ids), keys=spread(ks, key_ids), values=spread(vs, key_ids), key_segments=Segments(key_ids))
        close(y[ids != 0], each)
        assert (y[ids == 0] == 0).all()


@by_name(DEFAULTS)
def test_what_is_not_offered_is_refused_by_name(case: Case) -> None:
    mixer, x = case.make(), tokens(2, 5, DIM)
    if not (case.has("cross") and not case.causal):
        with pytest.raises(ValueError, match=f"{case.name}.*cross.*modes"):
            mixer(x, keys=x)
    if not (case.has("step") and case.causal):
        with pytest.raises(ValueError, match=f"{case.name}.*step.*modes"):
            mixer.init_state(2, x)
        with pytest.raises(ValueError, match=f"{case.name}.*step.*modes"):
            mixer.step(x, {})


@by_name(ALL)
def test_a_sequence_beyond_the_limit_is_refused(case: Case) -> None:
    mixer = case.make(max_len=8)
    x = tokens(1, 12, DIM)
    packed = Segments.from_lengths([[8, 4]])
    assert mixer(x, packed).shape == x.shape  # max_len bounds a sequence, not a packed row
    if mixer.limit is None:
        assert mixer(x).shape == x.shape
        return
    with pytest.raises(ValueError, match="12 tokens.*max_len=8"):
        mixer(x)
    if case.causal and case.has("step"):
        _, state = mixer.step(x[:, :8], mixer.init_state(1, x))
        with pytest.raises(ValueError, match="9 tokens.*max_len=8"):
            mixer.step(x[:, 8:9], state)


@by_name(ALL)
def test_autocast_stays_near_float32(case: Case) -> None:
    mixer, x = case.make(dtype=torch.float32), tokens(2, 20, DIM, dtype=torch.float32).requires_grad_()
    segments = Segments.from_lengths([20, 13])
    plain = mixer(x, segments)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x, segments)
    assert (y.float() - plain).norm() <= 10 * torch.finfo(torch.bfloat16).eps * DIM**0.5 * plain.norm()
    y.float().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
