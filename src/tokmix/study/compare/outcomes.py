"""The results of a system on each example of the reported split, as sums. The figure of any set of examples is a function of the sums
of its examples, as a bootstrap over examples needs.

    classify      (right or not, 1)                                   accuracy = first / second
    lm, mlm       (loss of a window or row, its targets or bytes)     loss a token, or bits a byte = first / second
    regress       (1, x, y, xx, yy, xy), x predicted and y wanted     Pearson's correlation
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F

from tokmix.core.model import Model
from tokmix.core.optional import np
from tokmix.data.batches.mask import IGNORE
from tokmix.data.batches.rows import Batch
from tokmix.runs.files import Damaged, replacing
from tokmix.training.distributed import World
from tokmix.training.task import TrainingTask

FILE = "examples.npz"


def figure(sums: np.ndarray) -> np.ndarray:
    """[..., 2 or 6] -> [...]"""
    if sums.shape[-1] == 2:
        return sums[..., 0] / sums[..., 1]
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread_x, spread_y = n * xx - x * x, n * yy - y * y
    # All drawn examples are the same, so any variance is rounding.
    constant = (spread_x <= 1e-12 * n * xx) | (spread_y <= 1e-12 * n * yy)
    return np.where(constant, 0.0, (n * xy - x * y) / np.sqrt(np.where(constant, 1.0, spread_x * spread_y)))


def of_classes(predicted: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """[n, 2]"""
    return np.stack([(predicted == wanted).astype(np.float64), np.ones(len(wanted))], 1)


def of_scores(predicted: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """[n, 6]; centred first: a correlation ignores the means, and subtracting them saves digits."""
    x, y = (side.astype(np.float64) - side.astype(np.float64).mean() for side in (predicted, wanted))
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], 1)


@torch.inference_mode()
def measure(work: TrainingTask, model: Model, split: str, world: World) -> np.ndarray:
    """[examples, k], in the order of the rows."""
    model.eval()
    parts: list[np.ndarray] = []
    rows: list[int] = []
    for batch in work.batches(split, world).epoch(0):
        moved = batch.to(world.device)
        outputs = model(moved.ids, moved.segments).float()
        rows += batch.rows
        parts.append(_of_text(outputs, moved) if work.task in ("lm", "mlm") else _of_rows(work.task, outputs, moved))
    found = np.concatenate(parts)
    if work.task == "lm" and (size := work.files.card.split(split).bytes):
        return found * np.array([1 / math.log(2), size / found[:, 1].sum()])  # bits, and bytes shared out by tokens
    if work.task in ("lm", "mlm"):
        return found  # every stack reads the same windows in the same order
    found = found[np.argsort(np.array(rows), kind="stable")]
    return of_classes(found[:, 0], found[:, 1]) if work.task == "classify" else of_scores(found[:, 0], found[:, 1])


def _of_rows(task: str, outputs: torch.Tensor, batch: Batch) -> np.ndarray:
    """[rows, 2]: predicted and wanted"""
    predicted = outputs.argmax(-1) if task == "classify" else outputs
    return torch.stack([predicted.double(), batch.targets.double()], 1).cpu().numpy()


def _of_text(outputs: torch.Tensor, batch: Batch) -> np.ndarray:
    """[windows, 2]: loss and number of targets"""
    losses = F.cross_entropy(outputs.flatten(0, -2), batch.targets.flatten(), ignore_index=IGNORE, reduction="none")
    counts = (batch.targets != IGNORE).sum(1)
    return torch.stack([losses.view(batch.targets.shape).double().sum(1), counts.double()], 1).cpu().numpy()


def save(folder: Path, sums: np.ndarray) -> None:
    with replacing(folder / FILE) as partial, open(partial, "wb") as file:
        np.savez_compressed(file, sums=sums)


def load(folder: Path) -> np.ndarray:
    try:
        with open(folder / FILE, "rb") as file, np.load(file, allow_pickle=False) as found:
            return found["sums"]
    except (ValueError, OSError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise Damaged(f"{folder / FILE} is damaged: {error}") from None
