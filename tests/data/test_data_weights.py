"""A column of weights: how much each row counts in the loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("tokenizers")

from tests.lab import settings
from tokmix.data.batches.rows import RowBatches
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.training.distributed import World
from tokmix.training.task import TrainingTask, loss


def write(path: Path, weights: list[object], labels: tuple[object, object] = ("a", "b")) -> Path:
    rows = [{"text": f"word{i} here", "label": labels[i % 2], "w": weight} for i, weight in enumerate(weights)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def test_the_weights_of_a_batch_are_those_of_its_rows_and_one_on_average(tmp_path: Path) -> None:
    given = [0.0, 1, 2, 3, 4, 5, 6, 7, 8, "9.5"]
    prepare(write(tmp_path / "a.jsonl", given), tmp_path / "p", weight="w", into="train", vocab=100)
    split = TokenFiles(tmp_path / "p")["train"]
    assert split.weights is not None and split.weights.tolist() == [float(str(one)) for one in given]
    seen: dict[int, float] = {}
    for batch in RowBatches(split, tokens=20).epoch(0):
        assert batch.row_weights is not None
        seen |= dict(zip(batch.rows, batch.row_weights.tolist(), strict=True))
    mean = sum(float(str(one)) for one in given) / len(given)
    assert [seen[i] for i in range(10)] == pytest.approx([float(str(one)) / mean for one in given])
    assert all(batch.row_weights is None for batch in RowBatches(split, tokens=20, shuffle=False).epoch(0)), "figures count rows alike"


def test_the_loss_is_the_weighted_sum(tmp_path: Path) -> None:
    logits, targets = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 2, 1])
    weights = torch.tensor([0.0, 0.5, 1.0, 2.0, 1.5])
    expected = sum(float(w) * float(F.cross_entropy(x[None], y[None])) for w, x, y in zip(weights, logits, targets, strict=True))
    assert float(loss("classify", logits, targets, weights=weights)) == pytest.approx(expected, rel=1e-6)
    scores, wanted = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.0, 0.0, 0.0])
    assert float(loss("regress", scores, wanted, 2.0, weights=torch.tensor([1.0, 0.0, 0.5]))) == pytest.approx(0.25 + 0.5 * 4)


def test_training_reads_the_weights(tmp_path: Path) -> None:
    prepare(write(tmp_path / "a.jsonl", [0.0, 2.0] * 10), tmp_path / "p", weight="w", into="train", vocab=100)
    work = TrainingTask(TokenFiles(tmp_path / "p"), settings(train__holdout=0.0))
    batch = next(iter(work.train_batches(World()).epoch(0)))
    outputs = torch.zeros(len(batch.rows), 2)
    even = sum(1 for row in batch.rows if row % 2 == 0)
    assert float(work.loss(outputs, batch)) == pytest.approx(2.0 * (len(batch.rows) - even) * 0.6931, rel=1e-3)


@pytest.mark.parametrize(
    ("weights", "more", "words"),
    [
        ([1, -1], {}, "column 'w' is -1; a weight is a finite number of at least 0"),
        ([1, "much"], {}, "column 'w' is 'much'; a weight"),
        ([1, 1], {"weight": "ww"}, "has no column 'ww'.*did you mean 'w'"),
        ([1, 1], {"task": "lm"}, "weight='w' weighs the rows of a table, and task=lm"),
    ],
)
def test_weights_that_do_not_work_are_named(tmp_path: Path, weights: list[object], more: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prepare(write(tmp_path / "a.jsonl", weights * 4), tmp_path / "p", **({"weight": "w"} | more))


def test_weights_of_nothing_are_named(tmp_path: Path) -> None:
    prepare(write(tmp_path / "a.jsonl", [0] * 8), tmp_path / "p", weight="w", into="train", vocab=100)
    with pytest.raises(ValueError, match="every weight of the rows of train is 0"):
        RowBatches(TokenFiles(tmp_path / "p")["train"])
