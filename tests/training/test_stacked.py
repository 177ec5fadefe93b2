"""A stack of models is each of them: outputs and gradients, in double precision."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tokmix.core.block import Layer
from tokmix.core.mixer import mixer_class, mixers
from tokmix.core.model import Model, ModelConfig
from tokmix.core.segments import Segments
from tokmix.training import stacked, stacked_mixers, stacked_parts
from tokmix.training.stacked import Each, Stack

K, B, T, VOCAB = 3, 4, 12, 40
BOTH_WAYS = [name for name in mixers() if {"bidirectional", "padded"} <= mixer_class(name).modes]
CAUSAL = [name for name in mixers() if "causal" in mixer_class(name).modes]
HYPER = [
    "hypermixing(hidden=16, tied=False, position='sinusoidal')",
    "hypermixing(hidden=16, heads=2, norm='none')",
    "hypermixing(hidden=16, norm='length')",
    "hypermixing(hidden=16, norm='length', power=1.0, heads=4, tied=False)",
    "hypermixing(hidden=16, bias=False, position='learned')",
]
STATIC = ["mlp_mixer", "mlp_mixer(hidden=5)", "gmlp", "gmlp(hidden=6)", "shared_vector", "shared_vector(norm='length')"]


def models(stack: str, **others: object) -> list[Model]:
    fields = {"head": "classify", "causal": False, "layout": "serialized", "feed_forward": 24} | others
    config = ModelConfig(stack=stack, dim=16, vocab=VOCAB, max_len=T, **fields)  # type: ignore[arg-type]
    return [Model(config).double() for _ in range(K)]


def ids(width: int = T) -> tuple[Tensor, Tensor]:
    """Each member has a row of one token and a full one."""
    lengths = torch.randint(1, width + 1, (K, B))
    lengths[:, 0], lengths[:, 1] = 1, width
    return torch.randint(0, VOCAB, (K * B, width)), lengths.flatten()


def moved(members: list[Model]) -> list[Model]:
    """So that no weight is where all begin."""
    for member in members:
        for parameter in member.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return members


def check(members: list[Model], padded: bool = True) -> Stack:
    moved(members)
    stack, (rows, lengths) = Stack(members), ids()
    segments = Segments.padded(lengths, T) if padded else None
    ours = stack(rows, segments)
    theirs = [
        member(part, Segments.from_lengths(own, T) if padded else None)
        for member, part, own in zip(members, rows.chunk(K), lengths.chunk(K), strict=True)
    ]
    torch.testing.assert_close(ours, torch.cat(theirs), rtol=1e-10, atol=1e-12)
    weights = torch.randn_like(ours)
    (ours * weights).sum().backward()
    (torch.cat(theirs) * weights).sum().backward()
    for member, places in zip(members, stack.places, strict=True):
        for (name, parameter), (whole, place) in zip(member.named_parameters(), places, strict=True):
            assert (parameter.grad is None) == (whole.grad is None), name
            if parameter.grad is not None and whole.grad is not None:
                grad = whole.grad if place is None else whole.grad[place]
                torch.testing.assert_close(grad, parameter.grad, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")
    return stack


@pytest.mark.parametrize("stack", [*BOTH_WAYS, *HYPER, *STATIC])
def test_classifiers(stack: str) -> None:
    check(models(f"{stack}, {stack}"))


@pytest.mark.parametrize("stack", [*STATIC, HYPER[0]])
def test_classifiers_of_full_rows(stack: str) -> None:
    check(models(stack), padded=False)


@pytest.mark.parametrize("width", [T, T // 2, 1])
@pytest.mark.parametrize("stack", [*STATIC, "shared_vector(norm='none')", HYPER[0], HYPER[1]])
def test_mixers_ignore_what_stands_at_padding(stack: str, width: int) -> None:
    """Also at widths that leave some of the weights along the sequence unused. What has no token gets no gradient."""
    members, (_, lengths) = moved(models(stack)), ids(width)
    whole, segments = Stack(members), Segments.padded(lengths, width)
    mixer = whole.model.layers[0].mixer
    assert isinstance(mixer, stacked_mixers.Mixers)
    x = torch.randn(K * B, width, 16, dtype=torch.double)
    x = torch.where(segments.mask[:, :, None], x, torch.nan).requires_grad_()
    y, weights = mixer(x, segments), torch.randn_like(x)
    dx, *grads = torch.autograd.grad((y * weights).sum(), [x, *mixer.parameters()])
    found = dict(zip(mixer.parameters(), grads, strict=True))
    for k, member in enumerate(members):
        mine, one = slice(k * B, k * B + B), member.layers[0].mixer
        part = x[mine].detach().requires_grad_()
        wanted = one(part, Segments.from_lengths(lengths[mine], width))
        torch.testing.assert_close(y[mine], wanted, rtol=1e-10, atol=1e-12)
        d_part, *theirs = torch.autograd.grad((wanted * weights[mine]).sum(), [part, *one.parameters()])
        torch.testing.assert_close(dx[mine], d_part, rtol=1e-9, atol=1e-12)
        places = dict(zip(member.parameters(), whole.places[k], strict=True))
        for parameter, grad in zip(one.parameters(), theirs, strict=True):
            stacked_parameter, place = places[parameter]
            torch.testing.assert_close(found[stacked_parameter][place], grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("stack", STATIC)
def test_gradients_have_the_layout_of_the_weights(stack: str) -> None:
    """Or they would be copied on their way to the optimizer."""
    mixer = Stack(models(stack)).model.layers[0].mixer
    grads = torch.autograd.grad(mixer(torch.randn(K * B, T, 16, dtype=torch.double)).square().sum(), list(mixer.parameters()))
    assert all(grad.stride() == weight.stride() for grad, weight in zip(grads, mixer.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at what it traces,
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning")  # and makes one
@pytest.mark.parametrize("stack", ["mlp_mixer", "gmlp", "shared_vector"])
def test_compiled_in_half_precision_a_stack_errs_no_more_than_its_members(stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a backend that needs no compiler."""
    torch.manual_seed(0)
    members, (rows, lengths) = moved(models(stack)), ids()
    segments, weights = Segments.padded(lengths, T), torch.randn(K * B, 2)
    half = Stack(members).to(torch.bfloat16)
    for part in half.modules():
        if isinstance(part, Layer):
            part.compile(backend="aot_eager", dynamic=False)
    monkeypatch.setattr(stacked, "MIXERS", {})
    wide, apart = Stack(members), Stack(members).to(torch.bfloat16)
    assert apart.split and not half.split
    right, ours, theirs = (results(model, model(rows, segments), weights) for model in (wide, half, apart))
    for exact, found, usual in zip(right, ours, theirs, strict=True):
        error, allowed = ((part.double() - exact).norm() / exact.norm() for part in (found, usual))
        assert error <= 2 * allowed + torch.finfo(torch.bfloat16).eps


