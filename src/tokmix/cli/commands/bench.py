from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokmix.core.checks import at_least

ABOUT = "run a benchmark on this machine (all but `serve` need a checkout)"
FIRST = ("--quick", "--lengths", "--device", "--dtype", "--out")  # of --help
KINDS = """\
user        the commands as a user runs them: train, fine-tune, predict, generate, next to other tools
import      what `import tokmix` adds to `import torch`
ops         each op, checked against float64 and timed next to plain torch, torch.compile and attention
layers      each mixer as a layer, forward and backward, next to the fastest attention
decode      the next token after a long context: time and state size of layers; tokens a second of models and of GPT-2
train       training tokens a second of whole models, next to the same models with attention
train-loop  tokens a second of `tokmix train`, divided by those of a plain loop
checkpoint  how long training waits for a checkpoint, and how long writing it takes; also under torchrun
serve       requests a second of `tokmix serve`, batched and one by one; every answer is checked"""
DTYPES = ("bfloat16", "float16", "float32")
COMPILED = ("none", "one", "all")
EVERYWHERE = ("quick", "device", "threads", "only", "minutes", "out")
READ = {  # the options that each benchmark reads
    "import": (),
    "ops": (*EVERYWHERE, "lengths", "tokens", "dim", "head", "dtype", "compiled"),
    "layers": (*EVERYWHERE, "lengths", "tokens", "dim", "head", "dtype"),
    "decode": (*EVERYWHERE, "lengths", "dim", "head", "dtype"),
    "train": (*EVERYWHERE, "lengths", "tokens", "compiled"),  # its models have widths of their own, and autocast
    "serve": ("quick", "model", "requests", "clients", "threads", "out"),
    "train-loop": EVERYWHERE,  # the settings of `tokmix train`
    "checkpoint": ("dim", "device", "out"),
    "user": ("quick", "device", "threads", "minutes", "out", "data", "encoder"),
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawTextHelpFormatter
    kinds = [line.split()[0] for line in KINDS.splitlines()]
    parser.add_argument("what", choices=kinds, help=KINDS)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check that the benchmark runs")
    parser.add_argument("--lengths", type=int, nargs="+", default=[], metavar="N", help="tokens of a sequence; decode: of the context")
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens of one call, at every length")
    parser.add_argument("--dim", type=int, metavar="N", help="width of the layers")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if there is one")
    parser.add_argument("--dtype", choices=DTYPES, help="default: bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of torch on a CPU")
    parser.add_argument(
        "--compiled", choices=COMPILED, help="lengths at which torch.compile is measured too; default: one on a GPU, else none"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="measure only what has one of these words in its name")
    parser.add_argument("--minutes", type=float, metavar="M", help="start nothing new after this time; user: time for all trainings")
    parser.add_argument("--data", type=Path, metavar="FILE", help="user: a table with the columns text and label")
    parser.add_argument("--encoder", metavar="MODEL", help="user: encoder to fine-tune; default: random weights")
    parser.add_argument("--model", metavar="MODEL", help="serve: a folder that `train` or `export` wrote")
    parser.add_argument("--requests", type=int, metavar="N", help="serve: requests to each server (default: 2000)")
    parser.add_argument("--clients", type=int, metavar="N", help="serve: clients that send at the same time (default: 32)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="new file for all numbers, machine and versions; also draws a plot")


def check_read(what: str, given: Iterable[str]) -> None:
    """Refuse options that this benchmark does not read."""
    for name in given:
        if name not in READ[what]:
            known = ", ".join(f"--{one}" for one in READ[what] if one != "head")  # head is Python's alone
            raise ValueError(f"bench {what} does not read --{name}; it reads {known or 'no option'}")


def run(options: argparse.Namespace) -> int:
    names = {name for read in READ.values() for name in read}
    given = {name: value for name, value in vars(options).items() if name in names and value not in (None, []) and value is not False}
    check_read(options.what, given)
    for name in ("tokens", "dim"):
        at_least(name, given.get(name, 1), 1)
    if options.what == "serve":
        return _serve(given)
    from tokmix.study import checkout

    checkout.make_importable(f"the benchmark {options.what!r}")
    if options.what == "import":
        from bench.speed import import_time

        print(import_time())
        return 0
    if options.what == "checkpoint":
        from bench.speed import checkpoint

        checkpoint.run(**given)
        return 0
    from bench.speed.run import run as measure
    from bench.speed.settings import BenchSettings

    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    session = measure(BenchSettings(options.what, **(given | lists)))
    return 1 if session.refused else 0


def _serve(given: dict[str, Any]) -> int:
    from tokmix.pages.serve.bench import run as measure

    if "model" not in given:
        raise ValueError("bench serve needs a model: --model MODEL, a folder that `train` or `export` wrote")
    quick = {"requests": 60, "clients": 4} if given.pop("quick", False) else {}
    return 0 if measure(given.pop("model"), **(quick | given)) else 1
