"""Table 5: what of HyperMixer matters. Feature mixing alone, token mixing alone, generated weights that do not depend on the input, and two
hypernetworks instead of one. The protocol and the runs of HyperMixer itself are those of Table 1."""

from __future__ import annotations

from reproduce import results
from reproduce.hypermixer import paper, recipe
from reproduce.hypermixer import tables as shown
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job

ABLATIONS = tuple(name for name in paper.TABLE_5 if name != "hypermixer")
VARIANTS = (*ABLATIONS, "hypermixer")


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    return recipe.searched(("feature-only", "hypermixer") if quick else VARIANTS, quick, outcomes)


def tables(content: Results) -> str:
    outcomes = results.outcomes(content)
    rates = shown.rates(outcomes, VARIANTS, bool(content["quick"]))
    parts = [
        "Accuracy on validation data in %, mean (standard deviation) of our seeds / the paper's mean of ten.",
        shown.accuracies(outcomes, VARIANTS, lambda variant, place: f"{paper.TABLE_5[variant][place]:.1f}"),
        shown.data_note(outcomes),
        "How far the whole HyperMixer is ahead of each ablation (negative: behind); in the paper it always is. p: paired t over seeds, "
        "paired bootstrap over examples, both corrected after Holm over this table.",
        shown.orders(outcomes, ABLATIONS, lambda other, place: False),
        rates,
        shown.border_note(rates),
        shown.search_table(outcomes, VARIANTS),
    ]
    return "\n\n".join(part for part in parts if part)


ITEM = Item("hypermixer", "table5", "Table 5: ablations of HyperMixer, as Table 1", jobs, tables)
