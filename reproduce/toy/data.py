"""The toy task of shapes (Fleuret 2019; Mai et al. 2023, section 4.7): two triangles and two boxes on a line.

    input   ▁▁▂▅█▅▂▁▁▁▁▂▃▃▂▁▁▁▁████▁▁▁▃▃▃▁▁▁
    target  ▁▁▂▄▅▄▂▁▁▁▁▃▅▅▃▁▁▁▁▅▅▅▅▁▁▁▅▅▅▁▁▁

The target is the same picture with both triangles at their mean height and both boxes at theirs, so a model has to
find out which shapes belong together and carry heights between them, wherever they stand.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core import checks

LENGTH = 100
HEIGHTS = (1.0, 25.0)
WIDTHS = (5.0, 11.0)
CENTRES = (5.5, 94.5)
NOISE = 0.15  # uniform, both ways
APART = 4.0  # the triangles' heights differ by more than that, or there would be little to do
CANDIDATES = 4096  # drawn at a time; a constant, so that a smaller set is the beginning of a larger one


@dataclass(frozen=True)
class Shapes:
    """n sequences, and what they were drawn from: shapes 0 and 1 are the triangles, 2 and 3 the boxes."""

    inputs: Tensor  # [n, 100]
    targets: Tensor  # [n, 100]
    centres: Tensor  # [n, 4]
    heights: Tensor  # [n, 4], those of the input
    widths: Tensor  # [n, 4]

    def __len__(self) -> int:
        return len(self.inputs)

    def covered(self) -> Tensor:
        """[n, 4, 100] bool: where each shape stands."""
        return draw(self.centres, self.heights, self.widths, self.inputs.shape[1]) > 0

    def take(self, which: slice | Tensor) -> Shapes:
        return Shapes(*(field[which] for field in self._fields()))

    def to(self, device: torch.device | str) -> Shapes:
        return Shapes(*(field.to(device) for field in self._fields()))

    def _fields(self) -> tuple[Tensor, ...]:
        return self.inputs, self.targets, self.centres, self.heights, self.widths


def draw(centres: Tensor, heights: Tensor, widths: Tensor, length: int = LENGTH) -> Tensor:
    """Each [n, 4] -> [n, 4, length], every shape on a line of its own, without noise."""
    c, h, w = (field[..., None] for field in (centres, heights, widths))
    away = (torch.arange(length, dtype=centres.dtype, device=centres.device) - c).abs()
    triangles = F.relu(h - F.relu(away - 0.5) * 2 * h / w)
    boxes = torch.where(away < w / 2, h, 0)
    return torch.cat([triangles[:, :2], boxes[:, 2:]], dim=1)


def touching(drawn: Tensor) -> Tensor:
    """[n, 4, 100] -> [n] bool: whether two shapes stand within a window of two positions."""
    here = drawn > 0
    window = here | F.pad(here[..., 1:], (0, 1))
    return (window.sum(1) > 1).any(-1)


def levelled(heights: Tensor) -> Tensor:
    """[n, 4] -> [n, 4]: both triangles at their mean height, both boxes at theirs."""
    return heights.unflatten(1, (2, 2)).mean(-1).repeat_interleave(2, dim=1)


def make(n: int, generator: torch.Generator, length: int = LENGTH, centres: tuple[float, float] = CENTRES) -> Shapes:
    """n sequences; candidates that touch or whose triangles are about as high as each other are thrown away. centres: where the shapes
    may stand."""
    checks.at_least("n", n, 1)
    parts: list[Shapes] = []
    while sum(map(len, parts)) < n:
        parts.append(_some(generator, length, centres))
    fields = zip(*(part._fields() for part in parts), strict=True)
    return Shapes(*(torch.cat(field) for field in fields)).take(slice(n))


def split(train: int, test: int, seed: int) -> tuple[Shapes, Shapes]:
    """A training and a test set. The test set does not depend on the size of the training set."""
    made = (make(n, torch.Generator().manual_seed(2 * seed + part)) for part, n in enumerate((train, test)))
    train_set, test_set = made
    return train_set, test_set


def _some(generator: torch.Generator, length: int, within: tuple[float, float]) -> Shapes:
    """What is left of one round of candidates."""
    centres, heights, widths = (_uniform((CANDIDATES, 4), *bounds, generator) for bounds in (within, HEIGHTS, WIDTHS))
    good = ~touching(draw(centres, heights, widths, length)) & ((heights[:, 0] - heights[:, 1]).abs() > APART)
    centres, heights, widths = centres[good], heights[good], widths[good]
    inputs, targets = (
        picture + _uniform(tuple(picture.shape), -NOISE, NOISE, generator)
        for picture in (draw(centres, h, widths, length).amax(1) for h in (heights, levelled(heights)))
    )
    return Shapes(inputs, targets, centres, heights, widths)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.empty(shape).uniform_(low, high, generator=generator)
