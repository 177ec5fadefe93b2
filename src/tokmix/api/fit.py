"""tokmix.train: data -> a trained model.

run = tokmix.train("reviews.csv", minutes=1)
run.figures["accuracy"], run.model.predict("a fine film")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokmix.api.data import Data, as_path
from tokmix.api.model import TrainedModel, load
from tokmix.api.settings import Kept, output_folder, settings_of, told


@dataclass(frozen=True)
class Run:
    """A run that has ended. Its folder holds model/, log.jsonl and checkpoints/."""

    folder: Path  # a temporary one where no `out` was given: it lives as long as this object or its model
    record: dict[str, Any]  # what model/training.json holds
    _kept: Kept | None = field(default=None, repr=False, compare=False)

    @property
    def task(self) -> str:
        return str(self.record["task"])

    @property
    def figures(self) -> dict[str, Any]:
        """On the split `record["split"]`; empty where the data has neither test nor valid."""
        return dict(self.record["figures"])

    @property
    def cost(self) -> dict[str, Any]:
        return dict(self.record["cost"])

    @cached_property
    def model(self) -> TrainedModel:
        found = load(self.folder)
        found._kept = self._kept
        return found


def train(
    data: Data,
    out: str | Path | None = None,
    *,
    config: str | Path | None = None,
    resume: bool = False,
    imports: Sequence[str | Path] = (),
    verbose: bool = False,
    **settings: object,
) -> Run:
    """Train a model and save it in the new folder `out`.

    data      a path as `tokmix train` takes it, a pandas.DataFrame, a datasets.Dataset, a dictionary of columns, or a list of
              (text, label), of (text, text, label), of dictionaries, or of texts for a language model
    out       without it the run is in a temporary folder, which is removed with the Run and its model
    config    a .json or .yaml file of settings, or the name of a recipe
    resume    go on with the run in `out`
    imports   files with mixers of your own
    settings  as on the command line: stack="hsm*2", minutes=1, seed=0, epochs=3, pretrain=True, others by their full name,
              **{"model.dim": 64, "train.lr": 1e-3, "prepare.text": "review"}

    ValueError for what does not work. KeyboardInterrupt after Ctrl-C, with a checkpoint saved in `out`.
    """
    from tokmix.training.train import run

    asked = settings_of(config, settings)
    if resume and out is None:
        raise ValueError("resume=True goes on with a run: name its folder with out=")
    folder, kept = output_folder(out)
    with told(verbose), as_path(data) as path:
        record = run(path, folder, asked, resume=resume, imports=imports, quiet=not verbose)
    return Run(folder, dict(record), kept)
