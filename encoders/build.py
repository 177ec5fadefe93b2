"""Runs of `tokmix pretrain` -> the model folders of this package, with small weights and a card each.

python encoders/build.py NAME=RUN [NAME=RUN ...] --licence TEXT [--weights float16|int8] [--out DIR]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from tokmix.core.checks import printable
from tokmix.training import encoder, report
from tokmix.training.model_record import ModelRecord
from tokmix.training.shipping import store
from tokmix.training.small_weights import KINDS

PACKAGE = Path(__file__).parent / "src" / encoder.PACKAGE
MOST = 40_000_000  # bytes of all encoders together


def card(name: str, record: dict[str, Any], kind: str, licence: str) -> str:
    """The run's own card under the encoder's name, with what pretraining took in all and the licence of the text."""
    cost = record["cost"]
    joules = f"{cost['energy_joules']:,.0f} J" if cost.get("energy_joules") is not None else "energy not measured"
    flops = cost["flops_training"] * cost["examples"]
    head = [
        f"# {name}", "", f"An encoder of `tokmix-encoders`: `tokmix train DATA --from {name}`. Weights are stored as {kind}.", "",
        f"Pretraining in all: {cost['tokens']:,} tokens, {flops:.3g} FLOPs (matrix products, forward and backward),"
        f" {cost['seconds']:,.0f} s on {cost['device']}, {joules}.", "", f"Licence of the text: {licence}.", "",
    ]  # fmt: skip
    body = report.model_card(record).split("---\n", 2)[-1].lstrip()
    return "\n".join(["---", "library_name: transformers", "tags: [tokmix]", "---", "", *head]) + body.replace("# ", "## ", 1)


def size(folder: Path) -> int:
    """Bytes of the encoders in it."""
    return sum(file.stat().st_size for config in folder.glob("*/config.json") for file in config.parent.iterdir())


def build(wanted: dict[str, str], out: Path, kind: str, licence: str) -> int:
    """-> bytes of the package's encoders. All of them appear, or none."""
    for name in wanted:
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"{name!r} should be a name of letters, digits, - and _")
        if (out / name).exists():
            raise ValueError(f"{out / name} exists already; nothing is overwritten: remove it, or choose another name")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=out) as folder:
        for name, run in wanted.items():
            start = encoder.read(run)  # an encoder, not a causal model
            record = ModelRecord.read(start.folder).json
            more = {"encoder_card": {"name": name, "licence": licence}}
            store(start.folder, Path(folder) / name, kind, more, card(name, record, kind, licence))
        total = size(out) + size(Path(folder))
        if total > MOST:
            raise ValueError(f"the encoders would take {total / 1e6:.1f} MB, and {MOST / 1e6:.0f} MB is the most: try --weights int8")
        for name in wanted:
            (Path(folder) / name).rename(out / name)
    return total


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", metavar="NAME=RUN", nargs="+", help="the encoder's name, and a folder that `tokmix pretrain` wrote")
    parser.add_argument("--weights", choices=KINDS, default="int8", help="how they are stored (default: %(default)s)")
    parser.add_argument("--licence", required=True, help="of the text it was trained on")
    parser.add_argument("--out", type=Path, default=PACKAGE, help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        if strange := next((one for one in options.runs if "=" not in one), None):
            raise ValueError(f"{strange!r} should read NAME=RUN")
        total = build(dict(one.split("=", 1) for one in options.runs), options.out, options.weights, options.licence)
    except (ValueError, OSError) as error:
        print(printable(f"build.py: {error}"), file=sys.stderr)
        return 1
    print(f"{', '.join(one.split('=')[0] for one in options.runs)} in {options.out}: {total / 1e6:.1f} MB in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
