"""What there is to run of each paper. An item is a table or a figure: its jobs, and how its results file is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from reproduce.job import Job
from tokmix.core import checks

Outcomes = dict[str, dict[str, Any]]  # job key -> what came of it
Results = dict[str, Any]  # a results file (results.py)

# paper -> the modules that hold its items, as ITEM or ITEMS, in the order they are listed.
PAPERS = {
    "hypermixer": ["table1", "table5", "table6", "figure2", "figure3", "figure4", "figure5", "cost", "longdocs"],
    "hsm": ["items"],
    "hypermlp": ["mad", "recall", "lm"],
    "beyond": ["causal"],
    "encoder": ["items"],
    "fair": ["language", "study", "scale", "rows", "systematicity", "imdb", "recipe"],
}


@dataclass(frozen=True)
class Item:
    """jobs     (quick, outcomes so far) -> every job that can be named by now. Called again whenever a job is done: a search for a
             learning rate comes first, the seeds at the best one after it.
    tables   results -> Markdown; what has not been run reads so
    figures  results, folder -> the files drawn there
    """

    paper: str
    name: str
    about: str
    jobs: Callable[[bool, Outcomes], list[Job]]
    tables: Callable[[Results], str]
    figures: Callable[[Results, Path], list[Path]] | None = None


def items(paper: str) -> dict[str, Item]:
    checks.one_of("paper", paper, PAPERS)
    found: dict[str, Item] = {}
    for name in PAPERS[paper]:
        module = import_module(f"reproduce.{paper}.{name}")
        for item in getattr(module, "ITEMS", None) or [module.ITEM]:
            found[item.name] = item
    return found


def item(paper: str, name: str) -> Item:
    known = items(paper)
    checks.one_of(f"item of paper {paper!r}:", name, known)
    return known[name]
