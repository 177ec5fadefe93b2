"""Does it hurt that the network goes on with the rows held out? Its figure before and after, on rows that neither saw.

    python bench/refit.py PREPARED [--epochs 4] [--seeds 2]

PREPARED is a folder of `tokmix prepare`. Only the held-out tenth of train is new: every other labelled row is measured on.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from unittest import mock

import torch

from tokmix.data.tokens import TokenFiles
from tokmix.training import refit
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.distributed import World
from tokmix.training.engine import Engine
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask, main_figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    files, world, every = TokenFiles(options.prepared), World(device=torch.device("cpu")), refit.left_out
    for seed in range(options.seeds):
        given = {"train.epochs": options.epochs, "train.seed": seed, "train.holdout": 0.1}
        work = TrainingTask(files, Settings.of(None, given))
        with tempfile.TemporaryDirectory() as folder:
            engine = Engine(work, world, Checkpoints(Path(folder) / "checkpoints", 2))
            engine.run()
            found = []
            for step in range(2):
                if step:
                    with mock.patch.object(refit, "left_out", lambda one: {k: v for k, v in every(one).items() if k == "train"}):
                        refit.refit(engine)
                figures = work.evaluate(engine.model, work.batches(work.final, world), world)
                found.append(figures[main_figure(work.task, figures)[0]])
        print(f"{options.prepared.name} seed {seed}: {found[0]:.4f} before, {found[1]:.4f} after", flush=True)


if __name__ == "__main__":
    main()
