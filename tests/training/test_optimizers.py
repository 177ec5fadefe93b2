"""AdamW and Muon by name: the numbers of torch's own, and a state that survives a checkpoint."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tokmix.core.model import Model, ModelConfig
from tokmix.training.optimizers import Muon, Optimizers, is_hidden_matrix, orthogonal

CONFIG = ModelConfig(stack="hypermixing(hidden=8), attention(heads=2)", dim=8, vocab=20, head="classify", causal=False, max_len=16)


def model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model(CONFIG)


def made(kind: str, of: Model) -> Optimizers:
    return Optimizers(of.named_parameters(), 0.01, kind=kind, weight_decay=0.1, betas=(0.9, 0.98))


def fill(of: Model, seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    for parameter in of.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=chance)


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_orthogonal_has_singular_values_near_one(shape):
    torch.manual_seed(0)
    found = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
    assert found.min() > 0.5 and found.max() < 1.5


@pytest.mark.parametrize("rate", [0.01, torch.tensor(0.01)], ids=["number", "tensor"])
def test_muon_is_torchs_own(rate: float | Tensor):
    """torch's computes in bfloat16, so the directions agree to its rounding."""
    torch.manual_seed(1)
    ours, theirs = nn.Parameter(torch.randn(12, 7)), nn.Parameter(torch.empty(12, 7))
    theirs.data.copy_(ours.data)
    mine = Muon([ours], rate, weight_decay=0.1)
    other = torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        ours.grad = torch.randn(12, 7)
        theirs.grad = ours.grad.clone()
        mine.step()
        other.step()
    assert (ours - theirs).abs().max() < 0.05 * 0.01 * 12**0.5


def test_adamw_is_torchs_own_and_vectors_do_not_decay():
    one, other = model(), model()
    ours = made("adamw", one)
    groups = [
        {"params": [p for p in other.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in other.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    theirs = torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.98), fused=True)
    ours.set_rate(0.02)
    for seed in range(3):
        fill(one, seed)
        fill(other, seed)
        ours.update()
        theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_muon_moves_the_matrices_of_the_layers_alone():
    one = model()
    optimizers = made("muon", one)
    fill(one, 0)
    optimizers.update()
    state = optimizers.state()
    hidden = {name for name, parameter in one.named_parameters() if is_hidden_matrix(name, parameter)}
    assert hidden and {name.removeprefix("momentum.") for name in state if name.startswith("momentum.")} == hidden
    rest = {name for name, _ in one.named_parameters()} - hidden
    assert {name.removeprefix("first.") for name in state if name.startswith("first.")} == rest and "embedding.weight" in rest


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_state_that_was_saved_goes_on_with_the_same_bits(kind):
    straight, stopped = model(), model()
    one, other = made(kind, straight), made(kind, stopped)
    for seed in range(4):
        if seed == 2:
            kept = {name: tensor.clone() for name, tensor in other.state().items()}
            other = made(kind, stopped)
            other.allocate(kept, 2)
            for name, tensor in other.state().items():
                tensor.copy_(kept[name])
        for of, optimizers in ((straight, one), (stopped, other)):
            fill(of, seed)
            optimizers.update()
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), stopped.parameters(), strict=True))


def test_a_step_can_be_left_out():
    one = model()
    optimizers = made("adamw", one)
    before = [parameter.detach().clone() for parameter in one.parameters()]
    fill(one, 0)
    optimizers.update(skip=torch.tensor(1.0))
    assert all(torch.equal(a, b) for a, b in zip(before, one.parameters(), strict=True))
    optimizers.update(skip=torch.tensor(0.0))
    assert not torch.equal(before[0], next(one.parameters()))
