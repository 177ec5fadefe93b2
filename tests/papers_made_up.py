"""A made-up paper of two items, and results files of it without training."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from reproduce import claims, command, draw, page, report_section, results
from reproduce import datasets as data_needs
from reproduce import item as catalogue
from reproduce.claims import Claim
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job

MODELS = {"hyper": 0.8, "attention": 0.7}


def runs(of: float, seeds: int = 5, spread: float = 0.01, examples: int = 0) -> list[dict[str, Any]]:
    chance = np.random.default_rng(int(of * 1000))
    made = []
    for seed in range(seeds):
        run: dict[str, Any] = {"seed": seed, "lr": 1e-3, "state": "finished", "score": of + spread * float(chance.normal())}
        if examples:
            right = np.arange(examples) < of * examples
            run |= {"right": claims.pack(right), "examples": examples, "score": float(right.mean()) + spread * (seed - 2)}
        made.append(run)
    return made


HYPER = f"{100 * statistics.fmean(run['score'] for run in runs(MODELS['hyper'])):.1f} ("  # how its cell begins


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    found = [Job(f"{name}-search", "rows", {"data": "sst2", "model": name, "quick": quick}) for name in MODELS]
    return found + [Job(f"{name}-seeds", "rows", {"data": "sst2", "model": name}) for name in MODELS if f"{name}-search" in outcomes]


def tables(content: Results) -> str:
    known = {name: page.runs(results.outcomes(content).get(f"{name}-seeds")) for name in MODELS}
    rows = [[f"`{name}` <script>", page.cell(of, scale=100), "80.7 (0.8)"] for name, of in known.items()]
    return f"### Accuracy\n{page.table(['model', 'ours', 'the paper'], rows)}\n\nAll of it.\n- one\n- two\n\n" + page.claims_table(
        [Claim("hyper before attention", known["hyper"], known["attention"])], 100
    )


def figures(content: Results, folder: Path) -> list[Path]:
    known = {name: page.scores(page.runs(results.outcomes(content).get(f"{name}-seeds"))) for name in MODELS}
    return [draw.panels(folder / "table1.svg", [draw.Dots(["sst2"], {name: of[:1] for name, of in known.items()}, "accuracy")])]


TABLE = Item("hypermixer", "table1", "a table", jobs, tables, figures)
FIGURE = Item("hypermixer", "figure2", "a figure", lambda quick, outcomes: [], lambda content: "nothing", None)


def results_file(complete: bool = True, quick: bool = False, failed: bool = False) -> dict[str, Any]:
    keys = [job for job in jobs(quick, {f"{name}-search": {} for name in MODELS}) if complete or job.key != "attention-seeds"]
    records = []
    for job in keys:
        outcome: dict[str, Any] = {"runs": runs(MODELS[job.spec["model"]]), "parameters": 1000}
        if failed and job.key == "attention-seeds":
            outcome = {"error": "ValueError: no luck", "runs": []}
        records.append({"key": job.key, "kind": job.kind, "spec": job.spec, "outcome": outcome, "measured": {"seconds": 1.5}})
    if not complete:
        records.append({"key": "attention-seeds", "kind": "rows", "spec": {"data": "sst2", "model": "attention"}, "outcome": None})
    call = {"command": "tokmix papers hypermixer table1", "seconds": 12.5, "workers": 2, "energy_joules": None, "machine": {"gpu": None}}
    return {
        "format": "tokmix-papers", "version": 1, "paper": "hypermixer", "item": "table1", "quick": quick, "calls": [call], "jobs": records,
    }  # fmt: skip


def put(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table1.json").write_text(json.dumps(content))
    return folder


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put this paper in the place of the real ones, with its README and nothing run."""
    module = ModuleType("reproduce.hypermixer.made_up")
    module.ITEMS = [TABLE, FIGURE]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for owner in (catalogue, data_needs, command, report_section):
        monkeypatch.setattr(owner, "PAPERS", {"hypermixer": ["made_up"]})
    monkeypatch.delenv("TOKMIX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "reproduce" / "hypermixer"
    folder.mkdir(parents=True)
    blocks = "\n".join(f"## {name}\n\n<!-- item:{name} -->\nSTALE\n<!-- /item:{name} -->\n" for name in ("table1", "figure2"))
    (folder / "README.md").write_text(f"# Made up\n\nWords.\n\n{blocks}")
    (folder.parent / "README.md").write_text("# Papers\n\n<!-- items -->\n<!-- /items -->\n\nthe end\n")
    return folder
