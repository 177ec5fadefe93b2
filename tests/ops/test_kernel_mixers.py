"""The mixers on kernels: the same numbers as on the reference, padded, packed and with NaN at padding.

Run by `test_in_the_interpreter` of test_kernels.py; on a GPU: pytest -m gpu tests/test_kernel_mixers.py
"""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import tokmix
from tests.cases import lay_out, tokens
from tests.kernel_rule import Seen, each_device
from tokmix.ops.dispatch import implementation

HYPER = [
    {},
    {"tied": False},
    {"norm": "length"},
    {"norm": "length", "power": 1.0},
    {"position": "sinusoidal"},
    {"bias": False, "norm": "none"},
]
CASES = [("hypermixing", {"heads": 2, "hidden": 48, **options}, "hyper_mix") for options in HYPER]
for more in ({}, {"decay": "none", "shift": 0}, {"norm": "length", "tied": False}):
    CASES.append(("hypermixing", {"heads": 2, "hidden": 32, "causal": True, **more}, "causal_hyper_mix"))
for causal in (True, False):
    CASES += [("hsm", {"variant": variant, "causal": causal}, "shift_mix") for variant in ("ab", "vector")]
    CASES += [("hsm", {"variant": "vector", "heads": 4, "causal": causal}, "shift_mix")]
    CASES += [("hsm", {"variant": "gate", "causal": causal}, "gate_shift_mix")]
    CASES += [("hsm", {"variant": "matrix", "heads": 2, "causal": causal}, "matrix_shift_mix")]
LAYOUTS = ("whole", "padded", "packed")


def lengths(layout: str, T: int) -> list | None:
    return {"whole": None, "padded": [T, T - 7, 0], "packed": [[T - 7, 5, 2], [], [T]]}[layout]


@each_device
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "options", "op"), CASES, ids=lambda value: str(value))
def test_mixers_give_the_references_numbers(device: str, layout: str, name: str, options: dict, op: str) -> None:
    torch.manual_seed(0)
    options = dict(options)
    mixer = tokmix.create(name, 32, causal=options.pop("causal", False), max_len=64, layer=2, **options).to(device)
    T = 20 if op == "causal_hyper_mix" and device == "cpu" else 40  # the interpreter walks it token by token
    given, segments = tokens(3, T, 32, dtype=torch.float32).to(device), None
    if layout != "whole":
        segments = tokmix.Segments.from_lengths(lengths(layout, T), T).to(device)
        given = lay_out([given.flatten(0, 1)[: int(segments.mask.sum())][None].cpu()], segments.ids.cpu()).to(device)
    results = []
    for body in ("triton", "reference"):
        mixer.zero_grad()
        x = given.clone().requires_grad_()
        with implementation(body), Seen() as seen:
            y = mixer(x, segments)
            (y * tokens(3, T, 32, dtype=torch.float32, seed=4).to(device)).sum().backward()
        assert (op in seen.ours) == (body == "triton"), "the kernel should have run, and only where it was asked for"
        results.append([y.detach(), x.grad, *(p.grad.clone() for p in mixer.parameters())])
    for ours, reference in zip(*results, strict=True):
        assert ours.isfinite().all()
        assert (ours - reference).norm() <= 2e-5 * reference.norm() + 1e-5
    if segments is not None:
        assert (results[0][0][~segments.mask] == 0).all() and (results[0][1][~segments.mask] == 0).all()


# One for each op.
EACH = [
    ("hsm", {"variant": "vector"}, "shift_mix"),
    ("hsm", {"variant": "gate"}, "gate_shift_mix"),
    ("hsm", {"variant": "matrix"}, "matrix_shift_mix"),
    ("hypermixing", {"heads": 2}, "hyper_mix"),
    ("hypermixing", {"heads": 2, "inner": 16, "tied": False}, "wide_hyper_mix"),
    ("hypermixing", {"inner": 16}, "short_hyper_mix"),
    ("hypermixing", {"heads": 2, "hidden": 16, "causal": True}, "causal_hyper_mix"),
    ("hypermixing", {"heads": 2, "hidden": 16, "causal": True, "block": 16}, "block_hyper_mix"),
    ("hypermlp", {"causal": True}, "hyper_mlp"),
    ("relu_attention", {"causal": True, "conv": 4}, "short_conv"),
]


@each_device
@pytest.mark.parametrize(("name", "options", "op"), EACH, ids=lambda value: str(value))
def test_gradient_checkpointing(device: str, name: str, options: dict, op: str) -> None:
    """What a kernel keeps is asked for once, as checkpoints that are not reentrant demand."""
    torch.manual_seed(0)
    options = dict(options)
    mixer = tokmix.create(name, 32, causal=options.pop("causal", False), max_len=64, **options).to(device)
    given, dy = (tokens(2, 34, 32, dtype=torch.float32, seed=seed).to(device) for seed in (1, 2))
    results = []
    with implementation("triton"):
        with Seen() as seen, torch.no_grad():
            mixer(given)
        assert op in seen.ours
        for run in (mixer, lambda x: checkpoint(mixer, x, use_reentrant=False)):
            mixer.zero_grad()
            x = given.clone().requires_grad_()
            y = run(x)
            y.backward(dy)
            results.append([y.detach(), x.grad, *(p.grad for p in mixer.parameters())])
    assert all(torch.equal(plain, again) for plain, again in zip(*results, strict=True))


@each_device
@pytest.mark.parametrize(("name", "options", "op"), EACH, ids=lambda value: str(value))
def test_what_kernels_cannot_do_is_done_without_or_refused(device: str, name: str, options: dict, op: str) -> None:
    """torch.func and forward-mode tangents take plain torch; gradients of gradients are an error, not a part of them."""
    options = dict(options)
    mixer = tokmix.create(name, 32, causal=options.pop("causal", False), max_len=64, **options).to(device)
    x, along = (tokens(2, 34, 32, dtype=torch.float32, seed=seed).to(device) for seed in (1, 2))
    found = []
    for body in ("reference", "triton"):
        with implementation(body):
            found.append((*torch.func.jvp(mixer, (x,), (along,)), torch.func.vmap(mixer)(x[:, None])[:, 0]))
            with forward_ad.dual_level():
                found[-1] += (forward_ad.unpack_dual(mixer(forward_ad.make_dual(x, along))).tangent,)
    assert all(torch.equal(plain, ours) for plain, ours in zip(*found, strict=True)) and (found[0][1] != 0).any()
    if device == "cuda" or op != "causal_hyper_mix":  # the interpreter walks a scan token by token
        leaf = x.clone().requires_grad_()
        with implementation("triton"):
            (gradient,) = torch.autograd.grad((mixer(leaf) * along).sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match="no autograd formula"):
            torch.autograd.grad((gradient * along).sum(), leaf)
