"""The command line. Each command imports what it needs when it runs, so that --help answers at once, without torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from tokmix.arguments import add_settings, said
from tokmix.checks import nearest
from tokmix.data.settings import PrepareSettings
from tokmix.lab.settings import GROUPS

Run = Callable[[argparse.Namespace], int]


def main(arguments: list[str] | None = None) -> int:
    """0 = done, 1 = something given does not work (one line says what), 2 = the command line cannot be read."""
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        known = [name for name in options.known if name.startswith("--")]
        parser.error(f"{options.command} has no argument {unknown[0]!r}{nearest(unknown[0], known)}")
    try:
        return options.run(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"tokmix {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(f"tokmix {options.command}: {error or 'interrupted'}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokmix", description="Token mixing at low cost: a library and a lab.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Run, about: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", allow_abbrev=False)
        made.set_defaults(run=run)
        return made

    _add_prepare(command("prepare", _prepare, "text -> token files, a tokenizer and a card"))
    _add_train(command("train", _train, "a table or a pile of text -> a trained, saved, usable model"))
    _add_eval(command("eval", _eval, "the figures of a trained model on data"))
    _add_predict(command("predict", _predict, "labels or scores of texts by a trained model"))
    _add_generate(command("generate", _generate, "text by a trained language model"))
    command("list", _list, "the known mixers: order, modes, options")
    _add_show(command("show", _show, "a stack layer by layer: parameters, FLOPs, state, reach"))
    _add_demo(command("demo", _demo, "train the toy task of shapes for a minute and draw who attends to whom"))
    bench = command("bench", _bench, "measure on this machine")
    bench.add_argument("what", choices=["import"], help="import: what `import tokmix` adds to `import torch`")
    for made in commands.choices.values():
        made.set_defaults(known=list(made._option_string_actions))
    return parser


def _add_prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="csv, tsv, jsonl, parquet, txt (also .gz), a folder of those, or a hub name")
    parser.add_argument("--out", required=True, help="new folder for what is written")
    add_settings(parser, PrepareSettings)


def _prepare(options: argparse.Namespace) -> int:
    from tokmix.data.prepare import prepare

    print(prepare(options.data, options.out, **said(options, PrepareSettings)).summary())
    print(f"written to {options.out}")
    return 0


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="what `prepare` takes, or a folder it wrote")
    parser.add_argument("--out", required=True, help="new folder for the model, the checkpoints and the log")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--config", help="a .json or .yaml file of settings, or the name of a recipe")
    _add_imports(parser)
    for short, name, read in (("--stack", "model.stack", str), ("--seed", "train.seed", int), ("--minutes", "train.minutes", float)):
        parser.add_argument(short, dest=name, type=read, default=argparse.SUPPRESS, help=f"short for --{name}", metavar="VALUE")
    for group, settings in GROUPS.items():
        add_settings(parser, settings, f"{group}.")


def _train(options: argparse.Namespace) -> int:
    from tokmix.lab.settings import Settings
    from tokmix.lab.train import run

    given: dict[str, Any] = {}
    for group, settings in GROUPS.items():
        given |= said(options, settings, f"{group}.")
    run(options.data, options.out, Settings.of(options.config, given), resume=options.resume, imports=options.imports)
    return 0


def _add_eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder that `train` wrote")
    parser.add_argument("data", metavar="DATA", help="what `prepare` takes, or a folder it wrote")
    parser.add_argument("--split", choices=["train", "valid", "test"], default=None, help="default: test, else valid, else what is there")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    _add_imports(parser)


def _eval(options: argparse.Namespace) -> int:
    from tokmix.lab.evaluate import run

    run(options.model, options.data, split=options.split, as_json=options.json, imports=options.imports)
    return 0


def _add_predict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder that `train` wrote")
    parser.add_argument("texts", metavar="TEXT", nargs="*", default=["-"], help="texts, a file, or - for standard input (the default)")
    parser.add_argument("--format", choices=["jsonl", "table"], default="jsonl", help="default: %(default)s")
    _add_imports(parser)


def _predict(options: argparse.Namespace) -> int:
    from tokmix.lab.predict import run

    run(options.model, options.texts, format=options.format, imports=options.imports)
    return 0


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder that `train` wrote")
    parser.add_argument("--prompt", required=True, help="text to go on from")
    parser.add_argument("--max-new", type=int, default=200, help="tokens at most (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 = always the likeliest (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=None, help="among the k likeliest")
    parser.add_argument("--top-p", type=float, default=None, help="among the fewest whose probabilities reach p")
    parser.add_argument("--seed", type=int, default=None)
    _add_imports(parser)


def _generate(options: argparse.Namespace) -> int:
    from tokmix.lab.generate import run

    sampling = {name: getattr(options, name) for name in ("max_new", "temperature", "top_k", "top_p", "seed")}
    run(options.model, options.prompt, imports=options.imports, **sampling)
    return 0


def _add_imports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="FILE.py", help="a file with mixers of your own")


def _list(options: argparse.Namespace) -> int:
    from tokmix.summary import list_mixers

    print(list_mixers())
    return 0


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stack", metavar="STACK", help="for instance 'hsm*3, attention(heads=8)'")
    parser.add_argument("--dim", type=int, default=256, help="width (default: %(default)s)")
    parser.add_argument("--length", type=int, default=512, help="tokens of the sequence to cost (default: %(default)s)")
    parser.add_argument("--vocab", type=int, default=30522, help="size of the vocabulary (default: %(default)s)")
    parser.add_argument("--feed-forward", type=int, default=None, help="inner width; 0 = none (default: twice the width)")
    parser.add_argument("--causal", action="store_true", help="as a language model, each token seeing only what came before")


def _show(options: argparse.Namespace) -> int:
    from tokmix.summary import show_stack

    width = "auto" if options.feed_forward is None else options.feed_forward
    print(show_stack(options.stack, options.dim, options.length, options.vocab, width, options.causal))
    return 0


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="out/demo", help="folder for the picture (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for training in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)


def _demo(options: argparse.Namespace) -> int:
    from tokmix.demo import main as run

    run(options.out, options.seconds, options.seed)
    return 0


def _bench(options: argparse.Namespace) -> int:
    from tokmix.bench import import_time

    print(import_time())
    return 0
