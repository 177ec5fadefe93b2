"""Table 1 with embeddings that begin as torch's do, at standard deviation 1, and nothing else changed: the words hardly move, and the rows
are learned by heart. Why the recipe begins otherwise, and how much of an order of models such a choice can make."""

from __future__ import annotations

from tokmix.papers.hypermixer import recipe, table1
from tokmix.papers.item import Item, Outcomes
from tokmix.papers.job import Job

UNIT = 1.0


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    return recipe.searched(table1.chosen(quick), quick, outcomes, embedding=UNIT)


ITEM = Item("hypermixer", "table1_unit", "Table 1 once more, with embeddings of scale 1", jobs, table1.tables, table1.drawn("table1_unit"))
