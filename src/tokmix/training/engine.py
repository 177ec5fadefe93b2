"""The training loop of `train`, its warm-up, `tune` and `compare`: one process or several.

Hugging Face's Trainer serves a user's own scripts on our models (tokmix.hf), not this: it resumes within an epoch by reading the seen
batches again, pickles its generators' states, writes checkpoints in place, and needs the number of steps beforehand.

The rule: a step (step.py) is a function of the weights, the optimizer's state and (seed, step). A run that continues from any
checkpoint repeats the same numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from tokmix.data.batches.rows import Batch, Batches
from tokmix.data.batches.windows import WindowBatches
from tokmix.data.order import number
from tokmix.training import state
from tokmix.training.capture import Captured, CudaRecorder, compile_layers, pad, why_not
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.distributed import World
from tokmix.training.meter import Meter
from tokmix.training.optimizers import Optimizers, means
from tokmix.training.pacing import FORWARD, SHARE, evaluation_plan, steps_that_fit
from tokmix.training.prefetch import Prefetch
from tokmix.training.progress import Diverged, Interrupted, Progress
from tokmix.training.schedule import Growth, learning_rate, on_signal, planned_steps
from tokmix.training.sharding import sharding
from tokmix.training.step import Step, checkpoint_layers
from tokmix.training.target_scaler import TargetScaler
from tokmix.training.task import TrainingTask

Log = Callable[[dict[str, Any]], None]  # takes one entry of log.jsonl
COMPILED = 600.0  # seconds of a run above which its layers are compiled: compiling takes about a minute
FINISH = 8.0  # seconds of --minutes, at most, that are kept for the model folder and the pictures
AGREE = 5  # steps between two times that several processes ask each other whether to stop or save


class Engine:
    def __init__(self, work: TrainingTask, world: World, checkpoints: Checkpoints, log: Log = lambda entry: None):
        self.work, self.world, self.checkpoints, self.log, self.train = work, world, checkpoints, log, work.train
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
        self.prefetch = Prefetch(work.train_batches(world), 2 if world.device.type == "cuda" else 0, self._prepare)
        self.parameters = list(self.model.parameters())
        self.optimizers = Optimizers(
            self.model.named_parameters(), work.lr, kind=self.train.optimizer, weight_decay=self.train.weight_decay,
            betas=(0.9, self.train.beta2), capturable=self.eager is None, scales=work.rate_scales(self.model),
        )  # fmt: skip
        self.best: dict[str, Tensor] | None = None
        self.average = means(self.parameters) if work.average else []
        half = (self.train.precision or ("bfloat16" if world.device.type == "cuda" else "float32")) == "bfloat16"
        step = Step(self.model, self.optimizers, self.sharding, work.loss, clip=self.train.clip, average=self.average, half=half)
        step.asked = work.asked
        self.say: Callable[[str], None] = lambda line: None
        self.update: Step | Captured = step
        if self.eager is None:
            self.update = Captured(step, CudaRecorder(world.device), lambda line: self.say(line))
        self.most = planned_steps(work, world)
        self.progress = Progress(total=self.most)
        self.log_steps = work.train.log_steps or (50 if world.device.type == "cuda" else 10)
        self.recent: list[Tensor] = []  # [loss, gradient norm] of the steps since the last look
        self.stop = False
        self.pace: float | None = None  # seconds of a step, from a trial
        self.saved_step: int | None = None  # of the newest checkpoint of this process
        self.fitted = 0.0  # when --minutes was last compared with the clock
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
        found = self.checkpoints.newest(self.world)
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
        before = [tensor.detach().clone() for tensor in state.changed_by_steps(self.model, self.average)]
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, was in zip(state.changed_by_steps(self.model, self.average), before, strict=True):
                    tensor.copy_(was)
            self.optimizers.reset()

    def time_step(self, inner: int = 0) -> float:
        """Seconds of one step of the first epoch, done once."""
        _, batches = self._next_batches(0, inner, 0, self.batches)
        began = time.perf_counter()
        float(self._update(batches, 0)[0])  # waits for the device
        return time.perf_counter() - began

    def estimate_pace(self) -> float:
        """Seconds of the mean step."""
        if self.pace is None:
            with self.untouched():
                times = [self.time_step(self.batches.steps(0) * place // 4) for place in (0, 0, 1, 2, 3)]
            self.pace = self.world.agree(self.growth.mean() / self.growth.at(0, self.most) * sum(times[1:]) / 4)  # the first warms up
        return self.pace

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
        self.pace = None

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> Progress:
        """Train to the end; afterwards the model holds the best weights."""
        progress = self.progress
        if progress.step < progress.total:
            self.meter.start()
        if self.train.minutes is not None and progress.step == 0:
            progress.total = steps_that_fit(0, self._seconds_left(), self.estimate_pace(), self.most)
        self.plan_evaluations()
        began, saved = time.monotonic() - progress.seconds, time.monotonic()
        with on_signal(self._ask_to_stop):
            while progress.step < progress.total:
                self.step()
                if progress.step % self.log_steps == 0 or progress.step == progress.total:
                    self._note()
                if self._evaluation_due():
                    self.evaluate()
                progress.seconds = time.monotonic() - began
                self.meter.sample()
                if self.train.minutes is not None:
                    self._fit_to_clock()
                stop, late, writing = self._requests(time.monotonic() - saved > self.train.save_seconds)
                if not writing:
                    self.checkpoints.finish(self.world)
                if stop:
                    self.save(wait=True)
                    raise Interrupted(f"stopped after step {progress.step} of {progress.total}")
                if late or (self.train.save_steps and progress.step % self.train.save_steps == 0):
                    self.save()
                    saved = time.monotonic()
            if self.saved_step != progress.step:
                self.save()
            self.checkpoints.finish(self.world)
        if self.best is not None:
            self.model.load_state_dict(self.best)
        else:
            self._swap()
        if self.scaler is not None:
            self.scaler.fold()
        return progress

    def _requests(self, late: bool) -> list[bool]:
        """(stop, save, still writing). Several processes ask each other now and then only: asking waits for the slowest."""
        if self.world.size > 1 and self.progress.step % AGREE:
            return [False, False, True]
        return self.world.any(self.stop, late, not self.checkpoints.written)

    @torch.no_grad()
    def _swap(self) -> None:
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

    def _next_batches(self, epoch: int, inner: int, step: int, source: Batches | None = None) -> tuple[tuple[int, int], list[Batch]]:
        """The batches of a step -> (where the next one begins, batches)."""
        reader, batches = self.prefetch if source is None else Prefetch(source, 0, self._prepare), []
        for _ in range(self.growth.at(step, self.progress.total)):
            (epoch, inner), batch = reader.take(epoch, inner)
            inner += 1
            batches.append(batch)
        return (epoch, inner), batches

    def _prepare(self, batch: Batch) -> Batch:
        """For CUDA graphs: one of few shapes."""
        if self.eager is not None:
            return batch
        rows = self.batches.size if isinstance(self.batches, WindowBatches) else self.train.rows
        return pad(batch, self.work.config.max_len, rows, self.work.config.causal, pin=True)

    def _update(self, batches: list[Batch], step: int) -> Tensor:
        """A function of the weights, the optimizer's state and (seed, step) -> [2]: loss, gradient norm"""
        seeds = [number(self.train.seed, step, self.world.rank, 3, *([place] if place else [])) >> 1 for place in range(len(batches))]
        hidden = [replace(batch, ids=self._hide(batch, seed)) for batch, seed in zip(batches, seeds, strict=True)]
        rate = learning_rate(step, self.progress.total, self.work.lr, self.train.warmup, self.train.final_lr, self.train.schedule)
        keep = min(self.work.average, (1 + step) / (10 + step))  # the first weights are soon forgotten
        return self.update(hidden, seeds, rate, keep)

    def _hide(self, batch: Batch, seed: int) -> Tensor:
        return self.work.hide_tokens(batch.ids, torch.Generator().manual_seed(seed ^ 1))

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
            self.log({"step": progress.step, "total": progress.total, "epoch": progress.epoch, "loss": sum(losses) / len(losses),
                      "losses": losses, "tokens": progress.tokens, "seconds": progress.seconds,
                      **self.meter.brief()})  # fmt: skip
            progress.losses = []

    # --- evaluations and the clock -----------------------------------------------------------------------------------

    def plan_evaluations(self) -> None:
        """Once, at the start of a run; a resumed run follows the plan in its checkpoint."""
        progress, work = self.progress, self.work
        if work.held is None:
            return
        if not progress.evaluations:
            train_tokens = work.tokens_of("train") * progress.total * self.growth.mean() / max(self.batches.steps(0), 1)
            plan = evaluation_plan(self.train.evaluations, train_tokens, work.tokens_of("held"), len(work.held))
            progress.evaluations, progress.held_share = plan.count, plan.share
        self.held = work.held_batches(self.world, progress.held_share)

    def _evaluation_due(self) -> bool:
        if self.held is None:
            self.plan_evaluations()
        done, total, often = self.progress.step, self.progress.total, self.progress.evaluations
        if self.held is None or not (done * often // total > (done - 1) * often // total or done == total):
            return False
        if self.train.minutes is None or done == total:
            return True
        within = self.progress.evaluation_seconds + self._evaluation_estimate() <= SHARE * 60 * self.train.minutes
        return bool(self.world.agree(within))

    def evaluate(self) -> None:
        """On the part held out of train; the best weights so far are remembered."""
        assert self.held is not None
        progress, began = self.progress, time.monotonic()
        self._swap()
        figures = self.work.evaluate(self.model, self.held, self.world)
        score = self.work.score(figures)
        if progress.best_score is None or score > progress.best_score:
            progress.best_score, progress.best_step = score, progress.step
            self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self._swap()
        progress.evaluation_seconds += time.monotonic() - began
        shown = {name: value for name, value in figures.items() if isinstance(value, (int, float))}
        progress.history.append({"step": progress.step, "epoch": progress.epoch, "best": progress.best_step, **shown})
        self.log({"step": progress.step, "total": progress.total, "epoch": progress.epoch, "held": shown})

    def _evaluation_estimate(self, split: str = "held") -> float:
        """Seconds of one evaluation: measured on the held-out part, else from the pace of the steps."""
        progress, held = self.progress, self.work.tokens_of("held") * self.progress.held_share
        tokens = held if split == "held" else self.work.tokens_of(split)
        if progress.history and held:
            return progress.evaluation_seconds / len(progress.history) * tokens / held
        a_step = self.work.tokens_of("train") * self.growth.mean() / max(self.batches.steps(0), 1)
        return FORWARD * (self.pace or 0.0) * tokens / max(a_step, 1)

    def _seconds_left(self) -> float:
        """Of --minutes, for steps: without what was spent, the evaluations that are to come and the final one."""
        assert self.train.minutes is not None
        progress = self.progress
        finish = self._evaluation_estimate("final") + self.checkpoints.seconds + min(FINISH, SHARE * 60 * self.train.minutes)
        left = 60 * self.train.minutes - progress.spent - progress.seconds - finish
        if self.work.held is None:
            return left
        left -= self._evaluation_estimate() / max(progress.held_share, 1e-9)  # the bag of words and the model are compared on all of it
        planned = max((progress.evaluations or 1) - len(progress.history), 1)
        affordable = max(SHARE * 60 * self.train.minutes - progress.evaluation_seconds, 0.0)
        return left - min(planned * self._evaluation_estimate(), max(affordable, self._evaluation_estimate()))

    def _fit_to_clock(self) -> None:
        """With --minutes: as many steps as fit, judged by the time the steps so far have taken."""
        progress = self.progress
        if progress.step >= progress.total:  # a run that has ended stays so
            return
        alone = self.world.size == 1 and progress.seconds - self.fitted > 1
        if progress.step % AGREE and not alone:
            return
        self.fitted = progress.seconds
        pace = (progress.seconds - progress.evaluation_seconds) / progress.step * self.growth.to_come(progress.step / progress.total)
        progress.total = self.world.agree(steps_that_fit(progress.step, self._seconds_left(), pace, self.most))

    def _ask_to_stop(self) -> None:
        self.stop = True
