"""`tokmix bench train-loop`: tokens a second of `tokmix train`'s engine over those of the best loop by hand around the same model.

The loops by hand are forward, loss, backward, clip, AdamW, on the same batches in the same order: built as it goes by the same reader,
and ready in memory, which is more than a real loop gets. On a GPU also with each whole step as a CUDA graph, batches on the device
and in the engine's few shapes, as it is and with compiled layers: what `bench train` calls the best. Engine and loops take turns; the
figure is the median of the turns' ratios. Neither checkpoints nor evaluations are part of it.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

import torch
from torch import nn

from bench.speed.session import Session
from tokmix.data.batches.rows import Batch
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.training.capture import CudaRecorder, Recorder
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.distributed import World
from tokmix.training.engine import Engine
from tokmix.training.layer_modes import compile_layers
from tokmix.training.meter import Meter
from tokmix.training.settings import Settings
from tokmix.training.static_shapes import BatchSlot
from tokmix.training.task import TrainingTask

WORDS, SEED = 3000, 0


class Unsaved(Engine):
    """A turn is a whole run, of few steps: the checkpoint at its end, all weights and moments copied to the host, would weigh as
    much as the steps, and so would the opening of the energy counter."""

    def save(self, wait: bool = False) -> None:
        self.look()


def run(session: Session) -> None:
    with tempfile.TemporaryDirectory(prefix="tokmix-bench-") as folder:
        for task in ("classify", "lm"):
            if session.wanted(task) and not session.late():
                _compare(session, task, Path(folder))


def _settings(session: Session, task: str) -> Settings:
    """The lab's own defaults, without what a plain loop would not do; on a GPU larger, so that there is something to compute."""
    known: dict[str, float] = {"train.holdout": 0.0, "train.token_dropout": 0.0, "train.average": 0.0, "train.steps": 10**6}
    if session.asked.quick:
        known |= {"model.dim": 16, "train.tokens": 256, "model.length": 32}
    elif session.device == "cuda":
        known |= {"model.dim": 512, "train.tokens": 32_768, "train.rows": 512, "model.length": 1024}
    return Settings.of(None, known)


def _words(count: int, draw: random.Random) -> str:
    return " ".join(f"w{min(int(draw.expovariate(8) * WORDS), WORDS - 1)}" for _ in range(count))


def write_data(folder: Path, task: str, quick: bool) -> Path:
    """Made-up text: its words say nothing, and time does not depend on what they say."""
    draw = random.Random(SEED)
    rows = 200 if quick else 4000
    if task == "lm":
        path = folder / "text.txt"
        path.write_text("\n".join(_words(draw.randint(50, 400), draw) for _ in range(rows)) + "\n", encoding="utf-8")
    else:
        path = folder / "rows.csv"
        lines = [f"{_words(draw.randint(4, 60), draw)},{draw.choice(['good', 'bad'])}" for _ in range(rows)]
        path.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


class Plain:
    """A training loop by hand."""

    def __init__(self, work: TrainingTask, device: torch.device, batches: Iterator[Batch]):
        self.work, self.device, self.batches = work, device, batches
        self.model = work.build(device)
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def run(self, steps: int) -> int:
        """-> tokens read"""
        tokens, losses = 0, []
        for _ in range(steps):
            batch = next(self.batches)
            moved = batch.to(self.device)
            self.optimizer.zero_grad()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                outputs = self.model(moved.ids, moved.segments)
            loss = self.work.loss(outputs, moved) / max(batch.total, 1)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            losses.append(loss.detach())
            tokens += batch.ids.numel()
        assert torch.isfinite(torch.stack(losses)).all()  # looks at them, as anybody would
        return tokens


