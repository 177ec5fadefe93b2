"""The training loop: one small loop of our own around the core model, on one process or several.

Hugging Face's Trainer was weighed for this and serves a user's own scripts on our models (tokmix.hf); here it stands in the
way. It resumes within an epoch by reading again the batches already seen, where ours are a function of (seed, epoch, step);
it keeps the state of its random generators and its arguments as pickles; it writes checkpoints in place, so that a kill while
saving leaves half a folder; its schedule wants the number of steps beforehand, which --minutes does not know.

The rule here: a step is a function of the weights, the optimizer's state and (seed, step). Dropout is seeded anew by the
step, so no generator has a state to be saved, and a run continued from any checkpoint repeats the same numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tokmix.data.batches.rows import Batch
from tokmix.data.order import number
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.distributed import World
from tokmix.training.meter import Meter
from tokmix.training.prefetch import Prefetch
from tokmix.training.schedule import learning_rate, on_signal, planned_steps
from tokmix.training.sharding import sharding
from tokmix.training.target_scaler import TargetScaler
from tokmix.training.task import TrainingTask

Log = Callable[[dict[str, Any]], None]  # takes one entry of log.jsonl


class Diverged(ValueError):
    """The loss or the gradient is no finite number."""

    cost: dict[str, Any] | None = None  # what the run had cost by then, where train.run raised it


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or a request to end, after a clean checkpoint."""


@dataclass
class Progress:
    """What a checkpoint holds beside tensors."""

    step: int = 0  # steps done
    total: int = 0  # steps of the whole run; with --minutes an estimate that gets better
    epoch: int = 0
    inner: int = 0  # steps done of this epoch
    seconds: float = 0.0
    tokens: int = 0
    best_score: float | None = None
    best_step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)  # one entry an evaluation
    measured: dict[str, Any] = field(default_factory=dict)  # wall time, memory and energy so far: see meter.py
    losses: list[float] = field(default_factory=list)  # of the steps since the last line of the log


