"""The six MAD tasks at their base settings, the variants of the authors' design study at equal parameters.

First every variant with three learning rates and one seed; then, at the rate that was best on the test set, which is how MAD chooses, more
seeds. Equal parameters through the width of the feed-forward net: at this size the sequence mixers are up to 38 % of a layer.
"""

from __future__ import annotations

import statistics
from typing import Any

from reproduce import page
from reproduce.claims import Claim, Run, by_seed, judge, midpoint
from reproduce.hypermlp.trials import QUICK_NOTE, at_best_rate, best, described, gather, job
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from reproduce.page import NOT_RUN, cell, p, spread, table
from tokmix.data import synthetic

SOFTMAX, RELU, PLAIN = "softmax, rotary, conv", "ReLU, rotary, conv", "ReLU, conv, gates"
HYPERMLP, HYPERGLU = "HyperMLP", "HyperGLU"
R1, NO_LAG = "HyperMLP, R1 alone", "HyperMLP, no lag layout"
STACKS = {
    SOFTMAX: "attention(heads=2, bias=False, rotary=True, conv=4)*2",
    RELU: "relu_attention(heads=2, bias=False, rotary=True, conv=4)*2",
    PLAIN: "hypermlp(r1=False, r2=False)*2",
    NO_LAG: "hypermlp(lag=False)*2",
    HYPERMLP: "hypermlp*2",
    HYPERGLU: "hyperglu*2",
    R1: "hypermlp(r2=False)*2",
}
GROUPS = {"attention": (SOFTMAX, RELU, PLAIN), "mixing": (HYPERMLP, HYPERGLU, R1, NO_LAG)}  # trained side by side
SHOWN = (SOFTMAX, RELU, PLAIN, HYPERMLP, HYPERGLU, NO_LAG, R1)

# Lu & Yang (2026), design study: mean of the six tasks over base and varied settings, single runs.
AUTHORS = {SOFTMAX: 80.15, RELU: 80.50, PLAIN: 66.78, HYPERMLP: 81.01, HYPERGLU: 81.12, NO_LAG: 46.27}

WIDTH, BATCH = 128, 128
# MAD trains for 200. Memorisation has two steps an epoch, and short rows are cheap.
EPOCHS = {"in_context_recall": 10, "noisy_recall": 10, "fuzzy_recall": 10, "selective_copying": 10, "memorisation": 200, "compression": 30}
RATES, WEIGHT_DECAY = (1e-4, 5e-4, 1e-3), 0.0
FIRST, MORE = 0, (1, 2)  # seeds: of the search, and at the best rate

QUICK = {
    "in_context_recall": {"length": 32},
    "noisy_recall": {"length": 32},
    "fuzzy_recall": {"length": 32},
    "selective_copying": {"length": 24, "copies": 4},
    "memorisation": {"vocab": 32, "length": 16},
    "compression": {"length": 16},
}


