"""All causal mixers, and hybrids of them, as language models of equal size: quality against what training and decoding cost.

hypermixing is causal by our own extension, with a gated, decaying state and a shift; mlp_mixer's causal form is ours too.
"""

from __future__ import annotations

from pathlib import Path

from reproduce import lm_plan
from reproduce.claims import judge
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from reproduce.lm_plan import Entry, Setting
from reproduce.lm_table import Found, against, beats, claim, front, legend, names, some, table
from tokmix.core.mixer import mixer_class
from tokmix.core.stack import parse

LAYERS, QUICK_LAYERS, YARDSTICK = 8, 2, "attention"
AB, GATE = "hsm(variant='ab')", "hsm(variant='gate')"
HYPER = "hypermixing(heads=8)"
SETTING = Setting("tinystories", f"{YARDSTICK}*{LAYERS}", feed_forward=1024, epochs=3)

ROTARY = "attention(rotary=True)"
QUADRATIC = ("attention", ROTARY, "attention(rotary=True, conv=4)", "relu_attention(rotary=True)", "hypermlp", "hyperglu", "gmlp")
LINEAR = (AB, GATE, HYPER, "hypermixing(heads=8, block=16)", "linear_attention", "mlp_mixer", "identity")
HYBRIDS = (
    (AB, "attention"),
    (HYPER, "attention"),
    ("linear_attention", "attention"),
    (AB, "hypermlp"),
    (AB, HYPER),
    (AB, "linear_attention"),
)
COSTS = {
    "training FLOPs": ("flops", False), "training time": ("us_per_token", True), "decoding time": ("decode_us", True),
    "state": ("state_numbers", False),
}  # fmt: skip


def groups(quick: bool) -> dict[str, list[Entry]]:
    layers = QUICK_LAYERS if quick else LAYERS
    return {
        "quadratic in length": [Entry(f"{mixer}*{layers}") for mixer in QUADRATIC],
        "linear in length": [Entry(f"{mixer}*{layers}") for mixer in LINEAR],
        "alternating": [Entry(f"({', '.join(pair)})*{layers // 2}") for pair in HYBRIDS],
    }


def entries(quick: bool) -> list[Entry]:
    return [one for group in groups(quick).values() for one in group]


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    known = entries(quick)
    setting = lm_plan.quick(SETTING, known[0].stack) if quick else SETTING
    named = lm_plan.jobs(setting, known)
    return named + lm_plan.speed_job(setting, known, named, outcomes, quick)


def tables(content: Results) -> str:
    found, known = Found(content), entries(bool(content["quick"]))
    ranked = sorted(known, key=lambda one: found.mean(one) or float("inf"))
    parts = [legend(found, known), _linear(found, bool(content["quick"])), _fronts(found, known), table(found, ranked, known[0])]
    return "\n\n".join(part for part in parts if part)


def _linear(found: Found, quick: bool) -> str:
    """Whether anything that is linear in length does what attention does."""
    known = entries(quick)
    rows = [one for one in known if is_linear(one) and "identity" not in one.stack]
    verdicts = judge([beats(found, one, known[0]) for one in rows])
    there = [(mean, one.name) for one in rows if (mean := found.mean(one)) is not None]
    told = f"The best of them is `{min(there)[1]}`." if there else ""
    return claim(f"A model that is linear in length has a lower loss than `{known[0].name}`", some(verdicts), told, verdicts)


def is_linear(entry: Entry) -> bool:
    return all(mixer_class(spec.name).order == "T" for spec in parse(entry.stack))


def _fronts(found: Found, known: list[Entry]) -> str:
    lines = []
    for title, (name, measured) in COSTS.items():
        kept = front(found, known, name, measured)
        lines.append(f"- {title}: {names(kept) if kept else 'not run'}")
    return "Not beaten by anything cheaper, from cheap to dear:\n\n" + "\n".join(lines)


def figures(content: Results, folder: Path) -> list[Path]:
    made = against(folder / "causal-cost.svg", Found(content), groups(bool(content["quick"])), "Causal mixers: loss against what it costs")
    return [] if made is None else [made]


ITEM = Item("beyond", "causal", "all causal mixers and hybrids: loss against training FLOPs, time and decode cost", jobs, tables, figures)
