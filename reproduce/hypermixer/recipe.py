"""The models of the paper and how they are trained here: all that Tables 1, 5, 6 and Figures 3, 4 share.

The paper does not state batch, epochs, stopping, schedule or the longest text; those below are ours, the same for every model of a task.
The rate falls to zero along a cosine, so that no epoch has to be chosen. A search tries the paper's seven learning rates with one seed
and a third of the epochs, and is judged on rows of train that were held out. A short run favours high rates, so the best three of them run
again for all epochs. At rate and epochs of the best of all these runs fresh seeds learn from all of train; the figure is the accuracy on
valid.

Positions: the paper gives them to HyperMixing's hypernetworks alone, so there and in its ablations the embedding has none; the other
models get a sinusoidal code with the embedding, as is usual.

Words: the paper does not say how embeddings begin. At torch's default of 1 AdamW takes a thousand steps at 1e-3 to move one by its own
size, and the models learn rows by heart instead of words (docs/log.md). Ours begin as those of our language models do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from reproduce.hypermixer import paper
from reproduce.item import Outcomes
from reproduce.job import Job

LAYERS, DIM, HIDDEN, FEED_FORWARD, DROPOUT, LIMIT = 6, 256, 512, 512, 0.1, 128
WARMUP, CLIP, EMBEDDING = 200, 1.0, 0.02
SEARCH_SEED, SEEDS = 100, (0, 1, 2, 3, 4)
SHORTER, FINALISTS = 3, 3  # a search has so many times fewer epochs; rates that run for all of them


@dataclass(frozen=True)
class TaskSettings:
    """rows, length: about how many to learn from and how long they are, to guess how long a job takes."""

    batch: int
    epochs: int
    dev: float
    rows: int
    length: int
    limit: int = LIMIT


TASKS = {
    "mnli": TaskSettings(batch=128, epochs=8, dev=0.1, rows=24_300, length=44),
    "snli": TaskSettings(batch=256, epochs=6, dev=0.05, rows=116_300, length=29, limit=64),
    "qqp": TaskSettings(batch=128, epochs=8, dev=0.1, rows=25_400, length=35),
    "qnli": TaskSettings(batch=64, epochs=12, dev=0.1, rows=9_000, length=54),
    "sst2": TaskSettings(batch=128, epochs=5, dev=0.1, rows=62_000, length=17),
    # Larger parts, for reproduce/fair.
    "snli_33": TaskSettings(batch=256, epochs=6, dev=0.05, rows=172_000, length=29, limit=64),
    "mnli_11": TaskSettings(batch=128, epochs=8, dev=0.1, rows=38_400, length=44),
    "qqp_complete": TaskSettings(batch=256, epochs=4, dev=0.03, rows=369_500, length=35),
    "agnews_28": TaskSettings(batch=128, epochs=5, dev=0.1, rows=29_900, length=48),
}


@dataclass(frozen=True)
class Variant:
    """A stack of one mixer. limit: the length its own weights have, where they have one."""

    title: str
    mixer: str
    layout: str = "serialized"
    feed_forward: int = FEED_FORWARD
    limit: int = LIMIT
    positions: str = "sinusoidal"

    def model(self, quick: bool) -> dict[str, Any]:
        """Fields of ModelConfig."""
        layers, dim, wide = (2, 32, 64) if quick else (LAYERS, DIM, self.feed_forward)
        return {
            "stack": f"{self.mixer}*{layers}",
            "dim": dim,
            "max_len": self.limit,
            "layout": self.layout,
            "feed_forward": wide if self.feed_forward else 0,
            "dropout": DROPOUT,
            "positions": self.positions,
            "pooling": "mean",
        }


def hyper(options: str, title: str, layout: str = "serialized", feed_forward: int = FEED_FORWARD) -> Variant:
    """HyperMixing with d' = 2 d."""
    return Variant(title, f"hypermixing({options}, position='sinusoidal')", layout, feed_forward, positions="none")


VARIANTS = {
    "fnet": Variant("FNet", "fnet"),
    "linear": Variant("Linear Transformer", "linear_attention"),
    "transformer": Variant("Transformer", "attention"),
    "mlpmixer": Variant("MLPMixer", "mlp_mixer", limit=250),  # the paper's N
    "gmlp": Variant("gMLP", "gmlp"),  # the paper's N is 100, and our texts have up to 128 tokens
    "hypermixer": hyper("norm='none'", "HyperMixer, tied"),
    "transformer-pre": Variant("Transformer, pre-norm", "attention", layout="pre"),
    "hypermixer-4heads": hyper("norm='none', heads=4", "HyperMixer, tied, 4 heads"),
    "feature-only": Variant("feature mixing only", "identity", positions="none"),
    "feature-only-positions": Variant("feature mixing only, with positions", "identity"),
    "shared-vector-positions": Variant("shared weight vector, with positions", "shared_vector(norm='none')"),
    "token-only": hyper("norm='none'", "token mixing only", feed_forward=0),
    "shared-vector": Variant("shared weight vector", "shared_vector(norm='none')", positions="none"),
    "untied": hyper("norm='none', tied=False", "HyperMixer, untied"),
}

