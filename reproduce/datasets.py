"""The data sets that items read: whether they are there, and their compact form for a machine without the package tokenizers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from reproduce import lm_data, rows_data
from reproduce.item import PAPERS, Item, items
from tokmix.core import checks

FIELD = {"rows": "data", "bag": "data", "lm": "text"}  # kind of job -> where its spec names what it reads
PREPARE = {
    "rows": rows_data.prepare,
    "bag": rows_data.prepare,
    "lm": lm_data.prepare,
}  # -> what makes compact files: (data, out, names) -> files
MADE_UP = "made-up"  # needs no file


def names(item: Item, quick: bool) -> dict[str, str]:
    """Data set -> kind of the jobs that read it."""
    found = {job.spec[FIELD[job.kind]]: job.kind for job in item.jobs(quick, {}) if job.kind in FIELD}
    found.pop(MADE_UP, None)
    return found


def check(item: Item, quick: bool, data: Path | None) -> None:
    """One line before anything is run, rather than a failure of every job."""
    wanted, who = names(item, quick), f"{item.paper} {item.name}"
    if wanted and data is None:
        raise ValueError(f"{who} reads {', '.join(wanted)}: give the folder that holds them as --data DIR or in TOKMIX_DATA")
    for name in wanted:
        if data is not None and not there(data, name):
            raise ValueError(f"{who} reads {name}, but {data} (--data or TOKMIX_DATA) has neither a folder {name} nor {name}.npz")


def there(data: Path, name: str) -> bool:
    return any((data / f"{name}{end}").exists() for end in ("", ".npz", ".gz")) or name in lm_data.there(data)


def prepare(data: Path, out: Path, asked: Sequence[str], say: Callable[[str], None]) -> list[Path]:
    """Compact files of all data sets that some item reads and that are in `data`, or of those asked for."""
    kinds: dict[str, str] = {}
    for paper in PAPERS:
        for item in items(paper).values():
            kinds |= names(item, False)
    for name in asked:
        checks.one_of("data set of the papers:", name, kinds)
        if not there(data, name):
            raise ValueError(f"{data} (--data or TOKMIX_DATA) has no data set {name}: expected a folder {data / name}")
    chosen = list(dict.fromkeys(asked)) or [name for name in kinds if there(data, name)]
    if not chosen:
        raise ValueError(f"{data} (--data or TOKMIX_DATA) has none of the data sets that items read: {', '.join(kinds)}")
    written: list[Path] = []
    for place, name in enumerate(chosen, 1):
        began = time.monotonic()
        made = PREPARE[kinds[name]](data, out, [name])
        say(f"[{place}/{len(chosen)}] {', '.join(map(str, made))}: {_megabytes(made)} in {time.monotonic() - began:.1f} s")
        written += made
    absent = [name for name in kinds if name not in chosen]
    if absent and not asked:
        say(f"not in {data}: {', '.join(absent)}")
    say(f"{_megabytes(written)} in {out}")
    return written


def _megabytes(files: Sequence[Path]) -> str:
    return f"{sum(path.stat().st_size for path in files) / 1e6:.1f} MB"
