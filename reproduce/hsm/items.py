"""The items of this paper: the same protocol on three texts.

A small GPT with log2(context) layers; every model gets the same text, order of windows, steps, learning rate and seeds. TinyStories has all
rows and, for those that claims hang on, learning rates beside the one that all share; the other texts have fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reproduce import draw, lm_plan
from reproduce.hsm import claims
from reproduce.hsm.stacks import Ladder
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from reproduce.lm_plan import Entry, Setting
from reproduce.lm_table import Found, against, arms, legend

LAYERS, YARDSTICK = 8, "attention*8"
QUICK_LAYERS = 4
RATES = (2e-3, 4e-3)  # beside the one of the setting; at 5e-4 all that was tried was worse

TINY_STORIES = Setting("tinystories", YARDSTICK, feed_forward=1024, epochs=5, lr=1e-3)
WIKITEXT = Setting("wikitext2", YARDSTICK, feed_forward=1024, epochs=3)
ENWIK8 = Setting("enwik8", YARDSTICK, feed_forward=1024, vocab=256, steps=1000)


@dataclass(frozen=True)
class Part:
    """What an item trains. whole: with other learning rates for some entries, speeds, and the place of the attention layer."""

    setting: Setting
    entries: Callable[[Ladder], Sequence[Entry]]
    whole: bool = False

    def ladder(self, quick: bool) -> Ladder:
        return Ladder(QUICK_LAYERS if quick else LAYERS)

    def jobs(self, quick: bool, outcomes: Outcomes) -> list[Job]:
        ladder = self.ladder(quick)
        setting = lm_plan.quick(self.setting, f"attention*{QUICK_LAYERS}") if quick else self.setting
        named = lm_plan.jobs(setting, self.entries(ladder))
        if self.whole:
            named += [lm_plan.rates_job(setting, entry, RATES) for entry in claims.rated(ladder)]
            named += lm_plan.speed_job(setting, ladder.timed(), named, outcomes, quick)
        return named

    def tables(self, content: Results) -> str:
        found, ladder = Found(content), self.ladder(bool(content["quick"]))
        entries = list(self.entries(ladder))
        parts = [legend(found, entries), claims.all_claims(found, ladder, {one.key for one in entries})]
        parts.append(arms(found, entries, entries[0], speed=self.whole))
        if self.whole:
            parts.append(claims.rates_table(found, ladder, self.setting.lr, RATES))
        return "\n\n".join(part for part in parts if part)

    def figures(self, content: Results, folder: Path) -> list[Path]:
        found, ladder = Found(content), self.ladder(bool(content["quick"]))
        there = {one.key for one in self.entries(ladder)}
        groups = {name: [one for one in entries if one.key in there] for name, entries in _groups(ladder).items()}
        made = [against(folder / f"{content['item']}-cost.svg", found, groups, "Loss against what it costs")]
        made.append(_positions(folder / f"{content['item']}-positions.svg", found, ladder) if self.whole else None)
        return [path for path in made if path is not None]


def _groups(ladder: Ladder) -> dict[str, list[Entry]]:
    return {
        "attention": [ladder.attention, ladder.rotary],
        "shift mixing": [*ladder.pure.values(), ladder.heads],
        "one attention layer": ladder.places,
        "first and last": [ladder.ends],
        "alternating": [*ladder.alternating.values(), ladder.alternating_rotary],
        "shift mixing, equal feed-forward": list(ladder.narrow.values()),
        "hybrids, equal feed-forward": ladder.narrow_hybrids,
    }


def _positions(path: Path, found: Found, ladder: Ladder) -> Path | None:
    """Where the one attention layer stands best."""
    seeds = {float(place + 1): claims.losses(found, one) for place, one in enumerate(ladder.places)}
    if not any(seeds.values()):
        return None
    curves = [draw.over_seeds("one attention layer among gates", seeds)]
    for name, entry in ((ladder.attention.name, ladder.attention), (ladder.pure["gate"].name, ladder.pure["gate"])):
        if (level := found.mean(entry)) is not None:
            curves.append(draw.Curve(name, [1, ladder.layers], [level, level]))
    ticks = list(range(1, ladder.layers + 1))
    return draw.panels(
        path,
        [draw.Panel(curves, "layer that is attention, 1 = the bottom (band: all seeds)", "validation loss, nats a token", ticks=ticks)],
    )


def _item(name: str, about: str, part: Part) -> Item:
    return Item("hsm", name, about, part.jobs, part.tables, part.figures)


ITEMS = [
    _item("hybrids", "TinyStories: every variant and hybrid against attention", Part(TINY_STORIES, Ladder.all, whole=True)),
    _item("wikitext2", "WikiText-2: what the claims hang on", Part(WIKITEXT, Ladder.few)),
    _item("enwik8", "enwik8, bytes: what the claims hang on", Part(ENWIK8, Ladder.few)),
]
