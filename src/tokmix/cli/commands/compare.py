from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports
from tokmix.cli.commands.train import add_train_settings, train_settings

ABOUT = "several stacks on one task: equal parameters, seeds, tests of significance, what each cost"
SHAPES = "shapes"  # the built-in task; ./shapes for a folder of that name
SEQUENCES = 1000  # of shapes to train on
TAKEN = ("train.epochs", "train.device", "train.seed")  # by the built-in task


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stacks", nargs="+", metavar="STACK", help="what `show` takes, such as 'attention(heads=4)*2'")
    parser.add_argument("--data", required=True, help="what `prepare` takes, or a folder it wrote; shapes: the built-in toy task")
    parser.add_argument("--out", required=True, help="new folder for the runs, compare.json and the pictures")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from --seed on (default: %(default)s)")
    parser.add_argument("--fractions", default="1", help="shares of train, such as 0.05,0.1,0.25,0.5,1 (default: %(default)s)")
    parser.add_argument(
        "--match",
        choices=("largest", "first"),
        help="whose parameters all get, by the feed-forward's width (default: largest)",
    )
    parser.add_argument("--no-match", dest="match", action="store_const", const="none", help="every stack as it is")
    parser.add_argument("--jobs", type=int, help="runs at a time (default: a core each, or four a GPU)")
    parser.add_argument("--resume", action="store_true", help="go on in --out: what has finished is kept")
    parser.add_argument("--n", type=int, help=f"shapes: sequences to train on (default: {SEQUENCES})")
    parser.add_argument(
        "--epochs", dest="train.epochs", type=int, default=argparse.SUPPRESS, help="short for --train.epochs", metavar="VALUE"
    )
    add_imports(parser)
    add_train_settings(parser)


def run(options: argparse.Namespace) -> int:
    given = train_settings(options)
    for name, instead in (("model.stack", "the stacks as arguments"), ("train.fraction", "--fractions")):
        if name in given:
            raise ValueError(f"--{name} is what is compared: give {instead}")
    fractions = _fractions(options.fractions)
    if options.data == SHAPES:
        from tokmix.study.compare.shapes import compare as compare_shapes
        from tokmix.training.imports import import_files

        if options.config or any(name not in TAKEN for name in given):
            unknown = "--config" if options.config else next(f"--{name}" for name in given if name not in TAKEN)
            raise ValueError(
                f"--data shapes takes no {unknown}: model and training are the paper's; give --n, --epochs, --seeds, --fractions"
            )
        if options.match not in (None, "none"):
            raise ValueError(f"--data shapes takes no --match {options.match}: no parameters are matched there")
        import_files(options.imports)
        seed, epochs, device = (given.get(f"train.{name}") for name in ("seed", "epochs", "device"))
        n = SEQUENCES if options.n is None else options.n
        compare_shapes(
            options.stacks, options.out, n=n, epochs=epochs, seeds=options.seeds, first_seed=seed or 0, fractions=fractions,
            device=device, jobs=options.jobs, resume=options.resume,
        )  # fmt: skip
        return 0
    if options.n is not None:
        raise ValueError(f"--n {options.n} is for --data shapes; of other data give --fractions, shares of train's rows")
    from tokmix.study.compare.run import compare
    from tokmix.training.settings import Settings

    match = None if options.match == "none" else options.match or "largest"
    compare(
        options.stacks, options.data, options.out, Settings.of(options.config, given), seeds=options.seeds, fractions=fractions,
        match=match, jobs=options.jobs, resume=options.resume, imports=options.imports,
    )  # fmt: skip
    return 0


def _fractions(given: str) -> list[float]:
    try:
        return [float(part) for part in given.split(",")]
    except ValueError:
        raise ValueError(f"--fractions {given!r} should be numbers with commas between, such as 0.1,0.5,1") from None
