"""A minute on the task of shapes: what a token mixer is for, as a table and a picture."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from reproduce.toy import data as shapes
from reproduce.toy import model as toy
from reproduce.toy import pictures as plots
from tokmix.layers.attention import Attention
from tokmix.show.plots import figure
from tokmix.study.explain import jacobian as explain

SHARES = {"attention": 0.8, "hypermixing": 0.8, "none": 0.2}  # of the time; without a mixer there is little to learn
ORDER = ("none", "attention", "hypermixing")
TRAIN, TEST, MEASURED = 1000, 1000, 8
BATCH = 25  # the paper's 100 takes fewer steps than a minute on two cores needs
TITLE = "The task of shapes: who reads whom in the token mixer"
EXPLAINED = """\
error x100    mean squared error per position on the test sequences; the noise alone makes 0.75
partner       how far a shape rises when the other one of its kind is raised by 1; right is 0.50
others        how far it moves when one of the other kind is; right is 0
mixer FLOPs   forward, for one sequence"""
EVERY = 4.0  # seconds between two lines of progress


@dataclass(frozen=True)
class Trained:
    name: str
    model: toy.ShapesModel
    error: float
    progress: toy.Progress


def main(out: str = "out", seconds: float = 60.0, seed: int = 0) -> Path:
    """Train all three in about so many seconds, print what came out, draw who reads whom into out/shapes.png."""
    if seconds <= 0:
        raise ValueError(f"seconds={seconds} should be more than 0")
    figure(1, 1)  # a missing matplotlib is better said before the minute than after it
    train_set, test_set = shapes.split(TRAIN, TEST, seed)
    print(f"Shapes: two triangles and two boxes in {shapes.LENGTH} positions; level the heights of each kind.")
    print(f"{TRAIN:,} sequences to learn from in batches of {BATCH}, {TEST:,} to test on, about {seconds:.0f} s in all.\n", flush=True)
    with _one_core_each():
        trained = _train_all(train_set, test_set, seconds, seed)
        _table(trained, test_set)
        path = draw(Path(out) / "shapes.png", trained, test_set)
    print(f"\nWho reads whom: {path}")
    return path


def _train_all(train_set: shapes.Shapes, test_set: shapes.Shapes, seconds: float, seed: int) -> list[Trained]:
    models = {name: toy.build(toy.ITEMS[name], train_set, seed) for name in SHARES}
    with ThreadPoolExecutor(max_workers=2) as pool:
        runs = {name: pool.submit(_train, name, models[name], train_set, test_set, seconds * SHARES[name], seed) for name in SHARES}
    return [runs[name].result() for name in ORDER]


@contextmanager
def _one_core_each() -> Iterator[None]:
    """Two models side by side on a core each: a model on two cores comes to a crawl where another program keeps one of
    them busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(name: str, model: toy.ShapesModel, train_set: shapes.Shapes, test_set: shapes.Shapes, seconds: float, seed: int) -> Trained:
    progress = toy.train(model, train_set, epochs=10**6, seconds=seconds, batch=BATCH, seed=seed, report=_reporter(name))
    return Trained(name, model, toy.error(model, test_set), progress)


def _reporter(name: str) -> Callable[[toy.Progress], None]:
    last = time.perf_counter()

    def report(progress: toy.Progress) -> None:
        nonlocal last
        if time.perf_counter() - last >= EVERY:
            last = time.perf_counter()
            line = f"  {name:<12} {progress.seconds:5.1f} s  epoch {progress.epoch:3d}  error x100 on training data {progress.error:7.1f}\n"
            print(line, end="", flush=True)  # in one piece: two of them run at a time

    return report


def _table(trained: list[Trained], test_set: shapes.Shapes) -> None:
    columns = f"{'error x100':>10} {'partner':>8} {'others':>7} {'parameters':>10} {'mixer FLOPs':>11} {'epochs':>6} {'seconds':>7}"
    print(f"\n{'mixer':<12} {columns}")
    for row in trained:
        cost, pairs = row.model.cost(), toy.response(row.model, test_set)
        print(
            f"{row.name:<12} {row.error:10.1f} {pairs.partner:8.2f} {pairs.stranger:7.2f} {row.model.parameter_count():10,}"
            f" {cost.matmul + cost.pointwise:11,} {row.progress.epoch:6d} {row.progress.seconds:7.1f}"
        )
    print(EXPLAINED)


def draw(path: Path, trained: list[Trained], data: shapes.Shapes) -> Path:
    """The maps of one test sequence; the ratio above each map is measured on several."""
    chosen = _legible(data, MEASURED)
    maps = [shown for row in trained if row.name != "none" for shown in _maps(row, chosen)]
    places = [line.nonzero() for line in chosen.covered()[0]]
    spans = [plots.Span(int(at.min()), int(at.max()), group) for at, group in zip(places, (0, 0, 1, 1), strict=True)]
    return plots.mixing_maps(path, maps, chosen.inputs[0], chosen.targets[0], spans, ("triangles", "boxes"), TITLE)


def _maps(row: Trained, data: shapes.Shapes) -> list[plots.Map]:
    mixer = row.model.middle
    with torch.no_grad():
        tokens = row.model.tokens(data.inputs)
    output = toy.predict(row.model, data.inputs[:1])[0]
    exact = explain.pseudo_attention(mixer, tokens[:1])
    # For an average over many pairs of tokens, a few random directions each are enough.
    rough = explain.pseudo_attention(mixer, tokens, samples=4, generator=torch.Generator().manual_seed(0))
    maps = [plots.Map(f"{row.name}: pseudo-attention", exact[0], _note(row, rough, data), output)]
    if isinstance(mixer, Attention):
        weights = explain.attention(mixer, tokens).mean(1)
        maps.insert(0, plots.Map(f"{row.name}: softmax weights", weights[0], _note(row, weights, data), output))
    return maps


def _note(row: Trained, maps: Tensor, data: shapes.Shapes) -> str:
    pairs = toy.affinity(maps, data)
    return f"error x100: {row.error:.1f}   own kind : other kind = {pairs.partner / pairs.stranger:.1f} : 1"


def _legible(data: shapes.Shapes, n: int) -> shapes.Shapes:
    """The n sequences to look at: no height near the ends of its range, both kinds with a step to level, and the
    shapes as far apart as they come."""
    low, high = shapes.HEIGHTS
    middling = ((data.heights > low + 5) & (data.heights < high - 5)).all(1)
    uneven = ((data.heights - shapes.levelled(data.heights)).abs() > shapes.APART / 2).all(1)
    order = data.centres.sort(1).values.diff(dim=1).amin(1)
    return data.take((order + 100 * (middling & uneven)).argsort(descending=True)[:n])
