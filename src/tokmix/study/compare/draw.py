"""The plots of a comparison: score against the share of train, and score against cost with the Pareto front."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from tokmix.show.plots import COLOURS, GREY, INK, figure, log_ticks
from tokmix.study.compare.records import Comparison, CostPart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vPX*"
AXES: dict[CostPart, str] = {"flops": "FLOPs of training, forward and backward", "seconds": "seconds", "energy_joules": "joules"}


class Style(TypedDict):
    color: str
    marker: str


def draw(found: Comparison, folder: Path, say: Callable[[str], None]) -> list[Path]:
    try:
        paths = [_costs(found, folder / "cost.png")]
        if len(found["fractions"]) > 1:
            paths.append(_curves(found, folder / "curves.png"))
    except ImportError as error:
        say(f"no pictures: {error}")
        return []
    return paths


def _style(found: Comparison, name: str) -> Style:
    place = [entry["name"] for entry in found["entries"]].index(name)
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}


def _curves(found: Comparison, path: Path) -> Path:
    """Error bars are one standard deviation over seeds."""
    page = figure(7, 4.5)
    axes = page.add_subplot()
    for entry in found["entries"]:
        rows = [(row, mean) for row in found["table"] if row["entry"] == entry["name"] and (mean := row["mean"]) is not None]
        if rows:
            spread = [row["deviation"] or 0.0 for row, _ in rows]
            axes.errorbar(
                [100 * row["fraction"] for row, _ in rows], [mean for _, mean in rows], yerr=spread, label=entry["name"], capsize=3,
                linewidth=1.4, markersize=5, **_style(found, entry["name"]),
            )  # fmt: skip
    axes.set_xscale("log")
    ticks = [100 * fraction for fraction in found["fractions"]]
    axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("share of train, %", color=INK)
    return _finish(page, axes, found, path)


def _costs(found: Comparison, path: Path) -> Path:
    """One panel for each measured cost. The line is the Pareto front."""
    parts = [part for part in AXES if any(row["cost"][part] and row["mean"] is not None for row in found["table"])] or ["seconds"]
    page = figure(1 + 5 * len(parts), 4.5)
    for place, part in enumerate(parts):
        axes = page.add_subplot(1, len(parts), place + 1)
        for entry in found["entries"]:
            rows = [
                (cost, mean, row["fraction"])
                for row in found["table"]
                if row["entry"] == entry["name"] and (mean := row["mean"]) is not None and (cost := row["cost"][part])
            ]
            if rows:
                sizes = [25 + 55 * fraction for _, _, fraction in rows]
                axes.scatter(
                    [cost for cost, _, _ in rows],
                    [mean for _, mean, _ in rows],
                    s=sizes,
                    label=entry["name"],
                    **_style(found, entry["name"]),
                )
        front = found["front"][part]
        axes.plot(
            [p[part] for p in front],
            [p["mean"] for p in front],
            color=GREY,
            linewidth=1.0,
            linestyle=(0, (3, 2)),
            zorder=0,
            drawstyle="steps-post",
        )
        axes.set_xscale("log")
        log_ticks(axes.xaxis)
        axes.set_xlabel(AXES[part], color=INK)
        absent = [e["name"] for e in found["entries"] if not any(r["cost"][part] for r in found["table"] if r["entry"] == e["name"])]
        axes.set_title(f"not measured: {', '.join(absent)}" if absent else "", loc="left", fontsize=8, color=GREY)
        _finish(page, axes, found, None)
    page.tight_layout()
    page.savefig(path)
    return path


def _finish(page: Figure, axes: Axes, found: Comparison, path: Path | None) -> Path:
    axes.set_ylabel(f"{found['metric']}, {found['split']}", color=INK)
    if found["metric"] == "error x100":
        axes.set_yscale("log")
    axes.tick_params(which="both", colors=GREY)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    if path is not None:
        page.tight_layout()
        page.savefig(path)
    return path or Path()
