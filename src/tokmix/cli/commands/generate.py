from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports, add_model

ABOUT = "generate text with a trained language model"
FIRST = ("--prompt", "--max-new", "--temperature", "--top-p", "--seed")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--prompt", required=True, help="text to continue")
    parser.add_argument("--max-new", type=int, default=200, help="most tokens to generate (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0: always the most likely token (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=None, help="choose among the k most likely tokens")
    parser.add_argument("--top-p", type=float, default=None, help="choose among the fewest tokens whose probabilities sum to p")
    parser.add_argument("--seed", type=int, default=None, help="seed of the random choices (default: a new one each time)")
    parser.add_argument("--draft", metavar="FOLDER", help="smaller model for speculative decoding; needs --temperature 0")
    parser.add_argument("--draft-tokens", type=int, default=4, metavar="N", help="tokens that it proposes at a time (default: %(default)s)")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.training.generate import run as generate

    sampling = {name: getattr(options, name) for name in ("max_new", "temperature", "top_k", "top_p", "seed", "draft", "draft_tokens")}
    generate(options.model, options.prompt, imports=options.imports, **sampling)
    return 0
