"""Plots as files. matplotlib is imported only to draw."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from tokmix.show.text import short

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, GREY = "#222222", "#8a8a8a"
PICTURES = (".png", ".svg", ".pdf")
COLOURS = ("#d1495b", "#2e6f95", "#5b8e7d", "#bc8034")


def check_picture(out: str | Path) -> None:
    """Refuse a file name for a plot before anything is computed."""
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


def log_ticks(axis: Axis) -> None:
    """Few readable ticks on a log axis; on less than a decade, matplotlib would label every step."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = axis.get_view_interval()
    spans = high / low if low > 0 else math.inf
    axis.set_major_locator(MaxNLocator(4) if spans < 6 else LogLocator(subs=(1.0, 2.0, 5.0) if spans < 50 else (1.0,), numticks=7))
    digits = 2 + max(1, math.ceil(math.log10(high / (high - low))))  # as many as neighbours need to differ
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value, digits, gap="")))
    axis.set_minor_formatter(NullFormatter())
