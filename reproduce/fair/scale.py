"""Shift mixing at 10, 35 and 120 M parameters: do the curves of loss against FLOPs, seconds and joules cross? The paper names its small
models as its limit.

Each size has its own search of the rate, in runs of a tenth of the tokens. The two smaller sizes read the text at most twice. The largest
reads half a billion tokens, which is the text several times over, and its row says so. Only rotary attention and the best hybrid of the
middle size go there, with two seeds in a job each."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reproduce import draw, lm_plan, page
from reproduce.claims import Claim, Run, judge
from reproduce.fair import search, shown
from reproduce.fair.language import NONE, hsm
from reproduce.fair.search import Plan
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from reproduce.lm_plan import Entry, Setting
from reproduce.lm_table import Found, number

BATCH_TOKENS = 65_536


@dataclass(frozen=True)
class Size:
    """seeds: of each system; rates: of the search."""

    name: str
    dim: int
    layers: int
    heads: int
    tokens: int
    rates: tuple[float, ...]
    seeds: int

    @property
    def rotary(self) -> str:
        return f"attention(heads={self.heads}, rotary=True)"


SIZES = (
    Size("10m", 320, 8, 5, 100_000_000, (1e-3, 2e-3, 4e-3), 5),
    Size("35m", 576, 8, 9, 200_000_000, (5e-4, 1e-3, 2e-3), 3),
    Size("120m", 768, 16, 12, 500_000_000, (5e-4, 1e-3, 2e-3), 2),
)
TOP = SIZES[-1]
SYSTEMS = ("rotary", "ab-rotary", "one-in-four", "gate")
HYBRIDS = ("ab-rotary", "one-in-four")
SEARCHED = 10  # a search reads a tenth of the tokens
QUICK = (Size("10m", 40, 4, 5, 6, RATES_QUICK := (2e-3, 4e-3), 2), Size("120m", 80, 4, 5, 6, RATES_QUICK, 2))


def sizes(quick: bool) -> Sequence[Size]:
    return QUICK if quick else SIZES


@functools.cache
def entry(size: Size, system: str) -> Entry:
    layers = size.layers
    stack, settings = {
        "rotary": (f"{size.rotary}*{layers}", NONE),
        "ab-rotary": (f"({hsm('ab')}, {size.rotary})*{layers // 2}", NONE),
        "one-in-four": (f"({hsm('fusion')}*3, {size.rotary})*{layers // 4}", NONE),
        "gate": (f"{hsm('gate')}*{layers}", ()),
    }[system]
    return Entry(stack, settings=settings, tag=size.name, label=f"{size.name[:-1]} M,", first=system in ("rotary", "ab-rotary"))


@functools.cache
def plan(size: Size, quick: bool, searching: bool = False) -> Plan:
    yardstick = f"{size.rotary}*{size.layers}"
    steps = size.tokens if quick else size.tokens // BATCH_TOKENS
    setting = Setting(
        "english", yardstick, feed_forward=4 * size.dim, dim=size.dim, vocab=8192, context=512, positions="none", batch=BATCH_TOKENS // 512,
        steps=steps, warmup=200, peek=128, points=20, seeds=size.seeds,
    )  # fmt: skip
    if quick:
        small = lm_plan.quick(setting, yardstick)
        setting = replace(small, dim=size.dim, seeds=size.seeds, positions="none")
    if searching:
        setting = replace(setting, steps=max(2, steps // SEARCHED), warmup=max(1, setting.warmup // SEARCHED))
    worth = {"10m": 45.0, "35m": 44.0, "120m": 43.0}[size.name]
    return Plan(setting, size.rates, worth=worth, farthest=0 if quick else search.FARTHEST, small=quick)


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    found, known = [], sizes(quick)
    for size in known:
        for system in systems(size, quick, outcomes):
            one = entry(size, system)
            looked, rate = search.rated(plan(size, quick, searching=True), one, outcomes)
            found += [*looked]
            found += [] if rate is None else [_seed(size, one, rate, seed, quick) for seed in range(size.seeds)]
    return found


def _seed(size: Size, one: Entry, rate: float, seed: int, quick: bool) -> Job:
    """A job for each seed: alone on the device, so that its seconds and joules are its own."""
    made = plan(size, quick)
    job = lm_plan.job(made.setting, one, [{"seed": seed, "lr": rate}], f"{one.key}-seed-{seed}")
    return search.ranked(made, one, job, "seeds")


def systems(size: Size, quick: bool, outcomes: Outcomes) -> Sequence[str]:
    """At the top: rotary attention, and the hybrid that is best one size below; none before that is known."""
    known = sizes(quick)
    if size != known[-1]:
        return SYSTEMS[:2] if quick else SYSTEMS
    below = known[-2]
    losses = {}
    for system in HYBRIDS[:1] if quick else HYBRIDS:
        scores = page.scores(runs(outcomes, below, system))
        if len(scores) < below.seeds:
            return ()
        losses[system] = sum(scores) / len(scores)
    return ("rotary", min(losses, key=lambda system: losses[system]))


def runs(outcomes: Outcomes, size: Size, system: str) -> list[Run]:
    key = entry(size, system).key
    return [run for seed in range(size.seeds) for run in page.runs(outcomes.get(f"{key}-seed-{seed}"))]


def claims(content: Results) -> list[Claim]:
    """Written down before the runs; at the top two seeds, which the row says."""
    outcomes, quick = Found(content).outcomes, bool(content["quick"])
    found = []
    for size in sizes(quick):
        known = [name for name in systems(size, quick, outcomes) if name in HYBRIDS] or ["ab-rotary"]
        for name in known:
            told = (
                f"`{entry(size, name).name}` has fewer bits per byte than `{entry(size, 'rotary').name}` at {size.name[:-1]} M parameters"
            )
            ours, theirs = runs(outcomes, size, name), runs(outcomes, size, "rotary")
            found.append(Claim(told, ours, theirs, higher=False, field="bits_per_byte"))
    return found


def tables(content: Results) -> str:
    outcomes, quick = Found(content).outcomes, bool(content["quick"])
    rows = []
    for size in sizes(quick):
        for system in systems(size, quick, outcomes) or SYSTEMS[:2]:
            rows.append(_row(outcomes, size, system))
    heads = ["system", "parameters", "rate", "tokens", "times the text", "bits per byte", "seeds", "FLOPs", "seconds", "kJ"]
    return "\n\n".join([
        "Bits per byte of held-out documents, mean (standard deviation) over seeds. FLOPs, seconds and energy are those of one run, alone "
        "on the device, without building graphs and scoring. \\* a rate at the border of those tried, in runs of a tenth of the tokens.",
        page.table(heads, rows),
        page.verdict_table(judge(claims(content)), digits=4),
    ])  # fmt: skip


def _row(outcomes: Outcomes, size: Size, system: str) -> list[object]:
    one, of = entry(size, system), runs(outcomes, size, system)
    done = [outcome for seed in range(size.seeds) if "runs" in (outcome := outcomes.get(f"{one.key}-seed-{seed}", {})) and outcome["runs"]]
    if not done:
        return [one.title, *[None] * 9]
    first = done[0]
    mean = lambda name: None if any(outcome.get(name) is None for outcome in done) else sum(outcome[name] for outcome in done) / len(done)
    joules = mean("training_joules")
    return [
        one.title, f"{first['parameters']:,}", shown.chosen(outcomes, one), f"{first['tokens'] / 1e6:.0f} M",
        f"{first['tokens'] / first['split_tokens']['train']:.1f}", page.cell(of, 4, name="bits_per_byte"), len(page.scores(of)),
        f"{first['flops']:.2e}", number(mean("training_seconds"), "{:,.0f}"), "not measured" if joules is None else f"{joules / 1000:,.0f}",
    ]  # fmt: skip


def figures(content: Results, folder: Path) -> list[Path]:
    """Where each size ends: whether the lines of two systems cross."""
    outcomes, quick, panels = Found(content).outcomes, bool(content["quick"]), []
    for name, axis in (("flops", "training FLOPs"), ("training_seconds", "seconds of one H200"), ("training_joules", "joules")):
        curves = []
        for system in SYSTEMS:
            points = [point for size in sizes(quick) if (point := _end(outcomes, size, system, name)) is not None]
            if points:
                curves.append(draw.Curve(system, [x for x, _ in points], [y for _, y in points]))
        if curves:
            panels.append(draw.Panel(curves, axis, "bits per byte", log_x=True))
    return [draw.panels(folder / "scale.svg", panels, "Loss against what it costs, by size", colours=list(SYSTEMS))] if panels else []


def _end(outcomes: Outcomes, size: Size, system: str, name: str) -> tuple[float, float] | None:
    levels = page.scores(runs(outcomes, size, system), "bits_per_byte")
    costs = [
        cost for seed in range(size.seeds) if (cost := outcomes.get(f"{entry(size, system).key}-seed-{seed}", {}).get(name)) is not None
    ]
    return (sum(costs) / len(costs), sum(levels) / len(levels)) if levels and costs else None


ITEM = Item("fair", "scale", "shift mixing and rotary attention at 10, 35 and 120 M parameters (give --workers 1)", jobs, tables, figures)
