from __future__ import annotations

import argparse

ABOUT = "a stack layer by layer: parameters, FLOPs, state, reach"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stack", metavar="STACK", help="for instance 'hsm*3, attention(heads=8)'")
    parser.add_argument("--dim", type=int, default=256, help="width (default: %(default)s)")
    parser.add_argument("--length", type=int, default=512, help="tokens of the sequence to cost (default: %(default)s)")
    parser.add_argument("--vocab", type=int, default=30522, help="size of the vocabulary (default: %(default)s)")
    parser.add_argument("--feed-forward", type=int, default=None, help="inner width; 0 = none (default: twice the width)")
    parser.add_argument("--causal", action="store_true", help="as a language model, each token seeing only what came before")


def run(options: argparse.Namespace) -> int:
    from tokmix.summary import show_stack

    width = "auto" if options.feed_forward is None else options.feed_forward
    print(show_stack(options.stack, options.dim, options.length, options.vocab, width, options.causal))
    return 0
