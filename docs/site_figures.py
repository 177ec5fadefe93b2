"""Figures of the benchmarks page, each drawn from one line of bench/results.jsonl.

python docs/site_figures.py    writes the README's figure, docs/images/speed.svg
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).parent.parent
README_FIGURE = Path("docs/images/speed.svg")
STYLE = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "tokmix", "svg.fonttype": "none"}
KINDS = {"HyperMixer": "classifier", "LM": "language model"}
Result = dict[str, Any]  # a line of bench/results.jsonl
COLOURS = ("#1a5fb4", "#c64600", "#26a269", "#813d9c", "#a51d2d", "#63452c")


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    result: str  # whose numbers it shows
    draw: Callable[[Axes, Result], None]
    alt: str
    words: str


def write_figures(results: dict[str, Result], folder: Path) -> list[str]:
    """The figures as SVG, and the Markdown that shows them."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for figure in FIGURES:
        result = results[figure.result]
        with plt.rc_context(STYLE):
            made, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
            figure.draw(axes, result["numbers"])
            made.savefig(folder / f"{figure.name}.svg", facecolor="white", metadata={"Date": None})
            plt.close(made)
        parts.append(
            f"## {figure.title}\n\n![{figure.alt}](figures/{figure.name}.svg)\n\n{figure.words} "
            f"Made by {commands(result['command'])} at {str(result['commit'])[:9]} on {result['machine']}.\n"
        )
    return parts


def read_results() -> dict[str, Result]:
    lines = (ROOT / "bench" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return {entry["name"]: entry for entry in map(json.loads, lines)}


def commands(text: str) -> str:
    """One command, or several with words between them: the results leave the first and the last backquote out."""
    opened = f"`{text}"
    return opened + "`" * (opened.count("`") % 2)


def _plain_ticks(axes: Axes, lengths: list[int], values: tuple[float, ...] = ()) -> None:
    """Numbers as people write them, in place of powers."""
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths], fontsize=9)
    axes.minorticks_off()
    if values:
        axes.set_yticks(list(values), [f"{value:g}" for value in values])


def write_readme_figure(path: Path) -> None:
    """A layer and whole models against length, next to attention."""
    results = read_results()
    with plt.rc_context(STYLE):
        made, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
        _layers(left, results["bench_layers_eighth_h200"]["numbers"])
        _train(right, results["bench_train_h200"]["numbers"])
        left.set_title("one layer: less is better")
        right.set_title("training a whole model: more is better")
        made.savefig(path, facecolor="white", metadata={"Date": None})
        plt.close(made)


def _layers(axes: Axes, numbers: Result) -> None:
    shown = {
        "attention, full": "attention (the fastest of flash and cuDNN)",
        "hypermixing, one head, tied": "HyperMixing, one head",
        "hypermixing, heads of 64, tied": "HyperMixing, heads of 64",
    }
    rows = [row for row in numbers["rows"] if row["way"] == "forward+backward"]
    names = [name for name in dict.fromkeys(row["name"] for row in rows) if name in shown]
    for colour, name in zip(COLOURS, names, strict=False):
        points = sorted({row["N"]: row["us"] for row in rows if row["name"] == name}.items())
        axes.loglog([n for n, _ in points], [us / 1000 for _, us in points], marker="o", color=colour, label=shown[name], base=2)
    axes.set_xlabel("tokens of a sequence (65,536 tokens in all)")
    axes.set_ylabel("ms, forward and backward")
    axes.set_yscale("log", base=10)
    _plain_ticks(axes, sorted({row["N"] for row in rows if row["name"] in names}), (0.5, 1, 2, 5, 10, 20, 50))
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)


def _train(axes: Axes, numbers: Result) -> None:
    best: dict[tuple[str, int], float] = {}
    for row in numbers["rows"]:
        if row["body"] != "compiled":
            continue
        key = (f"{KINDS[row['model']]}, {row['name']}", row["N"])
        best[key] = max(best.get(key, 0.0), row["tokens"] / row["us"])
    names = list(dict.fromkeys(name for name, _ in best))
    for colour, name in zip(COLOURS, names, strict=False):
        points = sorted((n, rate) for (other, n), rate in best.items() if other == name)
        axes.plot([n for n, _ in points], [rate for _, rate in points], marker="o", color=colour, label=name)
    axes.set_xscale("log", base=2)
    _plain_ticks(axes, sorted({n for _, n in best}))
    axes.set_ylim(0, 13)  # room for the names
    axes.set_xlabel("tokens of a sequence (32,768 tokens a step)")
    axes.set_ylabel("million training tokens a second")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    axes.grid(alpha=0.3)


def _decode(axes: Axes, numbers: Result) -> None:
    rows = [row for row in numbers["models"] if row.get("ratio") is not None]
    labels = [f"{row['name']}\nafter {row['N']} tokens" for row in rows]
    places = range(len(rows))
    axes.barh(list(places), [row["ratio"] for row in rows], color=COLOURS[0])
    axes.axvline(1, color=COLOURS[1], linestyle="--")
    axes.text(1.01, len(rows) - 0.45, "Hugging Face GPT-2 of equal size", color=COLOURS[1], fontsize=9)
    axes.set_yticks(list(places), labels)
    axes.set_xlabel("tokens a second, relative to GPT-2 in the same turn")


FIGURES = (
    Figure(
        "layers", "A layer against length", "bench_layers_eighth_h200", _layers,
        "Time of a layer against the length of a sequence. The time of HyperMixing does not grow, that of attention does.",
        "A token mixing layer of width 512 in bf16. Every call has the same number of tokens, in fewer and longer sequences "
        "from left to right. The time of HyperMixing does not grow with the length. "
        "Attention is the fastest of the kernels that torch offers.",
    ),
    Figure(
        "train", "Training whole models", "bench_train_h200", _train,
        "Million training tokens a second of whole models against the length of a sequence.",
        "Whole models, compiled, with each step captured in a CUDA graph. This is the best that the layers "
        "allow. `tokmix train` does not reach it.",
    ),
    Figure(
        "decode", "Decoding on a CPU", "bench_decode_models_cpu", _decode,
        "Decoding speed of two language models of eight layers relative to GPT-2 of equal size.",
        "One sequence, one thread, the next token after a prompt.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    write_readme_figure(ROOT / README_FIGURE)
