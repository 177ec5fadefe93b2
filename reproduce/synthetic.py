"""Kind "synthetic": stacks trained side by side on one task of tokmix.data.synthetic.

spec    task, settings  a task, and its settings where they are not the base's;  data_seed: of its rows, the same for every member
        width, base     of the models, and fields of ModelConfig that all of them share
        models          name -> fields of ModelConfig, `stack` among them
        equal           fields of one more model: the others get the feed-forward width that gives them its number of parameters
        members         model, lr, seed (of the first weights and of the order of the rows), weight_decay
        steps, batch    rows beyond whole batches wait for the next epoch's shuffle
        compiled        whether layers are, on a GPU; they are where it is not said

The model is MAD's (data/synthetic/run.py), trained as there: AdamW, no clipping, the rate on a cosine down to 1e-6. Score: the share of the
test set's targets that are right, after the last step.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reproduce.job import Context
from tokmix.core.budget import match_parameters, parameter_count
from tokmix.core.model import Model, ModelConfig
from tokmix.core.seeds import seeded
from tokmix.data import synthetic
from tokmix.data.batches.mask import IGNORE
from tokmix.training import replicas
from tokmix.training.precision import autocast
from tokmix.training.step import Forward
from tokmix.training.synthetic import LOWEST_RATE, AutoEncoder, config

REPORTS = 4  # evaluations of a run
EVALUATED = 640  # rows at a time


class LogitsAtTargets(nn.Module):
    """A language model with tied embeddings that computes logits only at the targets: with 8192 words and few targets, the other logits
    would take most of the time. Weights and numbers are those of Model with head lm."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        assert config.head == "lm" and config.tie
        self.config, self.encoder = config, Model(replace(config, head="none"))

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        """ids [B, T], places [B, k] -> [B, k, vocab]"""
        x = self.encoder(ids)
        chosen = x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))
        return F.linear(chosen, self.encoder.embedding.weight)


@dataclass(frozen=True)
class Rows:
    """Rows of a task on a device: for training or scoring."""

    inputs: Tensor  # [n, T]
    wanted: Tensor  # [n, T], or [n, k] at `places`; IGNORE where nothing is
    places: Tensor | None  # [n, k]; None: everywhere

    def logits(self, forward: Forward, index: Tensor) -> Tensor:
        inputs = self.inputs[index]
        return forward(inputs) if self.places is None else forward(inputs, self.places[index])

    def loss(self, forward: Forward, index: Tensor, width: int) -> Tensor:
        """The mean over the targets of the rows [B]."""
        return F.cross_entropy(self.logits(forward, index).flatten(0, 1).float(), self.wanted[index].flatten(), ignore_index=IGNORE)


def rows(task: synthetic.Task, inputs: Tensor, wanted: Tensor, device: torch.device) -> Rows:
    """If every row has the same number of targets, logits are computed only there."""
    if task.learns != "targets":
        return Rows(inputs.to(device), wanted.to(device), None)
    places = (wanted != IGNORE).nonzero()[:, 1].view(len(wanted), -1)
    return Rows(inputs.to(device), wanted.gather(1, places).to(device), places.to(device))


def build(task: synthetic.Task, config: ModelConfig, seed: int) -> nn.Module:
    with seeded(seed):
        if task.learns == "rebuild":
            return AutoEncoder(config)
        return LogitsAtTargets(config) if task.learns == "targets" else Model(config)


def configs(spec: dict[str, Any]) -> dict[str, ModelConfig]:
    """Of every model of the spec, the feed-forward width settled."""
    task = synthetic.create(spec["task"], **spec["settings"])
    make = lambda fields: config(task, dim=spec["width"], **{**spec["base"], **fields})
    found = {name: make(fields) for name, fields in spec["models"].items()}
    if spec["equal"] is None:
        return found
    goal = parameter_count(make(spec["equal"]))
    return {name: match_parameters(one, goal) for name, one in found.items()}


