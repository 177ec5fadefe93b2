from __future__ import annotations

import argparse

ABOUT = "measure on this machine"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["import"], help="import: what `import tokmix` adds to `import torch`")


def run(options: argparse.Namespace) -> int:
    from tokmix.bench import import_time

    print(import_time())
    return 0
