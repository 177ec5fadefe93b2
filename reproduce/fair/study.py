"""HyperMLP's design study with a sound start: short convolutions that begin as the identity (delta) beside those that begin near zero
(normal), rates searched for every variant, six seeds, curves of ten points."""

from __future__ import annotations

import functools
import statistics
from pathlib import Path

from reproduce import draw, lm_plan, page
from reproduce.claims import Claim, judge, midpoint
from reproduce.fair import search, shown
from reproduce.fair.search import Plan
from reproduce.hypermlp.lm import VARIANTS as FIRST_EDITION
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from reproduce.lm_plan import Entry, Setting
from reproduce.lm_table import Found

LAYERS, QUICK_LAYERS = 6, 2
RATES = (2e-3, 4e-3, 8e-3)
STARTS = ("delta", "normal")
SOFTMAX = FIRST_EDITION["softmax"][1]
# name -> (what tables call it, the mixer without its start)
VARIANTS = {name: (label, mixer) for name, (label, mixer, _) in FIRST_EDITION.items()} | {
    "conv": ("softmax + conv, no positions", "attention(conv=4)"),
    "rotary-hypermlp": ("HyperMLP + rotary", "hypermlp(rotary=True)"),
}
# 1,200 steps of 16,384 tokens: 20 M, read once.
SETTING = Setting(
    "encyclopedia", f"{SOFTMAX}*{LAYERS}", feed_forward=1024, vocab=8192, positions="none", batch=64, steps=1200, peek=128, points=10,
    seeds=6,
)  # fmt: skip


@functools.cache
def entries(quick: bool) -> dict[tuple[str, str], Entry]:
    """By variant and start."""
    layers = QUICK_LAYERS if quick else LAYERS
    found = {("rotary", ""): Entry(f"attention(rotary=True)*{layers}", label="softmax + rotary,")}
    for start in STARTS:
        for name, (label, mixer) in VARIANTS.items():
            written = (
                mixer
                if start == "delta"
                else f"{mixer[:-1]}, conv_init='normal')"
                if mixer.endswith(")")
                else f"{mixer}(conv_init='normal')"
            )
            claimed = name in ("softmax", "plain", "r1", "hypermlp", "hyperglu") and start == "delta"
            found[name, start] = Entry(f"{written}*{layers}", label=f"{label}, {start},", first=claimed)
    return {key: one for key, one in found.items() if one.first or key == ("softmax", "normal")} if quick else found


def plan(quick: bool) -> Plan:
    if not quick:
        return Plan(SETTING, RATES, worth=60)
    small = lm_plan.quick(SETTING, f"{SOFTMAX}*{QUICK_LAYERS}")
    return Plan(small, RATES[:2], worth=60, long=2 * small.context, farthest=0, small=True)


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    made, found = plan(quick), []
    for entry in entries(quick).values():
        looked, rate = search.rated(made, entry, outcomes)
        found += looked
        found += [] if rate is None else [search.seeded(made, entry, rate)]
    return found


def claims(content: Results) -> list[Claim]:
    """Written down before the runs."""
    found, known = Found(content, "-seeds"), entries(bool(content["quick"]))
    runs = {name: found.runs(known[name, "delta"]) for name in ("softmax", "plain", "r1", "hypermlp", "hyperglu")}
    old = found.runs(known["softmax", "normal"])
    less = functools.partial(Claim, higher=False)
    return [
        less("HyperGLU has a lower loss than softmax + rotary + conv, delta start", runs["hyperglu"], runs["softmax"]),
        less("HyperMLP has a lower loss than softmax + rotary + conv, delta start", runs["hypermlp"], runs["softmax"]),
        less("HyperMLP has a lower loss than no sequence mixing, delta start", runs["hypermlp"], runs["plain"]),
        less("R1 only brings more than half of what both sequence mixers gain, delta start", runs["r1"],
             midpoint(runs["plain"], runs["hypermlp"])),
        less("softmax + rotary + conv has a lower loss with the delta start than with the normal one", runs["softmax"], old),
    ]  # fmt: skip


def tables(content: Results) -> str:
    found, known, made = Found(content, "-seeds"), entries(bool(content["quick"])), plan(bool(content["quick"]))
    rows = list(known.values())
    parts = [
        shown.what_was_done(found, rows, made),
        page.verdict_table(judge(claims(content)), digits=4),
        _losses(content, found, known),
        shown.rates_table(content, rows, made),
        shown.caveats(content, rows, made),
    ]
    return "\n\n".join(part for part in parts if part)


def _losses(content: Results, found: Found, known: dict[tuple[str, str], Entry]) -> str:
    """steps to: the first point of the mean curve at or below the last one of no sequence mixing with the delta start."""
    goal_of = curve(found, known["plain", "delta"])
    goal = goal_of[-1][1] if goal_of else None
    rows = []
    for entry in known.values():
        steps = None if goal is None else next((step for step, loss in curve(found, entry) if loss <= goal), None)
        told = None if not found.runs(entry) else "never" if steps is None else f"{steps:,}"
        rows.append([
            entry.title, shown.chosen(found.outcomes, entry), page.cell(found.runs(entry), 4), len(page.scores(found.runs(entry))), told
        ])  # fmt: skip
    return page.table(["variant", "rate", "loss", "seeds", "steps to the loss of no sequence mixing"], rows)


def curve(found: Found, entry: Entry) -> list[tuple[int, float]]:
    """(step, mean validation loss over the seeds); the points on the way are of the first windows."""
    points: dict[int, list[float]] = {}
    for run in found.runs(entry):
        for point in run["curve"]:
            if point["loss"] is not None:
                points.setdefault(point["step"], []).append(point["loss"])
    return [(step, statistics.fmean(values)) for step, values in sorted(points.items())]


def figures(content: Results, folder: Path) -> list[Path]:
    found, panels = Found(content, "-seeds"), []
    known = entries(bool(content["quick"]))
    for start in STARTS:
        made = [(name, curve(found, entry)) for (name, of), entry in known.items() if of in (start, "")]
        curves = []
        for name, points in made:
            title = VARIANTS[name][0] if name in VARIANTS else "softmax + rotary"
            curves += [draw.Curve(title, [step for step, _ in points], [loss for _, loss in points])] if points else []
        if curves:
            panels.append(draw.Panel(curves, "steps", "validation loss, nats a token", f"convolutions start as {start}"))
    return [draw.panels(folder / "study-curves.svg", panels, "The design study", columns=2)] if panels else []


ITEM = Item("fair", "study", "HyperMLP's design study with both starts of its convolutions, six seeds", jobs, tables, figures)
