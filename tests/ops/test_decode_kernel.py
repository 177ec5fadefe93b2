"""Decoding with HSM in one kernel a layer, and a layer's norm, mixing and residual in one pass: the numbers of the parts.

On a CPU the kernels run in Triton's interpreter, started by `test_in_the_interpreter` of test_kernels.py; on a GPU:
pytest -m gpu tests/test_decode_kernel.py
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import tokmix
from tests.cases import leaves, tokens
from tests.kernel_rule import DTYPES, Seen, each_device, error, few_programs  # noqa: F401  (the last is a fixture for every test)
from tokmix.core.block import LAYOUTS, FeedForward, Layer
from tokmix.core.mixer import inplace_states
from tokmix.core.segments import Segments
from tokmix.ops.dispatch import implementation
from tokmix.ops.shift_mix import select as shift
from tokmix.ops.shift_mix import step_op

DIM = 16
VARIANTS = ["ab", "vector", "matrix", "gate", "gate2", "fusion"]


def hsm(device: str, dtype: torch.dtype = torch.float32, **options: object) -> tokmix.Mixer:
    torch.manual_seed(0)
    mixer = tokmix.create("hsm", DIM, causal=True, max_len=16, layer=1, **options)
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer.to(device, dtype)


@contextmanager
def given_away() -> Iterator[None]:
    """As `generate` decodes."""
    with torch.inference_mode(), inplace_states():
        yield


@contextmanager
def training_inside() -> Iterator[None]:
    with inplace_states(), torch.enable_grad():
        yield


def decoded(mixer: tokmix.Mixer, x: Tensor, masks: Tensor | None = None) -> Iterator[tuple[Tensor, object]]:
    """y and the state after each token of x [B, T, D]; masks [B, T]: who has one."""
    state = mixer.init_state(x.shape[0], x)
    for t in range(x.shape[1]):
        y, state = mixer.step(x[:, t : t + 1], state, None if masks is None else Segments.from_mask(masks[:, t : t + 1]))
        yield y, state


@each_device
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode", [torch.no_grad, given_away])
def test_token_by_token_equals_the_whole(device: str, variant: str, heads: int, mode: type) -> None:
    mixer = hsm(device, variant=variant, heads=heads)
    x = tokens(2, 9, DIM, dtype=torch.float32).to(device)
    with implementation("reference"):
        whole = mixer(x)
    with mode(), implementation("triton"), Seen() as seen:
        steps = [y for y, _ in decoded(mixer, x)]
    assert seen.ours == {"shift_step"}
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=1e-5, atol=1e-5)


@each_device
@pytest.mark.parametrize("variant", ["vector", "gate", "matrix"])
@pytest.mark.parametrize("mode", [torch.no_grad, given_away])
def test_rows_without_a_token_keep_their_state(device: str, variant: str, mode: type) -> None:
    mixer = hsm(device, variant=variant)
    masks = torch.tensor([[1, 1, 0, 1, 1, 0, 1], [0, 1, 1, 0, 1, 1, 1], [1, 0, 0, 0, 0, 0, 0]], device=device).bool()
    x = tokens(3, 7, DIM, dtype=torch.float32).to(device).masked_fill(~masks[..., None], torch.nan)
    kinds: dict[str, list[Tensor]] = {}
    for body in ("triton", "reference"):
        with mode(), implementation(body):
            kinds[body] = [leaf.clone() for y, state in decoded(mixer, x, masks) for leaf in (y, *leaves(state))]
    with torch.enable_grad(), implementation("reference"):  # by the functional path
        kinds["plain"] = [leaf for y, state in decoded(mixer, x, masks) for leaf in (y, *leaves(state))]
    for name in ("triton", "reference"):
        for ours, plain in zip(kinds[name], kinds["plain"], strict=True):
            torch.testing.assert_close(ours, plain.detach(), rtol=1e-5, atol=1e-5)


@each_device
def test_a_state_is_changed_only_where_it_was_given_away(device: str) -> None:
    mixer = hsm(device)
    x = tokens(2, 1, DIM, dtype=torch.float32).to(device)
    modes = (torch.no_grad, torch.enable_grad, torch.inference_mode, given_away, training_inside)
    for mode, body in [(m, b) for m in modes for b in ("triton", "reference")]:
        with mode(), implementation(body):
            state = mixer.init_state(2, x)
            kept = tree_map(torch.clone, state)
            _, after = mixer.step(x, state)
        same = all(torch.equal(a, b) for a, b in zip(leaves(state), leaves(kept), strict=True))
        assert same == (mode is not given_away), mode
        assert all(torch.equal(a, b) for a, b in zip(leaves(after), leaves(state), strict=True)) != same


@each_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("D", [1, 5, 300])
@pytest.mark.parametrize("normed", [False, True])
def test_step_against_float64(device: str, dtype: torch.dtype, D: int, normed: bool) -> None:
    if normed and D == 1:
        return  # the norm of a single channel is zero
    torch.manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, device=device, dtype=dtype)
    x, ring, weights = draw(3, 1, D), draw(3, 4, D), [draw(1, D), draw(1, D)]
    norm = (draw(D), draw(D), 1e-5) if normed else None
    position = torch.tensor([0, 5, 1000], device=device)
    results = {}
    for name, kind in (("triton", dtype), ("reference", dtype), ("exact", torch.float64)):
        to = lambda tensor, kind=kind: tensor.to(kind) if kind != dtype else tensor.clone()
        mine, at = to(ring), position.clone()
        scaled = None if norm is None else (to(norm[0]), to(norm[1]), norm[2])
        with torch.no_grad(), implementation("reference" if name == "exact" else name):
            y = shift.step(to(x), mine, at, weights=[to(weight) for weight in weights], norm=scaled)
        assert at.tolist() == [1, 6, 1001]
        results[name] = {"y": y, "ring": mine}
    for part in ("y", "ring"):
        found, plain = (error(results[name][part], results["exact"][part]) for name in ("triton", "reference"))
        assert found <= 2 * plain + torch.finfo(dtype).eps


@each_device
def test_registration_and_compilation(device: str) -> None:
    x, ring = torch.randn(2, DIM, device=device), torch.randn(2, 3, DIM, device=device)
    position, weights = torch.tensor([1, 2], device=device), [torch.randn(1, DIM, device=device) for _ in range(2)]
    arguments = (x, ring, position, None, weights, None, None, None, None, 0.0, True)
    torch.library.opcheck(step_op.forward.op, arguments, test_utils=("test_schema", "test_faketensor"))
    mixer = hsm(device)
    with torch.no_grad(), implementation("triton"):
        state = mixer.init_state(2, x)
        step = torch.compile(mixer.step, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
        found, expected = step(x[:, None], state), mixer.step(x[:, None], state)
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(a, b)


# ---------------------------------------------------------------- norm, mixing and residual of a layer
def layer(device: str, layout: str, fed: bool, norm: str = "layer", dropout: float = 0.0, **options: object) -> Layer:
    made = LAYOUTS[layout](hsm("cpu", **options), FeedForward(DIM, 8, "gelu") if fed else None, norm, dropout)
    for parameter in made.norm.parameters():
        nn.init.normal_(parameter)
    return made.to(device)


BATCHES = {"whole": None, "padded": [9, 4, 0], "packed": [[5, 1, 2], [], [9]]}


def run(made: Layer, x: Tensor, segments: Segments | None, body: str) -> tuple[list[Tensor], set[str]]:
    made.zero_grad()
    given = x.clone().requires_grad_()
    with implementation(body), Seen() as seen:
        torch.manual_seed(3)  # dropout
        y = made(given, segments)
        (y * tokens(3, 9, DIM, dtype=torch.float32, seed=4).to(x.device)).sum().backward()
    return [y.detach(), given.grad, *(p.grad.clone() for p in made.parameters())], seen.ours


@each_device
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("layout", "fed"), [("pre", True), ("pre", False), ("serialized", True), ("parallel", False)])
@pytest.mark.parametrize("options", [{}, {"variant": "ab", "heads": 2}], ids=["vector", "ab"])
def test_a_layer_in_one_pass(device: str, layout: str, fed: bool, batch: str, options: dict) -> None:
    made = layer(device, layout, fed, dropout=0.3, **options)
    segments = None if BATCHES[batch] is None else Segments.from_lengths(BATCHES[batch], 9).to(device)
    x = tokens(3, 9, DIM, dtype=torch.float32).to(device)
    fused, ops = run(made, x, segments, "triton")
    plain, none = run(made, x, segments, "reference")
    assert ops == {"norm_shift_mix", "norm_shift_mix_backward"} and not none
    for ours, reference in zip(fused, plain, strict=True):
        assert (ours - reference).norm() <= 1e-5 * reference.norm() + 1e-6


@each_device
def test_other_layers_are_left_as_they_are(device: str) -> None:
    x = tokens(3, 9, DIM, dtype=torch.float32).to(device)
    for made in (
        layer(device, "post", True),
        layer(device, "rezero", False),
        layer(device, "parallel", True),
        layer(device, "pre", False, norm="rms"),
        layer(device, "pre", False, variant="gate"),
    ):
        assert "norm_shift_mix" not in run(made, x, None, "triton")[1]
    watched = layer(device, "pre", False)
    called = []
    hook = watched.mixer.register_forward_hook(lambda *_: called.append(1))
    assert "norm_shift_mix" not in run(watched, x, None, "triton")[1] and called
    hook.remove()
    assert "norm_shift_mix" in run(watched, x, None, "triton")[1]


@each_device
@pytest.mark.parametrize("mode", [torch.no_grad, given_away])
def test_a_layers_step_is_one_kernel(device: str, mode: type) -> None:
    made = layer(device, "pre", False).eval()
    masks = torch.tensor([[1, 1, 0, 1, 1], [0, 1, 1, 0, 1]], device=device).bool()
    x = tokens(2, 5, DIM, dtype=torch.float32).to(device)
    results: dict[str, list[Tensor]] = {"triton": [], "reference": []}
    for body, kept in results.items():
        with mode(), implementation(body), Seen() as seen:
            state = made.mixer.init_state(2, x)
            for t in range(5):
                y, state = made.step(x[:, t : t + 1], state, Segments.from_mask(masks[:, t : t + 1]))
                kept += [y, *(leaf.clone() for leaf in leaves(state))]
        assert seen.ours == ({"shift_step"} if body == "triton" else set())
    for ours, reference in zip(*results.values(), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-5)


def test_generation_gives_the_same_tokens_as_the_whole_model() -> None:
    """`generate` gives its states away: they are changed in place."""
    torch.manual_seed(0)
    config = tokmix.ModelConfig("hsm*3, hsm(heads=2, variant='gate')", dim=16, vocab=11, head="lm", causal=True, max_len=32)
    model = tokmix.Model(config).eval()
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    made = tokmix.generate(model, prompts, max_new=12, temperature=0)
    for prompt, new in zip(prompts, made, strict=True):
        ids = list(prompt)
        for token in new:
            with torch.no_grad():
                assert int(model(torch.tensor([ids]))[0, -1].argmax()) == token
            ids.append(token)
