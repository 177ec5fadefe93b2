"""Jobs of kind "lm": a language model of one stack, some seeds side by side.

spec    text       a name that lm_data knows
        model      settings of ModelConfig: stack, dim, vocab, max_len, feed_forward, ...; head lm and causal are given
        members    [{"seed": 0, "lr": 1e-3}, ...]: the seed decides the first weights and the order of the windows
        batch      windows of a step; epochs: how often the text is read; steps: instead of epochs, how many
        warmup, schedule, weight_decay, precision      replicas.py
        points     how often it is scored on the way; peek: windows that such a score reads at most (the last one reads all)
        optimizer  adamw (where it is not given) or muon

A job that is stopped when the time is over goes on from its checkpoint (pieces.py).

Windows are max_len tokens long and lie end to end, beginning elsewhere in every epoch; the text is a ring, so that every window is
full. Every token is predicted, the first of a split as if an end of text stood before it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reproduce import lm_data
from reproduce.job import Context, Job
from reproduce.pieces import Pieces
from tokmix.core.mixer import Cost
from tokmix.core.model import Model, ModelConfig
from tokmix.core.optional import np
from tokmix.core.seeds import seeded
from tokmix.training import replicas
from tokmix.training.meter import energy_counter
from tokmix.training.precision import autocast
from tokmix.training.step import Forward

EVAL_TOKENS = 2**14  # scored at once


def config_of(model: dict[str, Any]) -> ModelConfig:
    return ModelConfig(**model, head="lm", causal=True)


def build(model: dict[str, Any], seed: int) -> Model:
    with seeded(seed):
        return Model(config_of(model))


def training_flops(cost: Cost) -> int:
    """Matrix products of forward and backward pass, without the scores that a causal mask throws away."""
    assert cost.causal is not None
    return 3 * cost.causal + cost.recomputed


# --- windows -------------------------------------------------------------------------------------------------------------------


def ring(ids: np.ndarray, before: int, length: int, device: torch.device) -> Tensor:
    """What window s reads: [s] .. [s + length - 1] in, [s + 1] .. [s + length] out, for every s below the number of tokens."""
    text = np.concatenate([[before], ids, np.resize(ids, length - 1)])
    return torch.from_numpy(text.astype(np.int32)).to(device)


def starts(tokens: int, length: int, seed: int, epoch: int) -> Tensor:
    """Where the windows of an epoch begin, in the order they are read."""
    chance = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    first = int(torch.randint(tokens, (), generator=chance))
    return (first + length * torch.randperm(tokens // length, generator=chance)) % tokens


def batches(tokens: int, length: int, batch: int, seeds: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """(length, where windows begin [members, batch]), without end; a batch may hold the end of one epoch and the start of the next."""
    held, epoch = torch.zeros(len(seeds), 0, dtype=torch.long), 0
    while True:
        while held.shape[1] < batch:
            held = torch.cat([held, torch.stack([starts(tokens, length, seed, epoch) for seed in seeds])], 1)
            epoch += 1
        yield length, held[:, :batch]
        held = held[:, batch:]


def steps_of(spec: dict[str, Any], tokens: int) -> int:
    if "steps" in spec:
        return int(spec["steps"])
    return max(1, spec["epochs"] * (tokens // spec["model"]["max_len"]) // spec["batch"])


# --- scoring -------------------------------------------------------------------------------------------------------------------


class Scorer:
    """A split, ready to be scored."""

    def __init__(self, text: lm_data.Text, split: str, length: int, device: torch.device, precision: str):
        ids = np.concatenate([[text.before], text.splits[split]])
        self.ids = torch.from_numpy(ids.astype(np.int64)).to(device)
        self.length, self.device, self.precision, self.bytes = length, device, precision, text.bytes[split]

    @torch.no_grad()
    def __call__(self, model: nn.Module, most: int | None = None) -> dict[str, float]:
        """loss: nats a token; accuracy of the likeliest next token; bits per byte where all of it was read. most: windows."""
        model.eval()
        tokens = len(self.ids) - 1
        tokens = tokens if most is None else min(tokens, most * self.length)
        sums = torch.zeros(2, dtype=torch.double, device=self.device)
        full = tokens // self.length * self.length
        rows = self.ids[:full].view(-1, self.length), self.ids[1 : full + 1].view(-1, self.length)
        many = max(1, EVAL_TOKENS // self.length)
        for inputs, targets in zip(rows[0].split(many), rows[1].split(many), strict=True):
            sums += self._sums(model, inputs, targets)
        if full < tokens:
            sums += self._sums(model, self.ids[None, full:tokens], self.ids[None, full + 1 : tokens + 1])
        model.train()
        nats, right = sums.tolist()
        found = {"loss": nats / tokens, "accuracy": right / tokens}
        return found if tokens < len(self.ids) - 1 else found | {"bits_per_byte": nats / math.log(2) / self.bytes}

    def _sums(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        with autocast(self.device, self.precision):
            logits = model(inputs).float()
        nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return torch.stack([nats, (logits.argmax(-1) == targets).sum()]).double()


# --- a job ---------------------------------------------------------------------------------------------------------------------


def run(spec: dict[str, Any], context: Context) -> dict[str, Any]:
    text, device, precision = lm_data.load(context.data, spec["text"]), context.device, spec.get("precision", "bf16")
    length, members, seen = spec["model"]["max_len"], spec["members"], len(text.splits["train"])
    if text.vocab > spec["model"]["vocab"]:
        raise ValueError(f"{text.name} has {text.vocab} token ids, the model of this job {spec['model']['vocab']}")
    if seen < length:
        raise ValueError(f"{text.name} has {seen} tokens to train on, fewer than one window of {length}")
    models = [build(spec["model"], one["seed"]) for one in members]
    steps, loss = steps_of(spec, seen), _loss(ring(text.splits["train"], text.before, length, device), length)
    pieces = Pieces(context, Job("", "lm", spec).mark)
    every = max(1, -(-steps // spec.get("points", 4)))
    watch = _Watch(Scorer(text, "valid", length, device, precision), models, steps, every, spec.get("peek"), context, pieces)
    recipe = replicas.Recipe(steps, spec.get("warmup", 0), spec.get("schedule", "cosine"), precision=precision)
    left_out = replicas.train(
        [
            replicas.Replica(model, loss, one["lr"], spec.get("weight_decay", 0.0), one["seed"], spec.get("optimizer", "adamw"))
            for model, one in zip(models, members, strict=True)
        ],
        itertools.islice(batches(seen, length, spec["batch"], [one["seed"] for one in members]), pieces.step, None),
        recipe,
        device,
        every=every,
        report=watch,
        stop=watch.stop,
        begin=watch.begin,
        say=context.say,
    )
    pieces.end()
    test = Scorer(text, "test", length, device, precision) if "test" in text.splits else None
    runs = [
        _record(one, watch, place, None if test is None else test(models[place])) | {"left_out": left_out[place]}
        for place, one in enumerate(members)
    ]
    return {"runs": runs, **_facts(spec, text, models[0], steps), "side_by_side": len(members), "tokens_per_s": watch.rate(spec),
            "training_seconds": watch.seconds, "training_joules": watch.joules}  # fmt: skip


def window_loss(forward: Forward, ids: Tensor) -> Tensor:
    """Of windows [B, T + 1], all but the first token of each predicted: the mean."""
    return F.cross_entropy(forward(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())


def _loss(text: Tensor, length: int) -> replicas.Loss:
    columns = torch.arange(length + 1, device=text.device)

    def loss(forward: Forward, index: Tensor, width: int) -> Tensor:
        return window_loss(forward, text[index[:, None] + columns].long())

    return loss


class _Watch:
    """Scores all members at each report, and keeps the time and the energy without scoring; over all pieces of the job."""

    def __init__(
        self, scorer: Scorer, models: Sequence[Model], steps: int, every: int, peek: int | None, context: Context, pieces: Pieces
    ):  # fmt: skip
        self.scorer, self.models, self.steps, self.every, self.peek = scorer, models, steps, every, peek
        self.context, self.pieces = context, pieces
        before = pieces.notes or {"curves": [[] for _ in models], "times": [], "seconds": 0.0, "joules": 0.0}
        self.curves: list[list[dict[str, float]]] = before["curves"]
        self.times: list[tuple[int, float]] = before["times"]  # (step, seconds spent training up to it), of reports
        self.seconds, self.joules = before["seconds"], before["joules"]
        self.counter, self.stopped = energy_counter(context.device), False
        self.began = self._now()

    def begin(self, members: Sequence[replicas.Member]) -> None:
        """The graphs are recorded: what that took is no training."""
        self.pieces.begin(members)
        self.began = self._now()

    def _now(self) -> tuple[float, float | None]:
        return time.monotonic(), None if isinstance(self.counter, str) else self.counter.joules()

    def _tick(self) -> None:
        (early, before), (late, after) = self.began, self._now()
        self.seconds += late - early
        self.joules = None if before is None or after is None or self.joules is None else self.joules + after - before

    def stop(self) -> bool:
        """Whether the time is over; what is done then is kept at the report that follows."""
        self.stopped = self.context.late
        return self.stopped

    def __call__(self, step: int, losses: list[float]) -> None:
        self._tick()  # the losses have come from the device: all steps are done
        last = step == self.steps
        if not self.stopped or step % self.every == 0 or last:
            self._score(step, losses, last)
        if self.stopped and not last:
            self.context.say(f"stopped at step {step}/{self.steps}")
            self.pieces.pause(self._notes())
        if not last and self.pieces.due():
            self.pieces.save(self._notes())
        self.began = self._now()

    def _score(self, step: int, losses: list[float], last: bool) -> None:
        self.times.append((step, self.seconds))
        for model, curve, train in zip(self.models, self.curves, losses, strict=True):
            curve.append({"step": step, "train": train, "seconds": self.seconds, **self.scorer(model, None if last else self.peek)})
        self.context.say(f"step {step}/{self.steps}: " + ", ".join(f"{curve[-1]['loss']:.4f}" for curve in self.curves))

    def _notes(self) -> dict[str, Any]:
        return {"curves": self.curves, "times": self.times, "seconds": self.seconds, "joules": self.joules}

    def rate(self, spec: dict[str, Any]) -> float | None:
        """Tokens a second of all members together, from the first report on: what comes before it may compile."""
        if len(self.times) < 2:
            return None
        (first, early), (last, late) = self.times[0], self.times[-1]
        return len(self.models) * (last - first) * spec["batch"] * spec["model"]["max_len"] / max(late - early, 1e-9)


def _record(member: dict[str, Any], watch: _Watch, place: int, test: dict[str, float] | None) -> dict[str, Any]:
    """score: the loss on all of valid. A run that diverged has none: no number stands for it."""
    curve = watch.curves[place]
    end = curve[-1]
    record = {"seed": member["seed"], "lr": member["lr"], "curve": [_finite(point) for point in curve], "test": _finite(test or {})}
    if not all(math.isfinite(value) for value in (end["loss"], end["train"])):
        return record | {"state": "diverged", "score": None, "error": "the loss is not a finite number"}
    return record | {"state": "finished", "score": end["loss"], "accuracy": end["accuracy"], "bits_per_byte": end["bits_per_byte"]}


def _finite(numbers: dict[str, float]) -> dict[str, float | None]:
    """JSON knows no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _facts(spec: dict[str, Any], text: lm_data.Text, model: Model, steps: int) -> dict[str, Any]:
    length = spec["model"]["max_len"]
    cost = model.cost(length)
    return {
        "data": text.sources, "tokenizer": text.tokenizer, "split_tokens": {name: len(ids) for name, ids in text.splits.items()},
        "split_bytes": text.bytes, "parameters": model.parameter_count(), "steps": steps, "tokens": steps * spec["batch"] * length,
        "flops": steps * spec["batch"] * training_flops(cost), "state_numbers": cost.state,
    }  # fmt: skip
