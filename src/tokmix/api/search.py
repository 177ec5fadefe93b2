"""tokmix.tune and tokmix.compare: many runs on one data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokmix.api.data import Data, as_path
from tokmix.api.settings import Kept, full_names, output_folder, printing, settings_of
from tokmix.core.checks import one_of
from tokmix.runs.files import JsonObject

SHAPES = "shapes"  # the toy task of reproduce/toy; ./shapes for a folder of that name
SEQUENCES = 1000  # training sequences of shapes
MATCHES = ("largest", "first", "none")
TAKEN = ("train.epochs", "train.device", "train.seed")  # settings of the toy task


@dataclass(frozen=True)
class Tuning:
    folder: Path  # of the trials; a temporary one without `out`, which is removed with this object
    record: JsonObject  # the content of tune.json
    _kept: Kept | None = field(default=None, repr=False, compare=False)

    @property
    def trials(self) -> list[JsonObject]:
        return list(self.record["trials"])

    @property
    def best(self) -> JsonObject | None:
        """The settings of the best trial, for `train`; None if every trial diverged."""
        first = self.record["best"]
        if first is None:
            return None
        return dict(next(one["parameters"] for one in self.trials if one["number"] == first["number"]))


def tune(
    data: Data,
    out: str | Path | None = None,
    *,
    trials: int = 20,
    space: str | Path | Mapping[str, object] | None = None,
    workers: int | None = None,
    threads: int = 1,
    storage: str | None = None,
    study: str | None = None,
    patience: int | None = None,
    side_by_side: str = "auto",
    on: str | None = None,
    config: str | Path | None = None,
    resume: bool = False,
    imports: Sequence[str | Path] = (),
    verbose: bool = False,
    **settings: object,
) -> Tuning:
    """Search settings at random, on this machine or many; see `tokmix tune --help` for the arguments.
    space: a file, or a dictionary such as {"train.lr": {"loguniform": [1e-4, 1e-2]}}.

    best = tokmix.tune("reviews.csv", trials=20, minutes=1).best
    run = tokmix.train("reviews.csv", settings=best)
    """
    from tokmix.study.tune.search import run
    from tokmix.study.tune.space import Space

    searched = Space.of(space) if isinstance(space, Mapping) else Space.read(space)
    given = full_names(settings)
    for name in given:
        if name in searched.ranges:
            raise ValueError(f"--{name} {given[name]} is set, but the space searches it: leave it out, or give a --space without it")
    asked = settings_of(config, given)
    folder, kept = output_folder(out)
    with printing(verbose), as_path(data) as path:
        found = run(
            path, folder, asked, trials=trials, space=searched, workers=workers, threads=threads, storage=storage, study=study,
            patience=patience, side_by_side=side_by_side, on=on, resume=resume, imports=imports, quiet=not verbose,
        )  # fmt: skip
    return Tuning(folder, found, kept)


@dataclass(frozen=True)
class Comparison:
    folder: Path  # of the runs; a temporary one without `out`, which is removed with this object
    record: JsonObject  # the content of compare.json
    _kept: Kept | None = field(default=None, repr=False, compare=False)

    @property
    def table(self) -> str:
        """The same as a text table."""
        return (self.folder / "table.txt").read_text(encoding="utf-8")


def compare(
    stacks: Sequence[str],
    data: Data,
    out: str | Path | None = None,
    *,
    seeds: int = 5,
    fractions: Sequence[float] = (1.0,),
    match: str | None = None,
    jobs: int | None = None,
    side_by_side: str = "auto",
    on: str | None = None,
    n: int | None = None,
    config: str | Path | None = None,
    resume: bool = False,
    imports: Sequence[str | Path] = (),
    verbose: bool = False,
    **settings: object,
) -> Comparison:
    """Train several stacks on one task and test their differences; see `tokmix compare --help` for the arguments.
    match: whose number of parameters all stacks get: "largest" (the default) or "first"; "none": every stack as it is.
    data="shapes" is the toy task of the papers, of n sequences, in a checkout.

    print(tokmix.compare(["hypermixing*2", "attention*2"], "reviews.csv", seeds=3).table)
    """
    given = full_names(settings)
    for name, instead in (("model.stack", "the stacks as arguments"), ("train.fraction", "--fractions")):
        if name in given:
            raise ValueError(f"--{name} is what is compared: give {instead}")
    if isinstance(stacks, str) or not all(isinstance(stack, str) for stack in stacks):
        raise ValueError(f"stacks={str(stacks)[:80]!r} should be a list of stacks, such as ['hsm*2', 'attention*2']")
    if match is not None:
        one_of("match", match, MATCHES)
    if not isinstance(fractions, Iterable):
        raise ValueError(f"fractions={fractions!r} should be a list of numbers, such as [0.1, 1.0]")
    folder, kept = output_folder(out)
    if isinstance(data, str) and data == SHAPES:
        for option, value in (("--config", config), ("--on", on)):
            if value is not None:
                raise ValueError(f"--data shapes takes no {option}: {OWN}")
        if side_by_side != "auto":
            raise ValueError(f"--data shapes takes no --side-by-side {side_by_side}: its seeds go together on a GPU, a core each on a CPU")
        found = _shapes(stacks, folder, given, match, n, seeds, fractions, jobs, resume, imports, verbose)
        return Comparison(folder, found, kept)
    if n is not None:
        raise ValueError(f"--n {n} is for --data shapes; of other data give --fractions, shares of train's rows")
    from tokmix.study.compare.run import compare as run

    asked, matched = settings_of(config, given), None if match == "none" else match or "largest"
    with printing(verbose) as say, as_path(data) as path:
        found = run(
            stacks, path, folder, asked, seeds=seeds, fractions=fractions, match=matched, jobs=jobs, side_by_side=side_by_side,
            on=on, resume=resume, imports=imports, say=say,
        )  # fmt: skip
    return Comparison(folder, found, kept)


OWN = "model and training are the paper's; give --n, --epochs, --seeds, --fractions"


def _shapes(
    stacks: Sequence[str], folder: Path, given: Mapping[str, Any], match: str | None, n: int | None, seeds: int,
    fractions: Sequence[float], jobs: int | None, resume: bool, imports: Sequence[str | Path], verbose: bool,
) -> JsonObject:  # fmt: skip
    from tokmix.study import checkout
    from tokmix.training.imports import import_files

    unknown = next((name for name in given if name not in TAKEN), None)
    if unknown is not None:
        raise ValueError(f"--data shapes takes no --{unknown}: {OWN}")
    if match not in (None, "none"):
        raise ValueError(f"--data shapes takes no --match {match}: no parameters are matched there")
    toy_task = checkout.load("toy.compare", "the toy task of shapes")
    import_files(imports)
    seed, epochs, device = (given.get(f"train.{name}") for name in ("seed", "epochs", "device"))
    with printing(verbose) as say:
        found: JsonObject = toy_task.compare(
            stacks, folder, n=SEQUENCES if n is None else n, epochs=epochs, seeds=seeds, first_seed=seed or 0, fractions=fractions,
            device=device, jobs=jobs, resume=resume, say=say,
        )  # fmt: skip
    return found