class Graphed(Plain):
    """The same with each whole step as a graph, one for each shape of batch. Gradients are made by the backward pass, as in `bench
    train`; the batches lie on the device, and what is left a step is to copy one into its place and to start the graph."""

    def __init__(self, work: TrainingTask, device: torch.device, batches: Iterator[Batch], recorder: Recorder, compiled: bool):
        super().__init__(work, device, batches)
        self.recorder, self.graphs = recorder, dict[Hashable, tuple[BatchSlot, Callable[[], None]]]()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True, capturable=device.type == "cuda")
        if compiled:
            compile_layers(self.model)
        self.loss = torch.zeros((), device=device)

    def run(self, steps: int) -> int:
        tokens, losses = 0, []
        for _ in range(steps):
            batch = next(self.batches)
            shape = BatchSlot.shape(batch)
            if shape not in self.graphs:
                self.graphs[shape] = self._record(batch)
            slot, replay = self.graphs[shape]
            slot.fill(batch)
            slot.scale.fill_(1 / max(batch.total, 1))
            replay()
            losses.append(self.loss.clone())
            tokens += batch.ids.numel()
        assert torch.isfinite(torch.stack(losses)).all()
        return tokens

    def _record(self, batch: Batch) -> tuple[BatchSlot, Callable[[], None]]:
        slot = BatchSlot.of(batch, self.device)
        slot.scale.fill_(1 / max(batch.total, 1))

        def step() -> None:
            self.optimizer.zero_grad()
            given = slot.batch(batch)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                outputs = self.model(given.ids, given.segments)
            loss = self.work.loss(outputs, given) * slot.scale
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.loss.copy_(loss.detach())

        self.recorder.warm(step)
        return slot, self.recorder.record(step)


class ByEngine:
    def __init__(self, work: TrainingTask, world: World, folder: Path, compiled: bool = False):
        self.engine = Unsaved(work, world, Checkpoints(folder))
        if compiled:
            self.engine.compile()
        self.engine.meter = Meter(world.device, counter=lambda device: "not asked for")

    def run(self, steps: int) -> int:
        before = self.engine.progress.tokens
        self.engine.progress.total = self.engine.progress.step + steps
        self.engine.run()
        return self.engine.progress.tokens - before


def _endless(work: TrainingTask, world: World) -> Iterator[Batch]:
    batches, epoch = work.train_batches(world), 0
    while True:
        yield from batches.epoch(epoch)
        epoch += 1


def _compare(session: Session, task: str, folder: Path) -> None:
    out = folder / task
    prepare(write_data(folder, task, session.asked.quick), out, progress=False, vocab=500 if session.asked.quick else 4000, task=task)
    work = TrainingTask(TokenFiles(out), _settings(session, task))
    device = torch.device(session.device)
    world = World(device=device)
    turns, steps, warm = (3, 3, 2) if session.asked.quick else (9, 30, 10) if session.device == "cuda" else (5, 10, 3)
    source = _endless(work, world)
    ready = [next(source) for _ in range(turns * steps + warm)]
    loops: dict[str, Callable[[int], int]] = {
        "engine": ByEngine(work, world, folder).run,
        "plain, same reader": Plain(work, device, _endless(work, world)).run,
        "plain, batches in memory": Plain(work, device, iter(ready)).run,
    }
    if session.device == "cuda":
        loops |= _captured(work, world, folder, ready)
    for loop in loops.values():
        loop(warm)
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(turns):
        names = list(loops)
        first = turn % len(names)
        for name in names[first:] + names[:first]:  # nobody is always first
            rates[name].append(_rate(loops[name], steps, session.device))
    for name, found in rates.items():
        ratios = sorted(ours / other for ours, other in zip(rates["engine"], found, strict=True))
        session.add({"name": task, "body": name, "stack": work.config.stack, "N": work.config.max_len, "dim": work.config.dim,
                     "steps": steps, "turns": turns, "rates": found, "tokens_per_s": statistics.median(found),
                     "ratio": statistics.median(ratios), "ratio_least": ratios[0], "ratio_most": ratios[-1]})  # fmt: skip


def _captured(work: TrainingTask, world: World, folder: Path, ready: list[Batch]) -> dict[str, Callable[[int], int]]:
    """Rivals that are recorded, and the engine with what one of them has."""
    shaped = Engine(work, world, Checkpoints(folder))  # as the engine shapes its batches
    placed = [shaped.prepare(batch).to(world.device) for batch in ready]
    return {
        "engine, compiled": ByEngine(work, world, folder, compiled=True).run,
        "captured": Graphed(work, world.device, iter(placed), CudaRecorder(world.device), compiled=False).run,
        "captured, compiled": Graphed(work, world.device, iter(placed), CudaRecorder(world.device), compiled=True).run,
    }


def _rate(loop: Callable[[int], int], steps: int, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    tokens = loop(steps)
    if device == "cuda":
        torch.cuda.synchronize()
    return tokens / (time.perf_counter() - began)
