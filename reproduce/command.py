"""`tokmix papers` in a checkout: list, run, prepare, write the tables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from reproduce import datasets, plan, readme
from reproduce.item import PAPERS, Item, item, items
from reproduce.run import run as run_items
from tokmix.core.checks import one_of

PREPARE = "prepare"
OF_A_RUN = ("only", "workers", "minutes", "device", "on")
ROOT, QUICK = Path("reproduce"), Path("reproduce-quick")


def run(options: argparse.Namespace) -> int:
    if options.check and not options.tables:
        raise ValueError("--check needs --tables: it compares the tables with the results files")
    if options.name is None:
        _refuse(options, ("plan", "quick", "data", *OF_A_RUN), "needs the NAME of a paper, and --tables runs nothing")
        return _all_tables(options.out or ROOT, options.check) if options.tables else _list(options.out or ROOT)
    if options.name == PREPARE:
        _refuse(options, ("plan", "quick", "tables", *OF_A_RUN), "does not go with prepare, which trains nothing")
        return _prepare(_data(options.data), options.out, options.items)
    chosen = _chosen(options.name, options.items)
    if options.plan:
        _refuse(options, ("tables", *OF_A_RUN), "does not go with --plan, which runs nothing")
        print("\n".join(plan.lines(chosen, _out(options), options.quick)))
        return 0
    if options.tables:
        if options.items or options.quick:
            raise ValueError("--tables writes the README of the whole paper, from full runs: it takes no ITEM and no --quick")
        _refuse(options, OF_A_RUN, "does not go with --tables, which runs nothing")
        return _tables(options.name, options.out or ROOT / options.name, options.check)
    return _run(chosen, options)


def _refuse(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value not in (None, ()) and value is not False:
            raise ValueError(f"--{name} {why}")


def _chosen(name: str, item_names: Sequence[str]) -> list[Item]:
    one_of("paper", name, [*PAPERS, PREPARE])
    return [item(name, one) for one in dict.fromkeys(item_names)] or list(items(name).values())


def _data(option: Path | None) -> Path | None:
    folder = option or (Path(os.environ["TOKMIX_DATA"]) if os.environ.get("TOKMIX_DATA") else None)
    if folder is not None and not folder.is_dir():
        raise ValueError(f"no folder {str(folder)!r} ({'--data' if option else 'TOKMIX_DATA'})")
    return folder


def _list(root: Path) -> int:
    for paper in PAPERS:
        print(f"{paper}   {root / paper}")
        width = max(map(len, items(paper)), default=0)
        for name, one in items(paper).items():
            print(f"  {name:{width}}  {one.about}: {readme.state(one, root / paper / 'results')}")
    return 0


def _prepare(data: Path | None, out: Path | None, names: Sequence[str]) -> int:
    if data is None:
        raise ValueError("prepare reads data sets: give --data DIR or set TOKMIX_DATA")
    if out is None:
        raise ValueError("prepare writes token files: give --out DIR")
    datasets.prepare(data, out, names, print)
    return 0


def _tables(name: str, folder: Path, check: bool) -> int:
    if not (folder / "README.md").is_file():
        raise ValueError(f"no {folder / 'README.md'}: run this where reproduce/ is, or name the paper's folder with --out")
    if check:
        differences = readme.differences(name, folder) + readme.index_differs(folder.parent)
        print("\n".join(differences) or f"{folder}: tables and figures agree with the results files")
        return 1 if differences else 0
    changed = readme.write(name, folder)
    print("\n".join(f"written {path}" if path.exists() else f"removed {path}" for path in changed) or f"{folder}: nothing to change")
    return 0


def _all_tables(root: Path, check: bool) -> int:
    return max([_tables(name, root / name, check) for name in PAPERS])


def _out(options: argparse.Namespace) -> Path:
    return options.out or (QUICK / options.name if options.quick else ROOT / options.name / "results")


def with_data(chosen: list[Item], named: bool, quick: bool, data: Path | None) -> list[Item]:
    """The items whose data sets are there. An item that is named must have them; of a whole paper the others are left out."""
    ready: list[Item] = []
    absent: list[ValueError] = []
    for one in chosen:
        try:
            datasets.check(one, quick, data)
            ready.append(one)
        except ValueError as error:
            absent.append(error)
    if absent and (named or not ready):
        raise absent[0]
    for reason in absent:
        print(f"left out: {reason}")
    return ready


def _run(chosen: list[Item], options: argparse.Namespace) -> int:
    data, quick, out = _data(options.data), options.quick, _out(options)
    chosen = with_data(chosen, bool(options.items), quick, data)
    for one in items(options.name).values():  # all of them: items share jobs
        readme.go_on(one, out, quick)
    complete = run_items(
        chosen, out, data=data, quick=quick, device=options.device, workers=options.workers, minutes=options.minutes, on=options.on,
        only=options.only,
    )  # fmt: skip
    states = [readme.state(one, out) for one in chosen]
    for one, state in zip(chosen, states, strict=True):
        print(f"\n{one.paper} {one.name}, {one.about}: {state} ({state.file})\n")
        if state.done:
            print(one.tables(readme.load(one, state.file)).strip())
    if not complete:
        print("\nnot all items have run; the same command continues")
    stopped = not complete and options.minutes is None  # no time was set, so a worker must have died
    return 1 if stopped or any(state.failed for state in states) else 0
