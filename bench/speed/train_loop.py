"""`tokmix bench train-loop`: tokens per second of `tokmix train`, divided by those of the best handwritten loop for the same model.

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
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

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
EAGER = 10  # loops without CUDA graphs run this many times fewer steps


class Unsaved(Engine):
    """A turn is a whole run, of few steps: the checkpoint at its end, all weights and moments copied to the host, would weigh as
    much as the steps, and so would the opening of the energy counter."""

    def save(self, wait: bool = False) -> None:
        self.look()


@dataclass(frozen=True)
class Case:
    """given: settings beside ALIKE. words: fewest, mean and most of a row. compiled: whether compiling is tried too, which takes about
    20 s for each shape of batch."""

    task: str
    given: dict[str, object]
    words: tuple[int, int, int] = (4, 32, 60)
    steps: int = 200
    compiled: bool = False


SENTENCES, TEXT = (2, 14, 50), (50, 225, 400)  # words of a row; SST-2's have 17 tokens
LM: dict[str, object] = {"model.dim": 512, "model.length": 512, "train.tokens": 32_768}
MLM: dict[str, object] = {"model.dim": 384, "model.length": 128, "train.tokens": 32_768}
PAPER: dict[str, object] = {"model.dim": 256, "model.feed_forward": 512, "train.rows": 128}
CASES = {
    "HyperMixer, sentences": Case("classify", PAPER | {"model.stack": "hypermixing(hidden=512)*6"}, SENTENCES),
    "default, sentences": Case("classify", {}, SENTENCES),
    "hybrid LM": Case("lm", LM | {"model.stack": "(hsm*3, attention(heads=8))*2"}, TEXT, 20, True),
    "attention LM": Case("lm", LM | {"model.stack": "attention(heads=8)*8"}, TEXT, 20, True),
    "MLM encoder": Case("mlm", MLM | {"model.stack": "hypermixing(heads=6, hidden=384, shift=1)*8"}, TEXT, 20, True),
}
ON_CPU = {"classify": Case("classify", {}, steps=10), "lm": Case("lm", {}, TEXT, 10)}
SMALL: dict[str, object] = {"model.dim": 16, "train.tokens": 256, "model.length": 32}
# Without what a plain loop would not do.
ALIKE: dict[str, object] = {"train.holdout": 0.0, "train.token_dropout": 0.0, "train.average": 0.0, "train.steps": 10**6}


def run(session: Session) -> None:
    cases = CASES if session.device == "cuda" and not session.asked.quick else ON_CPU
    with tempfile.TemporaryDirectory(prefix="tokmix-bench-") as folder:
        for name, case in cases.items():
            if session.wanted(name) and not session.late():
                _compare(session, name, case, Path(folder))


def _words(count: int, draw: random.Random) -> str:
    return " ".join(f"w{min(int(draw.expovariate(8) * WORDS), WORDS - 1)}" for _ in range(count))


def write_data(folder: Path, case: Case, rows: int) -> Path:
    """Random text, because time does not depend on its content."""
    draw = random.Random(SEED)
    least, mean, most = case.words
    even = 2 * mean == least + most
    counts = (draw.randint(least, most) if even else min(least + int(draw.expovariate(1 / (mean - least))), most) for _ in range(rows))
    if case.task == "classify":
        path = folder / "rows.csv"
        lines = ["text,label", *(f"{_words(count, draw)},{draw.choice(['good', 'bad'])}" for count in counts)]
    else:
        path, lines = folder / "text.txt", [_words(count, draw) for count in counts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Plain:
    """A handwritten training loop."""

    def __init__(self, work: TrainingTask, device: torch.device, batches: Iterator[Batch]):
        self.work, self.device, self.batches = work, device, batches
        self.model = work.build(device)
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def forward(self, *inputs: object) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return self.model(*inputs)  # type: ignore[no-any-return]

    def run(self, steps: int) -> int:
        """-> tokens read"""
        tokens, losses = 0, []
        for _ in range(steps):
            batch = next(self.batches)
            moved = batch.to(self.device)
            self.optimizer.zero_grad()
            loss = self.work.batch_loss(self.forward, moved) / max(batch.total, 1)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            losses.append(loss.detach())
            tokens += batch.ids.numel()
        assert torch.isfinite(torch.stack(losses)).all()  # reads the losses, as a user would
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
            loss = self.work.batch_loss(self.forward, given) * slot.scale
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


def _compare(session: Session, name: str, case: Case, folder: Path) -> None:
    quick, gpu = session.asked.quick, session.device == "cuda"
    kind = "classify" if case.task == "classify" else "lm"
    out = folder / kind
    if not out.exists():
        text = write_data(folder, case, 200 if quick else 20_000 if gpu and kind == "classify" else 4000)
        prepare(text, out, progress=False, vocab=500 if quick else 4000, task=kind)
    given = ALIKE | {"train.task": case.task} | case.given | (SMALL if quick else {})
    work = TrainingTask(TokenFiles(out), Settings.of(None, given))
    device = torch.device(session.device)
    world = World(device=device)
    turns, steps = (3, 3) if quick else (5, case.steps)
    warm = 2 if quick else 2 * steps if gpu else 3  # on a GPU until every shape of batch has occurred
    source = _endless(work, world)
    ready = [next(source) for _ in range(turns * steps + warm)]
    loops: dict[str, Callable[[int], int]] = {
        "engine": ByEngine(work, world, folder).run,
        "plain, same reader": Plain(work, device, _endless(work, world)).run,
        "plain, batches in memory": Plain(work, device, iter(ready)).run,
    }
    if gpu:
        loops |= _captured(work, world, folder, ready, case.compiled)
    count = {body: steps // EAGER if gpu and body.startswith("plain") else steps for body in loops}  # enough for a rate
    for body, loop in loops.items():
        loop(min(warm, 10) if count[body] < steps else warm)
    rates: dict[str, list[float]] = {body: [] for body in loops}
    for turn in range(turns):
        names = list(loops)
        first = turn % len(names)
        for body in names[first:] + names[:first]:  # change the order in every turn
            rates[body].append(_rate(loops[body], count[body], session.device))
    for body, found in rates.items():
        ours = rates["engine, compiled" if body == "captured, compiled" else "engine"]
        ratios = sorted(mine / other for mine, other in zip(ours, found, strict=True))
        session.add({"name": name, "body": body, "stack": work.config.stack, "N": work.config.max_len, "dim": work.config.dim,
                     "steps": count[body], "turns": turns, "rates": found, "tokens_per_s": statistics.median(found),
                     "ratio": statistics.median(ratios), "ratio_least": ratios[0], "ratio_most": ratios[-1]})  # fmt: skip


def _captured(work: TrainingTask, world: World, folder: Path, ready: list[Batch], compiled: bool) -> dict[str, Callable[[int], int]]:
    """Rivals that are recorded, and the engine with what one of them has."""
    shaped = Engine(work, world, Checkpoints(folder))  # with the engine's shapes of batches
    placed = [shaped.prepare(batch).to(world.device) for batch in ready]
    loops: dict[str, Callable[[int], int]] = {
        "captured": Graphed(work, world.device, iter(placed), CudaRecorder(world.device), compiled=False).run
    }
    if compiled:
        loops["engine, compiled"] = ByEngine(work, world, folder, compiled=True).run
        loops["captured, compiled"] = Graphed(work, world.device, iter(placed), CudaRecorder(world.device), compiled=True).run
    return loops


def _rate(loop: Callable[[int], int], steps: int, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    tokens = loop(steps)
    if device == "cuda":
        torch.cuda.synchronize()
    return tokens / (time.perf_counter() - began)
