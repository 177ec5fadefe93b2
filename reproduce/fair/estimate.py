"""About how many seconds of one H200 a job takes, from committed runs: an upper bound where the code has become faster since.

Language models: the seconds that a FLOP of each mixer took in the speed jobs of the first edition, where a hybrid takes the mean of its
layers. Larger models use the device better, so what is said of them is too much.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from reproduce.job import Job
from reproduce.lm import build, training_flops
from tokmix.core import stack

RESULTS = Path(__file__).parents[1]
SPEEDS = ("hsm/results/hybrids.json", "hypermlp/results/lm.json", "beyond/results/causal.json")
START = 20.0  # seconds that building graphs takes, for each member of a job a fifth of it
SHAPES = "hypermixer/results/figure5.json"
TABLES = ("hypermixer/results/table1.json", "hypermixer/results/table5.json")


def of(job: Job) -> float:
    seconds = {"lm": _lm, "lm_speed": _speed, "rows": _rows, "systematicity": _systematicity, "bag": lambda spec: 0.0}[job.kind](job.spec)
    return round(seconds, 1)


def _lm(spec: Mapping[str, Any]) -> float:
    tokens = spec["steps"] * spec["batch"] * spec["model"]["max_len"]
    return START + len(spec["members"]) * (START / 5 + tokens * seconds_per_token(spec["model"]))


def _speed(spec: Mapping[str, Any]) -> float:
    """Both lengths, training and decoding; most of it goes by building graphs."""
    return 3 * START


def seconds_per_token(model: Mapping[str, Any]) -> float:
    kinds = [_kind(spec) for spec in stack.parse(model["stack"])]
    known = flop_seconds()
    return _flops(tuple(model.items())) * statistics.fmean(
        known.get(kind) or known.get(kind.split(":")[0]) or max(known.values()) for kind in kinds
    )


def _kind(spec: stack.Spec) -> str:
    """A mixer with what decides its speed; what follows the colon is left out where nobody has measured it."""
    if spec.name == "hsm":
        return f"hsm:{spec.options.get('variant', 'vector')}"
    told = [name for name in ("rotary", "conv") if spec.options.get(name)]
    told += [f"no {name}" for name in ("r1", "r2", "lag") if spec.options.get(name) is False]
    return f"{spec.name}:{' '.join(told)}"


@functools.cache
def _flops(model: tuple[tuple[str, Any], ...]) -> float:
    """Of training on one token."""
    made, length = dict(model), dict(model)["max_len"]
    with torch.device("meta"):
        return training_flops(build(made, 0).cost(length)) / length


@functools.cache
def flop_seconds() -> dict[str, float]:
    """Of each mixer whose pure stack was timed."""
    found: dict[str, float] = {}
    for name in SPEEDS:
        for job in json.loads((RESULTS / name).read_text(encoding="utf-8"))["jobs"]:
            for key, speed in (job["outcome"] or {}).get("speeds", {}).items():
                model = job["spec"]["models"][key]
                kinds = {_kind(spec) for spec in stack.parse(model["stack"])}
                if len(kinds) == 1 and "tokens_per_s" in speed:
                    seconds = 1 / speed["tokens_per_s"] / _flops(tuple(model.items()))
                    kind = kinds.pop()
                    found[kind] = max(found.get(kind, 0.0), seconds)
                    short = kind.split(":")[0]
                    found[short] = max(found.get(short, 0.0), seconds)
    return found


@functools.cache
def row_seconds() -> float:
    """Of one token of one run on a labelled table, over all jobs of Tables 1 and 5: they shared the device."""
    seconds = tokens = 0.0
    for name in TABLES:
        for job in json.loads((RESULTS / name).read_text(encoding="utf-8"))["jobs"]:
            if (job["outcome"] or {}).get("tokens"):
                seconds += job["measured"]["seconds"] / job["measured"]["workers"]
                tokens += job["outcome"]["tokens"] * len(job["outcome"]["runs"])
    return seconds / tokens


def _rows(spec: Mapping[str, Any]) -> float:
    from reproduce.hypermixer import longdocs, recipe

    if spec["data"] == "imdb":
        size: float = longdocs.ROWS * longdocs.LENGTHS[spec["limit"]]
    else:
        size = recipe.TASKS[spec["data"]].rows * recipe.TASKS[spec["data"]].length
    return START + len(spec["members"]) * spec["epochs"] * size * row_seconds()


@functools.cache
def shape_seconds() -> float:
    """Of one training sequence of the shapes task in one epoch of one model."""
    jobs = {job["key"]: job for job in json.loads((RESULTS / SHAPES).read_text(encoding="utf-8"))["jobs"]}
    job = jobs["n10000"]
    made = job["spec"]["n"] * job["spec"]["epochs"] * len(job["spec"]["members"])
    return job["measured"]["seconds"] / job["measured"]["workers"] / made


def _systematicity(spec: Mapping[str, Any]) -> float:
    return START + spec["n"] * spec["epochs"] * len(spec["members"]) * shape_seconds()
