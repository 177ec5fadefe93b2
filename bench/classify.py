"""What `tokmix train` with defaults reaches on the seven classification sets of docs/accuracy.md, several seeds side by side.

    python bench/classify.py --data FOLDER --out results.json [--sets trec,sst2] [--seeds 3] [--workers 4] [--device cpu]

FOLDER holds one folder a set, each with train, valid and test as `tokmix prepare` reads them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The split of the reported figure: valid where the test labels are not public.
FINAL = {"sst2": "valid", "trec": "test", "agnews": "test", "snli": "test", "mnli": "valid", "qnli": "valid", "qqp": "valid"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(FINAL))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        jobs = [(name, seed, options, Path(folder)) for name in options.sets.split(",") for seed in range(options.seeds)]
        for name in options.sets.split(","):
            tokmix("prepare", options.data / name, "--out", Path(folder) / name)
        runs = list(pool.map(lambda job: train(*job), jobs))
    options.out.write_text(json.dumps({"runs": runs}, indent=1) + "\n")


def train(name: str, seed: int, options: argparse.Namespace, folder: Path) -> dict:
    out = folder / f"{name}-{seed}"
    more = ["--train.device", options.device] if options.device else []
    tokmix("train", folder / name, "--out", out, "--seed", seed, "--train.final", FINAL[name], *more)
    record = json.loads((out / "model" / "training.json").read_text())
    print(name, seed, record["figures"]["accuracy"], record["baseline"], round(record["cost"]["seconds"]), "s", flush=True)
    kept = {key: record[key] for key in ("split", "figures", "baseline", "cost")}
    return {"data": name, "seed": seed, "held_out": record["selection"]["score"], **kept}


def tokmix(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "tokmix", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