QUICK = {"tasks": ("sst2", "snli"), "rates": (1e-3, 3e-4), "seeds": (0, 1), "rows": 400, "batch": 32}


def tasks(quick: bool) -> tuple[str, ...]:
    return QUICK["tasks"] if quick else paper.TASKS  # type: ignore[return-value]


def held_out(task: str, quick: bool) -> float:
    return 0.2 if quick else TASKS[task].dev


def spec(task: str, model: Mapping[str, Any], members: Sequence[Mapping[str, Any]], quick: bool, **others: Any) -> dict[str, Any]:
    """Of a job of kind "rows"; others: what differs from the task's own settings."""
    settings = TASKS[task]
    made = {
        "data": task,
        "model": dict(model),
        "members": [dict(member) for member in members],
        "batch": settings.batch,
        "epochs": settings.epochs,
        "warmup": WARMUP,
        "clip": CLIP,
        "schedule": "cosine",
        "dev": 0.0,
        "fraction": 1.0,
        "limit": settings.limit,
        "score": "valid",
        "embedding": EMBEDDING,
        **others,
    }
    return made | ({"rows": QUICK["rows"], "batch": QUICK["batch"], "epochs": 2} if quick else {})


def job(key: str, made: dict[str, Any]) -> Job:
    settings = TASKS[made["data"]]
    rows = settings.rows * made["fraction"] * made["epochs"]
    return Job(key, "rows", made, weight=rows * settings.length * len(made["members"]) / 1e6)


def search(task: str, variant: str, quick: bool) -> Job:
    """Every learning rate of the grid, one seed, judged on what is held out."""
    rates = QUICK["rates"] if quick else paper.RATES
    short = -(-TASKS[task].epochs // SHORTER)
    return _judged(f"{task}-{variant}-search", task, variant, rates, quick, epochs=short)  # type: ignore[arg-type]


def finals(task: str, variant: str, rates: Sequence[float]) -> Job:
    """The same for all epochs."""
    return _judged(f"{task}-{variant}-finals", task, variant, rates, False)


def _judged(key: str, task: str, variant: str, rates: Sequence[float], quick: bool, **others: Any) -> Job:
    members = [{"seed": SEARCH_SEED, "lr": rate} for rate in rates]
    return job(key, spec(task, VARIANTS[variant].model(quick), members, quick, score="dev", dev=held_out(task, quick), **others))


class Choice(NamedTuple):
    """What a search found."""

    rate: float
    epochs: int


def seeds(task: str, variant: str, choice: Choice, quick: bool, count: int | None = None, **others: Any) -> Job:
    """Fresh seeds at one learning rate, on all of train."""
    chosen = (QUICK["seeds"] if quick else SEEDS)[:count]  # type: ignore[index]
    members = [{"seed": seed, "lr": choice.rate} for seed in chosen]
    made = spec(task, VARIANTS[variant].model(quick), members, quick, **{"epochs": choice.epochs, **others})
    return job(f"{task}-{variant}-seeds", made)


def best_rate(outcome: Mapping[str, Any] | None) -> float | None:
    """Of a search; the larger rate where two are equal. None where it has not been run or failed."""
    return next(iter(best_rates(outcome)), None)


def best_rates(outcome: Mapping[str, Any] | None) -> list[float]:
    """From the best on."""
    found = [run for run in (outcome or {}).get("runs", []) if run["state"] == "finished"]
    return [run["lr"] for run in sorted(found, key=lambda run: (-run["score"], -run["lr"]))]


def looked(task: str, variant: str, quick: bool, outcomes: Outcomes) -> tuple[list[Job], Choice | None]:
    """The jobs of a search, as far as they can be named, and what it found, where they are done."""
    jobs = [search(task, variant, quick)]
    rates = best_rates(outcomes.get(jobs[0].key))
    if rates and not quick:
        jobs.append(finals(task, variant, rates[:FINALISTS]))
    done = [job for job in jobs if best_rates(outcomes.get(job.key))]
    return jobs, best([(job.spec["epochs"], outcomes[job.key]) for job in jobs]) if len(done) == len(jobs) else None


def best(found: Sequence[tuple[int, Mapping[str, Any]]]) -> Choice:
    """Of runs of some numbers of epochs; the longer one where two are equal, then the larger rate."""
    runs = [(run["score"], epochs, run["lr"]) for epochs, outcome in found for run in outcome["runs"] if run["state"] == "finished"]
    _, epochs, rate = max(runs)
    return Choice(rate, epochs)


def searched(variants: Sequence[str], quick: bool, outcomes: Outcomes) -> list[Job]:
    """The jobs of a table: the search of each cell, and the seeds where it is done."""
    jobs = []
    for task in tasks(quick):
        for variant in variants:
            named, choice = looked(task, variant, quick, outcomes)
            jobs += named
            if choice is not None:
                jobs.append(seeds(task, variant, choice, quick))
    return jobs
