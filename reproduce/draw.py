"""Figures of results files, as SVG: curves with their spread, points by group. Needs matplotlib, like all pictures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokmix.show.plots import GREY, INK, figure, log_ticks

COLOURS = ("#d1495b", "#2e6f95", "#5b8e7d", "#bc8034", "#7b5ea7", "#0f8b8d", "#c0588f", "#5d6b2f", "#8c564b", "#4a5568")
MARKERS = "osD^vPX*<>"


@dataclass(frozen=True)
class Curve:
    """Points of one name, by x. low and high: the band around y. Curves of one name share a colour, wherever they are; a dashed
    one is what a paper reports."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False
    line: bool = True  # False: points alone


def over_seeds(name: str, points: Mapping[float, Sequence[float]], scale: float = 1.0) -> Curve:
    """x -> the seeds' scores; the band holds all of them. (A standard deviation can reach where no seed is, and no score can be.)"""
    known = sorted((x, [scale * value for value in values]) for x, values in points.items() if len(values))
    scores = [values for _, values in known]
    means = [statistics.fmean(values) for values in scores]
    return Curve(name, [x for x, _ in known], means, [min(values) for values in scores], [max(values) for values in scores])


@dataclass(frozen=True)
class Panel:
    """One pair of axes. ticks: where x is marked, with these numbers; called: points with their names, joined by steps."""

    curves: Sequence[Curve]
    x: str
    y: str
    title: str = ""
    log_x: bool = False
    log_y: bool = False
    ticks: Sequence[float] = ()
    called: Sequence[tuple[float, float, str]] = ()


@dataclass(frozen=True)
class Dots:
    """A group of points for each label: values by name, and their spread."""

    labels: Sequence[str]
    values: Mapping[str, Sequence[float | None]]
    y: str
    spread: Mapping[str, Sequence[float]] = field(default_factory=dict)
    title: str = ""


def panels(path: Path, shown: Sequence[Panel | Dots], title: str = "", columns: int = 3, colours: Sequence[str] = ()) -> Path:
    """All of them on one picture, with one legend. colours: names that take the first colours, in this order, so that two
    pictures agree."""
    known = list(dict.fromkeys([*colours, *(name for one in shown for name in _names(one))]))
    columns = max(1, min(columns, len(shown)))
    rows = -(-len(shown) // columns)
    single = len(shown) == 1
    names = 2.2 * any(isinstance(one, Panel) and one.called for one in shown)  # inches for them beside each panel
    page = figure(7.0 + names if single else 0.4 + (3.9 + names) * columns, 4.6 if single else 0.9 + 3.0 * rows)
    for place, one in enumerate(shown):
        axes = page.add_subplot(rows, columns, place + 1)
        _dots(axes, one, known) if isinstance(one, Dots) else _curves(axes, one, known)
        axes.set_title(one.title, loc="left", fontsize=10, color=INK)
        _plain(axes)
    _legend(page, shown)
    if title:
        page.suptitle(title, x=0.02, ha="left", fontsize=12, color=INK)
    return save(page, path)


def _names(one: Panel | Dots) -> Iterable[str]:
    return one.values if isinstance(one, Dots) else [curve.name for curve in one.curves]


def look(name: str, known: Sequence[str]) -> dict[str, Any]:
    place = list(known).index(name)
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}


def _curves(axes: Any, panel: Panel, known: Sequence[str]) -> None:
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    for curve in panel.curves:
        style = look(curve.name, known)
        label = f"{curve.name}, the paper" if curve.dashed else curve.name
        line = (0, (4, 3)) if curve.dashed else "-" if curve.line else "none"
        fill = {"markerfacecolor": "white"} if curve.dashed else {}
        axes.plot(list(curve.x), list(curve.y), label=label, linestyle=line, linewidth=1.5, markersize=4.5, **style, **fill)
        if curve.low and any(low < high for low, high in zip(curve.low, curve.high, strict=True)):
            least = min(y for y in curve.y if y > 0) / 10 if panel.log_y else None  # a band down to zero has no end on a log axis
            low = [max(value, least) for value in curve.low] if least is not None else list(curve.low)
            axes.fill_between(list(curve.x), low, list(curve.high), color=style["color"], alpha=0.15, linewidth=0)
    for side, log in ((axes.xaxis, panel.log_x), (axes.yaxis, panel.log_y)):
        if log:
            log_ticks(side)
    if not panel.log_x and all(float(x).is_integer() for curve in panel.curves for x in curve.x):
        axes.xaxis.get_major_locator().set_params(integer=True)  # there is no half of a trial
    if panel.ticks:
        axes.set_xticks(list(panel.ticks), labels=[f"{tick:g}" for tick in panel.ticks])
        axes.minorticks_off()
    _call(axes, panel.called)
    axes.set_xlabel(panel.x, color=INK, fontsize=9)
    axes.set_ylabel(panel.y, color=INK, fontsize=9)
    axes.grid(axis="y", color=GREY, alpha=0.2, linewidth=0.7)


def _call(axes: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Numbers at the points and the names beside the axes, where they cannot stand on each other."""
    if not points:
        return
    axes.step([x for x, _, _ in points], [y for _, y, _ in points], where="post", color=GREY, linewidth=0.8, zorder=1)
    for place, (x, y, _) in enumerate(points, start=1):
        axes.annotate(str(place), (x, y), xytext=(-3, -3), textcoords="offset points", ha="right", va="top", fontsize=7, color=INK)
    told = "\n".join(f"{place} {name}" for place, (_, _, name) in enumerate(points, start=1))
    axes.text(1.02, 1.0, told, transform=axes.transAxes, ha="left", va="top", fontsize=6.5, color=INK, linespacing=1.4)


def _dots(axes: Any, dots: Dots, known: Sequence[str]) -> None:
    """Points and not bars: the axis need not start at zero, where accuracies of 70 and 80 would look the same."""
    step = 0.7 / max(1, len(dots.values))
    for place, (name, values) in enumerate(dots.values.items()):
        there = [(i, value) for i, value in enumerate(values) if value is not None]
        wide = dots.spread.get(name)
        axes.errorbar(
            [i + (place - (len(dots.values) - 1) / 2) * step for i, _ in there], [value for _, value in there],
            yerr=[wide[i] for i, _ in there] if wide else None, label=name, linestyle="none", capsize=2, markersize=5,
            linewidth=1.2, **look(name, known),
        )  # fmt: skip
    axes.set_xticks(range(len(dots.labels)), labels=list(dots.labels))
    axes.set_xlim(-0.5, len(dots.labels) - 0.5)
    axes.set_ylabel(dots.y, color=INK, fontsize=9)
    axes.grid(axis="y", color=GREY, alpha=0.2, linewidth=0.7)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=8, which="both")


def _legend(page: Any, shown: Sequence[Panel | Dots]) -> None:
    """One for all panels, below them."""
    found: dict[str, Any] = {}
    for axes in page.axes:
        handles, labels = axes.get_legend_handles_labels()
        found |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in found}
    if len(found) > 1 or (found and len(shown) > 1):
        widest = 0.6 + 0.065 * max(map(len, found))  # inches that an entry takes, about
        columns = max(1, min(len(found), int(page.get_figwidth() / widest)))
        page.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns, frameon=False, fontsize=8, handlelength=3)


def save(page: Any, path: Path, layout: str | None = "constrained") -> Path:
    """The same bytes for the same curves: no date, no random names inside."""
    from matplotlib import rc_context

    page.set_layout_engine(layout)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "tokmix", "svg.fonttype": "path"}):
        page.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path
