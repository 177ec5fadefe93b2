from __future__ import annotations

import argparse
from pathlib import Path

ABOUT = "rerun the claims of the papers: tables and figures, our numbers next to theirs"
FIRST = ("--quick", "--data", "--out", "--minutes", "--tables")  # of --help
USES = """\
tokmix papers                           list what can be run, and what has been run
tokmix papers NAME [ITEM ...]           run items of a paper (default: all); an interrupted run continues
tokmix papers NAME [ITEM ...] --quick   run small versions on a CPU, to check that they run; their numbers enter no table
tokmix papers [NAME] --tables           write the tables of reproduce/NAME/README.md and the figures, from the results files
tokmix papers prepare --out DIR         write token files, for a machine without the package tokenizers"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawTextHelpFormatter
    parser.epilog = USES
    parser.add_argument("name", nargs="?", metavar="NAME", help="a paper: hypermixer, hsm, hypermlp, beyond, encoder, fair (or: prepare)")
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
    parser.add_argument("--plan", action="store_true", help="list what is left to run, what is worth most first; runs nothing")
    parser.add_argument("--tables", action="store_true", help="write README.md and the figures from the results files; runs nothing")
    parser.add_argument("--check", action="store_true", help="with --tables: change nothing; exit code 1 if something differs")


def run(options: argparse.Namespace) -> int:
    from tokmix.study import checkout

    if not checkout.found() and options.name is None and not options.tables:
        return _shipped()
    return int(checkout.load("command").run(options))


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
