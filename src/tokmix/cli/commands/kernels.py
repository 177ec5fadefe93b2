from __future__ import annotations

import argparse

ABOUT = "write the ops as a kernel repository for Hugging Face's `kernels` package"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="new folder; `kernels.get_local_kernel(Path(OUT))` loads it, without tokmix")


def run(options: argparse.Namespace) -> int:
    from tokmix.export.kernels_hub import build

    name = build(options.out)
    print(f"{options.out}: {name}, for torch on cpu and cuda")
    return 0
