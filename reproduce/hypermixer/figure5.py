"""Figure 5: the shapes task. Error against the number of training sequences, and maps of who reads whom.

The paper's setting (section 4.7): batches of 100, Adam at 1e-3, 250 epochs, 1,000 test sequences. A seed stands for its own training and
test sequences, first weights and order, so that the mean is not that of one lucky draw.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reproduce import draw, page, results
from reproduce.claims import Claim, Run
from reproduce.hypermixer import figure5_maps
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from reproduce.toy import model as toy
from reproduce.toy.data import NOISE

SIZES = (100, 1_000, 10_000, 100_000)
SEEDS = {100: 5, 1_000: 5, 10_000: 3, 100_000: 1}
TITLES = {"none": "none", "mlp_mixer": "MLPMixer", "attention": "self-attention", "hypermixing": "HyperMixer"}
PAPER = {  # read off Figure 5b
    "none": (281.8, 266.2, 246.4, 243.9),
    "mlp_mixer": (2084, 326.8, 3.183, 1.287),
    "attention": (199.1, 24.70, 1.742, 0.991),
    "hypermixing": (163.2, 8.176, 1.488, 0.978),
}
CLAIMED = (("hypermixing", "attention"), ("hypermixing", "mlp_mixer"), ("attention", "mlp_mixer"), ("hypermixing", "none"))
FLOOR = 100 * NOISE**2 / 3  # the targets' own noise
MAPPED, MAPS_AT = ("attention", "hypermixing"), 10_000
# Two jobs at 100,000 sequences: what the claim is about, and the rest. 250 epochs would be a quarter of a million steps a model.
LARGEST = {"n100000": ("attention", "hypermixing"), "n100000-others": ("none", "mlp_mixer")}
LARGEST_EPOCHS = 50
# What the paper leaves open, at 1,000 sequences: (title, item)
VARIANTS_AT, VARIANTS = "n1000-variants", {
    "released": (
        "HyperMixer with the options of the released layer: untied, position code, no biases (first weights are ours)",
        "hypermixing(hidden=64, tied=False, bias=False, position='sinusoidal')",
    ),
    "no-norm": ("HyperMixer without LayerNorm", "hypermixing(hidden=64, norm='none')"),
    "mlp_mixer-64": ("MLPMixer of 64 units, not 128", "mlp_mixer(hidden=64)"),
}  # fmt: skip
TRAINED = {"test": 1_000, "epochs": 250, "batch": 100, "lr": 1e-3, "last": 10, "measured": 0, "drawn": 0, "samples": None}
MAPS_READ = (
    "*whole model*: the derivative of output y_i by input x_j. For this task it is one number. It is the plain reading of "
    '"the gradient of output token i with respect to input token j"',
    "*mixer*: the norm of the Jacobian block of the mixer alone, from its input token j to its output token i",
    "*own kind : other kind*: both shapes are of one kind, or of different kinds",
    "*partner first*: how often the other shape that a shape reads most is the one of its kind (chance: 33 %)",
    "*raised by 1*: what the other shapes of the output do when one of the input is raised by that much (perfect: 0.5 and 0)",
)
QUICK_AT, QUICK = "quick", {"test": 50, "epochs": 10, "batch": 50, "lr": 1e-3, "last": 2, "measured": 2, "drawn": 1, "samples": 4}


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    if quick:
        return [_job(QUICK_AT, 100, 1, toy.ITEMS, QUICK)]
    found = []
    for n in SIZES[:-1]:
        looked = {"measured": 50, "drawn": 2} if n == MAPS_AT else {}
        found.append(_job(f"n{n}", n, SEEDS[n], toy.ITEMS, TRAINED | looked))
    found.append(_job(VARIANTS_AT, 1_000, SEEDS[1_000], {name: item for name, (_, item) in VARIANTS.items()}, TRAINED))
    # The longest ones come last, and not first: where time runs out, the other sizes are there.
    for key, models in LARGEST.items():
        last = _job(key, SIZES[-1], SEEDS[SIZES[-1]], {name: toy.ITEMS[name] for name in models}, TRAINED | {"epochs": LARGEST_EPOCHS})
        found.append(replace(last, weight=1.0 / len(found)))
    return found


def _job(key: str, n: int, seeds: int, models: dict[str, str], recipe: dict[str, Any]) -> Job:
    """Members of a job train side by side."""
    members: list[dict[str, Any]] = [
        {"model": name, "item": item, "seed": seed} | ({"map": True} if recipe["drawn"] and name in MAPPED and not seed else {})
        for name, item in models.items()
        for seed in range(seeds)
    ]
    return Job(key, "shapes", {"n": n, **recipe, "members": members}, weight=n * len(members))


def runs(outcomes: Outcomes, n: int, model: str) -> list[Run]:
    keys = [VARIANTS_AT] if model in VARIANTS else list(LARGEST) if n == SIZES[-1] else [f"n{n}"]
    return [run for key in keys for run in page.runs(outcomes.get(key)) if run["model"] == model]


# --- tables --------------------------------------------------------------------------------------------------------------------


def tables(content: Results) -> str:
    outcomes = results.outcomes(content)
    if content["quick"]:
        return _quick(outcomes)
    return "\n\n".join([
        "100 x the mean squared error per position on 1,000 test sequences, mean (standard deviation) over seeds, and the paper's number "
        f"behind it. The targets' own noise makes {FLOOR:.2f}.",
        _errors(outcomes),
        "Each seed has its own training and test sequences, first weights and order. With fewer epochs, the largest size still has twice "
        "the steps of the next one.",
        _trained(),
        _against_paper(outcomes),
        page.claims_table(_claims(outcomes), digits=2),
        "Every seed, and the median of the errors after each of the last ten epochs, mean over seeds: Adam at a constant rate moves "
        "up and down to the end.",
        _every_seed(outcomes),
        "What the paper leaves open, at n = 1,000:",
        _variants(outcomes),
        page.listed(f"Who reads whom, with n = {MAPS_AT:,}. Means over pairs of tokens of two different shapes:", MAPS_READ),
        _maps(outcomes),
        _products(outcomes),
    ])  # fmt: skip


def _quick(outcomes: Outcomes) -> str:
    """Not under the heads of the full size: it is no result."""
    rows = [[TITLES[run["model"]], page.cell([run]), len(run.get("maps") or {})] for run in page.runs(outcomes.get(QUICK_AT))]
    if not rows:
        return "not run"
    return f"To see that it works, {QUICK['epochs']} epochs on 100 sequences:\n\n" + page.table(["model", "error", "kinds of map"], rows)


def _errors(outcomes: Outcomes) -> str:
    rows = []
    for model, title in TITLES.items():
        found = [page.cell(runs(outcomes, n, model), _digits(theirs)) for n, theirs in zip(SIZES, PAPER[model], strict=True)]
        rows.append([title, *(f"{ours} / {theirs:.4g}" for ours, theirs in zip(found, PAPER[model], strict=True))])
    return page.table(["model", *(f"n = {n:,}, ours / paper" for n in SIZES)], rows)


def _digits(about: float) -> int:
    return 0 if about >= 1000 else 1 if about >= 100 else 2


def _against_paper(outcomes: Outcomes) -> str:
    """The bar: at 1,000 sequences, how far from the paper's number."""
    told = []
    for model, title in TITLES.items():
        scores = page.scores(runs(outcomes, 1_000, model))
        theirs = PAPER[model][1]
        told.append(f"{title}: {100 * (statistics.fmean(scores) / theirs - 1):+.0f} %" if scores else f"{title}: {page.NOT_RUN}")
    return page.listed("Our errors against the paper's at n = 1,000:", told)


