"""`tokmix compare ... --data shapes`: the toy task of the HyperMixer paper's Figure 5b, with its own convolutions before and
behind the mixer and no matching of parameters. One training set and one test set; seeds differ in the first weights and in
the order of the batches.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from reproduce.toy import data as shapes
from reproduce.toy import model as toy
from tokmix.core.checks import at_least
from tokmix.core.optional import np
from tokmix.runs import pool
from tokmix.runs.files import check_free
from tokmix.study.compare import outcomes, plan, summary
from tokmix.study.compare.records import Entry, Facts, RunCost
from tokmix.study.compare.result import NAME as RESULT
from tokmix.study.compare.result import RunResult
from tokmix.study.compare.run import SIDE_BY_SIDE, Say, finish, provenance, why_no_bag
from tokmix.training.distributed import check_alone, join_world
from tokmix.training.meter import Meter

EPOCHS, TEST, BATCH, METRIC = 250, 1000, 100, "error x100"  # as in the paper


class ToyFacts(Facts):
    n: int
    epochs: int


@dataclass(frozen=True)
class Group:
    """Runs that may go side by side on a GPU: one model, some seeds."""

    entry: str
    fraction: float
    seeds: tuple[int, ...]


def compare(
    items: Sequence[str],
    out: str | Path,
    *,
    n: int = 1000,
    epochs: int | None = None,
    seeds: int = 5,
    first_seed: int = 0,
    fractions: Sequence[float] = (1.0,),
    device: str | None = None,
    jobs: int | None = None,
    resume: bool = False,
    test: int = TEST,
    say: Say = print,
) -> dict[str, object]:
    """-> what is in compare.json."""
    check_alone(SIDE_BY_SIDE)
    for name, value in (
        ("n", n),
        ("seeds", seeds),
        ("epochs", EPOCHS if epochs is None else epochs),
        ("jobs", 1 if jobs is None else jobs),
    ):
        at_least(name, value, 1)
    names, shares, numbers = plan.names_of(items), plan.fractions_of(fractions), [first_seed + i for i in range(seeds)]
    models = {name: toy.ShapesModel(toy.ITEMS.get(name, name)) for name in names}  # one that does not exist says so now
    folder = Path(out)
    if not resume:
        check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with join_world(device) as world:
        runs = ShapesRuns(folder, n, epochs or EPOCHS, test, world.device, say)
        results = runs.all([(name, share) for share in reversed(shares) for name in names], numbers, jobs)
    if not any(one.score is not None for one in results):
        raise ValueError(f"every run failed; the first: {results[0].error}")
    results += [summary.absent_bag(share, str(why_no_bag("the task of shapes"))) for share in shares]
    entries: list[Entry] = [{"name": name, "kind": "stack", "parameters": models[name].parameter_count()} for name in names]
    facts: ToyFacts = {
        "data": "shapes",
        "task": "shapes",
        "split": "test",
        "match": None,
        "notes": [],
        "metric": METRIC,
        "higher_is_better": False,
        "n": n,
        "epochs": runs.epochs,
        **provenance(),
    }
    return dict(finish(folder, entries, results, numbers, shares, facts, say))


class ShapesRuns:
    def __init__(self, folder: Path, n: int, epochs: int, test: int, device: torch.device, say: Say):
        self.folder, self.n, self.epochs, self.device, self.say = folder, n, epochs, device, say
        self.train_set, self.test_set = (part.to(device) for part in shapes.split(n, test, seed=0))
        self.stop = threading.Event()

    def all(self, places: Sequence[tuple[str, float]], seeds: Sequence[int], jobs: int | None) -> list[summary.Result]:
        every = [(name, fraction, seed) for name, fraction in places for seed in seeds]
        known = {place: found for place in every if (found := self._known(*place)) is not None}
        if known:
            self.say(f"{len(known)} of {len(every)} runs are done already")
        left = [(name, fraction, [seed for seed in seeds if (name, fraction, seed) not in known]) for name, fraction in places]
        for results in self._groups(left) if self.device.type == "cuda" else self._side_by_side(left, jobs):
            for one in results:
                assert one.seed is not None
                known[one.entry, one.fraction, one.seed] = one
                told = one.error if one.score is None else f"{METRIC} {one.score:.2f} in {one.cost['seconds'] if one.cost else 0:.1f} s"
                self.say(f"[{len(known)}/{len(every)}] {one.entry}, {100 * one.fraction:g} % of train, seed {one.seed}: {told}")
        return [known[place] for place in every]

    def _groups(self, left: Sequence[tuple[str, float, list[int]]]) -> Iterator[list[summary.Result]]:
        """On a GPU the seeds of a model go at a time, one model after the other."""
        for name, fraction, seeds in left:
            if seeds:
                yield self._run(Group(name, fraction, tuple(seeds)), self._train_all)

    def _side_by_side(self, left: Sequence[tuple[str, float, list[int]]], jobs: int | None) -> Iterator[list[summary.Result]]:
        """On a CPU every run has a thread: torch's operations do not hold the interpreter."""
        groups = [Group(name, fraction, (seed,)) for name, fraction, seeds in left for seed in seeds]
        count = max(1, min(jobs or pool.cores(), len(groups)))
        before = torch.get_num_threads()
        torch.set_num_threads(max(1, pool.cores() // count))
        try:
            with ThreadPoolExecutor(count) as threads:
                try:
                    running = [threads.submit(self._run, group, self._train_one, count > 1) for group in groups]
                    for done in as_completed(running):
                        yield done.result()
                except BaseException:
                    self.stop.set()
                    threads.shutdown(wait=False, cancel_futures=True)
                    raise
        finally:
            torch.set_num_threads(before)

    def _train_all(
        self, models: Sequence[toy.ShapesModel], data: shapes.Shapes, seeds: Sequence[int], epochs: int, begin: Callable[[], None]
    ) -> None:
        toy.train_all(models, [data] * len(models), seeds, epochs=epochs, batch=BATCH, begin=begin)

    def _train_one(
        self, models: Sequence[toy.ShapesModel], data: shapes.Shapes, seeds: Sequence[int], epochs: int, begin: Callable[[], None]
    ) -> None:
        def check(progress: toy.Progress) -> None:
            if self.stop.is_set():
                raise KeyboardInterrupt

        begin()
        toy.train(models[0], data, epochs=epochs, batch=BATCH, seed=seeds[0], report=check)

    def _run(self, group: Group, train: Callable[..., None], shared: bool = False) -> list[summary.Result]:
        rows = max(1, round(group.fraction * self.n))
        data = self.train_set.take(slice(rows))
        try:
            models = [toy.build(toy.ITEMS.get(group.entry, group.entry), data, seed) for seed in group.seeds]
            meter = Meter(self.device)
            train(models, data, group.seeds, self.epochs, meter.start)
            meter.stop()
        except (RuntimeError, ValueError) as error:
            told = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return [summary.Result(group.entry, group.fraction, seed, state="failed", error=told) for seed in group.seeds]
        cost = self._cost(models[0], rows, meter, len(group.seeds), shared)
        return [self._score(group, seed, model, cost) for seed, model in zip(group.seeds, models, strict=True)]

    def _cost(self, model: toy.ShapesModel, rows: int, meter: Meter, side_by_side: int, shared: bool) -> RunCost:
        """Energy of a group is shared out evenly: its runs differ in their seeds alone."""
        whole, measured = model.whole_cost(), meter.totals()
        joules = measured["energy_joules"]
        if shared and joules is not None:
            measured |= {"energy_joules": None, "energy_source": "not measured", "energy_note": "several runs side by side on one counter"}
        elif joules is not None:
            measured["energy_joules"] = joules / side_by_side
        return {
            "parameters": model.parameter_count(), "flops_forward": whole.matmul, "flops_pointwise": whole.pointwise,
            "flops_training": whole.training, "examples": rows * self.epochs, "distinct_examples": rows, "trials": 1, **measured,
            "side_by_side": side_by_side, "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
        }  # fmt: skip

    def _score(self, group: Group, seed: int, model: toy.ShapesModel, cost: RunCost) -> summary.Result:
        errors = 100 * F.mse_loss(toy.predict(model, self.test_set.inputs), self.test_set.targets, reduction="none").double().mean(1)
        path = self._path(group.entry, group.fraction, seed)
        made = summary.Result(group.entry, group.fraction, seed, folder=f"runs/{path.name}")
        if not bool(torch.isfinite(errors).all()):
            return replace(made, state="failed", error="the error is not a finite number: training diverged")
        sums = np.stack([errors.cpu().numpy(), np.ones(len(errors))], 1)
        path.mkdir(parents=True, exist_ok=True)
        outcomes.save(path, sums)
        score = math.fsum(sums[:, 0]) / len(sums)
        RunResult("finished", score, "error", False, cost).write(path / RESULT)
        return replace(made, score=score, cost=cost, sums=lambda: outcomes.load(path))

    def _known(self, entry: str, fraction: float, seed: int) -> summary.Result | None:
        path = self._path(entry, fraction, seed)
        if not ((path / RESULT).is_file() and (path / outcomes.FILE).is_file()):
            return None
        found = RunResult.read(path / RESULT)
        return summary.Result(
            entry, fraction, seed, score=found.score, cost=found.cost, folder=f"runs/{path.name}", sums=lambda: outcomes.load(path)
        )

    def _path(self, entry: str, fraction: float, seed: int) -> Path:
        asked = json.dumps([toy.ITEMS.get(entry, entry), self.n, self.epochs, len(self.test_set), fraction, seed])
        plain = re.sub(r"[^a-z0-9]+", "-", entry.lower()).strip("-")[:40]
        return self.folder / "runs" / f"{plain}-{fraction:g}-seed{seed}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"
