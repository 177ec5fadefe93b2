"""Kind "shapes": models of the shapes task (toy/), any mixers and seeds side by side, and who reads whom in them.

A seed stands for a training set, a test set, first weights and an order of batches; the models of one seed differ in nothing else.
On a GPU products are in TF32 while they train; errors and maps are measured in full single precision.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reproduce.job import Context
from reproduce.toy import model as toy
from reproduce.toy.data import LENGTH, Shapes, split
from tokmix.core.mixer import Mixer
from tokmix.study.explain import jacobian as explain
from tokmix.training.precision import products

# How far the gradients of the quick convolutions may be from torch's. Both are in TF32, and a ReLU whose input is about zero may be open
# in the one and shut in the other: that is some percent after five layers. A tap that is missing or in the wrong place is far more.
AGREE = 0.2
PARTNER = (1, 0, 3, 2)  # shapes 0 and 1 are the triangles, 2 and 3 the boxes
AREAS = ("model", "mixer")  # whose Jacobian a map shows


def run(spec: dict[str, Any], context: Context) -> dict[str, Any]:
    """spec: n, test, epochs, batch, lr; members: [{model, item, seed}]; last: epochs at the end after each of which the error is
    noted; measured: test sequences whose maps are measured, of all members; drawn: those whose maps are kept, of members with "map";
    samples: random directions of a kept map of the mixer, null for an exact one."""
    members: list[dict[str, Any]] = spec["members"]
    sets = {member["seed"]: tuple(part.to(context.device) for part in split(spec["n"], spec["test"], member["seed"])) for member in members}
    models = [toy.build(member["item"], sets[member["seed"]][0], member["seed"]) for member in members]
    late: list[list[float]] = [[] for _ in members]

    def note() -> None:
        with products("float32"):
            for member, model, errors in zip(members, models, late, strict=True):
                errors.append(toy.error(model, sets[member["seed"]][1]))

    _train(spec, models, [sets[member["seed"]][0] for member in members], note)
    context.say(f"{len(models)} models trained on {spec['n']} sequences each")
    runs = []
    with products("float32"):
        for member, model, errors in zip(members, models, late, strict=True):
            runs.append(_measured(member, model, sets[member["seed"]][1], errors, spec))
    return {
        "runs": runs,
        "data": {},
        "parameters": {member["model"]: model.parameter_count() for member, model in zip(members, models, strict=True)},
        "steps": spec["epochs"] * -(-spec["n"] // spec["batch"]),
        "tokens": spec["epochs"] * spec["n"] * LENGTH,
        "products": "TF32" if context.device.type == "cuda" else "float32",
        "drawn": _drawn(members, models, sets, spec),
    }


def _train(spec: Mapping[str, Any], models: Sequence[toy.ShapesModel], sets: Sequence[Shapes], note: Callable[[], None]) -> None:
    gpu = sets[0].inputs.is_cuda
    if gpu:
        with products("tf32"):
            check_quick(models[0], sets[0].take(slice(spec["batch"])))

    def report(epoch: int, losses: list[float]) -> None:
        if epoch > spec["epochs"] - spec["last"]:
            note()

    toy.train_all(
        models, sets, [member["seed"] for member in spec["members"]], epochs=spec["epochs"], batch=spec["batch"], lr=spec["lr"],
        precision="tf32" if gpu else "float32", report=report,
    )  # fmt: skip


def check_quick(model: toy.ShapesModel, data: Shapes) -> None:
    """The quick convolutions give torch's gradients, on this machine, before anything is trained with them. In random directions and of
    noise: the task's own gradient is mostly that of a constant at the start, and would not notice taps in the wrong order."""
    quick = toy.Fused(model)
    x, dy = torch.randn(2, *data.inputs.shape, generator=torch.Generator().manual_seed(0)).to(data.inputs)
    found = []
    for one in (model, quick):
        found.append(torch.autograd.grad(one(model.mean + model.std * x), [*one.back.parameters(), *one.front.parameters()], dy))
    for ours, exact in zip(*reversed(found), strict=True):
        away = float((ours.permute(2, 1, 0) if ours.dim() == 3 else ours).sub(exact).norm() / exact.norm())
        if not away < AGREE:
            raise RuntimeError(
                f"gradients of the convolution's kernels are {away:.1%} off on this machine: TOKMIX_IMPL=reference avoids them"
            )


# --- what is measured of a trained model ---------------------------------------------------------------------------------------


def _measured(
    member: Mapping[str, Any], model: toy.ShapesModel, test: Shapes, errors: Sequence[float], spec: Mapping[str, Any]
) -> dict[str, Any]:
    found = {**member, "lr": spec["lr"]}
    score = errors[-1] if errors else toy.error(model, test)
    if not math.isfinite(score):
        return found | {"state": "diverged", "score": None, "error": "its error is not a finite number"}
    moved = toy.response(model, test)
    found |= {"state": "finished", "score": score, "late": list(errors), "response": {"partner": moved.partner, "stranger": moved.stranger}}
    if spec["measured"]:
        few = test.take(slice(spec["measured"]))
        found["maps"] = {area: pairing(maps, few) for area in AREAS if (maps := jacobians(model, few, area)) is not None}
    return found


