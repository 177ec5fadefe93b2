from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports, add_model

ABOUT = "text by a trained language model"
FIRST = ("--prompt", "--max-new", "--temperature", "--top-p", "--seed")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--prompt", required=True, help="text to go on from")
    parser.add_argument("--max-new", type=int, default=200, help="tokens at most (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 = always the likeliest (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=None, help="among the k likeliest")
    parser.add_argument("--top-p", type=float, default=None, help="among the fewest whose probabilities reach p")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--draft", metavar="FOLDER", help="a smaller model that proposes tokens; needs --temperature 0")
    parser.add_argument("--draft-tokens", type=int, default=4, metavar="N", help="that it proposes at a time (default: %(default)s)")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.training.generate import run as generate

    sampling = {name: getattr(options, name) for name in ("max_new", "temperature", "top_k", "top_p", "seed", "draft", "draft_tokens")}
    generate(options.model, options.prompt, imports=options.imports, **sampling)
    return 0
