"""What a run tells: progress while it trains, the learning curve, the model card."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tokmix.data.prepare.targets import LABELLED
from tokmix.runs.files import replacing, write_text
from tokmix.training import trackers
from tokmix.training.mixture import Mixture
from tokmix.training.progress import Entry
from tokmix.training.task import main_figure

if TYPE_CHECKING:
    from rich.progress import Progress

SHOWN = ("accuracy", "micro_f1", "pearson", "loss")
EVERY = 10.0  # seconds between lines where nothing else happens


class Log:
    """log.jsonl, one entry a line, and lines for people: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, path: Path, quiet: bool = False, report_to: str | None = None, settings: Mapping[str, object] | None = None):
        self.path, self.quiet, self.report_to, self.settings = path, quiet, report_to, settings or {}
        self.tracker: trackers.Tracker | None = None
        self.file: TextIO | None = None
        self.bar: Progress | None = None
        self.loss, self.held, self.last = float("nan"), "", time.monotonic()
        self.start: tuple[float, int, int] | None = None  # (time, step, tokens) since when the pace is taken

    def open(self, step: int) -> int:
        """Keep what was logged up to that step: what came after it will come again. -> damaged lines that were left out"""
        entries, lost = read_log(self.path)
        kept = [entry for entry in entries if entry["step"] <= step and "cost" not in entry]
        write_text(self.path, "".join(json.dumps(entry) + "\n" for entry in kept))
        self.file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - held as long as the run
        if self.report_to is not None:
            self.tracker = trackers.begin(self.report_to, self.path.parent, self.settings, step)
        if not self.quiet and sys.stderr.isatty():
            self.bar = _bar()
        return lost

    def add_cost(self, step: int, epoch: int, cost: Mapping[str, object]) -> None:
        """The last line of a log."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "total": step, "epoch": epoch, "cost": cost}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        if self.file is not None:
            os.fsync(self.file.fileno())
            self.file.close()
        if self.tracker is not None:
            self.tracker.close()
            self.tracker = None
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def __call__(self, entry: Entry) -> None:
        if self.file is not None:
            self.file.write(json.dumps(entry) + "\n")
            self.file.flush()
        if self.tracker is not None:
            self.tracker(entry)
        if "held" in entry:
            self.held = "  ".join(f"{name} {entry['held'][name]:.4f}" for name in SHOWN if name in entry["held"])
        else:
            self.loss = entry["loss"]
            self.start = self.start or (time.monotonic(), entry["step"], entry["tokens"])
            self.pace = self._pace(entry)
        if not self.quiet:
            self._show(entry)

    def _pace(self, entry: Entry) -> str:
        assert self.start is not None
        began, step, tokens = self.start
        seconds = max(time.monotonic() - began, 1e-9)
        if entry["step"] == step:
            return ""
        left = (entry["total"] - entry["step"]) * seconds / (entry["step"] - step)
        return f"{(entry['tokens'] - tokens) / seconds:,.0f} tokens/s  {clock(left)} left"

    def _show(self, entry: Entry) -> None:
        line = f"step {entry['step']:>6}/{entry['total']}  epoch {entry['epoch'] + 1}" + (
            "" if math.isnan(self.loss) else f"  loss {self.loss:.4f}"
        )
        line += f"  held out: {self.held}" if self.held else ""
        line += f"  {self.pace}" if getattr(self, "pace", "") else ""
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], description=line, completed=entry["step"], total=entry["total"])
        elif "held" in entry or time.monotonic() - self.last > EVERY:
            print(line, file=sys.stderr, flush=True)
            self.last = time.monotonic()


def read_log(path: Path) -> tuple[list[Entry], int]:
    """(entries, damaged lines). A kill cuts off the last line, which is not counted; a power cut may fill any with zeros."""
    if not path.is_file():
        return [], 0
    entries, lost = [], 0
    *lines, _ = path.read_bytes().split(b"\n")
    for line in filter(None, lines):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        step = entry.get("step") if isinstance(entry, dict) else None
        if isinstance(step, int) and not isinstance(step, bool):
            entries.append(entry)
        else:
            lost += 1
    return entries, lost


def _bar() -> Progress | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
    except ImportError:
        return None
    bar = Progress(BarColumn(bar_width=20), TextColumn("{task.description}"), console=Console(stderr=True))
    bar.add_task("starting", total=None)
    bar.start()
    return bar


def clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02d}"


def factors(cost: dict[str, Any]) -> str:
    """Cost(R) = E · D · H in one line."""
    e, d, h = cost["flops_training"], cost["examples"], cost.get("trials", 1)
    return f"Cost(R) = E · D · H = {e:,} FLOPs · {d:,} examples · {h} {'trial' if h == 1 else 'trials'} = {e * d * h:.3e} FLOPs"


def measured(cost: dict[str, Any]) -> str:
    """Memory and energy in words; what was not measured is called so."""
    peak, energy = cost.get("peak_memory_bytes"), cost.get("energy_joules")
    memory = "peak memory not measured" if peak is None else f"peak memory {peak / 2**20:,.0f} MiB ({cost['peak_memory_of']})"
    note = f" ({cost['energy_note']})" if cost.get("energy_note") else ""
    joules = f"energy not measured{note}" if energy is None else f"energy {energy:,.1f} J by {cost['energy_source']}{note}"
    return f"{memory}, {joules}"


def draw_curve(log: Path, path: Path, task: str, say: Callable[[str], None]) -> Path | None:
    """Training loss, and the figure on the held-out part, over the steps."""
    try:
        from tokmix.show.plots import COLOURS, GREY, INK, figure

        page = figure(7, 4)
    except ImportError as error:
        say(f"no learning curve: {error}")
        return None
    entries, _ = read_log(log)
    losses = [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry]
    held = [(entry["step"], entry["held"]) for entry in entries if "held" in entry]
    axes = page.add_subplot()
    axes.plot(*zip(*losses, strict=True) if losses else ([], []), color=COLOURS[1], linewidth=1.2, label="loss, training")
    if held:
        axes.plot([step for step, _ in held], [figures["loss"] for _, figures in held], color=COLOURS[0], label="loss, held out")
        name, _ = main_figure(task, held[0][1])
        if name != "loss":
            other = axes.twinx()
            other.plot([step for step, _ in held], [figures[name] for _, figures in held], color=COLOURS[2], marker="o", markersize=3)
            other.set_ylabel(f"{name}, held out", color=COLOURS[2])
            other.tick_params(colors=GREY)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("loss", color=INK)
    axes.tick_params(colors=GREY)
    axes.legend(frameon=False, fontsize=8)
    with replacing(path) as partial:
        page.savefig(partial, format="png")
    return path


def model_card(record: dict[str, Any]) -> str:
    """README.md of a model folder."""
    data, cost, figures = record["data"], record["cost"], record["figures"]
    lines = [
        "---", "library_name: transformers", "tags: [tokmix]", "---", "",
        f"# {record['task']} with {record['model']['stack']}", "",
        f"Trained with tokmix {record['tokmix']}, seed {record['settings']['train']['seed']}.", "",
        "## Data", "",
        *(f"- {name}: {split['rows']:,} rows, {split['tokens']:,} tokens" for name, split in data["splits"].items()),
        *(f"- source: {one['name']}, sha256 {one.get('sha256', one.get('fingerprint', 'unknown'))}" for one in data["source"]),
        *(f"- {warning}" for warning in data["warnings"]),
    ]  # fmt: skip
    if record["labels"]:
        lines.append(f"- classes: {', '.join(record['labels'])}")
    lines += ["", "## Figures", ""]
    if figures:
        lines.append(f"On {record['split']}, computed once, after training:")
        lines += ["", *(f"- {name}: {value:.4f}" for name, value in figures.items() if isinstance(value, float))]
    else:
        lines.append("There was no split to report on.")
    simple = record["baseline"]
    if simple and "bits_per_byte" in simple:
        lines.append(f"- a byte n-gram model of order {simple['order']} on the same text: {simple['bits_per_byte']:.4f} bits per byte")
    elif simple:
        name, _ = main_figure(record["task"], figures)
        lines.append(f"- a bag of words ({simple['kind']}) on the same rows: {name} {simple[name]:.4f}")
        if record.get("answers", {}).get("held"):
            lines.append(f"- {Mixture.of(record['answers']).line(name)}")
    lines += [
        "", "## Cost", "",
        f"- {cost['parameters']:,} parameters",
        f"- {cost['flops']:,} FLOPs a forward pass of {cost['length']} tokens",
        f"- {cost['flops_forward']:,} FLOPs a forward pass of the mean training example ({cost['mean_length']:g} tokens; matrix products;"
        f" {cost['flops_pointwise']:,} more element by element), {cost['flops_training']:,} forward and backward",
        f"- {factors(cost)}",
        f"- {cost['distinct_examples']:,} distinct examples, {cost['steps']:,} steps, {cost['tokens']:,} tokens, {cost['seconds']:.0f} s,"
        f" processes: {cost['processes']}, {cost['device']}",
        f"- {measured(cost)}",
        *(f"- the teacher {one['name']} read along; counted above" for one in [record.get("teacher")] if one and "tokens" not in one),
        *(f"- the teacher {one['name']}, not counted above: {one['tokens']:,} tokens read once, about {one['flops']:.3g} FLOPs,"
          f" {one['seconds']:,.0f} s" for one in [record.get("teacher")] if one and "tokens" in one),
        f"- {', '.join(f'{name} {version}' for name, version in cost['versions'].items())}",
        "", "## Use", "", "```", "tokmix predict FOLDER 'some text'" if record["task"] in LABELLED else
        "tokmix generate FOLDER --prompt 'Once'" if record["task"] == "lm" else "tokmix eval FOLDER DATA", "```", "",
    ]  # fmt: skip
    return "\n".join(lines)