def spec(task: str, group: str, members: list[dict[str, Any]], quick: bool) -> dict[str, Any]:
    settings = {**QUICK[task], "examples": 128, "tests": 64} if quick else {}
    batch = 32 if quick else BATCH
    epochs = 4 if quick else EPOCHS[task]
    return {
        "task": task,
        "settings": settings,
        "data_seed": 0,
        "width": 64 if quick else WIDTH,
        "base": {"positions": "none"},  # the convolution, rotary codes or lags say where a token stands
        "models": {name: {"stack": STACKS[name]} for name in GROUPS[group]},
        "equal": {"stack": STACKS[SOFTMAX]},
        "members": members,
        "steps": epochs * max(1, synthetic.create(task, **settings).examples // batch),
        "batch": batch,
    }


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    found = []
    for task in synthetic.MAD:
        length = synthetic.create(task, **(QUICK[task] if quick else {})).length
        for group, names in GROUPS.items():
            rates, seeds = (RATES[-1:], MORE[:1]) if quick else (RATES, MORE)
            members = [_member(name, lr, FIRST) for name in names for lr in rates]
            first = job(f"{task}-{group}-rates", spec(task, group, members, quick), length)
            found.append(first)
            chosen = {name: best(_of(outcomes.get(first.key), name)) for name in names}
            members = [_member(name, run["lr"], seed) for name, run in chosen.items() if run is not None for seed in seeds]
            if members:
                found.append(job(f"{task}-{group}-seeds", spec(task, group, members, quick), length))
    return found


def _member(model: str, lr: float, seed: int) -> dict[str, Any]:
    return {"model": model, "lr": lr, "seed": seed, "weight_decay": WEIGHT_DECAY}


def _of(outcome: dict[str, Any] | None, model: str) -> list[Run]:
    return [run for run in (outcome or {}).get("runs", []) if run["model"] == model]


# --- what the results say -------------------------------------------------------------------------------------------------------


def means(results: Results) -> dict[str, list[Run]]:
    """variant -> a run for each seed that all six tasks have: the mean of their scores, at each task's best rate."""
    found: dict[str, list[Run]] = {}
    for name in SHOWN:
        tasks = [by_seed(at_best_rate(gather(results, task=task).get(name, []))) for task in synthetic.MAD]
        seeds = sorted(set.intersection(*(set(one) for one in tasks)))
        mean = lambda seed, tasks=tasks: statistics.fmean(one[seed]["score"] for one in tasks)
        found[name] = [{"seed": seed, "score": mean(seed), "state": "finished"} for seed in seeds]
    return found


def _scores(results: Results) -> str:
    averages, rows = means(results), []
    for name in SHOWN:
        cells = [cell(at_best_rate(gather(results, task=task).get(name, [])), scale=100) for task in synthetic.MAD]
        searched = [run["score"] for run in averages[name] if run["seed"] == FIRST]
        mean = spread([run["score"] for run in averages[name]], scale=100)
        rows.append([name, *cells, mean, spread(searched, scale=100), f"{AUTHORS[name]:.2f}" if name in AUTHORS else ""])
    heads = [task.replace("_", " ") for task in synthetic.MAD]
    return table(["", *heads, "mean", "best rate, one seed", "the authors' mean"], rows)


def claims(results: Results) -> list[tuple[Claim, float | None]]:
    """Each with the difference that the authors report, in points."""
    of = means(results)
    pairs = [
        ("HyperMLP is ahead of softmax attention", HYPERMLP, SOFTMAX),
        ("HyperGLU is ahead of softmax attention", HYPERGLU, SOFTMAX),
        ("ReLU attention is ahead of softmax attention", RELU, SOFTMAX),
        ("sequence mixing helps: HyperMLP is ahead of ReLU with convolution and gates", HYPERMLP, PLAIN),
        ("the lag layout matters: HyperMLP is ahead of the same by absolute position", HYPERMLP, NO_LAG),
        ("without the lag layout sequence mixing does harm: it is behind ReLU with convolution and gates", PLAIN, NO_LAG),
    ]
    found = [(Claim(says, of[a], of[b]), AUTHORS[a] - AUTHORS[b]) for says, a, b in pairs]
    half = Claim("R1 is most of the gain: alone it brings more than half of it", of[R1], midpoint(of[HYPERMLP], of[PLAIN]))
    return [*found, (half, None)]


def _claims(results: Results) -> str:
    asked, rows = claims(results), []
    for (_, theirs), one in zip(asked, judge([claim for claim, _ in asked]), strict=True):
        known = one.difference is not None
        ahead = f"{100 * one.difference:+.1f}" if one.difference is not None else NOT_RUN
        says = ("yes" if one.difference is not None and one.difference > 0 else "no") if known else NOT_RUN
        rows.append([one.says, "" if theirs is None else f"{theirs:+.1f}", ahead, says, f"**{one.word}**", one.seeds or "", p(one.t)])
    return table(["claim", "the authors", "ours", "so in our means", "over seeds", "seeds", "p"], rows)


def _sizes(results: Results) -> str:
    """How equal the budgets are."""
    found = [described(results, task=task) for task in synthetic.MAD]
    counts = [{name: one[name]["parameters"] for name in one} for one in found if SOFTMAX in one]
    if not counts:
        return ""
    worst = max(abs(count / one[SOFTMAX] - 1) for one in counts for count in one.values())
    low, high = (pick(one[SOFTMAX] for one in counts) for pick in (min, max))
    widths = [one[name]["feed_forward"] for one in found for name in one]
    return page.listed(
        "Equal parameters, by the width of the feed-forward net:",
        (
            f"Softmax has {low:,} to {high:,} parameters, by task.",
            f"Every other model is within {100 * worst:.2f} % of it, with feed-forward widths of {min(widths)} to {max(widths)}.",
        ),
    )


def tables(results: Results) -> str:
    rates = ", ".join(f"{rate:g}" for rate in RATES)
    text = page.listed(
        "Accuracy x 100 on 1,280 test rows, mean and (standard deviation) over seeds:",
        (
            "Only the base settings of the tasks are run.",
            f"Models have two layers of width {WIDTH} and two heads, and no weight decay.",
            f"The rate is the best of {rates} by the test set, which is how MAD chooses.",
            "The authors' figures are means over base and varied settings, of single runs whose length they do not give. Compare "
            "orders, not numbers.",
        ),
    )
    epochs = table(["", *(task.replace("_", " ") for task in EPOCHS)], [["epochs (MAD: 200)", *EPOCHS.values()]])
    parts = [QUICK_NOTE] if results["quick"] else [text, epochs, _sizes(results)]
    return "\n\n".join([*(part for part in parts if part), _scores(results), _claims(results)])


ITEM = Item("hypermlp", "mad", "the six MAD tasks, the variants of the design study at equal parameters", jobs, tables)