def batches(seeds: Sequence[int], n: int, batch: int, length: int, steps: int) -> Iterator[tuple[int, Tensor]]:
    """(length, rows [members, B]): each member's order is drawn from its own seed, epoch by epoch."""
    size, done = min(batch, n), 0
    chance = {seed: torch.Generator().manual_seed(seed) for seed in seeds}
    while True:
        drawn = {seed: torch.randperm(n, generator=generator) for seed, generator in chance.items()}
        for start in range(0, n - size + 1, size):
            if done == steps:
                return
            done += 1
            yield length, torch.stack([drawn[seed][start : start + size] for seed in seeds])


@torch.no_grad()
def accuracy(model: nn.Module, data: Rows, device: torch.device) -> float:
    """The share of what is asked at which the likeliest token is the one wanted."""
    model.eval()
    right = torch.zeros((), dtype=torch.long, device=device)
    with autocast(device, "bf16"):
        for index in torch.arange(len(data.inputs), device=device).split(EVALUATED):
            right += (data.logits(model, index).argmax(-1) == data.wanted[index]).sum()
    model.train()
    return int(right) / int((data.wanted != IGNORE).sum())


def run(spec: dict[str, Any], context: Context) -> dict[str, Any]:
    task, device = synthetic.create(spec["task"], **spec["settings"]), context.device
    train, test = task.split(spec["data_seed"])
    learned, scored = rows(task, train.inputs, task.learned(train), device), rows(task, test.inputs, test.targets, device)
    made = configs(spec)
    members = [
        replicas.Replica(build(task, made[one["model"]], one["seed"]), learned.loss, one["lr"], one.get("weight_decay", 0.0), one["seed"])
        for one in spec["members"]
    ]
    curves: list[list[dict[str, float]]] = [[] for _ in members]

    def report(step: int, losses: list[float]) -> None:
        for member, curve, loss in zip(members, curves, losses, strict=True):
            curve.append({"step": step, "loss": loss, "score": accuracy(member.model, scored, device)})
        reached = " ".join(f"{curve[-1]['score']:.3f}" for curve in curves)
        context.say(f"step {step} of {steps}, scores {reached}")

    steps, batch = spec["steps"], min(spec["batch"], len(train))
    recipe = replicas.Recipe(steps, schedule="cosine", lowest=LOWEST_RATE, clip=None, compiled=spec.get("compiled", True))
    order = batches([one["seed"] for one in spec["members"]], len(train), batch, task.length, steps)
    left_out = replicas.train(members, order, recipe, device, every=-(-steps // REPORTS), report=report, say=context.say)
    models = {name: describe(task, one) for name, one in made.items()}
    return {
        "runs": [_run(one, curve) | {"left_out": lost} for one, curve, lost in zip(spec["members"], curves, left_out, strict=True)],
        "models": models,
        "parameters": max(one["parameters"] for one in models.values()),
        "data": {f"{spec['task']}, {part}": fingerprint(data.inputs, data.targets) for part, data in (("train", train), ("test", test))},
        "chance": task.chance,
        "steps": steps,
        "tokens": steps * batch * task.length,
    }


def _run(member: dict[str, Any], curve: list[dict[str, float]]) -> dict[str, Any]:
    last = curve[-1]
    finite = all(math.isfinite(point["loss"]) for point in curve)
    known = {"state": "finished" if finite else "diverged", "score": last["score"], "loss": last["loss"] if finite else None}
    kept = [{**point, "loss": point["loss"] if math.isfinite(point["loss"]) else None} for point in curve]  # JSON knows no NaN
    return {**member, **known, "curve": kept}


def describe(task: synthetic.Task, config: ModelConfig) -> dict[str, Any]:
    """What a model is: size, numbers kept to decode behind a row, FLOPs of reading one."""
    with torch.device("meta"):
        model = build(task, config, 0)
        encoder = Model(replace(config, head="none"))
    cost = encoder.cost(task.length)
    own = sum(p.numel() for p in model.parameters()) - encoder.embedding.weight.numel()
    return {
        "stack": config.stack,
        "feed_forward": config.feed_forward,
        "parameters": own + encoder.embedding.weight.numel(),
        "without_embedding": own,
        "state": cost.state,
        "flops": cost.causal,
    }


def fingerprint(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
