from __future__ import annotations

import argparse
import json
from functools import partial

ABOUT = "test a mixer of your own against the contract of all mixers"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="FILE.py|NAME", help="a Python file with mixers of your own, or the name of a mixer of tokmix")
    parser.add_argument("--only", metavar="WORDS", default=None, help="run only the rules with these words in their name")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(options: argparse.Namespace) -> int:
    from tokmix.api.mixers import check

    say = (lambda line: None) if options.json else partial(print, flush=True)
    results = check(options.what, only=options.only, say=say)
    if options.json:
        print(json.dumps({name: [vars(outcome) for outcome in outcomes] for name, outcomes in results.items()}, indent=1))
    return 1 if any(outcome.failed for outcomes in results.values() for outcome in outcomes) else 0
