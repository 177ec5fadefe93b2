"""The command line. Each command imports what it needs when it runs, so that --help answers at once, without torch."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields

from tokmix.arguments import add_settings
from tokmix.data.settings import PrepareSettings


def main(arguments: list[str] | None = None) -> int:
    """0 = done, 1 = something given does not work (one line says what), 2 = the command line cannot be read."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"tokmix {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"tokmix {options.command}: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokmix", description="Token mixing at low cost: a library and a lab.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="the known mixers: order, modes, options", allow_abbrev=False)
    listing.set_defaults(run=_list)

    prepare = commands.add_parser("prepare", help="text -> token files, a tokenizer and a card", allow_abbrev=False)
    prepare.add_argument("data", metavar="DATA", help="csv, tsv, jsonl, parquet, txt (also .gz), a folder of those, or a hub name")
    prepare.add_argument("--out", required=True, help="new folder for what is written")
    add_settings(prepare, PrepareSettings)
    prepare.set_defaults(run=_prepare)

    show = commands.add_parser("show", help="a stack layer by layer: parameters, FLOPs, state, reach", allow_abbrev=False)
    show.add_argument("stack", metavar="STACK", help="for instance 'hsm*3, attention(heads=8)'")
    show.add_argument("--dim", type=int, default=256, help="width (default: %(default)s)")
    show.add_argument("--length", type=int, default=512, help="tokens of the sequence to cost (default: %(default)s)")
    show.add_argument("--vocab", type=int, default=30522, help="size of the vocabulary (default: %(default)s)")
    show.add_argument("--feed-forward", type=int, default=None, help="inner width; 0 = none (default: twice the width)")
    show.add_argument("--causal", action="store_true", help="as a language model, each token seeing only what came before")
    show.set_defaults(run=_show)

    demo = commands.add_parser("demo", help="train the toy task of shapes for a minute and draw who attends to whom", allow_abbrev=False)
    demo.add_argument("--out", default="out/demo", help="folder for the picture (default: %(default)s)")
    demo.add_argument("--seconds", type=float, default=60.0, help="time for training in all (default: %(default)s)")
    demo.add_argument("--seed", type=int, default=0)
    demo.set_defaults(run=_demo)

    bench = commands.add_parser("bench", help="measure on this machine", allow_abbrev=False)
    bench.add_argument("what", choices=["import"], help="import: what `import tokmix` adds to `import torch`")
    bench.set_defaults(run=_bench)
    return parser


def _prepare(options: argparse.Namespace) -> int:
    from tokmix.data.prepare import prepare

    given = {field.name: getattr(options, field.name) for field in fields(PrepareSettings)}
    print(prepare(options.data, options.out, **given).summary())
    print(f"written to {options.out}")
    return 0


def _list(options: argparse.Namespace) -> int:
    from tokmix.summary import list_mixers

    print(list_mixers())
    return 0


def _show(options: argparse.Namespace) -> int:
    from tokmix.summary import show_stack

    width = "auto" if options.feed_forward is None else options.feed_forward
    print(show_stack(options.stack, options.dim, options.length, options.vocab, width, options.causal))
    return 0


def _demo(options: argparse.Namespace) -> int:
    from tokmix.demo import main as run

    run(options.out, options.seconds, options.seed)
    return 0


def _bench(options: argparse.Namespace) -> int:
    from tokmix.bench import import_time

    print(import_time())
    return 0
