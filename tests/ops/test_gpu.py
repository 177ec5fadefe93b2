"""On a CUDA GPU: the same numbers as on the CPU, compiled by inductor as one graph. Run with: pytest -m gpu"""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_map

import tokmix
from tests.cases import ALL, DEFAULTS, DIM, Case, tokens
from tokmix import Segments

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")]
IDS = torch.tensor([[1] * 9 + [2] * 6 + [0] * 2, [1] * 17, [0] * 17])


def by_name(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


@by_name(ALL)
def test_gpu_and_cpu_agree(case: Case) -> None:
    x, segments = tokens(3, 17, DIM), Segments(IDS)
    results = []
    for device in ("cpu", "cuda"):
        mixer, given = case.make().to(device), x.clone().to(device).requires_grad_()
        y = mixer(given, segments)
        (y * tokens(3, 17, DIM, seed=2).to(device)).sum().backward()
        results.append([y.cpu(), given.grad.cpu(), *(p.grad.cpu() for p in mixer.parameters() if p.grad is not None)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@by_name([case for case in ALL if case.causal and case.has("step")])
def test_step_on_the_gpu(case: Case) -> None:
    mixer, x = case.make().cuda(), tokens(2, 9, DIM).cuda()
    first, state = mixer.step(x[:, :5], mixer.init_state(2, x))
    second, _ = mixer.step(x[:, 5:], state, Segments.from_lengths([4, 2]))
    whole = mixer(x)
    torch.testing.assert_close(torch.cat([first, second], dim=1)[0], whole[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(second[1, :2], whole[1, 5:7], rtol=0, atol=1e-10)


@by_name([case for case in DEFAULTS if case.causal and case.has("step")])
@torch.no_grad()
def test_a_step_can_be_recorded_as_a_graph(case: Case) -> None:
    """Nothing in it waits for the GPU."""
    mixer, x = case.make(dtype=torch.float32).cuda(), tokens(2, 6, DIM, dtype=torch.float32).cuda()
    _, state = mixer.step(x[:, :5], mixer.init_state(2, x))
    expected, _ = mixer.step(x[:, 5:], tree_map(torch.clone, state))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, _ = mixer.step(x[:, 5:], state)
    graph.replay()
    torch.testing.assert_close(found, expected)


@by_name(DEFAULTS)
def test_inductor_compiles_one_graph(case: Case) -> None:
    torch._dynamo.reset()
    mixer = case.make(dtype=torch.float32).cuda()
    x, segments = tokens(3, 17, DIM, dtype=torch.float32).cuda(), Segments(IDS).to("cuda")
    given = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [torch.compile(mixer, fullgraph=True)(given[0], segments), mixer(given[1], segments)]
    for y in outputs:
        y.square().sum().backward()
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(given[0].grad, given[1].grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("T", [64, 192])
def test_attention_with_padding_keeps_finite_gradients(T: int) -> None:
    """Scores far below zero, at lengths at which cuDNN's backward pass divides by nothing where a mask is given."""
    mixer = tokmix.create("attention", 64, causal=False, max_len=T, heads=1).cuda().bfloat16()
    with torch.no_grad():
        for projection, sign in ((mixer.q, 1.0), (mixer.k, -1.0)):
            projection.weight.mul_(0.05)
            projection.bias.fill_(sign * 11.0)  # every score is about -121 * 64 / 8
    x = tokens(2, T, 64, dtype=torch.bfloat16).cuda().requires_grad_()
    mixer(x, Segments.from_lengths([T, T - 5], T, device="cuda")).float().square().sum().backward()
    assert all(torch.isfinite(part.grad).all() for part in (x, *mixer.parameters()) if part.grad is not None)


def test_generation_on_the_gpu() -> None:
    torch.manual_seed(0)
    config = tokmix.ModelConfig(
        stack="hsm, attention, hypermixing(heads=2), hypermlp", dim=16, vocab=50, head="lm", causal=True, max_len=64
    )
    model = tokmix.Model(config).double()
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    expected = tokmix.generate(model, prompts, max_new=20, temperature=0.7, seed=1)
    assert tokmix.generate(model.cuda(), prompts, max_new=20, temperature=0.7, seed=1) == expected
