"""Small searches for the tests of tune, in this process and in others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.lab import settings
from tokmix.training.settings import Settings

ROOT = Path(__file__).parent.parent
SPACE = {"train.lr": {"choice": [1e-3, 5e-3, 1e-2, 1e30]}, "model.dropout": {"uniform": [0.0, 0.5]}}  # 1e30: diverges
SEED, TRIALS = 3, 5
DIVERGED = [1, 3]  # the trials that drew 1e30 with that seed
QUICK = {
    "model__stack": "hypermixing(hidden=16)",
    "train__epochs": 4,
    "train__pretrain": 0,
    "train__rows": 32,
    "train__save_steps": 2,
    "train__evaluations": 2,
}
# Imported by workers: each step takes longer, so that kills land in the middle of a trial, and tells who is at which one.
SLOW = """
import os, time
from pathlib import Path
from tokmix.training.engine import Engine
step = Engine.step
def slow(self):
    time.sleep({pause})
    if self.progress.step == 5:
        place = Path({where!r}) / str(os.getpid())
        place.with_suffix(".new").write_text(str(self.checkpoints.folder))
        place.with_suffix(".new").rename(place)
    step(self)
Engine.step = slow
"""


def small(**more: Any) -> Settings:
    return settings(**QUICK, train__seed=SEED, **more)


def options(given: Settings) -> list[str]:
    """The same settings as words of a command line."""
    plain, told = Settings().record(), given.record()
    words = []
    for group in ("model", "train", "prepare"):
        for name, value in told[group].items():
            if group == "prepare" or value != plain[group][name]:
                words += [f"--no-{group}.{name}"] if value is False else [f"--{group}.{name}", str(value)]
    return words


def slow_file(folder: Path, pause: float = 0.1) -> tuple[Path, Path]:
    """(file to import, folder in which each worker leaves its process number once it is at step 5 of a trial)"""
    where = folder / "at-step-5"
    where.mkdir(exist_ok=True)
    (folder / "slow.py").write_text(SLOW.format(where=str(where), pause=pause))
    return folder / "slow.py", where


def start(data: Path, out: Path, *more: str, trials: int = TRIALS) -> subprocess.Popen:
    out.parent.mkdir(exist_ok=True)
    (out.parent / "space.json").write_text(json.dumps(SPACE))
    command = [sys.executable, "-m", "tokmix", "tune", str(data), "--out", str(out), "--trials", str(trials)]
    command += ["--space", str(out.parent / "space.json"), *options(small()), *more]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # it hears an interrupt even where the tests run behind a shell
    )  # fmt: skip


def at_step_5(where: Path, process: subprocess.Popen, count: int = 1) -> list[int]:
    """The process numbers of workers in the middle of a trial, once there are so many."""
    while process.poll() is None:
        found = [int(path.name) for path in where.iterdir() if not path.suffix]
        if len(found) >= count:
            return found
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def trials_of(out: Path) -> list[tuple[Any, ...]]:
    """What a search found, without what the clock has a say in."""
    found = json.loads((out / "tune.json").read_text())
    return [(trial["number"], trial["parameters"], trial["state"], trial["score"]) for trial in found["trials"]]
