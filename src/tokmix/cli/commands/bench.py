from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from tokmix.bench.settings import COMPILED, DTYPES, Asked, check_read
from tokmix.core.checks import at_least

ABOUT = "measure on this machine"
FIRST = ("--quick", "--lengths", "--device", "--dtype", "--out")  # of --help
KINDS = """\
user        what one who types commands gets: train, fine-tune, predict, decode, beside what else one could have used
import      what `import tokmix` adds to `import torch`
ops         each op, checked against float64 and timed beside plain torch, torch.compile and attention
layers      the mixers as layers, forward and backward, beside attention at its fastest
decode      the next token after a long context: time and state of a layer; tokens a second of models next to GPT-2
train       training tokens a second of whole models, beside the same models with attention
train-loop  tokens a second of `tokmix train` over those of a plain loop
checkpoint  how long training waits for a checkpoint, and how long that takes to the disk; also by torchrun
serve       requests a second of `tokmix serve`, batched and one by one, every answer checked"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawTextHelpFormatter
    kinds = [line.split()[0] for line in KINDS.splitlines()]
    parser.add_argument("what", choices=kinds, help=KINDS)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--lengths", type=int, nargs="+", default=[], metavar="N", help="tokens of a sequence, or of decode's context")
    parser.add_argument("--tokens", type=int, metavar="N", help="of a call, whatever the length")
    parser.add_argument("--dim", type=int, metavar="N", help="width")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU where there is one")
    parser.add_argument("--dtype", choices=DTYPES, help="default: bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--threads", type=int, metavar="N", help="of torch on a CPU")
    parser.add_argument(
        "--compiled", choices=COMPILED, help="torch.compile at no length, at one or at all; default: one on a GPU, else none"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only what has one of these in its name")
    parser.add_argument("--minutes", type=float, metavar="M", help="start nothing new after that long; user: what all trainings may take")
    parser.add_argument("--data", type=Path, metavar="FILE", help="user: a table with the columns text and label")
    parser.add_argument("--encoder", metavar="MODEL", help="user: what fine-tuning starts from; default: random weights")
    parser.add_argument("--model", metavar="MODEL", help="serve: a folder of `train` or `export`")
    parser.add_argument("--requests", type=int, metavar="N", help="serve: to each server (default: 2000)")
    parser.add_argument("--clients", type=int, metavar="N", help="serve: at once (default: 32)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="every number, machine and versions; a picture next to it")


def run(options: argparse.Namespace) -> int:
    names = (*(field.name for field in fields(Asked) if hasattr(options, field.name)), "model", "requests", "clients")
    given = {name: value for name in names if name != "what" and (value := getattr(options, name)) not in (None, []) and value is not False}
    check_read(options.what, given)
    for name in ("tokens", "dim"):
        at_least(name, given.get(name, 1), 1)
    if options.what == "import":
        from tokmix.bench import import_time

        print(import_time())
        return 0
    if options.what == "serve":
        return _serve(given)
    if options.what == "checkpoint":
        from tokmix.bench import checkpoint

        checkpoint.run(**given)
        return 0
    from tokmix.bench.run import run as measure

    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    session = measure(Asked(options.what, **(given | lists)))
    return 1 if session.refused else 0


def _serve(given: dict[str, Any]) -> int:
    from tokmix.pages.serve.bench import run as measure

    if "model" not in given:
        raise ValueError("bench serve needs a model: --model MODEL, a folder of `train` or `export`")
    quick = {"requests": 60, "clients": 4} if given.pop("quick", False) else {}
    return 0 if measure(given.pop("model"), **(quick | given)) else 1