class Engine:
    def __init__(
        self, work: TrainingTask, world: World, checkpoints: Checkpoints, log: Callable[[dict[str, Any]], None] = lambda entry: None
    ):
        self.work, self.world, self.checkpoints, self.log, self.train = work, world, checkpoints, log, work.train
        self.model = work.build(world.device)
        self.unit = TargetScaler(self.model.head, work.mean, work.unit) if work.task == "regress" and work.unit != 1 else None  # type: ignore[arg-type]
        self.sharding = sharding(work.train.shard, world)
        self.sharding.place(self.model)
        self.batches, self.held = work.train_batches(world), work.held_batches(world)
        self.prefetch = Prefetch(work.train_batches(world), depth=2 if world.device.type == "cuda" else 0)
        self.parameters = list(self.model.parameters())
        self.optimizer = self._optimizer()
        self.best: dict[str, Tensor] | None = None
        self.average = [parameter.detach().clone() for parameter in self.parameters] if work.average else []
        self.most = planned_steps(work, world)
        self.progress = Progress(total=self.most)
        self.log_steps = work.train.log_steps or (50 if world.device.type == "cuda" else 10)
        self.recent: list[Tensor] = []  # [loss, gradient norm] of the steps since the last look
        self.stop = False
        self.meter = Meter(world.device)

    def _optimizer(self) -> torch.optim.Optimizer:
        """Vectors (biases, norms, gains) do not decay."""
        train = self.train
        groups = [
            {"params": [p for p in self.parameters if p.dim() >= 2], "weight_decay": train.weight_decay},
            {"params": [p for p in self.parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([g for g in groups if g["params"]], lr=self.work.lr, betas=(0.9, train.beta2), fused=True)  # type: ignore[arg-type]

    @torch.no_grad()
    def begin_with(self, weights: dict[str, Tensor]) -> None:
        """In place of fresh weights those of a warm-up."""
        known = self.model.state_dict()
        for name, full in weights.items():
            known[name].copy_(self.sharding.like(known[name], full))
        self.average = [parameter.detach().clone() for parameter in self.parameters] if self.average else []

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        self.look()  # a checkpoint is good: nothing that diverged is ever saved
        self.meter.sample(now=True)
        self.progress.measured = self.meter.totals(self.world.gather(self.meter.own()))
        tensors: dict[str, Tensor] = {}
        for name, tensor in self._tensors().items():
            full = self.sharding.whole(tensor)  # every rank takes part, the first one keeps it
            if self.world.first:
                tensors[name] = full.cpu()
        if self.world.first:
            self.checkpoints.save(self.progress.step, tensors, asdict(self.progress))
        self.world.wait()

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"weights.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            state = self.optimizer.state.get(parameter)
            if state:
                tensors |= {f"first.{name}": state["exp_avg"], f"second.{name}": state["exp_avg_sq"]}
        for (name, _), mean in zip(self.model.named_parameters(), self.average, strict=bool(self.average)):
            tensors[f"average.{name}"] = mean
        return tensors | {f"best.{name}": tensor for name, tensor in (self.best or {}).items()}

    def restore(self) -> bool:
        """Continue from the newest checkpoint, where there is one."""
        found = self.checkpoints.load()
        if found is None:
            return False
        tensors, state = found
        self.progress = Progress(**state)
        self.meter.resume(self.progress.measured)
        known = self.model.state_dict()
        self.model.load_state_dict({name: self.sharding.like(known[name], full) for name, full in _part(tensors, "weights.").items()})
        first, second = _part(tensors, "first."), _part(tensors, "second.")
        for name, parameter in self.model.named_parameters():
            if name in first:
                done = torch.tensor(float(self.progress.step), device=parameter.device)
                moments = {"exp_avg": first[name], "exp_avg_sq": second[name]}
                laid = {key: torch.empty_like(parameter).copy_(self.sharding.like(parameter, full)) for key, full in moments.items()}
                self.optimizer.state[parameter] = {"step": done, **laid}
        means = _part(tensors, "average.")
        for (name, _), mean in zip(self.model.named_parameters(), self.average, strict=bool(self.average)):
            mean.copy_(self.sharding.like(mean, means[name]))
        self.best = {name: self.sharding.like(known[name], full).clone() for name, full in _part(tensors, "best.").items()} or None
        return True

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> Progress:
        """Train to the end; afterwards the model holds the best weights."""
        progress, saved = self.progress, time.monotonic()
        if progress.step < progress.total:
            self.meter.start()
        with on_signal(self._ask_to_stop):
            while progress.step < progress.total:
                began = time.monotonic()
                self.step()
                if progress.step % self.log_steps == 0 or progress.step == progress.total:
                    self._note()
                if self._evaluation_due():
                    self.evaluate()
                progress.seconds += time.monotonic() - began
                self.meter.sample()
                if self.train.minutes is not None:
                    self._fit_to_clock()
                stop, late = self.world.agree((self.stop, time.monotonic() - saved > self.train.save_seconds))
                if stop:
                    self.save()
                    raise Interrupted(f"stopped after step {progress.step} of {progress.total}")
                if late or (self.train.save_steps and progress.step % self.train.save_steps == 0):
                    self.save()
                    saved = time.monotonic()
            self.save()
        if self.best is not None:
            self.model.load_state_dict(self.best)
        else:
            self._swap()
        if self.unit is not None:
            self.unit.fold()
        return progress

    @torch.no_grad()
    def _swap(self) -> None:
        """Weights and their running mean change places."""
        for parameter, mean in zip(self.parameters, self.average, strict=bool(self.average)):
            held = parameter.clone()
            parameter.copy_(mean)
            mean.copy_(held)

    def step(self) -> None:
        """One step of the optimizer."""
        progress, train = self.progress, self.train
        (progress.epoch, progress.inner), batch = self.prefetch.take(progress.epoch, progress.inner)
        torch.manual_seed(number(train.seed, progress.step, self.world.rank, 3) >> 1)
        lr = learning_rate(progress.step, progress.total, self.work.lr, train.warmup, train.final_lr)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        loss = self.sharding.backward(self._loss(batch), self.parameters)
        norm = self.sharding.clip(self.parameters, train.clip)
        self.optimizer.step()
        if self.average:
            keep = min(self.work.average, (1 + progress.step) / (10 + progress.step))  # the first weights are soon forgotten
            torch._foreach_lerp_(self.average, [parameter.detach() for parameter in self.parameters], 1 - keep)
        self.recent.append(torch.stack([loss.float(), norm.float()]))
        if self.world.device.type == "cpu" and not bool(torch.isfinite(self.recent[-1]).all()):
            progress.step += 1
            self.look()
        progress.step, progress.inner, progress.tokens = progress.step + 1, progress.inner + 1, progress.tokens + batch.ids.numel()

    def _loss(self, batch: Batch) -> Tensor:
        """Of this rank's part: summed, and divided by the targets of all parts."""
        self.model.train()
        moved = replace(batch, ids=self.work.hide_tokens(batch.ids)).to(self.world.device)
        with self._precision():
            outputs = self.model(moved.ids, moved.segments)
        return self.work.loss(outputs, moved) * (batch.weight / max(batch.total, 1))

    def _precision(self) -> Any:
        wanted = self.train.precision or ("bfloat16" if self.world.device.type == "cuda" else "float32")
        return nullcontext() if wanted == "float32" else torch.autocast(self.world.device.type, torch.bfloat16)

    def look(self) -> list[float]:
        """The losses since the last line of the log; an error where one of them, or a gradient, is not finite."""
        if not self.recent:
            return self.progress.losses
        values = torch.stack(self.recent).cpu()
        bad = (~torch.isfinite(values).all(1)).nonzero().flatten().tolist()
        if bad:
            step = self.progress.step - len(values) + bad[0] + 1
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

    def _evaluation_due(self) -> bool:
        done, total, often = self.progress.step, self.progress.total, self.train.evaluations
        return self.held is not None and (done * often // total > (done - 1) * often // total or done == total)

    def evaluate(self) -> None:
        """On the part held out of train; the best weights so far are remembered."""
        assert self.held is not None
        progress = self.progress
        self._swap()
        figures = self.work.evaluate(self.model, self.held, self.world)
        score = self.work.score(figures)
        if progress.best_score is None or score > progress.best_score:
            progress.best_score, progress.best_step = score, progress.step
            self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self._swap()
        shown = {name: value for name, value in figures.items() if isinstance(value, (int, float))}
        progress.history.append({"step": progress.step, "epoch": progress.epoch, "best": progress.best_step, **shown})
        self.log({"step": progress.step, "total": progress.total, "epoch": progress.epoch, "held": shown})

    def _fit_to_clock(self) -> None:
        """With --minutes: as many steps as fit, judged by the time the steps so far have taken."""
        progress = self.progress
        if progress.step < 5 or progress.step % 10 or progress.step >= progress.total:  # a run that has ended stays so
            return
        assert self.train.minutes is not None
        fits = int(progress.step * self.train.minutes * 60 / max(progress.seconds, 1e-9))
        progress.total = self.world.agree(max(progress.step + 1, min(self.most, fits)))

    def _ask_to_stop(self) -> None:
        self.stop = True


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
