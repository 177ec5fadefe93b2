"""Numbers and tables as text."""

from __future__ import annotations

from collections.abc import Container, Sequence

UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(value: float, digits: int = 4, gap: str = " ") -> str:
    """A number with this many digits and a unit: 58720000 -> '58.72 M'."""
    for size, unit in UNITS:
        if abs(value) >= size * (1 - 0.5 * 10**-digits):
            return f"{value / size:.{digits}g}{gap}{unit}"
    return f"{value:.{digits}g}"


def aligned(rows: Sequence[Sequence[str]], left: Container[int] = ()) -> list[str]:
    """Lines with columns as wide as their widest cell. left: columns aligned left, all others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ((cell.ljust(w) if at in left else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))) for row in rows)
    return ["  ".join(line).rstrip() for line in cells]
