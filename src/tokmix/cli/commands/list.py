from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports

ABOUT = "list the mixers with their order, modes and options"


def add(parser: argparse.ArgumentParser) -> None:
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.study.summary import list_mixers
    from tokmix.training.imports import import_files

    import_files(options.imports)
    print(list_mixers())
    return 0
