from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports

ABOUT = "compute sentence embeddings of texts with a trained model or an encoder"
FORMATS = ("jsonl", "csv", "npy")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a folder that `train`, `pretrain` or `embed-train` wrote, or a shipped encoder's name"
    )
    parser.add_argument("texts", metavar="TEXT", nargs="*", default=["-"], help="texts, a file, or - for standard input (the default)")
    parser.add_argument("--format", choices=FORMATS, default=None, help="output format (default: by the name of --out, else jsonl)")
    parser.add_argument("--out", default=None, metavar="FILE", help="new file for the embeddings (default: standard output)")
    parser.add_argument("--encoding", default="utf-8", help="text encoding of the file or of standard input (default: %(default)s)")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.api.embed import write
    from tokmix.training.distributed import check_alone

    check_alone("embed is one process")
    write(options.model, options.texts, options.out, options.format, options.encoding, options.imports)
    return 0
