"""Small comparisons for the tests of compare, in this process."""

from __future__ import annotations

import json
from pathlib import Path

from tests.lab import write_table
from tokmix.data.prepare.pipeline import prepare
from tokmix.study.compare import worker
from tokmix.training.settings import Settings

STACKS = ["hypermixing(hidden=16)*2", "attention(heads=2)"]
GIVEN = {"model.dim": 16, "train.epochs": 2, "train.pretrain": 0, "train.rows": 16, "train.evaluations": 2, "train.device": "cpu"}
BASE = Settings.of(None, GIVEN)


class Here:
    """A pool without processes."""

    def __init__(self, devices, threads, log, module, say):
        self.devices = devices

    def run(self, tasks, report, more=None):
        for task in tasks:
            report(task, worker.do(json.loads(json.dumps({**task, "device": self.devices[0]}))))


def prepared(folder: Path) -> Path:
    """Two hundred sentences of two classes."""
    prepare(write_table(folder / "t.csv", 200), folder / "data", vocab=200)
    return folder / "data"
