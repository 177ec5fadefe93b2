"""The types of compare.json."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from tokmix.runs.files import JsonObject

CostPart = Literal["flops", "seconds", "energy_joules"]  # costs that the front is computed for
PValue = Literal["t_p", "bootstrap_p", "bootstrap_both_p"]
Corrected = Literal["t_p_holm", "bootstrap_p_holm", "bootstrap_both_p_holm"]
FRONTS: tuple[CostPart, ...] = ("flops", "seconds", "energy_joules")
P_VALUES: tuple[tuple[PValue, Corrected], ...] = (
    ("t_p", "t_p_holm"),
    ("bootstrap_p", "bootstrap_p_holm"),
    ("bootstrap_both_p", "bootstrap_both_p_holm"),
)
RunCost = JsonObject  # as in the record of a run of any version and task


class Entry(TypedDict):
    """One row of the table: a stack, or the bag of words."""

    name: str
    kind: str
    parameters: int | None
    feed_forward: NotRequired[int | None]


class Provenance(TypedDict):
    command: str
    tokmix: str
    machine: object
    versions: dict[str, str]


class Facts(Provenance):
    """The data, task and metric of a comparison."""

    data: str
    task: str
    split: str
    match: str | None
    notes: list[str]
    metric: str
    higher_is_better: bool


class Run(TypedDict):
    entry: str
    seed: int | None
    fraction: float
    state: str
    score: float | None
    cost: RunCost | None
    error: str | None
    folder: str | None


class MeanCost(TypedDict):
    flops_training: float | None
    flops: float | None  # of the whole training: flops_training x examples
    seconds: float | None
    energy_joules: float | None


class Row(TypedDict):
    """An entry at one share of train: the mean over its seeds."""

    entry: str
    fraction: float
    mean: float | None
    deviation: float | None
    n: int
    failed: int
    cost: MeanCost
    note: str | None


class Test(TypedDict):
    """A pair of entries, a minus b."""

    a: str
    b: str
    fraction: float
    difference: float
    t_p: float | None
    bootstrap_p: float | None
    bootstrap_both_p: float | None
    n_seeds: int
    n_examples: int
    t_p_holm: NotRequired[float | None]
    bootstrap_p_holm: NotRequired[float | None]
    bootstrap_both_p_holm: NotRequired[float | None]


class Point(TypedDict):
    """A row on the Pareto front, with its cost."""

    entry: str
    fraction: float
    mean: float
    flops: NotRequired[float]
    seconds: NotRequired[float]
    energy_joules: NotRequired[float]


class Comparison(Facts):
    format: str
    version: int
    seeds: list[int]
    fractions: list[float]
    entries: list[Entry]
    runs: list[Run]
    table: list[Row]
    tests: list[Test]
    front: dict[CostPart, list[Point]]
