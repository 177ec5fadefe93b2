"""The maps of Figure 5 as pictures: for a test sequence, each model's output and who reads whom, with the signal along both axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from reproduce import draw
from reproduce.shapes import unsqueezed
from reproduce.toy import pictures as plots

AREAS = {"model": "|d output / d input| of the whole model", "mixer": "norm of the Jacobian block of the mixer alone"}


def draw_maps(sequences: Sequence[Mapping[str, Any]], titles: Mapping[str, str], folder: Path) -> list[Path]:
    """Of the whole model for every sequence, of the mixer alone for the first. sequences: what a job of kind "shapes" has drawn."""
    wanted = [(one, "model", place, f"figure5-maps-{place}.svg") for place, one in enumerate(sequences, 1)]
    wanted += [(one, "mixer", 1, "figure5-mixers.svg") for one in sequences[:1]]
    return [_draw(one, area, place, titles, folder / name) for one, area, place, name in wanted]


def _draw(one: Mapping[str, Any], area: str, place: int, titles: Mapping[str, str], path: Path) -> Path:
    page = plots.mixing_page(
        [
            plots.Map(titles[model], unsqueezed(found[area]).abs(), AREAS[area], signal(found["output"]))
            for model, found in one["models"].items()
        ],
        signal(one["input"]),
        signal(one["target"]),
        [plots.Span(shape["start"], shape["end"], shape["kind"]) for shape in one["shapes"]],
        ("triangles", "boxes"),
        f"Who reads whom: test sequence {place}",
    )
    return draw.save(page, path, layout=None)


def signal(numbers: str) -> torch.Tensor:
    return torch.tensor([float(number) for number in numbers.split()])
