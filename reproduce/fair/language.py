"""The fair language-model table: text that is read once, rates searched for every system, eight fresh seeds, equal parameters and equal
seconds. The four claims and the number of seeds were written down before any run (README.md)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reproduce import draw, lm_plan, page
from reproduce.claims import Claim, judge
from reproduce.fair import search, shown
from reproduce.fair.search import Plan
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from reproduce.lm_plan import Entry, Setting
from reproduce.lm_table import Found

LAYERS, QUICK_LAYERS = 8, 4
RATES = (1e-3, 2e-3, 4e-3, 8e-3)
SEEDS = 8
ROTARY = "attention(heads=5, rotary=True)"
PLAIN = "attention(heads=5)"
CONV = "attention(heads=5, rotary=True, conv=4)"
HYPER = "hypermixing(heads=10)"
LINEAR = "linear_attention(heads=5)"
NONE = (("positions", "none"),)  # rotary codes, lags and convolutions say where a token is
# 1,000 steps of 32,768 tokens: 33 M of the 77 M that the encyclopedia has to learn from, so that faster systems have more to read.
SETTING = Setting(
    "encyclopedia", f"{PLAIN}*{LAYERS}", feed_forward=1280, dim=320, vocab=8192, context=512, batch=64, steps=1000, warmup=100, peek=128,
    points=4, seeds=SEEDS,
)  # fmt: skip
MIXED = "shift mixing and rotary attention"
MOST_STEPS = 2300  # of a run at equal seconds: more would read the text twice


def hsm(variant: str, more: str = "") -> str:
    return f"hsm(variant='{variant}'{more})"


class Systems:
    """All rows, for stacks of so many layers."""

    def __init__(self, layers: int):
        pure = lambda mixer: f"{mixer}*{layers}"
        pairs = lambda first, second: f"({first}, {second})*{layers // 2}"
        self.learned = Entry(pure(PLAIN), settings=(("positions", "learned"),), tag="learned", label="learned positions,")
        self.sinusoidal = Entry(pure(PLAIN), tag="sinusoidal", label="sinusoidal positions,")
        self.rotary = Entry(pure(ROTARY), settings=NONE, first=True)
        self.conv = Entry(pure(CONV), settings=NONE, first=True)
        self.ab, self.gate, self.fusion = (Entry(pure(hsm(variant)), first=variant == "ab") for variant in ("ab", "gate", "fusion"))
        self.shift_1 = Entry(pure(hsm("ab", ", shift=1")), first=True, label="shift 1 only,")
        # The same shifts in another order. The schedules of the mixer itself do not end within these layers.
        rungs = [2**place for place in range(layers)]
        orders = {"descending": rungs[::-1], "up and down": [*rungs[::2], *rungs[1::2][::-1]]}
        self.descending, self.cyclic = (
            Entry(pure(hsm("ab", f", schedule={tuple(order)}")), label=f"{name},", tag=name.replace(" ", "-"))
            for name, order in orders.items()
        )
        self.ab_rotary, self.gate_rotary, self.fusion_rotary = (
            Entry(pairs(hsm(variant), ROTARY), settings=NONE, first=variant != "gate") for variant in ("ab", "gate", "fusion")
        )
        self.one_in_four, self.one_in_eight = (
            Entry(f"({hsm('fusion')}*{every - 1}, {ROTARY})*{max(1, layers // every)}", settings=NONE, label=f"one rotary in {word},")
            for every, word in ((4, "four"), (layers, "eight"))
        )
        self.hyperglu, self.hypermlp = (Entry(pure(mixer), settings=NONE, first=mixer == "hyperglu") for mixer in ("hyperglu", "hypermlp"))
        self.hyper, self.ab_hyper = Entry(pure(HYPER)), Entry(pairs(hsm("ab"), HYPER))
        self.linear, self.ab_linear = Entry(pure(LINEAR)), Entry(pairs(hsm("ab"), LINEAR))

    @property
    def hybrids(self) -> tuple[Entry, Entry]:
        """One of these is the hybrid of claims 1 and 2: that with the lower loss in the search, whose seed no claim uses."""
        return self.ab_rotary, self.fusion_rotary

    def groups(self) -> dict[str, list[Entry]]:
        return {
            "attention": [self.learned, self.sinusoidal, self.rotary, self.conv],
            "shift mixing": [self.ab, self.gate, self.fusion, self.shift_1, self.descending, self.cyclic],
            MIXED: [
                self.ab_rotary, self.gate_rotary, self.fusion_rotary, self.one_in_four, self.one_in_eight,
            ],
            "HyperMLP": [self.hyperglu, self.hypermlp],
            "causal HyperMixing": [self.hyper, self.ab_hyper],
            "linear attention": [self.linear, self.ab_linear],
        }  # fmt: skip

    def all(self) -> list[Entry]:
        return [entry for group in self.groups().values() for entry in group]


@functools.cache
def systems(quick: bool) -> Systems:
    return Systems(QUICK_LAYERS if quick else LAYERS)


def plan(quick: bool) -> Plan:
    if not quick:
        return Plan(SETTING, RATES, worth=70)
    small = replace(lm_plan.quick(SETTING, f"{PLAIN}*{QUICK_LAYERS}"), dim=40)
    return Plan(small, RATES[1:3], worth=70, long=2 * small.context, small=True, farthest=0)


def entries(quick: bool) -> list[Entry]:
    """Quick runs have those that claims hang on."""
    known = systems(quick)
    return [one for one in known.all() if one.first] if quick else known.all()


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    made, known, found = plan(quick), systems(quick), []
    for entry in entries(quick):
        looked, rate = search.rated(made, entry, outcomes)
        found += [*looked, search.speed(made, entry)]
        if rate is None:
            continue
        found.append(search.seeded(made, entry, rate))
        if entry.first or entry in known.groups()[MIXED]:  # the others stand in no claim about seconds
            job = search.in_the_seconds_of(made, known.rotary, entry, rate, outcomes, MOST_STEPS) if entry != known.rotary else None
            found += [] if job is None else [job]
    return found


def hybrid(found: Found, known: Systems) -> Entry | None:
    """None while a search is not done."""
    lowest = {one: shown.lowest(found, one) for one in known.hybrids}
    if None in lowest.values():
        return None
    return min(known.hybrids, key=lambda one: lowest[one] or 0.0)


def claims(content: Results) -> list[Claim]:
    quick = bool(content["quick"])
    equal, timed, known = Found(content, "-seeds"), Found(content, "-seconds"), systems(quick)
    mixed = hybrid(equal, known)
    name = f"`{mixed.name}`" if mixed is not None else "the hybrid of (a,b) or fusion and rotary attention"
    ours = ([], []) if mixed is None else (equal.runs(mixed), timed.runs(mixed))
    rotary = equal.runs(known.rotary)
    less = functools.partial(Claim, higher=False, field="bits_per_byte")
    return [
        less(f"{name} has fewer bits per byte than `{known.rotary.name}` at equal parameters", ours[0], rotary),
        less(f"{name} has fewer bits per byte than `{known.rotary.name}` at equal seconds of training", ours[1], rotary),
        less("shifts that double from layer to layer have fewer bits per byte than shift 1 in every layer, (a,b)",
             equal.runs(known.ab), equal.runs(known.shift_1)),
        less("HyperGLU has fewer bits per byte than softmax attention with rotary codes and convolution, all starting as the identity",
             equal.runs(known.hyperglu), equal.runs(known.conv)),
    ]  # fmt: skip


def tables(content: Results) -> str:
    quick, known = bool(content["quick"]), systems(bool(content["quick"]))
    equal = Found(content, "-seeds")
    rows = entries(quick)
    made = plan(quick)
    parts = [
        shown.what_was_done(equal, rows, made),
        page.verdict_table(judge(claims(content)), digits=4),
        shown.language_table(content, rows, known.rotary, made),
        shown.rates_table(content, rows, made),
        shown.caveats(content, rows, made),
    ]
    return "\n\n".join(part for part in parts if part)


def figures(content: Results, folder: Path) -> list[Path]:
    """Bits per byte against seconds of training: equal parameters and equal seconds."""
    curves = []
    groups = systems(bool(content["quick"])).groups()
    for phase, title in (("-seeds", "equal parameters and tokens"), ("-seconds", "equal seconds")):
        found = Found(content, phase)
        made = [_points(content, found, name, group) for name, group in groups.items()]
        if any(curve.x for curve in made):
            curves.append(draw.Panel([one for one in made if one.x], "seconds of training, alone on the device", "bits per byte", title))
    return (
        [draw.panels(folder / "language-seconds.svg", curves, "Bits per byte against seconds", columns=2, colours=list(groups))]
        if curves
        else []
    )


def _points(content: Results, found: Found, name: str, group: Sequence[Entry]) -> draw.Curve:
    points = []
    for entry in group:
        seconds, level = shown.seconds(content, found, entry), found.mean(entry, "bits_per_byte")
        if seconds is not None and level is not None:
            points.append((seconds, level))
    return draw.Curve(name, [x for x, _ in points], [y for _, y in points], line=False)


ITEM = Item(
    "fair", "language", "21 language models on text read once, rates searched, eight seeds (give --workers 1)", jobs, tables, figures
)
