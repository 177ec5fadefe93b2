"""Plots of a run, next to its JSON file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.speed.table import Row
from tokmix.show import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = dict[str, list[tuple[float, float]]]
MARKS = "osD^vP*X"


def draw(path: Path, what: str, rows: Sequence[Row], title: str) -> Path | None:
    """One panel for each kind of row; None if there is nothing to draw."""
    if what == "user":
        return _user(path, rows, title)
    panels = {"ops": _ops, "layers": _ops, "decode": _decode, "train": _train, "train-loop": _loops}[what](rows)
    if not panels:
        return None
    page = plots.figure(6.4 * len(panels), 5.2)
    for at, (name, (series, unit)) in enumerate(panels.items()):
        _panel(page.add_subplot(1, len(panels), at + 1), name, series, unit)
    page.suptitle(title, x=0.01, y=0.995, ha="left", fontsize=6, color=plots.GREY)
    page.tight_layout()
    page.savefig(path)
    return path


def _panel(axes: Axes, name: str, series: Series, unit: str) -> None:
    for at, (label, points) in enumerate(series.items()):
        xs, ys = zip(*sorted(points), strict=True)
        colour = plots.INK if label.startswith("attention") else plots.COLOURS[at % len(plots.COLOURS)]
        style = "--" if label.startswith("attention") else "-"
        mark = MARKS[at // len(plots.COLOURS) % len(MARKS)]
        axes.plot(xs, ys, style, color=colour, marker=mark, markersize=4, linewidth=1.2, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(name, loc="left", fontsize=11, color=plots.INK)
    axes.set_xlabel("tokens of a sequence", color=plots.INK)
    axes.set_ylabel(unit, color=plots.INK)
    axes.grid(True, which="major", color=plots.GREY, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=6, frameon=False)


def _collect(rows: Sequence[Row], label: Callable[[Row], str], y: str) -> Series:
    found: Series = {}
    for row in rows:
        if row.get(y):
            found.setdefault(label(row), []).append((row["N"], row[y]))
    return found


def _ops(rows: Sequence[Row]) -> dict[str, tuple[Series, str]]:
    panels = {}
    for way in ("forward", "forward+backward"):
        shown = [row for row in rows if row["way"] == way and not row["body"].startswith("reference")]
        if shown:
            panels[way] = (_collect(shown, lambda row: row["name"], "us"), "µs")
    return panels


def _decode(rows: Sequence[Row]) -> dict[str, tuple[Series, str]]:
    panels = {}
    for batch in dict.fromkeys(row["batch"] for row in rows):
        shown = [row for row in rows if row["batch"] == batch]
        panels[f"batch {batch}"] = (_collect(shown, lambda row: row["name"], "us_step"), "µs a token and layer")
    return panels


def _train(rows: Sequence[Row]) -> dict[str, tuple[Series, str]]:
    panels = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        shown = [row for row in rows if row["model"] == model]
        panels[model] = (_collect(shown, lambda row: f"{row['name']}, {row['body']}", "best_tokens_per_s"), "tokens a second")
    return panels


def _loops(rows: Sequence[Row]) -> dict[str, tuple[Series, str]]:
    """Turns instead of lengths."""
    panels: dict[str, tuple[Series, str]] = {}
    for task in dict.fromkeys(row["name"] for row in rows):
        series: Series = {
            row["body"]: [(float(at + 1), rate) for at, rate in enumerate(row["rates"])] for row in rows if row["name"] == task
        }
        panels[task] = (series, "tokens a second")
    return panels


def _user(path: Path, rows: Sequence[Row], title: str) -> Path | None:
    """Ratios to the rate of each rival."""
    shown = [row for row in rows if row.get("times")]
    if not shown:
        return None
    page = plots.figure(8, 1.2 + 0.32 * len(shown))
    axes = page.add_subplot(1, 1, 1)
    names = [f"{row['name']} ({row['device']})\nbeside {row['body']}" for row in shown]
    colours = [plots.COLOURS[0] if row["times"] >= 1 else plots.GREY for row in shown]
    axes.barh(range(len(shown)), [row["times"] for row in shown], color=colours)
    axes.set_yticks(range(len(shown)), names, fontsize=6)
    axes.invert_yaxis()
    axes.axvline(1, color=plots.INK, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("rate of tokmix over that of the other", color=plots.INK)
    axes.spines[["top", "right"]].set_visible(False)
    page.suptitle(title, x=0.01, y=0.995, ha="left", fontsize=6, color=plots.GREY)
    page.tight_layout()
    page.savefig(path)
    return path