def _trained() -> str:
    rows = [[f"{n:,}", SEEDS[n], LARGEST_EPOCHS if n == SIZES[-1] else TRAINED["epochs"]] for n in SIZES]
    return page.table(["n, training sequences", "seeds", "epochs"], rows)


def _claims(outcomes: Outcomes) -> list[Claim]:
    found = []
    for n in [n for n in SIZES if SEEDS[n] > 1]:
        for better, worse in (
            ("hypermixing", "attention"),
            ("hypermixing", "mlp_mixer"),
            ("attention", "mlp_mixer"),
            ("hypermixing", "none"),
        ):
            if theirs(better, n) < theirs(worse, n):
                says = f"n = {n:,}: {TITLES[better]} errs less than {TITLES[worse]}"
                found.append(Claim(says, runs(outcomes, n, better), runs(outcomes, n, worse), higher=False))
    return found


def theirs(model: str, n: int) -> float:
    return PAPER[model][SIZES.index(n)]


def _every_seed(outcomes: Outcomes) -> str:
    rows = []
    for n in SIZES:
        for model, title in TITLES.items():
            known = runs(outcomes, n, model)
            digits = _digits(theirs(model, n))
            late = [statistics.median(run["late"]) for run in known if run.get("late")]
            listed = ", ".join("diverged" if run["score"] is None else f"{run['score']:.{digits}f}" for run in known)
            rows.append([f"{n:,}", title, listed or None, page.spread(late, digits) if late else None])
    return page.table(["n", "model", "seeds 0, 1, ...", "median of the last ten epochs"], rows)


