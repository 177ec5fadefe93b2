"""The small language model of the paper's design study, on another text: softmax, ReLU, HyperMLP, HyperGLU, and HyperMLP without parts.

The paper's column is its final loss on OpenWebText2 with a model of nanoGPT's size, single runs: its size and text are not ours, so
that only the order can be compared. Two of its rows were over the budget of the others; ours never are.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from reproduce import lm_plan, page
from reproduce.claims import Claim, judge, midpoint
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from reproduce.lm_plan import Entry, Setting
from reproduce.lm_table import Found, against, beats, claim, every, legend, table

LAYERS, QUICK_LAYERS = 6, 2
RATES = (1e-3, 4e-3)  # beside the one of the setting

# name -> (what tables call it, the mixer, the paper's loss; None where it gives none)
VARIANTS: dict[str, tuple[str, str, float | None]] = {
    "softmax": ("softmax + rotary + conv", "attention(rotary=True, conv=4)", 3.0466),
    "relu": ("ReLU + rotary + conv", "relu_attention(rotary=True, conv=4)", 3.0481),
    "plain": ("no sequence mixing", "hypermlp(r1=False, r2=False)", 3.0828),
    "r1": ("R1 only", "hypermlp(r2=False)", None),
    "no-lag": ("no lag layout", "hypermlp(lag=False)", 4.3567),
    "hypermlp": ("HyperMLP", "hypermlp", 2.9956),
    "hyperglu": ("HyperGLU", "hyperglu", 2.9865),
}
# Positions come from rotary codes, convolutions and lags alone.
SETTING = Setting("tinystories", f"{VARIANTS['softmax'][1]}*{LAYERS}", feed_forward=1024, epochs=3, positions="none")
RATED = ("softmax", "hypermlp", "hyperglu")
# (lower loss, higher loss) as the paper has it
ORDER = (
    ("hypermlp", "softmax"), ("hyperglu", "softmax"), ("hyperglu", "hypermlp"),
    ("hypermlp", "plain"), ("r1", "plain"), ("hypermlp", "no-lag"), ("plain", "no-lag"),
)  # fmt: skip
SAME = 0.01  # "no worse": within this share of the other's loss


def entries(quick: bool) -> dict[str, Entry]:
    layers = QUICK_LAYERS if quick else LAYERS
    return {name: Entry(f"{mixer}*{layers}", label=label) for name, (label, mixer, _) in VARIANTS.items()}


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    known = entries(quick)
    setting = lm_plan.quick(SETTING, known["softmax"].stack) if quick else SETTING
    named = lm_plan.jobs(setting, known.values())
    named += [lm_plan.rates_job(setting, known[name], RATES, seeds=1) for name in RATED]
    return named + lm_plan.speed_job(setting, known.values(), named, outcomes, quick)


def tables(content: Results) -> str:
    found, known = Found(content), entries(bool(content["quick"]))
    parts = [legend(found, list(known.values())), _claims(found, known), table(found, known.values(), known["softmax"])]
    parts += [_paper(found, known), _rates(found, known)]
    return "\n\n".join(part for part in parts if part)


def _claims(found: Found, known: dict[str, Entry]) -> str:
    claims = [beats(found, known[better], known[worse]) for better, worse in ORDER]
    told = f"{known['relu'].label} is at most {SAME:.0%} behind {known['softmax'].label}"
    verdicts = judge([*claims, _most_of_it(found, known), beats(found, known["relu"], known["softmax"], SAME, told)])
    words = {word: sum(one.word == word for one in verdicts) for word in ("holds", "does not hold", "unclear", "not run")}
    counts = "\n".join(f"- {word}: {count}" for word, count in words.items() if count)
    sentence = f"{_share_of_r1(found, known)} Of {len(verdicts)} orderings:\n\n{counts}".strip()
    return claim("The orderings of the design study", every(verdicts), sentence, verdicts)


def _most_of_it(found: Found, known: dict[str, Entry]) -> Claim:
    """'Most of the gain comes from R1' as an order: R1 alone is beyond half of the way from no sequence mixing to both."""
    half = midpoint(found.runs(known["plain"]), found.runs(known["hypermlp"]))
    return Claim("R1 only brings more than half of what both sequence mixers gain", found.runs(known["r1"]), half, higher=False)


def _share_of_r1(found: Found, known: dict[str, Entry]) -> str:
    """The same as a number."""
    plain, first, both = (found.mean(known[name]) for name in ("plain", "r1", "hypermlp"))
    if plain is None or first is None or both is None:
        return ""
    if plain <= both:
        return "Sequence mixing gains nothing here, so that R1 has no share in it."
    return f"R1 alone brings {(plain - first) / (plain - both):.0%} of what both sequence mixers gain."


def _paper(found: Found, known: dict[str, Entry]) -> str:
    rows: list[list[object]] = []
    both: list[tuple[float, float]] = []
    for name, (label, _, paper) in VARIANTS.items():
        ours = found.mean(known[name])
        rows.append([label, "not given" if paper is None else f"{paper:.4f}", None if ours is None else f"{ours:.4f}"])
        both += [(paper, ours)] if paper is not None and ours is not None else []
    pairs = list(itertools.combinations(both, 2))
    agree = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
    told = f" Of {len(pairs)} pairs of rows, {agree} are in the paper's order." if pairs else ""
    head = f"**Beside the paper's losses** (another text and size: compare the order).{told}"
    return f"{head}\n\n{page.table(['variant', 'paper', 'ours'], rows)}"


def _rates(found: Found, known: dict[str, Entry]) -> str:
    rows: list[list[object]] = []
    rates = sorted([SETTING.lr, *RATES])
    for name in RATED:
        runs = [*found.runs(known[name]), *found.runs(known[name], lm_plan.rates_key(known[name]))]
        at = [[run for run in runs if run["lr"] == rate and run["seed"] == 0] for rate in rates]
        rows.append([known[name].label, *(page.cell(one, 4) for one in at)])
    return f"**Other learning rates**, seed 0\n\n{page.table(['variant', *(f'lr {rate:g}' for rate in rates)], rows)}"


def figures(content: Results, folder: Path) -> list[Path]:
    found, known = Found(content), entries(bool(content["quick"]))
    made = against(folder / "lm-cost.svg", found, {one.label: [one] for one in known.values()}, "Loss against what it costs")
    return [] if made is None else [made]


ITEM = Item("hypermlp", "lm", "TinyStories: the design study's variants as small language models", jobs, tables, figures)
