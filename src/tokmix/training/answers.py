"""What a model says about rows of token files: its network's outputs, the bag's scores, and the sum it answers with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tokmix.core.model import Model
from tokmix.core.optional import np
from tokmix.data.batches.rows import Batches
from tokmix.data.split import portion
from tokmix.data.tokens import TokenFiles, TokenSplit
from tokmix.training import baseline, linear, metrics
from tokmix.training.checkpoint import load_tensors, save_tensors
from tokmix.training.distributed import World
from tokmix.training.linear import Linear
from tokmix.training.mixture import NETWORK, Mixture, choose, thresholds
from tokmix.training.task import TrainingTask, loss, row_figures

Outputs = tuple[np.ndarray, np.ndarray]  # a network's outputs and the targets, by row number
SEARCH = 0.15  # of --minutes, for trying settings of the bag of words
KEYS = "trained_on.safetensors"  # hashes of the texts that a model folder was trained on


@torch.no_grad()  # as evaluate() of task.py
def network_outputs(model: nn.Module, batches: Batches, world: World) -> tuple[np.ndarray, np.ndarray]:
    """(outputs, targets) of every row, by row number; each rank reads its part."""
    model.eval()
    found: list[tuple[tuple[int, ...], np.ndarray, np.ndarray]] = []
    for batch in batches.epoch(0):
        moved = batch.to(world.device)
        outputs = model(moved.ids, moved.segments)
        if batch.weight:
            found.append((batch.rows, outputs.float().cpu().numpy(), batch.targets.numpy()))
    every = [one for part in world.gather(found) for one in part]
    order = np.argsort(np.concatenate([rows for rows, _, _ in every]), kind="stable")
    return np.concatenate([one[1] for one in every])[order], np.concatenate([one[2] for one in every])[order]


def mixed_figures(
    task: str, outputs: np.ndarray, targets: np.ndarray, labels: list[str], deviation: float, mixture: Mixture
) -> dict[str, Any]:
    total = loss(task, torch.from_numpy(np.asarray(outputs, dtype=np.float32)), torch.from_numpy(targets), deviation)
    shown = outputs.argmax(-1) if task == "classify" else mixture.raised(outputs) if task == "multilabel" else outputs
    return {"rows": len(targets), "loss": float(total) / max(len(targets), 1), **row_figures(task, shown, targets, labels)}


@dataclass
class Bag:
    """The bag of words of a run, and what comes of it."""

    work: TrainingTask
    fitted: Linear

    @classmethod
    def fit(cls, work: TrainingTask) -> Bag:
        held = None if work.held is None else (work.files[work.held_split], work.held)
        limit = None if work.train.minutes is None else SEARCH * 60 * work.train.minutes
        return cls(work, baseline.fit_split(work.files, work.kept, held, work.train.balance, limit))

    def scores(self, split: str, rows: np.ndarray | None = None) -> np.ndarray:
        """Rows of the final split get those of a bag that learned from what was held out too: its settings are chosen."""
        files, fitted = self.work.files, self.measured if split == self.work.final else self.fitted
        return fitted.scores(baseline.texts_of(files[split], files.tokenizer(), files.card, rows))

    @property
    def every(self) -> bool:
        """Whether the bag that is kept learns from all labelled rows."""
        return self.work.train.refit and self.work.train.fraction == 1

    @cached_property
    def measured(self) -> Linear:
        """What the figure is of: fitted on all labelled rows but those of the figure, unless told not to."""
        return self._refitted(self.work.final) if self.every else self.fitted

    @cached_property
    def kept(self) -> Linear:
        """What a model folder holds: never fitted on a test split that the user gave."""
        if not self.every or self.work.final not in self.work.card.labelled_splits:
            return self.measured
        return self._refitted()

    def figures(self, split: str, rows: np.ndarray | None = None) -> dict[str, Any]:
        wanted = self.work.files[split].targets
        assert wanted is not None
        scores, task = self.scores(split, rows), self.work.task
        shown = scores.argmax(-1) if task == "classify" else scores
        return row_figures(task, shown, np.asarray(wanted if rows is None else wanted[rows]), self.work.card.labels)

    def choose(self, network: np.ndarray, targets: np.ndarray) -> Mixture:
        """By the held-out rows, whose outputs these are; rows in their order."""
        assert self.work.held is not None
        scores = self.scores(self.work.held_split, np.sort(self.work.held))
        return choose(self.work.task, network, scores, targets, self.work.train.balance)

    def _refitted(self, without: str | None = None) -> Linear:
        """With the same settings."""
        files, card = self.work.files, self.work.card
        splits = [files[name] for name in card.labelled_splits if name != without]
        share = baseline.share_fitted(sum(map(len, splits)), card)
        texts: list[linear.Row] = []
        targets = []
        for split in splits:
            rows = portion(np.arange(len(split)), split.keys, share)
            assert split.targets is not None
            texts += baseline.texts_of(split, files.tokenizer(), card, rows)
            targets.append(np.asarray(split.targets[rows]))
        found = linear.fit_kind(card.task, texts, np.concatenate(targets), len(card.labels), self.fitted.kind, self.work.train.balance)
        found.seconds, found.tried = self.fitted.seconds, self.fitted.tried
        return found


def save_keys(folder: Path, work: TrainingTask, every: bool) -> None:
    """The hashes of the texts trained on: all of them, or those of train that were kept and of what was held out to choose by."""
    files = work.files
    keys = [files[name].keys for name in work.card.labelled_splits if every] or [files["train"].keys]
    joined = np.unique(np.concatenate([np.asarray(one) for one in keys]))
    save_tensors(folder / KEYS, {"keys": torch.from_numpy(joined.view(np.int64))}, {})


def trained_on(folder: Path, split: TokenSplit) -> int:
    """How many rows of a split a model folder was trained on."""
    if not (folder / KEYS).is_file():
        return 0
    tensors, _ = load_tensors(folder / KEYS)
    return int(np.isin(np.asarray(split.keys), tensors["keys"].numpy().view(np.uint64)).sum())


def mixed_outputs(trained_linear: Linear | None, mixture: Mixture, network: np.ndarray, files: TokenFiles, split: TokenSplit) -> np.ndarray:
    if trained_linear is None or mixture.by == NETWORK:
        return network
    return mixture.outputs(network, trained_linear.scores(baseline.texts_of(split, files.tokenizer(), files.card)))


class RowAnswers:
    """The bag of words of a run, fitted first and shown at once; at the end, what the model folder answers with."""

    def __init__(self, work: TrainingTask, world: World, say: Callable[[str], None]):
        self.work, self.world, self.mixture = work, world, Mixture()
        self.said: Outputs | None = None  # the network's outputs for the rows of the figure
        self.network: Mapping[str, object] | None = None  # the network's own figures, where it does not answer alone
        self.refitted = 0  # rows that the network learned from in all, where it went on after its figure
        self.bag = self._fit(say) if work.train.baseline and world.first else None

    def _fit(self, say: Callable[[str], None]) -> Bag | None:
        work = self.work
        if not linear.available():
            say(linear.ABSENT)
            return None
        bag = Bag.fit(work)
        told = f"{bag.fitted.kind}, fitted on {bag.fitted.rows:,} rows in {bag.fitted.seconds:.1f} s"
        if work.held is None:
            say(f"bag of words: {told}")
            return bag
        found, name = bag.figures(work.held_split, work.held), metrics.MAIN[work.task]
        say(f"bag of words: {name} {found[name]:.4f}{beside(found, name)} on {len(work.held):,} held-out rows ({told})")
        return bag

    def measure(self, model: Model) -> dict[str, Any]:
        """The network's own figures. On every rank, as all read a part of the rows; so is `settle`."""
        work = self.work
        if work.final is None:
            return {}
        self.said = network_outputs(model, work.batches(work.final, self.world), self.world)
        return mixed_figures(work.task, *self.said, work.card.labels, work.deviation, Mixture())

    def settle(self, model: Model, figures: dict[str, Any]) -> dict[str, Any]:
        """Choose by the held-out rows -> the figures of what was chosen."""
        work, said = self.work, self.said
        batches = work.held_batches(self.world)
        if batches is None or not (work.train.baseline or work.task == "multilabel"):
            return figures
        held = network_outputs(model, batches, self.world)
        if self.bag is not None:
            self.mixture = self.bag.choose(*held)
        elif work.task == "multilabel":
            self.mixture = Mixture(thresholds=thresholds(*held), rows=len(held[1]))
        if said is None or work.final is None or (self.mixture.by == NETWORK and not self.mixture.thresholds):
            return figures
        self.network = figures
        bag = None if self.bag is None else self.bag.scores(work.final)
        return mixed_figures(work.task, self.mixture.outputs(said[0], bag), said[1], work.card.labels, work.deviation, self.mixture)

    def baseline(self, split: str) -> dict[str, Any] | None:
        """The bag's own figures, as a record."""
        if self.bag is None:
            return None
        found, one = self.bag.figures(split), self.bag.measured
        told = {"kind": str(one.kind), "features": one.features, "rows": one.rows, "seconds": one.seconds, "tried": one.tried}
        return {name: value for name, value in found.items() if isinstance(value, float)} | told | {"intervals": found["intervals"]}

    def record(self) -> dict[str, object]:
        work = self.work
        learned = {"network": self.refitted or (len(work.files["train"]) if work.kept is None else len(work.kept))}
        if self.mixture.by != NETWORK and self.bag is not None:
            learned["bag of words"] = self.bag.kept.rows
        return {"answers": self.mixture.record(), "network_figures": self.network, "learned_from": learned}

    def write(self, folder: Path) -> None:
        """What a model folder holds beside the network: the bag of words where it answers, and the hashes of what was trained on."""
        answering = self.bag is not None and self.mixture.by != NETWORK
        if answering and self.bag is not None:
            self.bag.kept.save(folder)
        save_keys(folder, self.work, every=bool(self.refitted) or (answering and self.bag is not None and self.bag.every))


def beside(figures: dict[str, Any], name: str) -> str:
    """The figure's interval, and what else an accuracy needs to be judged by."""
    shown = ""
    if name in figures.get("intervals", {}):
        low, high = figures["intervals"][name]
        shown = f" [{low:.4f}, {high:.4f}]"
    if "macro_f1" in figures:
        shown += f", macro_f1 {figures['macro_f1']:.4f}"
    return shown + (f", commonest class {figures['majority']:.4f}" if "majority" in figures else "")


def told_of_rows(record: dict[str, Any], name: str) -> Iterator[str]:
    """Lines on the bag of words, on what answers and why, and on what was learned from."""
    bag = record["baseline"]
    yield f"a bag of words on the same rows: {name} {bag[name]:.4f}{beside(bag, name)}, fitted in {bag['seconds']:.1f} s ({bag['kind']})"
    if record["answers"]["held"]:
        yield Mixture.of(record["answers"]).line("macro_f1" if record["settings"]["train"]["balance"] else name)
    if record["learned_from"]:
        yield "learned from: " + ", ".join(f"{what} {rows:,} rows" for what, rows in record["learned_from"].items())
