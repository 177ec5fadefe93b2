from __future__ import annotations

import argparse
from pathlib import Path

from tokmix.cli.commands.common import add_imports
from tokmix.core.checks import is_there

ABOUT = "show a model folder or a stack layer by layer: parameters, FLOPs, state, reach"
FIRST = ("--length", "--dim", "--vocab", "--feed-forward", "--causal")  # of --help
DIM, LENGTH, VOCAB = 256, 512, 30522


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", metavar="MODEL_OR_STACK", help="a folder that `train` wrote, or a stack such as 'hsm*3, attention(heads=8)'"
    )
    parser.add_argument("--length", type=int, help=f"tokens of the sequence (default: the limit of the model; of a stack {LENGTH})")
    parser.add_argument("--dim", type=int, default=None, help=f"stack: width of the model (default: {DIM})")
    parser.add_argument("--vocab", type=int, default=None, help=f"stack: size of the vocabulary (default: {VOCAB})")
    parser.add_argument("--feed-forward", type=int, help="stack: inner width of the feed-forward nets; 0: none (default: twice --dim)")
    parser.add_argument("--causal", action="store_true", help="stack: as a language model, where each token sees only earlier tokens")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.study import summary
    from tokmix.training.imports import import_files

    import_files(options.imports)
    if not _names_a_folder(options.what):
        width = "auto" if options.feed_forward is None else options.feed_forward
        sizes = ((options.dim, DIM), (options.length, LENGTH), (options.vocab, VOCAB))
        dim, length, vocab = (default if size is None else size for size, default in sizes)
        print(summary.show_stack(options.what, dim, length, vocab, width, options.causal))
        return 0
    for name in ("dim", "vocab", "feed_forward", "causal"):
        value = getattr(options, name)
        if value is not None and value is not False:
            raise ValueError(f"--{name.replace('_', '-')} is for a stack; the model in {options.what} has its own")
    print(summary.show_folder(options.what, options.length))
    return 0


def _names_a_folder(what: str) -> bool:
    """No stack contains a slash. A name that is both a mixer and a folder without a model means the mixer."""
    from tokmix.study.summary import reads_as_stack

    if "/" in what or "\\" in what:
        return True
    if not what.strip() or not is_there(what) or not Path(what).is_dir():
        return False
    return any((Path(what) / place / "config.json").is_file() for place in (".", "model")) or not reads_as_stack(what)
