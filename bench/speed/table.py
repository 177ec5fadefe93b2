"""Rows as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokmix.runs.files import JsonObject
from tokmix.show.text import aligned

Row = JsonObject
Column = tuple[str, Callable[[Row], str]]


def number(value: float | None) -> str:
    """Three significant digits, without powers of ten."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.1e}"


def value(key: str) -> Callable[[Row], str]:
    return lambda row: row[key] if isinstance(row.get(key), str) else number(row.get(key))


def lines(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """Text aligned left, numbers right."""
    cells = [[name for name, _ in columns], *([show(row) for _, show in columns] for row in rows)]
    return aligned(cells, left=[at for at in range(len(columns)) if any(line[at][:1].isalpha() for line in cells[1:])])


def against_attention(rows: Sequence[Row]) -> Callable[[Row], float | None]:
    """How many times faster than the fastest attention of the same kind, way and length in the same run."""
    best: dict[tuple[object, ...], float] = {}
    for row in rows:
        if row["name"].startswith("attention"):
            key = (row["causal"], row.get("way"), row["N"])
            best[key] = min(row["us"], best.get(key, row["us"]))

    def times(row: Row) -> float | None:
        found = best.get((row["causal"], row.get("way"), row["N"]))
        return None if found is None else found / row["us"]

    return times


def ops(rows: Sequence[Row]) -> list[str]:
    times = against_attention(rows)
    columns: list[Column] = [
        ("name", value("name")),
        ("body", value("body")),
        ("way", lambda row: {"forward": "f", "forward+backward": "fb"}[row["way"]]),
        ("N", lambda row: str(row["N"])),
        ("µs", value("us")),
        ("wall/µs", lambda row: number(row["wall_us"] / row["us"])),
        ("TFLOP/s", value("tflops")),
        ("GB/s", value("gbs")),
        ("x floor", value("times_floor")),
        ("MiB", value("peak_mib")),
        ("attention/this", lambda row: number(times(row))),
    ]
    return lines(rows, columns)


def decode(rows: Sequence[Row]) -> list[str]:
    columns: list[Column] = [
        ("name", value("name")),
        ("body", value("body")),
        ("batch", lambda row: str(row["batch"])),
        ("context", lambda row: str(row["N"])),
        ("layers", lambda row: str(row["layers"])),
        ("µs a token and layer", value("us_step")),
        ("wall", value("wall_us_step")),
        ("state bytes of a sequence and layer", value("state_bytes")),
    ]
    return lines(rows, columns)


def models(rows: Sequence[Row]) -> list[str]:
    columns: list[Column] = [
        ("model", value("name")),
        ("by", value("body")),
        ("parameters", lambda row: f"{row['parameters']:,}"),
        ("prompt", lambda row: str(row["N"])),
        ("first token, ms", value("first_token_ms")),
        ("tokens/s", value("tokens_per_s")),
        ("times GPT-2", value("ratio")),
    ]
    return lines(rows, columns)


def train(rows: Sequence[Row]) -> list[str]:
    best: dict[tuple[object, ...], float] = {}
    for row in rows:
        if row["name"].startswith("attention"):
            key = (row["model"], row["N"])
            best[key] = max(row["best_tokens_per_s"], best.get(key, 0.0))

    def times(row: Row) -> float | None:
        found = best.get((row["model"], row["N"]))
        return None if found is None else row["best_tokens_per_s"] / found

    columns: list[Column] = [
        ("model", value("model")),
        ("stack", value("name")),
        ("setting", value("body")),
        ("N", lambda row: str(row["N"])),
        ("parameters", lambda row: f"{row['parameters']:,}"),
        ("tokens/s", value("tokens_per_s")),
        ("in a graph", value("graph_tokens_per_s")),
        ("MiB", value("peak_mib")),
        ("times best attention", lambda row: number(times(row))),
    ]
    return lines(rows, columns)


def train_loop(rows: Sequence[Row]) -> list[str]:
    columns: list[Column] = [
        ("task", value("name")),
        ("stack", value("stack")),
        ("loop", value("body")),
        ("tokens/s", value("tokens_per_s")),
        ("engine/this, median", value("ratio")),
        ("least", value("ratio_least")),
        ("most", value("ratio_most")),
    ]
    return lines(rows, columns)


def user(rows: Sequence[Row]) -> list[str]:
    columns: list[Column] = [
        ("what", value("name")),
        ("device", value("device")),
        ("by", value("body")),
        ("seconds", value("seconds")),
        ("imports", value("import_s")),
        ("rate", value("rate")),
        ("unit", value("unit")),
        ("tokmix/this", value("times")),
        ("figure", lambda row: f"{row['quality']:.4g} {row['measure']}" if "quality" in row else "-"),
    ]
    return lines(rows, columns)
