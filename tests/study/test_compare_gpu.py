"""Recorded on a GPU, training gives the numbers of training step by step."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("numpy")

from tokmix.data.synthetic import shapes
from tokmix.study.compare import graphs
from tokmix.training import toy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize("name", toy.ITEMS)
@pytest.mark.parametrize("n", [200, 250])
def test_recorded_is_step_by_step(name, n, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(graphs, "PIECE", 2)  # 250 rows are two recordings, the second of a smaller batch
    monkeypatch.setattr(graphs, "_one_by_one", lambda *given: pytest.fail("it was not recorded"))
    data = shapes.split(n, 1, seed=0)[0].to("cuda")
    plain, recorded = ([toy.build(toy.ITEMS[name], data, seed) for seed in (3, 4)] for _ in range(2))
    first = [torch.cat([p.detach().flatten() for p in model.parameters()]) for model in plain]
    for model, seed in zip(plain, (3, 4), strict=True):
        toy.train(model, data, epochs=3, seed=seed)
    graphs.train(recorded, data, (3, 4), epochs=3)
    for before, a, b in zip(first, plain, recorded, strict=True):
        one, other = (torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (a, b))
        assert (one - before).norm() > 0.1  # it learned
        assert (one - other).norm() < 0.01 * (one - before).norm()


def test_a_mixer_that_cannot_be_recorded_trains_all_the_same(monkeypatch):
    def refuse(self, *given):
        raise RuntimeError("operation not permitted when stream is capturing")

    data = shapes.split(200, 1, seed=0)[0].to("cuda")
    one, other = (toy.build("none", data, 1) for _ in range(2))
    toy.train(one, data, epochs=2, seed=1)
    monkeypatch.setattr(graphs.Recorded, "__init__", refuse)
    graphs.train([other], data, [1], epochs=2)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
