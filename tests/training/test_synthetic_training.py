"""Training a stack on a synthetic task: what is predicted, what is scored, and that it can be learnt."""

from __future__ import annotations

import pytest
import torch

from tests.synthetic_cases import SMALL
from tokmix.data import synthetic
from tokmix.data.synthetic.task import Examples
from tokmix.training import synthetic as run


def test_what_training_predicts():
    task = synthetic.create("in_context_recall", **SMALL["in_context_recall"])
    data = task.make(5, 0)
    assert torch.equal(task.learned(data)[:, :-1], data.inputs[:, 1:]) and set(task.learned(data)[:, -1].tolist()) == {-100}
    fuzzy = synthetic.create("fuzzy_recall")
    data = fuzzy.make(50, 0)
    following = fuzzy.learned(data)
    assert 15 not in following and int((following == -100).sum()) == int((data.inputs[:, 1:] == 15).sum()) + 50
    copying = synthetic.create("selective_copying")
    data = copying.make(5, 0)
    assert torch.equal(copying.learned(data), data.targets)


def test_an_accuracy_counts_targets_alone():
    targets = torch.tensor([[-100, 2, -100], [1, 0, -100]])
    logits = torch.nn.functional.one_hot(torch.tensor([[0, 2, 1], [1, 1, 1]]), 3).float()

    class Fixed(torch.nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return logits

    assert run.accuracy(Fixed(), Examples(torch.zeros(2, 3, dtype=torch.long), targets)) == pytest.approx(2 / 3)


def test_the_learning_rate_ends_where_it_should():
    assert [run.cosine(1e-3, share) for share in (0, 0.5, 1)] == pytest.approx([1e-3, (1e-3 + 1e-6) / 2, 1e-6])


def test_an_auto_encoder_sees_the_last_state_alone():
    task = synthetic.create("compression", vocab=5, length=6)
    ids = task.make(2, 0).inputs
    blind, seeing = run.build(task, "identity", 8).eval(), run.build(task, "attention(heads=2)", 8).eval()
    assert blind(ids).shape == (2, 6, 5)
    assert torch.allclose(*blind(ids)), "nothing but the compression token reaches the end"
    assert not torch.allclose(*seeing(ids))


def test_attention_learns_to_recall_and_a_stack_that_cannot_look_back_does_not():
    task = synthetic.create("in_context_recall", vocab=8, length=16, examples=1280, tests=200)
    settings = {"epochs": 3, "batch": 32, "lr": 1e-2}
    assert task.chance == 0.25
    assert run.train(task, "attention*2", 32, **settings).accuracy > 0.4
    assert run.train(task, "identity*2", 32, **settings).accuracy < 0.32
