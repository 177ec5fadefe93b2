"""Rules about gradients, cost, precision, compilation and weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError
from torch.utils.flop_counter import FlopCounterMode

from tokmix.contract.cases import DIM, MAX_LEN, Case, tokens
from tokmix.contract.rules import Broken, close, finite, hold, is_default, rule
from tokmix.core.mixer import Cost
from tokmix.core.segments import Segments


@rule("the future has exactly zero gradient", lambda case: case.causal and case.has("packed"))
def future_has_no_gradient(case: Case) -> None:
    mixer = case.make()
    ids = torch.tensor([[1] * 9 + [2] * 6])
    for t in range(15):
        x = tokens(1, 15, DIM).requires_grad_()
        (gradient,) = torch.autograd.grad(mixer(x, Segments(ids))[0, t].sum(), x)
        start = 0 if t < 9 else 9
        for read in [*range(start), *range(t + 1, 15)]:
            size = float(gradient[0, read].abs().max())
            other = "the future" if read > t else "another sequence"
            hold(size == 0, f"token {t} reads token {read}, which is {other}: gradient {size:.3g} instead of 0")


@rule("reach is how far a layer sees")
def reach_is_right(case: Case) -> None:
    mixer, T = case.make(), 24
    reach = mixer.reach()
    if reach is None:
        return
    x = tokens(1, T, DIM).requires_grad_()
    (gradient,) = torch.autograd.grad((mixer(x)[0, -1] * tokens(DIM, seed=9)).sum(), x)
    seen = (gradient[0].abs().sum(-1) > 0).nonzero().flatten().tolist()
    hold(bool(seen), "the last token reads nothing, not even itself")
    far = T - 1 - min(seen)
    hold(far == min(reach, T - 1), f"of {T} tokens the last one reads {far} back, and reach() says {reach}")


@rule("cost equals torch's operation counter")
def cost_is_right(case: Case) -> None:
    for length in (1, 2, 17, 32, 39):
        cost_at(case, length)


def cost_at(case: Case, length: int) -> None:
    mixer = case.make().to("meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        mixer(torch.empty(1, length, DIM, device="meta", dtype=torch.float64))
    cost = mixer.cost(length)
    hold(isinstance(cost, Cost), f"cost({length}) returns {cost!r} instead of a tokmix.Cost")
    counted = counter.get_total_flops()
    hold(cost.matmul == counted, f"cost({length}).matmul is {cost.matmul:,}, and torch counts {counted:,}")
    hold(cost.pointwise >= 0, f"cost({length}).pointwise is {cost.pointwise}")
    assert cost.causal is not None
    hold(0 <= cost.causal <= cost.matmul, f"cost({length}).causal is {cost.causal:,}, outside 0 to matmul, {cost.matmul:,}")


@rule("half precision is near float64")
def half_is_near(case: Case) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        near_in(case, dtype)


def near_in(case: Case, dtype: torch.dtype) -> None:
    exact = case.make()
    half = case.make(dtype=dtype)
    half.load_state_dict(exact.state_dict())
    exact.load_state_dict(half.state_dict())  # the same rounded weights in both
    bar = 10 * torch.finfo(dtype).eps * DIM**0.5
    # If rounding changes the sign of a score near zero, a ReLU jumps by more than any eps; this seed has no such score.
    x = tokens(2, 15, DIM, seed=5).to(dtype)
    weight = tokens(2, 15, DIM, seed=4).to(dtype)
    results: list[list[tuple[str, Tensor]]] = []
    for mixer, given in ((half, x.clone()), (exact, x.double())):
        given.requires_grad_()
        y = mixer(given)
        hold(y.dtype == given.dtype, f"tokens of {given.dtype} come out as {y.dtype}")
        (y * weight.to(y.dtype)).sum().backward()
        if given.grad is None:
            raise Broken("no gradient flows back to the tokens")
        grads = [(f"the gradient of {name}", p.grad) for name, p in mixer.named_parameters() if p.grad is not None]
        results.append([("the output", y), ("the gradient of x", given.grad), *grads])
    # Some gradients are zero in theory (the bias of attention's keys): errors are relative to the size of all gradients.
    scale = torch.cat([b.flatten() for _, b in results[1][2:]]).norm() if len(results[1]) > 2 else torch.tensor(0.0)
    for place, ((what, a), (_, b)) in enumerate(zip(*results, strict=True)):
        finite(a, f"{what} in {dtype}")
        allowed = bar * torch.maximum(b.detach().norm(), (0.1 * scale if place > 1 else 0) * torch.ones(()))
        error = (a.detach().double() - b.detach()).norm()
        hold(bool(error <= allowed), f"{what} in {dtype} is off by {float(error):.3g} from float64, more than {float(allowed):.3g}")


@rule("autocast stays near float32", lambda case: case.has("padded"))
def autocast_is_near(case: Case) -> None:
    mixer, x = case.make(dtype=torch.float32), tokens(2, 20, DIM, dtype=torch.float32).requires_grad_()
    segments = Segments.from_lengths([20, 13])
    plain = mixer(x, segments)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x, segments)
    allowed, error = 10 * torch.finfo(torch.bfloat16).eps * DIM**0.5 * plain.detach().norm(), (y.detach().float() - plain.detach()).norm()
    hold(bool(error <= allowed), f"under autocast the output is off by {float(error):.3g} from float32, more than {float(allowed):.3g}")
    y.float().sum().backward()
    if x.grad is None:
        raise Broken("no gradient flows back under autocast")
    finite(x.grad, "the gradient under autocast")


@rule("forward-mode and batched gradients agree with plain ones", is_default)
def gradients_agree(case: Case) -> None:
    mixer, x = case.make(), tokens(1, 5, DIM)

    def whole(given: Tensor) -> Tensor:
        return mixer(given[None])[0]

    plain = torch.autograd.functional.jacobian(whole, x[0])
    close(torch.autograd.functional.jacobian(whole, x[0], vectorize=True), plain, "the batched Jacobian")
    along = tokens(5, DIM, seed=3)
    close(torch.func.jvp(whole, (x[0],), (along,))[1], torch.einsum("tdsc,sc->td", plain, along), "the forward-mode gradient")


@rule("gradients agree with finite differences", lambda case: case.has("packed"))
def gradcheck(case: Case) -> None:
    mixer = case.make()
    ids = torch.tensor([[1, 1, 1, 0], [1, 2, 2, 2]])
    x = tokens(2, 4, DIM)[:, :, :].requires_grad_()
    _gradcheck(lambda given: mixer(given, Segments(ids))[:, :, :3], x, "x")
    first = next(iter(mixer.parameters()), None)
    if first is not None:
        name = next(name for name, _ in mixer.named_parameters())
        _gradcheck(
            lambda value: torch.func.functional_call(mixer, {name: value}, (x.detach(),)), first.detach().clone().requires_grad_(), name
        )


def _gradcheck(function: object, given: Tensor, what: str) -> None:
    try:
        passed = torch.autograd.gradcheck(function, (given,), fast_mode=True, atol=1e-6)  # type: ignore[arg-type]
    except GradcheckError as error:
        raise Broken(f"the gradient of {what} is not the slope: {' '.join(str(error).split())[:200]}") from None
    hold(passed, f"the gradient of {what} is not the slope")


@rule("compiles as one graph", lambda case: case.has("packed") and case.has("padded"))
def compiles(case: Case) -> None:
    mixer = case.make()
    torch._dynamo.reset()
    x = tokens(2, 9, DIM).requires_grad_()
    segments = Segments.from_lengths([9, 4])
    packed = Segments.from_lengths([[2, 7], [4, 3]], 9)
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager" if not case.options else "eager")
    close(compiled(x, segments), mixer(x, segments), "compiled, padded", "row token channel")
    close(compiled(x, packed), mixer(x, packed), "compiled, packed", "row token channel")
    compiled(x, segments).sum().backward()
    if not case.options:  # one graph for any length, from the second one on
        for length in (9, 11, 7):
            other = tokens(2, length, DIM).requires_grad_()
            y = compiled(other)
            close(y, mixer(other), f"compiled, {length} tokens", "row token channel")
            y.sum().backward()
    if case.steps:
        step = torch.compile(mixer.step, fullgraph=True, backend="eager")
        y, _ = step(x.detach(), mixer.init_state(2, x), segments)
        close(y, mixer(x.detach(), segments), "a compiled step", "row token channel")


@rule("exports with any length", is_default, advice=True)
def exports(case: Case) -> None:
    """One graph from torch.export for all lengths. A loop over tokens gives one for its own length only."""
    mixer = case.make().eval()
    lengths = {1: torch.export.Dim("T", min=2, max=MAX_LEN - 1)}
    exported = torch.export.export(mixer, (tokens(2, 9, DIM),), dynamic_shapes={"x": lengths}).module()
    for length in (2, 3, 17, MAX_LEN - 1):
        x = tokens(2, length, DIM)
        close(exported(x), mixer(x), f"exported, {length} tokens", "row token channel")


@rule("weights can be saved and loaded")
def state_dict_round_trip(case: Case) -> None:
    one, two, x = case.make(), case.make(layer=1), tokens(2, 8, DIM)
    with torch.no_grad():
        for parameter in two.parameters():
            parameter.zero_()
    two.load_state_dict(one.state_dict())
    hold(torch.equal(one(x), two(x)), "the same weights, loaded into another mixer, give another output")
