"""Beyond the paper: long documents, where a cost linear in length should pay. IMDB reviews cut at 256, 1,024 and 4,096 tokens, HyperMixing
against attention, both in pre-norm and HyperMixing with a layer norm on its output, since without one its scale grows with the length.

Accuracy beside seconds and joules of training: for those the machine should do one job at a time (--workers 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reproduce import page, results
from reproduce.claims import Claim
from reproduce.hypermixer import recipe
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job

LIMITS = (256, 1024, 4096)
RATES, SEEDS, EPOCHS, BATCH = (1e-3, 5e-4, 2e-4, 1e-4), (0, 1, 2), 3, 64
VARIANTS = {
    "hypermixing": recipe.hyper("norm='layer'", "HyperMixing", layout="pre"),
    "attention": recipe.Variant("attention", "attention", layout="pre"),
}
ROWS, LENGTHS = 23_750, {256: 220, 1024: 285, 4096: 295}  # about, to guess how long a job takes


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    """The rate is searched at the shortest length, in one epoch, and taken for all."""
    found = []
    for variant in VARIANTS:
        looked = _job(variant, LIMITS[0], [{"seed": recipe.SEARCH_SEED, "lr": rate} for rate in RATES], quick, f"{variant}-search", "dev")
        found.append(looked)
        rate = recipe.best_rate(outcomes.get(looked.key))
        if rate is not None:
            members = [{"seed": seed, "lr": rate} for seed in SEEDS]
            found += [_job(variant, limit, members, quick, key(variant, limit), "valid") for limit in (LIMITS[:1] if quick else LIMITS)]
    return found


READING = (
    f"There are 25,000 reviews to learn from. The search for the rate, at {LIMITS[0]} tokens alone, holds out 5 % of them.",
    "Seeds are trained side by side, and their time and energy are divided evenly.",
    "Costs are those of training one seed for an epoch, without scoring. The first epoch, which compiles, is left out.",
    "Energy is the card's alone, and known only where one job ran at a time.",
    "PFLOPs are those of the reviews' own lengths, without padding.",
)


def key(variant: str, limit: int) -> str:
    return f"{variant}-{limit}"


def _job(variant: str, limit: int, members: list[dict[str, Any]], quick: bool, name: str, score: str) -> Job:
    spec: dict[str, Any] = {
        "data": "imdb", "model": VARIANTS[variant].model(quick) | {"max_len": limit}, "members": members[:2] if quick else members,
        "batch": BATCH, "epochs": 1 if score == "dev" else EPOCHS, "warmup": recipe.WARMUP, "clip": recipe.CLIP, "schedule": "cosine",
        "dev": 0.05 if score == "dev" else 0.0, "fraction": 1.0, "limit": limit, "score": score, "embedding": recipe.EMBEDDING,
    }  # fmt: skip
    if quick:
        spec |= {"rows": 96, "batch": 16, "epochs": 1 if score == "dev" else 2}
    return Job(name, "rows", spec, weight=ROWS * LENGTHS[limit] * spec["epochs"] * len(members) / 1e6)


def tables(content: Results) -> str:
    outcomes, records = results.outcomes(content), {job["key"]: job for job in content["jobs"]}
    rows = []
    for limit in LIMITS:
        for variant, one in VARIANTS.items():
            outcome = outcomes.get(key(variant, limit), {})
            cells = _costs(records.get(key(variant, limit)))
            rows.append([limit, one.title, page.cell(page.runs(outcome), scale=100), *cells])
    costs = ["seconds an epoch", "tokens a second", "kJ an epoch", "PFLOPs an epoch", "padding, %"]
    return "\n\n".join([
        f"IMDB: accuracy after {EPOCHS} epochs on its 25,000 test reviews, mean (standard deviation) of {len(SEEDS)} seeds.",
        page.table(["tokens at most", "mixer", "accuracy, %", *costs], rows),
        page.listed("How to read the table:", READING),
        page.claims_table(_claims(outcomes), scale=100),
    ])  # fmt: skip


def _costs(record: Mapping[str, Any] | None) -> list[str | None]:
    """Of one seed and epoch: seconds, tokens a second, kJ, PFLOPs, and how much of the batches is padding."""
    if record is None or not page.runs(record["outcome"]) or record["outcome"]["pace"] is None:
        return [None] * 5
    outcome, pace = record["outcome"], record["outcome"]["pace"]
    count, epochs = len(outcome["runs"]), record["spec"]["epochs"]
    alone = (record.get("measured") or {}).get("workers") == 1  # the counter is that of all workers
    seconds, joules = pace["seconds"] / count, pace["joules"] if alone else None
    energy = "not measured" if joules is None else f"{joules / count / 1000:.2f}"
    speed, work = outcome["tokens"] / epochs / seconds / 1e6, outcome["flops"] / epochs / 1e15
    return [f"{seconds:.2f}", f"{speed:.2f} M", energy, f"{work:.2f}", f"{100 * (1 - outcome['tokens'] / outcome['columns']):.0f}"]


def _claims(outcomes: Outcomes) -> list[Claim]:
    """Ours: no paper made them."""
    found = []
    for limit in LIMITS:
        runs = {variant: page.runs(outcomes.get(key(variant, limit))) for variant in VARIANTS}
        found.append(Claim(f"at {limit} tokens HyperMixing is as good as attention or less than a point behind", runs["hypermixing"],
                           runs["attention"], margin=0.01))  # fmt: skip
    whole, short = page.runs(outcomes.get(key("hypermixing", LIMITS[-1]))), page.runs(outcomes.get(key("hypermixing", LIMITS[0])))
    return [*found, Claim(f"HyperMixing is better with {LIMITS[-1]} tokens than with {LIMITS[0]}", whole, short)]


ITEM = Item("hypermixer", "longdocs", "Beyond the paper: IMDB at 256, 1,024 and 4,096 tokens (give --workers 1)", jobs, tables)
