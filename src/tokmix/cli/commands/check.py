from __future__ import annotations

import argparse
import json

ABOUT = "whether a mixer of your own holds the contract of all mixers"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="FILE.py|NAME", help="a file with mixers of your own, or the name of a known mixer")
    parser.add_argument("--only", metavar="WORDS", default=None, help="only the rules with these words in their name")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")


def run(options: argparse.Namespace) -> int:
    from tokmix.api.mixers import check

    say = (lambda line: None) if options.json else (lambda line: print(line, flush=True))
    found = check(options.what, only=options.only, say=say)
    if options.json:
        print(json.dumps({name: [vars(one) for one in outcomes] for name, outcomes in found.items()}, indent=1))
    return 1 if any(one.failed for outcomes in found.values() for one in outcomes) else 0
