"""Kind "systematicity": models of the shapes task (toy/), trained at its length and tested at others, and with the shapes where no training
sequence has any.

spec    n, epochs, batch, lr   of training
        members                [{model, item, seed}]: a seed has its own training set, first weights, order and test sets
        test                   sequences of each test set
        sets                   name -> [length, lowest centre, highest centre] of the shapes in it

The error is taken where shapes stand, so that lengths can be compared.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from reproduce.job import Context
from reproduce.shapes import check_quick
from reproduce.toy import model as toy
from reproduce.toy.data import LENGTH, Shapes, make, split
from tokmix.training.precision import products


def run(spec: dict[str, Any], context: Context) -> dict[str, Any]:
    members: list[dict[str, Any]] = spec["members"]
    learned = {one["seed"]: split(spec["n"], 1, one["seed"])[0].to(context.device) for one in members}
    models = [toy.build(one["item"], learned[one["seed"]], one["seed"]) for one in members]
    gpu = context.device.type == "cuda"
    if gpu:
        with products("tf32"):
            check_quick(models[0], learned[members[0]["seed"]].take(slice(spec["batch"])))
    toy.train_all(
        models, [learned[one["seed"]] for one in members], [one["seed"] for one in members], epochs=spec["epochs"], batch=spec["batch"],
        lr=spec["lr"], precision="tf32" if gpu else "float32",
    )  # fmt: skip
    context.say(f"{len(models)} models trained on {spec['n']} sequences each")
    runs = []
    with products("float32"):
        for one, model in zip(members, models, strict=True):
            sets = {name: unseen(spec["test"], one["seed"], *where).to(context.device) for name, where in spec["sets"].items()}
            errors = {name: error(model, data) for name, data in sets.items()}
            sound = all(map(math.isfinite, errors.values()))
            found = {"state": "finished", "score": errors[next(iter(errors))], **errors} if sound else {"state": "diverged", "score": None}
            runs.append(one | found | {"lr": spec["lr"]})
    tokens = spec["epochs"] * spec["n"] * LENGTH
    return {
        "runs": runs,
        "data": {},
        "tokens": tokens,
        "parameters": {one["model"]: m.parameter_count() for one, m in zip(members, models, strict=True)},
    }


@torch.no_grad()
def error(model: toy.ShapesModel, data: Shapes) -> float:
    """100 x the mean squared error at positions where a shape stands: the empty ones, of which longer sequences have more, are easy."""
    away = (toy.predict(model, data.inputs) - data.targets).square()
    return 100 * float(away[data.covered().any(1)].mean())


def unseen(n: int, seed: int, length: int, low: float, high: float) -> Shapes:
    """A test set that no training set begins with."""
    return make(n, torch.Generator().manual_seed(1_000_003 * (seed + 1) + length), length, (low, high))
