"""Recorded on a GPU, training gives the numbers of training step by step."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("numpy")

from reproduce.toy import data as shapes
from reproduce.toy import model as toy
from tokmix.training.capture import Captured

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize("name", toy.ITEMS)
@pytest.mark.parametrize("n", [200, 250])
def test_recorded_is_step_by_step(name, n, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    data = shapes.split(n, 1, seed=0)[0]
    plain, recorded = ([toy.build(toy.ITEMS[name], data.to(device), seed) for seed in (3, 4)] for device in ("cpu", "cuda"))
    first = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in plain]
    toy.train_all(plain, [data] * 2, (3, 4), epochs=3)
    monkeypatch.setattr(Captured, "_give_up", lambda self, error: pytest.fail(f"it was not recorded: {error}"))
    toy.train_all(recorded, [data.to("cuda")] * 2, (3, 4), epochs=3)
    for before, a, b in zip(first, plain, recorded, strict=True):
        one, other = (torch.cat([p.detach().cpu().flatten() for p in model.parameters()]) for model in (a, b))
        assert (one - before).norm() > 0.1  # it learned
        assert (one - other).norm() < 0.01 * (one - before).norm()


def test_a_mixer_that_cannot_be_recorded_trains_all_the_same(monkeypatch):
    def refuse(self, *given):
        raise RuntimeError("operation not permitted when stream is capturing")

    data = shapes.split(200, 1, seed=0)[0].to("cuda")
    one, other = (toy.build("none", data, 1) for _ in range(2))
    toy.train(one, data, epochs=2, seed=1)
    monkeypatch.setattr(Captured, "graph_of", refuse)
    toy.train_all([other], [data], [1], epochs=2)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
