"""tokmix.train: data -> a trained model.

run = tokmix.train("reviews.csv", minutes=1)
run.figures["accuracy"], run.model.predict("a fine film")
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tokmix.api.data import Data, as_path
from tokmix.api.model import TrainedModel, load
from tokmix.api.settings import Kept, full_names, output_folder, printing, settings_of
from tokmix.runs.files import JsonObject


@dataclass(frozen=True)
class Run:
    """A run that has ended. Its folder holds model/, log.jsonl and checkpoints/."""

    folder: Path  # a temporary one without `out`, which is removed with this object and its model
    record: JsonObject  # the content of model/training.json
    _kept: Kept | None = field(default=None, repr=False, compare=False)

    @property
    def task(self) -> str:
        return str(self.record["task"])

    @property
    def figures(self) -> JsonObject:
        """The figures on the split `record["split"]`; empty if the data has neither test nor valid."""
        return dict(self.record["figures"])

    @property
    def cost(self) -> JsonObject:
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
    settings  as on the command line: stack="hsm*2", minutes=1, seed=0, epochs=3, start="encoder" (--from), others by their full name,
              settings={"model.dim": 64, "train.lr": 1e-3, "prepare.text": "review"}, or the same as **{...}

    ValueError for what does not work. KeyboardInterrupt after Ctrl-C, with a checkpoint saved in `out`.
    """
    from tokmix.training.train import run

    asked = settings_of(config, settings)
    if resume and out is None:
        raise ValueError("resume=True goes on with a run: name its folder with out=")
    folder, kept = output_folder(out)
    with printing(verbose), as_path(data) as path:
        record = run(path, folder, asked, resume=resume, imports=imports, quiet=not verbose)
    return Run(folder, dict(record), kept)


# Masked language modelling of a running text, after Geiping & Goldstein (2022): packed windows, more tokens hidden, no dropout, one
# triangle. The recipe `encoder` adds large batches that grow.
PRETRAINING: dict[str, object] = {
    "train.task": "mlm", "train.mask": 0.3, "train.lr": 1e-3, "train.schedule": "triangle", "model.dropout": 0.0, "model.length": 128,
    "train.evaluations": 10,
}  # fmt: skip


def pretrain(
    texts: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    config: str | Path | None = None,
    resume: bool = False,
    imports: Sequence[str | Path] = (),
    verbose: bool = False,
    **settings: object,
) -> Run:
    """Train an encoder on plain text: it learns to predict hidden tokens. `train(data, start=out)` starts from it.

    texts     a file or folder of text, or several of them, or a folder that `tokmix prepare --task mlm` wrote
    settings  as of `train`, with the defaults of PRETRAINING; a config overrides those
    """
    from tokmix.training.settings import read_config

    given = full_names(settings)
    read = read_config(config) if config is not None else {}
    known = {f"{group}.{name}" for group, part in read.items() if group != "about" for name in part}
    objective = given.get("train.task") or read.get("train", {}).get("task") or "mlm"
    if objective not in ("mlm", "rtd"):
        raise ValueError(f"pretrain finds hidden tokens (mlm) or replaced ones (rtd), not {objective!r}: use `tokmix train`")
    usual = {name: value for name, value in PRETRAINING.items() if objective == "mlm" or name != "train.mask"}
    defaults = {name: value for name, value in usual.items() if name not in given and name not in known}
    with several(texts) as data:
        return train(data, out, config=config, resume=resume, imports=imports, verbose=verbose, **{**defaults, **given})


def embed_train(
    encoder: str | Path,
    pairs: Data,
    out: str | Path | None = None,
    *,
    config: str | Path | None = None,
    resume: bool = False,
    imports: Sequence[str | Path] = (),
    verbose: bool = False,
    **settings: object,
) -> Run:
    """Train an encoder's sentence embeddings on pairs of texts with a class (entailment, duplicate ...): `run.model.embed(texts)`."""
    given = full_names(settings)
    for name, value in (("train.task", "embed"), ("train.start", str(encoder))):
        if given.setdefault(name, value) != value:
            raise ValueError(f"embed-train is train with {name}={value}, and {given[name]!r} was given: leave it out")
    return train(pairs, out, config=config, resume=resume, imports=imports, verbose=verbose, **{"train.lr": 2e-4, **given})


DISTILLING: dict[str, object] = {"train.rows": 256, "model.dim": 256, "model.length": 128, "train.evaluations": 10}


def distill(
    teacher: str | Path,
    texts: Data,
    out: str | Path | None = None,
    *,
    config: str | Path | None = None,
    resume: bool = False,
    imports: Sequence[str | Path] = (),
    verbose: bool = False,
    **settings: object,
) -> Run:
    """Train a cheap encoder to give the hidden states or sentence embeddings of a larger one. `train(data, start=out)` starts from it.

    teacher   a folder that sentence-transformers saved, which takes the mean over its tokens; its tokenizer is the student's
    texts     plain text (the student learns the state of each token), or a table with a column of texts (it learns a vector for
              each text); labels are of no use
    settings  as of `train`, whose defaults for this are DISTILLING
    """
    given = full_names(settings)
    for name, value in (("train.task", "distill"), ("train.teacher", str(teacher))):
        if given.setdefault(name, value) != value:
            raise ValueError(f"distill is train with {name}={value}, and {given[name]!r} was given: leave it out")
    usual = given if config is not None else {**DISTILLING, **given}
    return train(texts, out, config=config, resume=resume, imports=imports, verbose=verbose, **usual)


@contextmanager
def several(texts: str | Path | Sequence[str | Path]) -> Iterator[str | Path]:
    """One path for several files or folders of text: a temporary folder of links to them."""
    paths = [texts] if isinstance(texts, (str, Path)) else list(texts)
    if not paths:
        raise ValueError("no text was given: name a file or a folder")
    if len(paths) == 1:
        yield paths[0]
        return
    for path in paths:
        if not Path(path).exists():
            raise ValueError(f"no file or folder {str(path)!r}")
    with tempfile.TemporaryDirectory(prefix="tokmix-") as folder:
        together = Path(folder) / "text"
        together.mkdir()
        for place, path in enumerate(paths):
            for file in sorted(Path(path).rglob("*")) if Path(path).is_dir() else [Path(path)]:
                if file.is_file():
                    (together / f"{place:03}-{file.name}").symlink_to(file.resolve())
        yield together
