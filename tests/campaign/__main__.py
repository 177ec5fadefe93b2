"""python -m tests.campaign [--short] [--seed N] [--jobs N] [--parts kills,pairs] [--out FILE]

The work is cut into units. Each has a seed of its own and runs in a process of its own; what it counted is in FILE at once, so the same
command goes on after a stop.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.campaign.children import Child, Tally, start
from tests.campaign.trials import References, Trials
from tokmix.runs.files import read_json, write_json
from tokmix.runs.machine import machine
from tokmix.runs.pool import cores

FULL = {
    "requests": 4000, "hostile": 1, "cuts": 50, "checkpoint_disks": 30, "checkpoint_kills": 60, "disks": 60, "operations": 150,
    "kills": 300, "interrupts": 100, "pairs": 200, "mutations": 1000,
}  # fmt: skip
SHORT = {
    "requests": 500, "hostile": 1, "cuts": 30, "checkpoint_disks": 10, "checkpoint_kills": 20, "disks": 15, "operations": 30,
    "kills": 30, "interrupts": 15, "pairs": 20, "mutations": 200,
}  # fmt: skip
UNIT = {"requests": 1000, "mutations": 100}  # trials of a unit; 10 of the others


class Results:
    """What was counted so far, in a file."""

    def __init__(self, path: Path | None, facts: dict[str, Any]):
        self.path, self.facts = path, facts
        self.done: list[str] = []
        self.tallies: dict[str, Tally] = {}
        self.commits: dict[str, list[str]] = {}  # by part: what was tried
        self.seconds: dict[str, float] = {}  # by part, of all its units
        if path is not None and path.is_file():
            known = read_json(path)
            if known.get("seed") == facts["seed"]:
                self.done, self.commits, self.seconds = known["done"], known["commits"], known["seconds"]
                self.tallies = {one["name"]: Tally(**one) for one in known["tallies"]}
                for part in {*facts["counts"], *known["counts"]}:
                    if facts["counts"].get(part) != known["counts"].get(part):
                        self.forget(part)

    def forget(self, part: str) -> None:
        self.done = [unit for unit in self.done if unit.rpartition("-")[0] != part]
        self.tallies = {name: one for name, one in self.tallies.items() if one.part != part}
        self.commits.pop(part, None)
        self.seconds.pop(part, None)

    def add(self, part: str, number: int, commit: str, seconds: float, counted: list[dict[str, Any]]) -> None:
        self.done.append(f"{part}-{number}")
        self.commits[part] = sorted({*self.commits.get(part, []), commit})
        self.seconds[part] = round(self.seconds.get(part, 0) + seconds, 1)
        for one in counted:
            self.tallies.setdefault(one["name"], Tally(one["name"], part=part)).merge(Tally(**one))
        if self.path is not None:
            tallies = [asdict(one) for one in self.tallies.values()]
            write_json(self.path, self.facts | {"commits": self.commits, "seconds": self.seconds, "done": self.done, "tallies": tallies})


def units(counts: dict[str, int], parts: Sequence[str]) -> list[tuple[str, int, int]]:
    """(part, number, trials)"""
    found = []
    for part in parts:
        size = UNIT.get(part, 10)
        found += [(part, place, min(size, counts[part] - first)) for place, first in enumerate(range(0, counts[part], size))]
    return found


def campaign(
    folder: Path, todo: list[tuple[str, int, int]], seed: int, jobs: int, results: Results, commit: str, only: Sequence[str] | None
) -> None:
    print("what they come to without faults:", flush=True)
    references = References(folder, only)
    references.make({part for part, _, _ in todo})
    gc.freeze()
    running: dict[int, tuple[Child, str, int, float, Path]] = {}
    while todo or running:
        while todo and len(running) < jobs:
            part, number, count = todo.pop(0)
            place = folder / f"{part}-{number}"
            place.mkdir()

            def act(part: str = part, number: int = number, count: int = count, place: Path = place) -> int:
                made = getattr(Trials(place, references, random.Random(f"{seed} {part} {number}")), part)(count)
                write_json(place / "counted.json", {"tallies": [asdict(tally) for tally in made]})
                return 0

            child = start(place / "errors", act, quiet=False)
            running[child.pid] = (child, part, number, time.monotonic(), place)
        pid, status = os.waitpid(-1, 0)
        child, part, number, began, place = running.pop(pid)
        if status:
            sys.exit(f"{part} {number} ended with status {status}: {child.said()[-2000:]}")
        results.add(part, number, commit, time.monotonic() - began, read_json(place / "counted.json")["tallies"])
        print(f"{part} {number} done after {time.monotonic() - began:.0f} s", flush=True)
        shutil.rmtree(place)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign")
    parser.add_argument("--short", action="store_true", help="a few of each: minutes instead of an hour")
    parser.add_argument("--seed", type=int, default=None, help="default: that of --out, else the time")
    parser.add_argument("--jobs", type=int, default=cores(), help="units side by side; default: one a core")
    parser.add_argument("--parts", default=",".join(FULL), help=f"of {', '.join(FULL)}; default: all")
    parser.add_argument("--programs", default=None, help="only these, such as 'train,prepare', for a look at one; default: all")
    parser.add_argument("--again", action="store_true", help="forget what --out has of these parts")
    parser.add_argument("--out", type=Path, default=None, help="where the counts go, as JSON; the same command goes on with it")
    for name, count in FULL.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=None, help=f"default: {count}, short: {SHORT[name]}")
    asked = parser.parse_args()
    usual = SHORT if asked.short else FULL
    counts = {name: usual[name] if getattr(asked, name) is None else getattr(asked, name) for name in FULL}
    parts = asked.parts.split(",")
    only = None if asked.programs is None else asked.programs.split(",")
    if only is not None and asked.out is not None:
        parser.error("--out keeps the counts of all programs: leave --programs out")
    if unknown := [part for part in parts if part not in FULL]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(FULL)}")
    known = json.loads(asked.out.read_text()) if asked.out and asked.out.is_file() else {}
    seed = asked.seed if asked.seed is not None else known.get("seed", int(time.time()))
    torch.set_num_threads(1)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    _import()
    kind = "short" if counts == SHORT else "full" if counts == FULL else "chosen"
    here = {name: machine()[name] for name in ("cpu", "cores")} | {"torch": torch.__version__}
    results = Results(asked.out, {"kind": kind, "seed": seed, "counts": counts, "machine": here})
    if asked.again:
        for part in parts:
            results.forget(part)
    todo = [unit for unit in units(counts, parts) if f"{unit[0]}-{unit[1]}" not in results.done]
    print(f"seed {seed}, {counts}; {len(todo)} units to do, {len(results.done)} done", flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip() or "unknown"
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as folder:
        campaign(Path(folder), todo, seed, asked.jobs, results, commit, only)
    for tally in results.tallies.values():
        print(tally.line())
    wrong = sum(tally.wrong for tally in results.tallies.values())
    print(f"seed {seed}, {sum(tally.tried for tally in results.tallies.values())} tried, {wrong} wrong")
    return 1 if wrong else 0


def _import() -> None:
    """Before the forks."""
    import optuna  # noqa: F401
    import sklearn.linear_model  # noqa: F401
    import transformers  # noqa: F401

    import tokmix.hf
    import tokmix.training.train  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
