"""Table 6: five layouts of a layer, for attention and for HyperMixing with three kinds of normalisation. As in the paper a cell is the best
learning rate of one seed, and the mean of five tasks; ours chooses between two rates on held-out rows, those that served the models of
Table 1 best on the task, and trains for 400 to 1,000 steps. All tasks have batches of the same shapes, since compiling for others would
take longer than training."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from reproduce import page, results
from reproduce.hypermixer import paper, recipe
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job

SEED = 0
RATES = {"mnli": (5e-4, 2e-4), "snli": (1e-3, 5e-4), "qqp": (1e-3, 2e-4), "qnli": (1e-4, 5e-5), "sst2": (1e-3, 2e-4)}
EPOCHS = {"mnli": 3, "snli": 1, "qqp": 3, "qnli": 6, "sst2": 2}
BATCH, WIDTHS = 128, (24, 40, 64, 128)
NORMS = {
    "hypermixing-none": "norm='none'",
    "hypermixing-length": "norm='length', power=1.0",  # the paper divides by the number of tokens
    "hypermixing-layer": "norm='layer'",
}
MIXERS = ("attention", *NORMS)
TITLES = {
    "attention": "attention",
    "hypermixing-none": "HyperMixing, no norm",
    "hypermixing-length": "HyperMixing, length norm",
    "hypermixing-layer": "HyperMixing, layer norm",
}


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    found = []
    for task in ("snli",) if quick else paper.TASKS:
        for mixer in MIXERS if not quick else ("attention", "hypermixing-layer"):
            for layout in paper.LAYOUTS if not quick else ("serialized", "pre"):
                variant = recipe.hyper(NORMS[mixer], "", layout) if mixer in NORMS else recipe.Variant("", mixer, layout)
                members = [{"seed": SEED, "lr": rate} for rate in RATES[task]]
                shorter: dict[str, Any] = {"epochs": EPOCHS[task], "dev": recipe.held_out(task, quick)}
                shorter |= {"batch": BATCH, "widths": list(WIDTHS)}
                made = recipe.spec(task, variant.model(quick), members, quick, **shorter)
                found.append(recipe.job(key(task, mixer, layout), made))
    return found


def key(task: str, mixer: str, layout: str) -> str:
    return f"{task}-{mixer}-{layout}"


def best(outcome: Mapping[str, Any] | None) -> float | None:
    """Accuracy on valid, %, of the rate that is best on what was held out."""
    runs = [run for run in page.runs(outcome) if run["state"] == "finished"] or page.runs(outcome)
    return 100 * max(runs, key=lambda run: (run["dev"], run["lr"]))["score"] if runs else None


def cell(outcomes: Outcomes, mixer: str, layout: str) -> float | None:
    """The mean of the five tasks."""
    found = [best(outcomes.get(key(task, mixer, layout))) for task in paper.TASKS]
    return None if None in found else statistics.fmean(value for value in found if value is not None)


def tables(content: Results) -> str:
    outcomes, rows = results.outcomes(content), []
    tried = [" or ".join(f"{rate:g}" for rate in RATES[task]) for task in paper.TASKS]
    for mixer in MIXERS:
        cells = []
        for place, layout in enumerate(paper.LAYOUTS):
            ours = cell(outcomes, mixer, layout)
            cells.append(f"{page.NOT_RUN if ours is None else f'{ours:.2f}'} / {paper.TABLE_6[mixer][place]:.2f}")
        rows.append([TITLES[mixer], *cells])
    return "\n\n".join([
        "Accuracy on validation data in %, mean of five tasks, ours / the paper's. Ours: one seed, the better of two learning rates on "
        "held-out rows. The paper: the best of seven rates.",
        page.table(["", *paper.LAYOUTS], rows),
        page.table(["", *(paper.TITLES[task] for task in paper.TASKS)], [["our learning rates", *tried]]),
        _by_task(outcomes),
        _claims(outcomes),
    ])  # fmt: skip


def _by_task(outcomes: Outcomes) -> str:
    rows = []
    for mixer in MIXERS:
        for layout in paper.LAYOUTS:
            cells = [best(outcomes.get(key(task, mixer, layout))) for task in paper.TASKS]
            rows.append([TITLES[mixer], layout, *(None if value is None else f"{value:.1f}" for value in cells)])
    shown = page.table(["mixer", "layout", *(paper.TITLES[task] for task in paper.TASKS)], rows)
    return f"<details><summary>By task</summary>\n\n{shown}\n\n</details>"


def _claims(outcomes: Outcomes) -> str:
    """What the paper's text takes from the table, with one seed: signs, no tests."""
    lines = []
    for says, mixer, better, worse in (
        ("attention is better in pre-norm than serialized", "attention", "pre", "serialized"),
        ("HyperMixing without a norm is better serialized than in pre-norm", "hypermixing-none", "serialized", "pre"),
    ):
        lines.append(_line(says, cell(outcomes, mixer, better), cell(outcomes, mixer, worse)))
    spread = []
    for mixer in ("hypermixing-none", "hypermixing-layer"):
        values = [cell(outcomes, mixer, layout) for layout in paper.LAYOUTS]
        spread.append(None if None in values else max(v for v in values if v is not None) - min(v for v in values if v is not None))
    lines.append(_line("with a layer norm on its output HyperMixing depends less on the layout (range over layouts)", *spread))
    return "\n".join(f"- {line}" for line in lines)


def _line(says: str, better: float | None, worse: float | None) -> str:
    if better is None or worse is None:
        return f"{says}: {page.NOT_RUN}"
    return f"{says}: {'yes' if better > worse else 'no'} ({better:.2f} against {worse:.2f})"


ITEM = Item("hypermixer", "table6", "Table 6: layouts by normalisation", jobs, tables)
