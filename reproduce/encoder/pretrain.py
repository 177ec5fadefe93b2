"""Jobs of kind "encoder_pretrain": one encoder, for so many seconds or tokens, by the product's own `pretrain` or `distill`.

spec    name       the encoder is kept as DATA/encoders/NAME, where jobs of kind "encoder_tune" find it
        settings   of `tokmix pretrain`, by full name
        seconds    of the whole run, or tokens: how many it reads
        text       the folder of token files in DATA
        teacher    a folder in DATA: `distill` learns its hidden states

Its score is the loss on held-out documents, lower is better: of hidden tokens, or of the teacher's states.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reproduce.job import Context
from tokmix.api.fit import distill, pretrain

KEPT = "encoders"


def run(spec: dict[str, Any], context: Context) -> dict[str, Any]:
    data = context.data_folder()
    out = data / KEPT / spec["name"]
    settings = dict(spec["settings"]) | {"train.device": str(context.device)}
    if "tokens" in spec:
        settings["train.steps"] = max(1, spec["tokens"] // settings["train.tokens"])
        del settings["train.epochs"]
    else:
        settings["train.minutes"] = spec["seconds"] / 60
    if "teacher" in spec:
        record = distill(data / spec["teacher"], data / spec["text"], out, resume=out.exists(), **settings).record
    else:
        record = pretrain(data / spec["text"], out, resume=out.exists(), **settings).record
    context.say(f"{spec['name']}: {record['figures']}")
    cost = record["cost"]
    kept = ("parameters", "tokens", "seconds", "steps", "energy_joules", "flops_training", "examples", "device", "peak_memory_bytes")
    return {
        "runs": [{"seed": settings.get("train.seed", 0), "state": "finished", "score": record["figures"]["loss"]}],
        "figures": record["figures"], "curve": curve(out), "cost": {name: cost.get(name) for name in kept},
        "stack": record["model"]["stack"], "split": record["split"],
    }  # fmt: skip


def curve(out: Path) -> list[list[float]]:
    """[tokens read, seconds, loss on the held-out part] of each evaluation."""
    found, tokens, seconds = [], 0, 0.0
    for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        tokens, seconds = entry.get("tokens", tokens), entry.get("seconds", seconds)
        if "held" in entry:
            found.append([tokens, seconds, entry["held"]["loss"]])
    return found
