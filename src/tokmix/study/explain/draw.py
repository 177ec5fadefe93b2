"""Maps of which token reads which, with tokens on the axes: as a plot, and as characters in a terminal."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokmix.runs.files import replacing
from tokmix.study.explain.run import Explained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADES = " ·░▒▓█"
WIDEST = 64  # tokens of a map in a terminal
LABELS = 80  # up to this many tokens, each is named on the axes of a plot
LETTERS = 14  # characters of a token on an axis


def in_terminal(found: Explained) -> str:
    """Print each map in shades: reading tokens as rows, tokens read as columns. For a long text, only the strongest pairs."""
    lines = []
    for one in found.maps:
        lines += [
            one.title,
            *(_shaded(one.weights, found.tokens) if len(found.tokens) <= WIDEST else ()),
            *_strongest(one.weights, found.tokens),
            "",
        ]
    return "\n".join(lines).rstrip()


def _shaded(weights: Tensor, tokens: list[str]) -> list[str]:
    names = [short(token) for token in tokens]
    width = max(map(len, names))
    top = brightest(weights)
    lines = []
    for name, row in zip(names, weights.tolist(), strict=True):
        cells = (SHADES[min(len(SHADES) - 1, int(value / top * len(SHADES)))] for value in row)
        lines.append(f"{name:>{width}} |" + "".join(cell * 2 for cell in cells) + "|")
    return lines


def _strongest(weights: Tensor, tokens: list[str], count: int = 3) -> list[str]:
    """The pairs of different tokens with the largest weights."""
    others = weights.clone().fill_diagonal_(0)
    values, places = others.flatten().topk(min(count, others.numel()))
    pairs = [(float(value), divmod(int(place), len(tokens))) for value, place in zip(values, places, strict=True) if value > 0]
    if not pairs:
        return ["no token reads another"]
    return [f"{short(tokens[i])} (token {i + 1}) reads {short(tokens[j])} (token {j + 1}): {value:.4g}" for value, (i, j) in pairs]


def short(token: str) -> str:
    return token if len(token) <= LETTERS else token[: LETTERS - 1] + "…"


def brightest(weights: Tensor) -> float:
    """The value drawn darkest. Extreme values, mostly of tokens that read themselves, are clipped so that the rest is visible."""
    others = weights[~torch.eye(len(weights), dtype=torch.bool, device=weights.device)]
    top = float(others.float().quantile(0.99)) if others.numel() else 0.0
    return top if top > 0 else max(float(weights.max()), 1e-12)


def picture(out: str | Path, found: Explained, heads: bool = False) -> Path:
    """One panel for each map, tokens on both axes. heads: also one for each head of true attention."""
    from tokmix.show.plots import figure

    panels = []
    for one in found.maps:
        panels.append((one.title + (", mean of heads" if one.heads is not None and len(one.heads) > 1 else ""), one.weights))
        if heads and one.heads is not None and len(one.heads) > 1:
            panels += [(f"{one.title}, head {place}", head) for place, head in enumerate(one.heads, 1)]
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    side = min(9.0, max(3.2, 1.4 + 0.17 * min(len(found.tokens), LABELS)))
    page = figure((side + 0.9) * columns, (side + 0.8) * rows)
    for place, (title, weights) in enumerate(panels, 1):
        _panel(page.add_subplot(rows, columns, place), title, weights, found.tokens)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a script that the font lacks shows as boxes
        page.tight_layout()
        _save(page, Path(out))
    return Path(out)


def _save(page: Figure, path: Path) -> None:
    """Write the whole picture or nothing."""
    with replacing(path) as partial:
        page.savefig(partial, format=path.suffix[1:].lower())


def _panel(axes: Axes, title: str, weights: Tensor, tokens: list[str]) -> None:
    from tokmix.show.plots import GREY, INK

    axes.imshow(weights.tolist(), cmap="Blues", vmin=0, vmax=brightest(weights), interpolation="nearest")
    axes.set_title(_folded(title), loc="left", fontsize=8, color=INK, parse_math=False)
    if len(tokens) <= LABELS:
        names = [short(token) for token in tokens]
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=6, parse_math=False)
        axes.set_yticks(range(len(names)), names, fontsize=6, parse_math=False)
    axes.set_xlabel("read", fontsize=7, color=GREY)
    axes.set_ylabel("reader", fontsize=7, color=GREY)
    axes.tick_params(length=0, colors=INK, labelsize=6)
    axes.spines[:].set_color(GREY)


def _folded(title: str) -> str:
    return title.replace(" (", "\n(", 1)
