"""A run of `train`, its warm-up, `tune` and `compare`: what is due before, at and after each step. One process or several.

The rule: a step (step.py) is a function of the weights, the optimizer's state and (seed, step). A run that continues from any
checkpoint repeats the same numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

import torch
from torch import Tensor

from tokmix.data.batches.rows import Batch, Batches
from tokmix.data.batches.windows import WindowBatches
from tokmix.data.order import number
from tokmix.training import loop, state
from tokmix.training.capture import Captured, CudaRecorder, turns, why_not
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.distributed import World
from tokmix.training.layer_modes import checkpoint_layers, compile_layers
from tokmix.training.meter import Meter
from tokmix.training.optimizers import Optimizers, means
from tokmix.training.pacing import AGREE, Pacing
from tokmix.training.prefetch import Prefetch
from tokmix.training.progress import Diverged, Entry, Interrupted, Progress
from tokmix.training.schedule import Growth, learning_rate, on_signal, planned_steps
from tokmix.training.sharding import sharding
from tokmix.training.static_shapes import BatchSlot, pad
from tokmix.training.step import Step
from tokmix.training.target_scaler import TargetScaler
from tokmix.training.task import TrainingTask

Log = Callable[[Entry], None]  # takes one entry of log.jsonl
COMPILED = 600.0  # seconds of a run above which its layers are compiled: compiling takes about a minute


class Engine:
    def __init__(
        self, work: TrainingTask, world: World, checkpoints: Checkpoints, log: Log = lambda entry: None, side_by_side: int = 1,
    ):  # fmt: skip
        """side_by_side: runs that this process trains in turns."""
        self.work, self.world, self.checkpoints, self.log, self.train = work, world, checkpoints, log, work.train
        self.side_by_side, self.turn = side_by_side, turns(world.device, side_by_side)[0]
        self.model = work.build(world.device)
        scaled = work.task == "regress" and work.unit != 1
        self.scaler = TargetScaler(self.model.head, work.mean, work.unit) if scaled else None  # type: ignore[arg-type]
        if self.train.checkpoint_layers:
            checkpoint_layers(self.model)
        self.sharding = sharding(self.train.shard, world)
        self.sharding.place(self.model)
        self.batches = work.train_batches(world)
        self.held: Batches | None = None  # see plan_evaluations
        packed = self.train.packed or self.train.documents
        self.eager = why_not(world.device, world.size, packed, self.train.checkpoint_layers, self.train.capture)
        self.growth = Growth(self.train.accumulate, self.train.grow)
        self.prefetch = Prefetch(work.train_batches(world), 2 if world.device.type == "cuda" else 0, self.prepare)
        self.parameters = list(self.model.parameters())
        self.optimizers = Optimizers(
            self.model.named_parameters(), work.lr, kind=self.train.optimizer, weight_decay=self.train.weight_decay,
            betas=(0.9, self.train.beta2), capturable=self.eager is None, scales=work.rate_scales(self.model),
        )  # fmt: skip
        self.best: dict[str, Tensor] | None = None
        self.average = means(self.parameters) if work.average else []
        half = (self.train.precision or ("bfloat16" if world.device.type == "cuda" else "float32")) == "bfloat16"
        step = Step(self.model, self.optimizers, self.sharding, work.batch_loss, clip=self.train.clip, average=self.average, half=half)
        self.say: Callable[[str], None] = lambda line: None
        self.update: Step[Batch] | Captured[Batch] = step
        if self.eager is None:
            whole = self.train.accumulate == 1
            self.update = Captured(step, CudaRecorder(world.device), BatchSlot, lambda line: self.say(line), whole=whole)
        self.most = planned_steps(work, world)
        self.pacing = Pacing(work, world, self.batches.steps(0), self.most, self.growth)
        self.progress = Progress(total=self.most)
        self.log_steps = work.train.log_steps or (50 if world.device.type == "cuda" else 10)
        self.recent: list[Tensor] = []  # [loss, gradient norm] of the steps since the last look
        self.stop = False
        self.saved_step: int | None = None  # of the newest checkpoint of this process
        self.error: Exception | Interrupted | None = None  # why it ended early
        self.meter = Meter(world.device)

    @torch.no_grad()
    def begin_with(self, weights: dict[str, Tensor]) -> None:
        """In place of fresh weights those of a warm-up or of an encoder."""
        known = self.model.state_dict()
        for name, full in weights.items():
            known[name].copy_(self.sharding.like(known[name], full))
        for mean, parameter in zip(self.average, self.parameters, strict=bool(self.average)):
            mean.copy_(parameter)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, wait: bool = False) -> None:
        self.look()  # a checkpoint is good: nothing that diverged is ever saved
        self.meter.sample(now=True)
        self.progress.measured = self.meter.totals(self.world.gather(self.meter.own()))
        held = state.tensors_of(self.model, self.optimizers, self.average, self.best)
        self.checkpoints.begin(self.progress.step, held, asdict(self.progress), self.world)
        self.saved_step = self.progress.step
        if wait:
            self.checkpoints.finish(self.world)

    def restore(self) -> bool:
        """Continue from the newest checkpoint, where there is one."""
        found = self.checkpoints.resume(self.world)
        if found is None:
            return False
        self.progress = Progress(**found.state)
        self.saved_step = self.progress.step
        self.meter.resume(self.progress.measured)
        self.best = state.load(found, self.progress.step, self.model, self.optimizers, self.average, self.sharding)
        return True

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Steps inside of it leave no trace. Only before the first step of a run."""
        changed = (self.update.step if isinstance(self.update, Captured) else self.update).state()
        with self.turn:
            before = [tensor.detach().clone() for tensor in changed]
            yield
            for tensor, was in zip(changed, before, strict=True):
                tensor.detach().copy_(was)
            self.optimizers.reset()

    def time_step(self, inner: int = 0) -> float:
        """Seconds of one step of the first epoch, done once."""
        _, batches = self._next_batches(0, inner, 0, self.batches)
        began = time.perf_counter()
        with self.turn:
            float(self._update(batches, 0)[0])  # waits for the device
        return time.perf_counter() - began

    def estimate_pace(self) -> float:
        """Seconds of the mean step."""
        if self.pacing.pace is None:
            quarters = [self.batches.steps(0) * place // 4 for place in range(4)]
            with self.untouched():
                for inner in quarters if isinstance(self.update, Captured) else quarters[:1]:  # recording is no part of a step
                    self.time_step(inner)
                times = [self.time_step(inner) for inner in quarters]
            grown = self.growth.mean() / self.growth.at(0, self.most)
            self.pacing.pace = float(self.world.agree(grown * sum(times) / 4))
        return self.pacing.pace

    def compile_pays(self) -> bool:
        """Whether layers are to be compiled: by train.compile, else by the length of the run."""
        if self.train.compile != "auto" or self.world.device.type != "cuda" or self.checkpoints.last is not None:
            return self.train.compile == "yes"
        seconds = self.estimate_pace() * self.most
        return min(seconds, 60 * (self.train.minutes or math.inf)) > COMPILED

    def compile(self) -> None:
        compile_layers(self.model)
        if isinstance(self.update, Captured):
            self.update.forget()
        self.pacing.pace = None

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> Progress:
        """Train to the end; afterwards the model holds the best weights."""
        run([self])
        return self.finish()

    def start(self) -> None:
        """Before the first step of this process."""
        progress = self.progress
        if self.world.device.type == "cuda":  # a stream of its own does not wait for the copying of the weights
            torch.cuda.synchronize(self.world.device)
        if progress.step < progress.total:
            self.meter.start()
        if self.train.minutes is not None and progress.step == 0:
            self.estimate_pace()
            self.pacing.begin(progress)
        self.plan_evaluations()
        self.began, self.saved = time.monotonic() - progress.seconds, time.monotonic()

    def advance(self) -> bool:
        """A step and what is due after it -> whether there are more. What ends the run early is kept for `finish`."""
        progress = self.progress
        try:
            with self.turn:
                if progress.step < progress.total:
                    self.step()
                    self._after_step()
                if progress.step >= progress.total:
                    if self.saved_step != progress.step:
                        self.save()
                    self.checkpoints.finish(self.world)
        except (Exception, Interrupted) as error:
            self.error = error
            return False
        return progress.step < progress.total

    def _after_step(self) -> None:
        progress = self.progress
        if progress.step % self.log_steps == 0 or progress.step == progress.total:
            self._note()
        self.evaluate_if_due()
        progress.seconds = time.monotonic() - self.began
        self.meter.sample()
        if self.train.minutes is not None:
            self.pacing.fit(progress, self.checkpoints.seconds)
        stop, late, writing = self._requests(time.monotonic() - self.saved > self.train.save_seconds)
        if not writing:
            self.checkpoints.finish(self.world)
        if stop:
            self.save(wait=True)
            raise Interrupted(f"stopped after step {progress.step} of {progress.total}")
        if late or (self.train.save_steps and progress.step % self.train.save_steps == 0):
            self.save()
            self.saved = time.monotonic()

    def finish(self) -> Progress:
        """The model gets the best weights; an error that ended the run is raised."""
        if self.error is not None:
            raise self.error
        with self.turn:
            self.swap() if self.best is None else self.model.load_state_dict(self.best)
            if self.scaler is not None:
                self.scaler.fold()
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
        return self.progress

    def _requests(self, late: bool) -> list[bool]:
        """(stop, save, still writing). Several processes ask each other now and then only: asking waits for the slowest."""
        if self.world.size > 1 and self.progress.step % AGREE:
            return [False, False, True]
        return self.world.any(self.stop, late, not self.checkpoints.written)

    @torch.no_grad()
    def swap(self) -> None:
        """Weights and their running mean change places."""
        for parameter, mean in zip(self.parameters, self.average, strict=bool(self.average)):
            held = parameter.clone()
            parameter.copy_(mean)
            mean.copy_(held)

    def step(self) -> None:
        """One step of the optimizer."""
        progress = self.progress
        (progress.epoch, progress.inner), batches = self._next_batches(progress.epoch, progress.inner, progress.step)
        self.recent.append(self._update(batches, progress.step))
        progress.step, progress.tokens = progress.step + 1, progress.tokens + sum(batch.ids.numel() for batch in batches)
        if self.world.device.type == "cpu" and not bool(torch.isfinite(self.recent[-1]).all()):
            self.look()

    def _next_batches(self, epoch: int, inner: int, step: int = 0, source: Batches | None = None) -> tuple[tuple[int, int], list[Batch]]:
        """The batches of a step -> (where the next one begins, batches)."""
        reader, batches = self.prefetch if source is None else Prefetch(source, 0, self.prepare), []
        for _ in range(self.growth.at(step, self.progress.total)):
            (epoch, inner), batch = reader.take(epoch, inner)
            inner += 1
            batches.append(batch)
        return (epoch, inner), batches

    def prepare(self, batch: Batch) -> Batch:
        """For CUDA graphs: one of few shapes."""
        if self.eager is not None:
            return batch
        rows = self.batches.size if isinstance(self.batches, WindowBatches) else self.train.rows
        return pad(batch, self.work.config.max_len, rows, self.work.config.causal, pin=True)

    def _update(self, batches: list[Batch], step: int) -> Tensor:
        """A function of the weights, the optimizer's state and (seed, step) -> [2]: loss, gradient norm"""
        seeds = [number(self.train.seed, step, self.world.rank, 3, *([place] if place else [])) >> 1 for place in range(len(batches))]
        hide = lambda ids, seed: self.work.hide_tokens(ids, torch.Generator().manual_seed(seed ^ 1))
        hidden = [replace(batch, ids=hide(batch.ids, seed)) for batch, seed in zip(batches, seeds, strict=True)]
        rate = learning_rate(step, self.progress.total, self.work.lr, self.train.warmup, self.train.final_lr, self.train.schedule)
        keep = min(self.work.average, (1 + step) / (10 + step))  # the first weights are soon forgotten
        return self.update(hidden, seeds, rate, keep)

    def look(self) -> list[float]:
        """The losses since the last line of the log; an error where one of them, or a gradient, is not finite."""
        if not self.recent:
            return self.progress.losses
        values = torch.stack(self.recent).cpu()
        bad = (~torch.isfinite(values).all(1)).nonzero().flatten().tolist()
        if bad:
            step = self.progress.step - len(values) + bad[0] + 1
            self.checkpoints.settle()
            good = self.checkpoints.last
            kept = f"the last good checkpoint is {good}" if good else "there is no checkpoint before it"
            what = "loss" if not math.isfinite(values[bad[0], 0]) else "gradient"
            raise Diverged(f"the {what} is not a finite number at step {step}: training diverged; {kept}; try a lower train.lr")
        self.recent.clear()
        self.progress.losses += values[:, 0].tolist()
        return self.progress.losses

    def _note(self) -> None:
        losses, progress = self.look(), self.progress
        if losses:
            brief = self.meter.brief()
            self.log({"step": progress.step, "total": progress.total, "epoch": progress.epoch, "loss": sum(losses) / len(losses),
                      "losses": losses, "tokens": progress.tokens, "seconds": progress.seconds,
                      "peak_memory_bytes": brief["peak_memory_bytes"], "energy_joules": brief["energy_joules"]})  # fmt: skip
            progress.losses = []

    # --- evaluations -------------------------------------------------------------------------------------------------

    def plan_evaluations(self) -> None:
        """Once, at the start of a run; a resumed run follows the plan in its checkpoint."""
        self.pacing.plan(self.progress)
        self.held = self.work.held_batches(self.world, self.progress.held_share)

    def evaluate_if_due(self) -> None:
        if self.held is None:
            self.plan_evaluations()
        if self.held is not None and self.pacing.evaluation_due(self.progress):
            self.evaluate()

    def evaluate(self) -> None:
        """On the part held out of train; the best weights so far are remembered."""
        assert self.held is not None
        progress, began = self.progress, time.monotonic()
        self.swap()
        figures = self.work.evaluate(self.model, self.held, self.world)
        score = self.work.score(figures)
        if progress.best_score is None or score > progress.best_score:
            progress.best_score, progress.best_step = score, progress.step
            self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self.swap()
        progress.evaluation_seconds += time.monotonic() - began
        shown = {name: value for name, value in figures.items() if isinstance(value, (int, float))}
        progress.history.append({"step": progress.step, "epoch": progress.epoch, "best": progress.best_step, **shown})
        self.log({"step": progress.step, "total": progress.total, "epoch": progress.epoch, "held": shown})


def run(engines: Sequence[Engine]) -> None:
    """Train all of them, side by side, each to its end; then ask each to `finish`."""

    def ask_to_stop() -> None:
        for engine in engines:
            engine.stop = True

    with on_signal(ask_to_stop):
        for engine in engines:
            engine.start()
        loop.train(engines)
