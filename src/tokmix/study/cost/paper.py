"""The HyperMixer paper's cost formulas (Mai et al. 2023, appendix on FLOPs), as printed and as corrected.

N tokens, width d, hidden size d', h heads; a product (N x d)(d x M) is 2 d N M, GELU 9 and softmax 3 an element.

    HyperMixing, tied   d (4 N d' + 9 d') + N (2 d² + 2 d d' + 9 d)         as printed, and right for the textbook form
    attention, printed  6 h (d/h)² + 2 h (d/h) N² + 3 N + 2 d N²            projections lack N and the full width, the output
                                                                            projection is missing, softmax is taken once a token
    attention, right    8 N d² + 4 d N² + 4 h N²                            a score costs 3 for the softmax and 1 for its scale

Figure 2 draws the printed formulas over 1e7; its axis is off by ten.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokmix.core.checks import at_least
from tokmix.core.mixer import GELU, SOFTMAX
from tokmix.study.cost.crossing import crossing

FIGURE_2 = (64, 125, 250, 500, 1000, 2000, 4000)
UNIT = 10**7  # of Figure 2's points
FARTHEST = 16_384


@dataclass(frozen=True)
class Sizes:
    dim: int = 256
    hidden: int = 512
    heads: int = 4

    def __post_init__(self) -> None:
        for name in ("dim", "hidden", "heads"):
            at_least(name, getattr(self, name), 1)
        if self.dim % self.heads:
            raise ValueError(f"heads={self.heads} does not divide dim={self.dim}")


def hypermixing(length: int, sizes: Sizes) -> int:
    d, hidden = sizes.dim, sizes.hidden
    return d * (4 * length * hidden + GELU * hidden) + length * (2 * d * d + 2 * d * hidden + GELU * d)


def attention_printed(length: int, sizes: Sizes) -> int:
    d, heads = sizes.dim, sizes.heads
    e = d // heads
    return 6 * heads * e**2 + 2 * heads * e * length**2 + SOFTMAX * length + 2 * d * length**2


def attention_corrected(length: int, sizes: Sizes) -> int:
    d, heads = sizes.dim, sizes.heads
    return 8 * length * d * d + 4 * d * length**2 + (SOFTMAX + 1) * heads * length**2


def crossings(sizes: Sizes) -> dict[str, int | None]:
    """The smallest length from which HyperMixing costs less than attention, by either formula; None: not up to FARTHEST."""
    found: dict[str, int | None] = {}
    for name, attention in (("printed", attention_printed), ("corrected", attention_corrected)):
        met = crossing(lambda n: hypermixing(n, sizes), lambda n, of=attention: of(n, sizes), FARTHEST)  # type: ignore[misc]
        found[name] = met.start if met.winner == "a" else None
    return found


@dataclass(frozen=True)
class PaperTable:
    """Each formula at the lengths of Figure 2, in FLOPs and as the figure draws them."""

    dim: int
    hidden: int
    heads: int
    lengths: list[int]
    flops: dict[str, list[int]]  # of each formula, by length
    figure_2: dict[str, list[float]]
    hypermixing_costs_less_from: dict[str, int | None]


def table(sizes: Sizes, lengths: tuple[int, ...] = FIGURE_2) -> PaperTable:
    formulas = {"hypermixing": hypermixing, "attention_printed": attention_printed, "attention_corrected": attention_corrected}
    flops = {name: [formula(n, sizes) for n in lengths] for name, formula in formulas.items()}
    figure_2 = {name: [value / UNIT for value in flops[name]] for name in ("hypermixing", "attention_printed")}
    return PaperTable(sizes.dim, sizes.hidden, sizes.heads, list(lengths), flops, figure_2, crossings(sizes))