def _variants(outcomes: Outcomes) -> str:
    rows = []
    for model, (title, _) in {**{name: (TITLES[name], "") for name in ("hypermixing", "mlp_mixer")}, **VARIANTS}.items():
        known = runs(outcomes, 1_000, model)
        listed = ", ".join("diverged" if run["score"] is None else f"{run['score']:.2f}" for run in known)
        rows.append([title, page.cell(known, 2), listed or None])
    return page.table(["model", "error", "seeds 0, 1, ..."], rows)


def _maps(outcomes: Outcomes) -> str:
    rows = []
    for model in ("attention", "hypermixing", "mlp_mixer"):
        known = [run for run in runs(outcomes, MAPS_AT, model) if run.get("maps")]
        cells: list[str | None] = [None] * 5
        if known:
            cells = [text for area in ("model", "mixer") for text in _pairing([run["maps"][area] for run in known])]
            moved = [statistics.fmean(run["response"][side] for run in known) for side in ("partner", "stranger")]
            cells.append(f"{moved[0]:.2f} : {moved[1]:.2f}")
        rows.append([TITLES[model], *cells])
    heads = ["model", "whole model, own kind : other kind", "partner first", "mixer, own kind : other kind", "partner first"]
    return page.table([*heads, "raised by 1: own kind : other kind"], rows)


def _pairing(found: Sequence[dict[str, float]]) -> list[str | None]:
    partner, stranger, hits = (statistics.fmean(one[name] for one in found) for name in ("partner", "stranger", "hits"))
    return [f"{partner:.3g} : {stranger:.3g} = {partner / stranger:.1f} : 1", f"{100 * hits:.0f} %"]


def _products(outcomes: Outcomes) -> str:
    used = sorted({outcome["products"] for outcome in outcomes.values() if "products" in outcome})
    return f"Products while training: {', '.join(used)}; errors and maps are measured in float32." if used else ""


# --- figures -------------------------------------------------------------------------------------------------------------------


def figures(content: Results, folder: Path) -> list[Path]:
    outcomes = results.outcomes(content)
    points = {model: {float(n): page.scores(runs(outcomes, n, model)) for n in SIZES} for model in TITLES}
    known = [draw.over_seeds(TITLES[model], found) for model, found in points.items() if any(found.values())]
    if not known:
        return []
    reported = [draw.Curve(TITLES[model], SIZES, values, dashed=True) for model, values in PAPER.items()]
    floor = draw.Curve(f"noise alone ({FLOOR:.2f})", SIZES, [FLOOR] * len(SIZES))
    panel = draw.Panel([*known, *reported, floor], "training sequences", "100 x mean squared error", log_x=True, log_y=True, ticks=SIZES)
    errors = draw.panels(folder / "figure5.svg", [panel], "Figure 5: the shapes task (bands hold all seeds)", colours=list(TITLES.values()))
    return [errors, *figure5_maps.draw_maps((outcomes.get(f"n{MAPS_AT}") or {}).get("drawn") or [], TITLES, folder)]


ITEM = Item("hypermixer", "figure5", "the shapes task at four sizes, and who reads whom", jobs, tables, figures)
