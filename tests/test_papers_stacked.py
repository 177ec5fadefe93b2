"""A stack of models is each of them: outputs and gradients, in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tokmix.mixer import mixer_class, mixers
from tokmix.model import Model, ModelConfig
from tokmix.papers import stacked
from tokmix.papers.stacked import Each, HyperMixings, Stack
from tokmix.segments import Segments

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


def models(stack: str, **others: object) -> list[Model]:
    fields = {"head": "classify", "causal": False, "layout": "serialized", "feed_forward": 24} | others
    config = ModelConfig(stack=stack, dim=16, vocab=VOCAB, max_len=T, **fields)  # type: ignore[arg-type]
    return [Model(config).double() for _ in range(K)]


def ids() -> tuple[Tensor, Tensor]:
    return torch.randint(0, VOCAB, (K * B, T)), torch.randint(1, T + 1, (K * B,))


def check(members: list[Model], padded: bool = True) -> Stack:
    for member in members:  # so that no weight is where all begin
        for parameter in member.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
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


@pytest.mark.parametrize("stack", [*BOTH_WAYS, *HYPER])
def test_classifiers(stack: str) -> None:
    check(models(f"{stack}, {stack}"))


@pytest.mark.parametrize("stack", CAUSAL)
def test_language_models(stack: str) -> None:
    check(models(f"{stack}, attention", head="lm", causal=True, norm="rms", feed_forward_kind="swiglu"), padded=False)


@pytest.mark.parametrize("layout", ["pre", "post", "rezero", "parallel"])
def test_layouts(layout: str) -> None:
    check(models("hypermixing(hidden=16), attention", layout=layout))


def test_learned_positions_go_member_by_member() -> None:
    assert isinstance(check(models("attention", positions="learned")).model, Each)


def test_most_is_done_for_all_at_once() -> None:
    """Of what the papers' classifiers are made of: their own kinds of weights alone go member by member."""
    apart = lambda stack: any(isinstance(part, Each) for part in Stack(models(stack)).modules())
    assert not any(map(apart, ["attention", "fnet", "linear_attention", "identity", *HYPER[:4]]))
    assert all(map(apart, ["mlp_mixer", "gmlp", HYPER[4]]))


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
    monkeypatch.setattr(stacked.choice, "is_short", lambda *_: True)
    monkeypatch.setattr(stacked.short_library, "run", run)
    torch.testing.assert_close(stack(rows, segments), wanted)
    assert calls == [((K * B, 3), T, False)] and any(isinstance(part, HyperMixings) for part in stack.modules())


def test_members_may_drop_different_shares() -> None:
    members = models("identity")
    for rate, member in zip((0.0, 0.25, 0.75), members, strict=True):
        member.layers[0].dropout.p = rate
    dropouts = next(part for part in Stack(members).modules() if isinstance(part, stacked.Dropouts))
    torch.manual_seed(0)
    kept = dropouts.train()(torch.ones(K * 100, 50)).chunk(K)
    for rate, part in zip((0.0, 0.25, 0.75), kept, strict=True):
        assert float((part == 0).float().mean()) == pytest.approx(rate, abs=0.02)
        assert float(part.mean()) == pytest.approx(1.0, abs=0.05)
    assert torch.equal(dropouts.eval()(torch.ones(3, 2)), torch.ones(3, 2))


def test_only_models_of_one_shape_are_stacked() -> None:
    one, other, wide = models("attention", dropout=0.1)[0], models("attention", dropout=0.3)[0], models("attention", feed_forward=8)[0]
    assert stacked.alike(one) == stacked.alike(other) != stacked.alike(wide)