def jacobians(model: toy.ShapesModel, data: Shapes, area: str, samples: int | None = 8) -> Tensor | None:
    """[n, T, T], reader by read. Of the model: the derivative of y_i by x_j, one number, with its sign. Of the mixer: the norm of the
    block of derivatives of its output token i by its input token j, from random directions; None where there is no mixer."""
    model.eval()
    if area == "model":
        return _derivatives(model, data.inputs)
    middle = model.middle
    if not isinstance(middle, Mixer):
        return None
    with torch.no_grad():
        tokens = model.tokens(data.inputs)
    directions = torch.Generator().manual_seed(0)
    return explain.pseudo_attention(middle, tokens, samples=samples, generator=directions)


def _derivatives(model: toy.ShapesModel, inputs: Tensor, rows: int = 500) -> Tensor:
    """[n, T] -> [n, T, T]. Copies of a sequence in a batch, each asked for another output: rows never mix."""
    n, T = inputs.shape
    found: list[Tensor] = []
    for ask in torch.arange(n * T, device=inputs.device).split(rows):
        copies = inputs[ask // T].requires_grad_()
        found += torch.autograd.grad(model(copies).gather(1, (ask % T)[:, None]).sum(), copies)
    return torch.cat(found).view(n, T, T)


def pairing(maps: Tensor, data: Shapes) -> dict[str, Any]:
    """How strongly the tokens of a shape read those of the other shape of its kind, and those of the other kind, on average; and in what
    share of cases the other shape that it reads most is the one of its kind. Chance is one in three."""
    weights = maps.abs()
    pairs = toy.affinity(weights, data)
    inside = data.covered().to(weights.dtype)  # [n, 4, T]
    means = inside @ weights @ inside.mT / (inside.sum(-1)[:, :, None] * inside.sum(-1)[:, None])  # [n, 4, 4], shape by shape
    others = means.masked_fill(torch.eye(4, dtype=torch.bool, device=means.device), -1.0)
    hits = others.argmax(-1) == torch.tensor(PARTNER, device=means.device)
    return {"partner": pairs.partner, "stranger": pairs.stranger, "hits": float(hits.double().mean()), "sequences": len(data)}


# --- maps that are kept, small enough for a results file -----------------------------------------------------------------------


def _drawn(
    members: Sequence[Mapping[str, Any]], models: Sequence[toy.ShapesModel], sets: Mapping[int, tuple[Shapes, ...]], spec: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The first test sequences, and each model's output and maps for them."""
    chosen = [(member, model) for member, model in zip(members, models, strict=True) if member.get("map")]
    if not chosen or not spec["drawn"]:
        return []
    few = sets[chosen[0][0]["seed"]][1].take(slice(spec["drawn"]))
    found = [_sequence(few, place) for place in range(len(few))]
    with products("float32"):
        for member, model in chosen:
            outputs = toy.predict(model, few.inputs)
            maps = {area: made for area in AREAS if (made := jacobians(model, few, area, spec["samples"])) is not None}
            for place, one in enumerate(found):
                kept = {area: squeezed(made[place]) for area, made in maps.items()}
                one["models"][member["model"]] = {"seed": member["seed"], "output": numbers(outputs[place]), **kept}
    return found


def _sequence(data: Shapes, place: int) -> dict[str, Any]:
    spans = [(int(line.nonzero().min()), int(line.nonzero().max())) for line in data.covered()[place]]
    shapes = [{"start": start, "end": end, "kind": kind // 2} for kind, (start, end) in enumerate(spans)]
    return {"input": numbers(data.inputs[place]), "target": numbers(data.targets[place]), "shapes": shapes, "models": {}}


def numbers(values: Tensor) -> str:
    return " ".join(f"{value:.2f}" for value in values.tolist())


def squeezed(weights: Tensor) -> dict[str, Any]:
    """A map in whole numbers from -127 to 127, a byte each, in base64; `top` stands for 127."""
    top = max(float(weights.abs().max()), 1e-12)
    cells = bytes((weights / top * 127).round().add(128).to(torch.uint8).flatten().tolist())
    return {"top": top, "cells": base64.b64encode(cells).decode("ascii")}


def unsqueezed(kept: Mapping[str, Any]) -> Tensor:
    cells = torch.tensor(list(base64.b64decode(kept["cells"])), dtype=torch.float32)
    side = math.isqrt(len(cells))
    assert side * side == len(cells), len(cells)
    return (cells.view(side, side) - 128) / 127 * kept["top"]
