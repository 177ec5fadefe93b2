"""Maps of who reads whom, each with the signal along both axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokmix.show.plots import COLOURS, GREY, INK, figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
