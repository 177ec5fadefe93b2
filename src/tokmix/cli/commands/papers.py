from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reproduce.item import Item

ABOUT = "rerun the claims of the papers: tables and figures, our numbers next to theirs"
USES = """\
tokmix papers                           list what can be run, and what has been run
tokmix papers NAME [ITEM ...]           run items of a paper (default: all); an interrupted run continues
tokmix papers NAME [ITEM ...] --quick   run small versions on a CPU, to check that they run; their numbers enter no table
tokmix papers [NAME] --tables           write the tables of reproduce/NAME/README.md and the figures, from the results files
tokmix papers prepare --out DIR         write token files, for a machine without the package tokenizers"""
PREPARE = "prepare"
OF_A_RUN = ("only", "workers", "minutes", "device", "on")
ROOT, QUICK = Path("reproduce"), Path("reproduce-quick")


def add(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawTextHelpFormatter
    parser.epilog = USES
    parser.add_argument("name", nargs="?", metavar="NAME", help="a paper: hypermixer, hsm, hypermlp, beyond, encoder (or: prepare)")
    parser.add_argument("items", nargs="*", metavar="ITEM", help="a table or figure of the paper; `tokmix papers` lists them")
    parser.add_argument("--quick", action="store_true", help="run a small version of each item")
    parser.add_argument("--data", type=Path, metavar="DIR", help="data sets, or what `tokmix papers prepare` wrote (default: TOKMIX_DATA)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="results (default: reproduce/NAME/results; quick: reproduce-quick/NAME)")
    parser.add_argument("--workers", type=int, metavar="N", help="jobs at a time (default: one per core, or four per GPU)")
    parser.add_argument(
        "--on", metavar="ADDRESS", help="address of a Dask scheduler, such as tcp://host:8786; its workers must start in a checkout"
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="start no new job after this time; the same command continues")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="run only these jobs, in this order: --only 'sst2-*' n1000")
    parser.add_argument("--device", metavar="D", help="cpu, cuda or cuda:N (default: all GPUs, else the CPU)")
    parser.add_argument("--tables", action="store_true", help="write README.md and the figures from the results files; runs nothing")
    parser.add_argument("--check", action="store_true", help="with --tables: change nothing; exit code 1 if something differs")


def run(options: argparse.Namespace) -> int:
    from tokmix.study import checkout

    if not checkout.found() and options.name is None and not options.tables:
        return _shipped()
    checkout.make_importable()
    if options.check and not options.tables:
        raise ValueError("--check needs --tables: it compares the tables with the results files")
    if options.name is None:
        _refuse(options, ("quick", "data", *OF_A_RUN), "needs the NAME of a paper, and --tables runs nothing")
        return _all_tables(options.out or ROOT, options.check) if options.tables else _list(options.out or ROOT)
    if options.name == PREPARE:
        _refuse(options, ("quick", "tables", *OF_A_RUN), "does not go with prepare, which trains nothing")
        return _prepare(_data(options.data), options.out, options.items)
    chosen = _chosen(options.name, options.items)
    if options.tables:
        if options.items or options.quick:
            raise ValueError("--tables writes the README of the whole paper, from full runs: it takes no ITEM and no --quick")
        _refuse(options, OF_A_RUN, "does not go with --tables, which runs nothing")
        return _tables(options.name, options.out or ROOT / options.name, options.check)
    return _run(chosen, options)


def _shipped() -> int:
    """The verdicts that came with the wheel."""
    import json
    from importlib import resources

    verdicts = json.loads((resources.files("tokmix.study") / "papers.json").read_text(encoding="utf-8"))
    for row in verdicts["rows"]:
        seeds = f", {row['seeds']} seeds" if row["seeds"] else ""
        print(f"{row['verdict']:13}  {row['paper']}: {row['claim']}\n{'':15}{row['effect']}{seeds}; {row['caveat']}")
    print("\nA positive effect agrees with the claim. Brackets hold the 95 % interval.")
    print("To run them: clone the repository, `pip install -e '.[lab]'` there, then `tokmix papers NAME`.")
    return 0


def _refuse(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value not in (None, ()) and value is not False:
            raise ValueError(f"--{name} {why}")


def _chosen(name: str, item_names: Sequence[str]) -> list[Item]:
    from reproduce.item import PAPERS, item, items
    from tokmix.core.checks import one_of

    one_of("paper", name, [*PAPERS, PREPARE])
    return [item(name, one) for one in dict.fromkeys(item_names)] or list(items(name).values())


def _data(option: Path | None) -> Path | None:
    folder = option or (Path(os.environ["TOKMIX_DATA"]) if os.environ.get("TOKMIX_DATA") else None)
    if folder is not None and not folder.is_dir():
        raise ValueError(f"no folder {str(folder)!r} ({'--data' if option else 'TOKMIX_DATA'})")
    return folder


def _list(root: Path) -> int:
    from reproduce.item import PAPERS, items
    from reproduce.readme import state

    for paper in PAPERS:
        print(f"{paper}   {root / paper}")
        width = max(map(len, items(paper)), default=0)
        for name, one in items(paper).items():
            print(f"  {name:{width}}  {one.about}: {state(one, root / paper / 'results')}")
    return 0


def _prepare(data: Path | None, out: Path | None, names: Sequence[str]) -> int:
    from reproduce.datasets import prepare

    if data is None:
        raise ValueError("prepare reads data sets: give --data DIR or set TOKMIX_DATA")
    if out is None:
        raise ValueError("prepare writes token files: give --out DIR")
    prepare(data, out, names, print)
    return 0


def _tables(name: str, folder: Path, check: bool) -> int:
    from reproduce import readme

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
    from reproduce.item import PAPERS

    return max([_tables(name, root / name, check) for name in PAPERS])


def _run(chosen: list[Item], options: argparse.Namespace) -> int:
    from reproduce import readme
    from reproduce.datasets import check
    from reproduce.item import items
    from reproduce.run import run as run_items

    data, quick = _data(options.data), options.quick
    out = options.out or (QUICK / options.name if quick else ROOT / options.name / "results")
    for one in chosen:
        check(one, quick, data)
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
