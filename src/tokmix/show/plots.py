"""Pictures as files. Needs matplotlib, which is imported only when something is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, GREY = "#222222", "#8a8a8a"
PICTURES = (".png", ".svg", ".pdf")
COLOURS = ("#d1495b", "#2e6f95", "#5b8e7d", "#bc8034")


@dataclass(frozen=True)
class Span:
    """Positions start..end (both included) that belong together with all others of the same group."""

    start: int
    end: int
    group: int


@dataclass(frozen=True)
class Map:
    """weights [T, T], reader by read, and the signal before and after."""

    title: str
    weights: Tensor
    note: str = ""
    output: Tensor | None = None


def check_picture(out: str | Path) -> None:
    """Before anything is computed."""
    path = Path(out)
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"--out {str(out)!r}: a picture's name ends in one of {', '.join(PICTURES)}")
    if not path.parent.is_dir():
        raise ValueError(f"--out {str(out)!r}: there is no folder {str(path.parent)!r}")
    if path.exists():
        raise ValueError(f"{path} exists already; nothing is overwritten: name another file, or remove it")


def figure(width: float, height: float) -> Figure:
    """A matplotlib figure that draws to memory and leaves the user's own backend alone."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'tokmix[lab]'") from error
    made = Figure(figsize=(width, height), dpi=150)
    FigureCanvasAgg(made)
    return made


def mixing_maps(
    path: str | Path,
    maps: Sequence[Map],
    signal: Tensor,
    target: Tensor,
    spans: Sequence[Span] = (),
    groups: Sequence[str] = (),
    title: str = "",
) -> Path:
    page = mixing_page(maps, signal, target, spans, groups, title)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    page.savefig(path)
    return path


def mixing_page(
    maps: Sequence[Map], signal: Tensor, target: Tensor, spans: Sequence[Span] = (), groups: Sequence[str] = (), title: str = ""
) -> Figure:
    """One column a map: what the model made of the signal, and who reads whom, with the signal along both axes."""
    page = figure(4.3 * len(maps) + 0.6, 6.4)
    outer = page.add_gridspec(1, len(maps), left=0.05, right=0.985, top=0.86, bottom=0.075, wspace=0.16)
    for column, shown in enumerate(maps):
        inner = outer[column].subgridspec(3, 2, height_ratios=(1.25, 0.5, 3.0), width_ratios=(0.5, 3.0), hspace=0.08, wspace=0.04)
        result, top, side, image = (page.add_subplot(inner[place]) for place in ((0, 1), (1, 1), (2, 0), (2, 1)))
        _result(result, shown, signal, target, spans)
        _strip(top, signal, spans, upright=False)
        _strip(side, signal, spans, upright=True)
        _image(image, shown.weights, spans)
        side.set_ylabel("output token", color=INK)
    _legend(page, groups)
    page.suptitle(title, x=0.05, y=0.985, ha="left", fontsize=13, color=INK)
    return page


def _result(axes: Axes, shown: Map, signal: Tensor, target: Tensor, spans: Sequence[Span]) -> None:
    """Input, target and output, over each other."""
    axes.fill_between(range(len(signal)), signal.tolist(), color=GREY, alpha=0.3, linewidth=0, step="mid")
    axes.plot(target.tolist(), color=INK, linewidth=1.0, linestyle=(0, (3, 2)))
    if shown.output is not None:
        axes.plot(shown.output.tolist(), color=COLOURS[3], linewidth=1.4)
    axes.set_xlim(-0.5, len(signal) - 0.5)
    axes.tick_params(labelbottom=False, bottom=False, colors=GREY, labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{shown.title}\n", loc="left", fontsize=11, color=INK, pad=2)
    axes.text(0, 1.04, shown.note, transform=axes.transAxes, fontsize=8, color=GREY)


def _strip(axes: Axes, signal: Tensor, spans: Sequence[Span], upright: bool) -> None:
    """The signal along an axis of the map, its spans in their groups' colours."""
    colours = [GREY] * len(signal)
    for span in spans:
        colours[span.start : span.end + 1] = [COLOURS[span.group]] * (span.end + 1 - span.start)
    bars = axes.barh if upright else axes.bar
    bars(range(len(signal)), signal.tolist(), 1.0, color=colours, linewidth=0)
    if upright:
        axes.set_ylim(len(signal) - 0.5, -0.5)
        axes.invert_xaxis()
    else:
        axes.set_xlim(-0.5, len(signal) - 0.5)
    axes.tick_params(bottom=False, labelbottom=False, left=upright, labelleft=upright, colors=GREY, labelsize=7)
    axes.spines[:].set_visible(False)


def _image(axes: Axes, weights: Tensor, spans: Sequence[Span]) -> None:
    """Frames show where a shape reads a shape of its own group."""
    from matplotlib.patches import Rectangle

    axes.imshow(weights.tolist(), cmap="Greys", vmin=0, vmax=_bright(weights), aspect="auto", interpolation="nearest")
    for reader in spans:
        for read in spans:
            if reader.group == read.group:
                width, height = read.end - read.start + 1, reader.end - reader.start + 1
                corner = (read.start - 0.5, reader.start - 0.5)
                axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=COLOURS[reader.group], linewidth=1.0))
    axes.tick_params(left=False, labelleft=False, colors=GREY, labelsize=7)
    axes.spines[:].set_color(GREY)
    axes.set_xlabel("input token", color=INK)


def _bright(weights: Tensor) -> float:
    """The value drawn black: a few extreme ones, mostly a token reading itself, would leave the rest white."""
    others = weights[~torch.eye(len(weights), dtype=torch.bool, device=weights.device)]
    return max(float(others.float().quantile(0.995)), 1e-12)


def _legend(page: Figure, groups: Sequence[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [Patch(color=COLOURS[g], label=name) for g, name in enumerate(groups)]
    handles += [
        Patch(color=GREY, alpha=0.3, label="input"),
        Line2D([], [], color=INK, linewidth=1.0, linestyle=(0, (3, 2)), label="target"),
        Line2D([], [], color=COLOURS[3], linewidth=1.4, label="output"),
    ]
    page.legend(handles=handles, loc="upper right", bbox_to_anchor=(0.985, 0.995), ncol=len(handles), frameon=False, fontsize=8)


def log_ticks(axis: Axis) -> None:
    """Few enough to be read, on an axis with a log scale: where it spans less than a decade, matplotlib labels every step."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = axis.get_view_interval()
    spans = high / low if low > 0 else math.inf
    axis.set_major_locator(MaxNLocator(4) if spans < 6 else LogLocator(subs=(1.0, 2.0, 5.0) if spans < 50 else (1.0,), numticks=7))
    digits = 2 + max(1, math.ceil(math.log10(high / (high - low))))  # so many that neighbours differ
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value, digits)))
    axis.set_minor_formatter(NullFormatter())


def short(value: float, digits: int = 3) -> str:
    """3.4e8 -> '340M'."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{digits}g}{letter}"
    return f"{value:.{digits}g}"
