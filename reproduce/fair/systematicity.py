"""Systematicity of the shapes task: trained at length 100, tested at 100 to 400 and where no training sequence has a shape.

The paper's task asks for pairs of shapes wherever they stand. A model that has learned the rule needs no more than that at other lengths
and places; one that has learned positions fails there. MLPMixer has a weight for each position, so it has no answer beyond 100."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reproduce import page, results
from reproduce.claims import Claim, Run
from reproduce.fair import estimate
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from reproduce.toy import model as toy
from reproduce.toy.data import CENTRES, LENGTH

SEEDS, SIZE = 10, 10_000
EDGE = CENTRES[0]
SETS = {
    **{f"length {length}": [length, EDGE, length - EDGE] for length in (LENGTH, 200, 300, 400)},
    "unseen places": [200, LENGTH + EDGE, 200 - EDGE],
}
MODELS = {
    "none": ("None: one more convolution", toy.ITEMS["none"]),
    "attention": ("self-attention", toy.ITEMS["attention"]),
    "hypermixing": ("HyperMixer", toy.ITEMS["hypermixing"]),
    "hypermixing-code": ("HyperMixer with a position code", "hypermixing(hidden=64, position='sinusoidal')"),
}
TRAINED: dict[str, Any] = {"n": SIZE, "epochs": 250, "batch": 100, "lr": 1e-3, "test": 1_000, "sets": SETS}
QUICK: dict[str, Any] = {"n": 60, "epochs": 2, "batch": 30, "lr": 1e-3, "test": 20, "sets": SETS}
PARTS = 5  # seeds of a job: it should end within a few minutes


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    found = []
    for name, (_, item) in MODELS.items():
        for first in range(0, 2 if quick else SEEDS, PARTS):
            seeds = range(first, first + (2 if quick else PARTS))
            members = [{"model": name, "item": item, "seed": seed} for seed in seeds]
            job = Job(f"{name}-{first}", "systematicity", (QUICK if quick else TRAINED) | {"members": members}, worth=40)
            found.append(replace(job, seconds=estimate.of(job)))
    return found


def runs(outcomes: Outcomes, model: str) -> list[Run]:
    return [run for key, outcome in outcomes.items() if key.rsplit("-", 1)[0] == model for run in page.runs(outcome)]


def claims(outcomes: Outcomes) -> list[Claim]:
    """Written down before the runs."""
    ours, theirs = runs(outcomes, "hypermixing"), runs(outcomes, "attention")
    return [
        Claim(f"HyperMixer errs less than self-attention, {name}", ours, theirs, higher=False, field=name)
        for name in ("length 100", "length 400", "unseen places")
    ] + [
        Claim(
            f"{MODELS[model][0]} errs more at length 400 than at length 100", of,
            [{**run, "length 100": run.get("length 400")} for run in of], higher=False, field="length 100",
        )
        for model, of in (("hypermixing", ours), ("attention", theirs))
    ]  # fmt: skip


def tables(content: Results) -> str:
    outcomes = results.outcomes(content)
    rows = [[title, *(page.cell(runs(outcomes, name), 2, name=one) for one in SETS)] for name, (title, _) in MODELS.items()]
    return "\n\n".join([
        "100 x the mean squared error at positions where a shape stands, so that lengths can be compared; mean (standard deviation) over "
        f"{SEEDS} seeds. Trained on {SIZE:,} sequences of length {LENGTH}. *Unseen places*: length 200, all four shapes in the second "
        "half, where no training sequence reaches.",
        page.table(["model", *SETS], rows),
        page.claims_table(claims(outcomes), digits=2),
        "MLPMixer is not here: it has a weight for each of the 100 positions.",
    ])  # fmt: skip


ITEM = Item("fair", "systematicity", "the shapes task at other lengths and places than it was trained on, ten seeds", jobs, tables)