def results(stack: Stack, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs, and gradients of one member after the other."""
    parameters = list(stack.parameters())
    grads = dict(zip(parameters, torch.autograd.grad((y * weights).sum(), parameters), strict=True))
    parts = [grads[whole] if place is None else grads[whole][place] for places in stack.places for whole, place in places]
    return y.detach(), torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("stack", CAUSAL)
def test_language_models(stack: str) -> None:
    check(models(f"{stack}, attention", head="lm", causal=True, norm="rms", feed_forward_kind="swiglu"), padded=False)


@pytest.mark.parametrize("layout", ["pre", "post", "rezero", "parallel"])
def test_layouts(layout: str) -> None:
    check(models("hypermixing(hidden=16), attention", layout=layout))


def test_learned_positions_go_member_by_member() -> None:
    assert isinstance(check(models("attention", positions="learned")).model, Each)


def test_most_is_done_for_all_at_once() -> None:
    """Of what the papers' classifiers are made of."""
    apart = lambda stack: any(isinstance(part, Each) for part in Stack(models(stack)).modules())
    assert not any(map(apart, ["attention", "fnet", "linear_attention", "identity", *STATIC, *HYPER[:4]]))
    assert apart(HYPER[4])


@pytest.mark.parametrize("name", ["mlp_mixer", "gmlp"])
def test_causal_forms_go_member_by_member(name: str) -> None:
    assert any(isinstance(part, Each) for part in Stack(models(name, head="lm", causal=True)).modules())


def test_a_kernel_gets_the_matrices_that_all_members_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel for short sequences would run: the op itself on a CPU is the reference, put in its place."""
    from tokmix.ops.hyper_mix import reference

    calls = []

    def run(x, w_in, w_out, scale, readout, gain, bias, eps, table, longest, full):  # type: ignore[no-untyped-def]
        calls.append((table.shape, longest, full))
        rows = lambda w: w.view(w.shape[0], *x.shape[:2], -1).transpose(0, 1)
        heads = reference.split_heads(torch.where(here[:, :, None], x, 0), w_in.shape[0])
        return (reference.merge_heads(reference.mix(rows(w_in), rows(w_in if w_out is None else w_out), heads, None)),)

    members, (rows, lengths) = models("hypermixing(hidden=16, heads=2, norm='none', position='sinusoidal')"), ids()
    stack, segments = Stack(members), Segments.padded(lengths, T)
    here, wanted = segments.mask, stack(rows, segments)
    monkeypatch.setattr(stacked_mixers.select, "is_short", lambda *_: True)
    monkeypatch.setattr(stacked_mixers.short_op, "forward", SimpleNamespace(entry=lambda *given: run))
    torch.testing.assert_close(stack(rows, segments), wanted)
    assert calls == [((K * B, 3), T, False)] and any(isinstance(part, stacked_mixers.HyperMixings) for part in stack.modules())


def test_members_may_drop_different_shares() -> None:
    members = models("identity")
    for rate, member in zip((0.0, 0.25, 0.75), members, strict=True):
        member.layers[0].dropout.p = rate
    dropouts = next(part for part in Stack(members).modules() if isinstance(part, stacked_parts.Dropouts))
    torch.manual_seed(0)
    kept = dropouts.train()(torch.ones(K * 100, 50)).chunk(K)
    for rate, part in zip((0.0, 0.25, 0.75), kept, strict=True):
        assert float((part == 0).float().mean()) == pytest.approx(rate, abs=0.02)
        assert float(part.mean()) == pytest.approx(1.0, abs=0.05)
    assert torch.equal(dropouts.eval()(torch.ones(3, 2)), torch.ones(3, 2))
    assert (dropouts.to(torch.bfloat16).kept / stacked_parts.WHOLE).tolist() == [1.0, 0.75, 0.25], "half precision changes no share"


def test_only_models_of_one_shape_are_stacked() -> None:
    one, other, wide = models("attention", dropout=0.1)[0], models("attention", dropout=0.3)[0], models("attention", feed_forward=8)[0]
    assert stacked.alike(one) == stacked.alike(other) != stacked.alike(wide)
