"""The last steps of the network: after its figure is measured, it learns from the labelled rows that were held out until then.

It continues from its best weights at a fifth of the learning rate, which falls again: PASSES times over the new rows and as many
known rows, drawn anew each time, so that it does not forget them. The figure of the run is that of the weights before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch

from tokmix.core.optional import np
from tokmix.data.batches.rows import Batch
from tokmix.data.order import number
from tokmix.data.prepare.targets import LABELLED
from tokmix.training import loop
from tokmix.training.engine import Engine
from tokmix.training.schedule import learning_rate

PASSES, RATE, RISE = 2, 0.2, 0.1
MOST = 0.25  # of the rate before


def left_out(engine: Engine) -> dict[str, np.ndarray]:
    """Split -> numbers of its labelled rows that the network has not learned from."""
    work, found = engine.work, dict[str, np.ndarray]()
    for name in work.card.labelled_splits:
        split = work.files[name]
        if name != "train":
            found[name] = np.arange(len(split))
        elif work.kept is not None:
            found[name] = np.setdiff1d(np.arange(len(split)), work.kept)
    return {name: rows for name, rows in found.items() if len(rows)}


def steps_of(engine: Engine) -> int:
    """Number of steps without a time limit; 0: the network keeps its weights, for example if a scaler was folded in."""
    work = engine.work
    wanted = work.train.refit and work.train.fraction == 1 and work.task in LABELLED and work.unit == 1 and not work.frozen
    known = len(work.files["train"]) if work.kept is None else len(work.kept)
    a_step = known / max(engine.batches.steps(0), 1)
    return round(PASSES * 2 * sum(map(len, left_out(engine).values())) / a_step) if wanted else 0


def refit(engine: Engine) -> int:
    """-> number of rows the network has learned from in all; 0: nothing was done."""
    work, new = engine.work, left_out(engine)
    if not steps_of(engine):
        return 0
    before = {name: tensor.detach().clone() for name, tensor in engine.model.state_dict().items()}
    steps = [batch for epoch in range(PASSES) for batch in _epoch(engine, new, epoch)]
    steps = steps[: max(1, int(MOST * engine.progress.total))]
    with torch.no_grad():
        for mean, parameter in zip(engine.average, engine.parameters, strict=bool(engine.average)):
            mean.copy_(parameter)
    loop.train([_MoreSteps(engine, steps)])
    engine.swap()
    if engine.world.any(not all(bool(torch.isfinite(one).all()) for one in engine.parameters))[0]:
        engine.model.load_state_dict(before)
        return 0
    return sum(map(len, new.values())) + (len(work.files["train"]) if work.kept is None else len(work.kept))


@dataclass
class _MoreSteps:
    """A loop.Run of more steps, for an engine whose run has ended."""

    engine: Engine
    batches: list[Batch]
    done: int = 0

    def advance(self) -> bool:
        engine, work, step = self.engine, self.engine.work, self.done
        seed = number(work.train.seed, step, engine.world.rank, 4) >> 1
        ids = work.hide_tokens(self.batches[step].ids, torch.Generator().manual_seed(seed ^ 1))
        rate = learning_rate(step, len(self.batches), RATE * work.lr, RISE, 0.0)
        batch = engine.prepare(replace(self.batches[step], ids=ids))
        engine.update([batch], [seed], rate, min(work.average, (1 + step) / (10 + step)))
        self.done += 1
        return self.done < len(self.batches)


def _epoch(engine: Engine, new: dict[str, np.ndarray], epoch: int) -> list[Batch]:
    """Batches of the new rows and as many known ones, shuffled."""
    work, count = engine.work, sum(map(len, new.values()))
    known = np.arange(len(work.files["train"])) if work.kept is None else work.kept
    draw = np.random.default_rng((work.train.seed, epoch))
    again = np.sort(draw.choice(known, min(count, len(known)), replace=False))
    parts = [*new.items(), ("train", again)]
    found = [batch for name, rows in parts for batch in work.batches(name, engine.world, rows, shuffle=True).epoch(epoch)]
    random.Random(number(work.train.seed, epoch, 5)).shuffle(found)
    return found
