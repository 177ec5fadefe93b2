"""A user's own Trainer script on our models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import tokmix
from tests.hf_models import batch, generated, joined, made
from tokmix import Segments


class Rows(Dataset[dict[str, Any]]):
    """Sequences that count up by one; the label is how long, how far, or the tokens themselves."""

    def __init__(self, task: str):
        torch.manual_seed(0)
        starts, lengths = torch.randint(1, 8, (48,)).tolist(), torch.randint(4, 10, (48,)).tolist()
        self.rows = [self._row(task, list(range(start, start + n))) for start, n in zip(starts, lengths, strict=True)]

    def _row(self, task: str, ids: list[int]) -> dict[str, Any]:
        if task == "lm":
            return {"input_ids": ids, "labels": ids}
        if task == "mlm":
            return {"input_ids": [ids[0], 0, *ids[2:]], "labels": [-100, ids[1], *[-100] * (len(ids) - 2)]}
        return {"input_ids": ids, "labels": int(len(ids) > 6) if task == "classify" else ids[0] / 8}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    width = max(len(row["input_ids"]) for row in rows)

    def padded(values: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([row + [fill] * (width - len(row)) for row in values])

    ids = [row["input_ids"] for row in rows]
    labels = [row["labels"] for row in rows]
    return {
        "input_ids": padded(ids, 0),
        "attention_mask": padded([[1] * len(row) for row in ids], 0),
        "labels": padded(labels, -100) if isinstance(labels[0], list) else torch.tensor(labels),
    }


def packed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All sequences in one row, and Segments made on the host."""
    labels = [row["labels"] for row in rows]
    return {
        "input_ids": torch.tensor([joined([row["input_ids"] for row in rows])]),
        "segments": Segments.from_lengths([[len(row["input_ids"]) for row in rows]]),
        "labels": torch.tensor([joined([[-100, *row[1:]] for row in labels])]) if isinstance(labels[0], list) else torch.tensor(labels),
    }


def trained(task: str, out: Path, resume: str | None = None, dropout: float = 0.1, collator: Any = collate, **changes: Any) -> Trainer:
    model = made(head=task, causal=task == "lm", dropout=dropout, dtype=torch.float32)
    settings = {
        "use_cpu": True, "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False, "seed": 3, "learning_rate": 5e-3,
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_steps": 12, "logging_steps": 1, "save_steps": 6,
    }  # fmt: skip
    arguments = TrainingArguments(output_dir=str(out), **{**settings, **changes})
    trainer = Trainer(model, arguments, train_dataset=Rows(task), eval_dataset=Rows(task), data_collator=collator)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("task", ["classify", "regress", "lm", "mlm"])
def test_a_plain_trainer_script_learns_and_resumes_to_the_same_weights(task: str, tmp_path: Path) -> None:
    whole = trained(task, tmp_path)
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    assert len(losses) == 12 and sum(losses[6:]) < sum(losses[:6])
    again = trained(task, tmp_path, resume=str(tmp_path / "checkpoint-6"))
    assert again.state.global_step == 12
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    with torch.no_grad():
        all_at_once = whole.model.eval()(**collate(Rows(task).rows)).loss
    assert whole.evaluate()["eval_loss"] == pytest.approx(float(all_at_once), rel=1e-4 if task in ("classify", "regress") else 0.1)


@pytest.mark.parametrize("task", ["classify", "regress", "lm", "mlm"])
def test_trainers_loss_is_divided_by_all_targets_of_a_step(task: str, tmp_path: Path) -> None:
    """Two accumulated batches, of unequal numbers of targets, weigh like one batch of both; padded or packed."""
    with torch.no_grad():
        expected = made(head=task, causal=task == "lm", dtype=torch.float32)(**collate(Rows(task).rows)).loss
    for collator in (collate, packed) if task != "mlm" else (collate,):
        trainer = trained(task, tmp_path, dropout=0.0, collator=collator, per_device_train_batch_size=40, max_steps=1)
        assert trainer.state.log_history[0]["loss"] == pytest.approx(float(expected), rel=1e-4)


def test_label_smoothing_shifts_the_labels_of_a_language_model(tmp_path: Path) -> None:
    model = made(dtype=torch.float32)
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], label_smoothing_factor=0.1)
    part = collate(Rows("lm").rows[:8])
    found = Trainer(model, arguments).compute_loss(model, dict(part))
    logits, targets = model(part["input_ids"], attention_mask=part["attention_mask"]).logits[:, :-1], part["labels"][:, 1:]
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, label_smoothing=0.1)
    assert torch.allclose(found, expected, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")
def test_generation_and_training_on_a_gpu(tmp_path: Path) -> None:
    model = made(tie=False).cuda()
    ids, mask, prompts = batch(left=True)
    greedy = generated(model, ids.cuda(), mask.cuda())
    assert torch.equal(greedy, generated(model, ids.cuda(), mask.cuda(), use_cache=False))
    assert greedy[:, 7:].tolist() == tokmix.generate(made(tie=False).core, prompts, max_new=9)
    for collator in (collate, packed):
        run = trained("lm", tmp_path, collator=collator, use_cpu=False, bf16=True)
        losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
        assert run.model.device.type == "cuda" and sum(losses[3:]) < sum(losses[:3])
