"""Multi-query associative recall with every causal mixer, alone and in pairs: two layers, narrow, and more and more to remember.

Width 64 first; width 128 when that is done. Nothing is matched here: what a mixer keeps of a row is what the task asks about, so the table
has the size of the state beside the accuracy.
"""

from __future__ import annotations

from typing import Any

from reproduce import page
from reproduce.hypermlp.trials import QUICK_NOTE, best, described, gather, job
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from reproduce.page import cell, table
from tokmix.data import synthetic

# A convolution, rotary codes or lags say where a token stands; the others get the model's own position code.
PLACED = {"positions": "none"}
GROUPS: dict[str, dict[str, dict[str, Any]]] = {  # trained side by side
    "scores": {
        "attention": {"stack": "attention(heads=1)*2"},
        "attention, rotary, conv": {"stack": "attention(heads=1, rotary=True, conv=4)*2", **PLACED},
        "ReLU attention, rotary, conv": {"stack": "relu_attention(heads=1, rotary=True, conv=4)*2", **PLACED},
    },
    "hyper": {
        "HyperMLP": {"stack": "hypermlp*2", **PLACED},
        "HyperGLU": {"stack": "hyperglu*2", **PLACED},
        "HyperMixing": {"stack": "hypermixing*2"},
    },
    "cheap": {
        "linear attention": {"stack": "linear_attention(heads=1)*2"},
        "HSM": {"stack": "hsm(variant='gate', heads=8)*2"},
        "gMLP": {"stack": "gmlp*2"},
        "MLP-Mixer": {"stack": "mlp_mixer*2"},
        "no mixing": {"stack": "identity*2"},
    },
    "hybrids": {
        "HSM, attention": {"stack": "hsm(variant='gate'), attention(heads=1)"},
        "HyperMixing, attention": {"stack": "hypermixing, attention(heads=1)"},
        "HSM, linear attention": {"stack": "hsm(variant='gate'), linear_attention(heads=1)"},
    },
}
WIDTHS = (64, 128)
GRID = {(64, 4): 128, (128, 8): 128, (256, 16): 64, (512, 64): 32}  # (length, pairs) -> rows of a batch: about as many tokens each
STEPS = 800  # one epoch: no row comes twice
RATES = (3e-3, 1e-2)
QUICK_WIDTHS, QUICK_GRID = (16,), {(16, 2): 32}


def spec(length: int, pairs: int, width: int, group: str, quick: bool) -> dict[str, Any]:
    batch = (QUICK_GRID if quick else GRID)[length, pairs]
    settings: dict[str, Any] = {"length": length, "pairs": pairs, "examples": batch * (4 if quick else STEPS)}
    if quick:
        settings |= {"vocab": 64, "tests": 64}
    return {
        "task": "mqar",
        "settings": settings,
        "data_seed": 0,
        "width": width,
        "base": {},
        "models": GROUPS[group],
        "equal": None,
        "members": [{"model": name, "lr": lr, "seed": 0} for name in GROUPS[group] for lr in (RATES[:1] if quick else RATES)],
        "steps": 8 if quick else STEPS,
        "batch": batch,
        "compiled": False,  # for so few steps it takes longer than it saves
    }


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    found: list[Job] = []
    for width in QUICK_WIDTHS if quick else WIDTHS:
        if any(one.key not in outcomes for one in found):  # the narrower ones first
            break
        for length, pairs in QUICK_GRID if quick else GRID:
            for group in GROUPS:
                found.append(job(f"width{width}-{length}-{group}", spec(length, pairs, width, group, quick), length))
    return found


def tables(results: Results) -> str:
    rates = ", ".join(f"{rate:g}" for rate in RATES)
    task = synthetic.create("mqar")
    text = page.listed(
        "Accuracy x 100 on 1,280 rows, one seed:",
        (
            f"The best of the rates {rates} by these rows is shown.",
            f"Training takes {STEPS} steps, in which no row comes twice.",
            f"There are {task.vocab} words, so a guess among all values gives {100 * task.chance:.2f}.",
            "State: how many numbers decoding keeps of the longest row.",
            "Parameters: of the model for the longest row, without the embedding, which is also the output matrix.",
        ),
    )
    shown = (QUICK_WIDTHS, QUICK_GRID) if results["quick"] else (WIDTHS, GRID)
    parts = [f"Width {width}:\n\n{_accuracies(results, width, list(shown[1]))}" for width in shown[0]]
    return "\n\n".join([QUICK_NOTE if results["quick"] else text, *parts])


def _accuracies(results: Results, width: int, grid: list[tuple[int, int]]) -> str:
    longest = described(results, task="mqar", width=width, length=max(grid)[0])
    cells = {(length, pairs): gather(results, task="mqar", width=width, length=length, pairs=pairs) for length, pairs in grid}
    rows = []
    for name in (name for group in GROUPS.values() for name in group):
        known = longest.get(name, {})
        sizes = [f"{known[what]:,}" if what in known else None for what in ("without_embedding", "state")]
        rows.append([name, *(_cell(cells[place].get(name, [])) for place in grid), *sizes])
    heads = [f"{length} tokens, {pairs} pairs" for length, pairs in grid]
    return table(["", *heads, "parameters", "state"], rows)


def _cell(runs: list[Any]) -> str:
    chosen = best(runs)
    return cell(runs[:1] if chosen is None else [chosen], scale=100)


ITEM = Item("hypermlp", "recall", "multi-query associative recall, every causal mixer and hybrids", jobs, tables)
