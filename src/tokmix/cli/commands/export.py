from __future__ import annotations

import argparse
from pathlib import Path

from tokmix.cli.commands.common import add_imports, add_model

ABOUT = "export a trained model to ONNX or torch.export, to run without tokmix"


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the exported model")
    parser.add_argument("--format", choices=["onnx", "torch"], default="onnx", help="torch: a torch.export program (default: %(default)s)")
    parser.add_argument("--int8", action="store_true", help="onnx: weights and products as 8-bit integers, smaller and faster")
    parser.add_argument("--network", action="store_true", help="leave the bag of words out, if the model answers with one too")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.export import export

    about = export(options.model, options.out, format=options.format, int8=options.int8, network=options.network, imports=options.imports)
    for check in about.checks:
        print(f"batch {check.batch}, length {check.length}: differs from torch by {check.difference:.1e}")
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(f"{options.out}: {size / 1e6:.1f} MB")
    return 0
