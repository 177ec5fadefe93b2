from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports

ABOUT = "find leaks in a model: from padding, other rows of a batch, packed documents, its cache, future tokens"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder that `train` or save_pretrained wrote, or hub:NAME")
    parser.add_argument("--only", action="append", default=None, metavar="CHECK", help="run only this check, such as 'right padding'")
    parser.add_argument("--compile", action="store_true", help="also compare torch.compile with eager mode (slow)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random tokens (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    """0: no faults, 3: at least one check found a fault."""
    import json

    from tokmix.hf import audit
    from tokmix.hf.audits import load_any
    from tokmix.training import model_folder
    from tokmix.training.imports import import_files

    import_files(options.imports)
    report = audit(load_any(model_folder.for_transformers(options.model)), only=options.only, compile=options.compile, seed=options.seed)
    print(json.dumps(report.as_dict(), indent=1) if options.json else report)
    return 0 if report.ok else 3
