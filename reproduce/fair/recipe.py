"""The best low-cost language model we can make: arms that change one thing each, at equal parameters and equal seconds, then all that pay.

The arms start from the hybrid of (a,b) and rotary attention. Each has its own search of the rate. An arm pays if its mean of bits per byte
over the seeds is lower than that of the start, in the seconds that rotary attention takes for the plan's steps. What pays is put together,
and the whole is compared with rotary attention and with the stack of the recipe `hybrid-lm`, which seeds of the arms do not decide."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from reproduce import page, results
from reproduce.claims import Claim, judge
from reproduce.fair import language, search, shown
from reproduce.fair.language import NONE, PLAIN, ROTARY
from reproduce.fair.search import Plan
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from reproduce.lm_plan import Entry, Settings
from reproduce.lm_table import Found, number

RATES = (2e-3, 4e-3, 8e-3)
SEEDS, ARM_SEEDS = 8, 3
GAIN, LEVEL = 0.05, 0.005  # shares of the other's bits per byte: what the recipe should gain, and what "level" allows


@dataclass(frozen=True)
class Build:
    """What a model is made of. every: one layer in so many is attention; window: of that attention."""

    shift: str = "ab"
    every: int = 2
    window: int | None = None
    qk_norm: bool = False
    norm: str = "layer"
    feed_forward_kind: str = "gelu"
    optimizer: str = "adamw"

    def entry(self, tag: str, layers: int, label: str = "") -> Entry:
        options = [part for part, wanted in ((f"window={self.window}", self.window), ("qk_norm=True", self.qk_norm)) if wanted]
        attention = ", ".join([ROTARY[:-1], *options]) + ")"
        shifts = f"{language.hsm(self.shift)}*{self.every - 1}" if self.every > 2 else language.hsm(self.shift)
        settings: Settings = (*NONE, ("norm", self.norm), ("feed_forward_kind", self.feed_forward_kind))
        stack = f"({shifts}, {attention})*{max(1, layers // self.every)}"
        return Entry(stack, settings=settings, tag=tag, label=label, optimizer=self.optimizer)


START = Build()
# name -> (what tables call it, what it changes)
ARMS: dict[str, tuple[str, Mapping[str, object]]] = {
    "fusion": ("fusion in place of (a,b)", {"shift": "fusion"}),
    "four": ("one attention layer in four", {"every": 4}),
    "window": ("a window of 128 tokens", {"window": 128}),
    "qk-norm": ("queries and keys normalised", {"qk_norm": True}),
    "rms": ("RMS norms", {"norm": "rms"}),
    "swiglu": ("SwiGLU", {"feed_forward_kind": "swiglu"}),
    "muon": ("Muon for the matrices", {"optimizer": "muon"}),
}
QUICK_ARMS = ("window", "qk-norm", "muon")


def plan(quick: bool, seeds: int) -> Plan:
    made = language.plan(quick)
    return replace(made, setting=replace(made.setting, seeds=2 if quick else seeds), rates=made.rates if quick else RATES, worth=30)


@functools.cache
def entries(quick: bool) -> dict[str, Entry]:
    layers = language.QUICK_LAYERS if quick else language.LAYERS
    arms = {name: ARMS[name] for name in (QUICK_ARMS if quick else ARMS)}
    return {
        "rotary": Entry(f"{ROTARY}*{layers}", settings=NONE, tag="recipe", first=True, label="attention,"),
        "today": Entry(f"({language.hsm('ab')}, {PLAIN})*{layers // 2}", tag="recipe", label="the stack of `hybrid-lm`,"),
        "start": START.entry("start", layers, "the start,"),
        **{name: replace(START, **change).entry(name, layers, f"{title},") for name, (title, change) in arms.items()},  # type: ignore[arg-type]
    }


def paying(quick: bool, outcomes: Outcomes) -> list[str] | None:
    """The arms that are ahead of the start; None before all are known."""
    means = {}
    for name, entry in entries(quick).items():
        if name not in ("rotary", "today"):
            bits = page.scores(page.runs(outcomes.get(f"{entry.key}-seconds")), "bits_per_byte")
            if f"{entry.key}-seconds" not in outcomes:
                return None
            means[name] = statistics.fmean(bits) if bits else float("inf")
    return [name for name in means if name != "start" and means[name] < means["start"]]


def whole(quick: bool, names: list[str]) -> Entry:
    changes: dict[str, object] = {}
    for name in names:
        changes |= ARMS[name][1]
    layers = language.QUICK_LAYERS if quick else language.LAYERS
    return replace(replace(START, **changes).entry("whole", layers, "all that pay,"), first=True)  # type: ignore[arg-type]


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    known, found = entries(quick), []
    for name, entry in known.items():
        # The arms choose with few seeds; what is judged has more, of which the arms' own are a part.
        found += _timed(plan(quick, SEEDS if name in ("rotary", "today") else ARM_SEEDS), known["rotary"], entry, outcomes)
    if (names := paying(quick, outcomes)) is not None:
        found += _timed(plan(quick, SEEDS), known["rotary"], whole(quick, names), outcomes)
    return found


def _timed(made: Plan, yardstick: Entry, entry: Entry, outcomes: Outcomes) -> list[Job]:
    looked, rate = search.rated(made, entry, outcomes)
    found = [*looked, search.speed(made, entry)]
    if rate is not None:
        job = search.in_the_seconds_of(made, yardstick, entry, rate, outcomes, language.MOST_STEPS)
        found += [] if job is None else [job]
    return found


def claims(content: Results) -> list[Claim]:
    """Written down before the runs."""
    quick, found = bool(content["quick"]), Found(content, "-seconds")
    names = paying(quick, found.outcomes)
    ours = [] if names is None else found.runs(whole(quick, names))
    known = entries(quick)
    today, rotary = found.runs(known["today"]), found.runs(known["rotary"])
    less = functools.partial(Claim, higher=False, field="bits_per_byte")
    level = found.mean(known["today"], "bits_per_byte") or 0.0
    return [
        less(f"the recipe has at least {GAIN:.0%} fewer bits per byte than the stack of `hybrid-lm` at equal seconds", ours, today,
             margin=-GAIN * level),
        less(f"the recipe has at most {LEVEL:.1%} more bits per byte than rotary attention at equal seconds", ours, rotary,
             margin=LEVEL * (found.mean(known["rotary"], "bits_per_byte") or 0.0)),
    ]  # fmt: skip


def tables(content: Results) -> str:
    quick, outcomes = bool(content["quick"]), results.outcomes(content)
    known, names = entries(quick), paying(quick, results.outcomes(content))
    rows = list(known.values()) + ([] if names is None else [whole(quick, names)])
    found, made = Found(content, "-seconds"), plan(quick, SEEDS)
    base, lines = found.runs(known["start"]), []
    for entry in rows:
        speed, long = (shown.speeds(outcomes, entry, length) for length in (made.setting.context, made.long))
        lines.append([
            entry.title, shown.chosen(outcomes, entry), shown.bits(found.runs(entry)), len(page.scores(found.runs(entry))),
            shown.ahead(found.runs(entry), base), number(speed.get("tokens_per_s"), "{:,.0f}"),
            number(long.get("decode_us"), "{:.0f}"), number(long.get("state_numbers"), "{:,}"),
        ])  # fmt: skip
    paid = "" if names is None else "What pays: " + (", ".join(ARMS[name][0] for name in names) or "nothing") + "."
    heads = ["system", "rate", "bits per byte at equal seconds", "seeds", "to the start", "training tokens/s"]
    parts = [
        shown.what_was_done(found, rows, made), page.verdict_table(judge(claims(content)), digits=4), paid,
        page.table([*heads, f"decode, µs a token, {made.long}", f"state, {made.long}"], lines), shown.rates_table(content, rows, made),
        shown.caveats(content, rows, made, "-seconds"),
        "Not tried, since the library does not have them: value embeddings and n-gram embeddings for a causal model.",
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


ITEM = Item("fair", "recipe", "the best low-cost language model: one idea at a time at equal seconds (give --workers 1)", jobs, tables)
