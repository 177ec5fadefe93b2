"""Progress bars on a terminal with `rich`; elsewhere nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

Advance = Callable[[int], None]
_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silent() -> Iterator[None]:
    """Inside, only bars that are requested by name are drawn."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


class Progress:
    def __init__(self, shown: bool | None = None):
        self._bars: Bars | None = None
        if shown or (shown is None and sys.stderr.isatty() and not _silent.get()):
            self._bars = _bars()

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Advance]:
        """A bar that is advanced by the amount done; a count if the total is not known."""
        if self._bars is None:
            yield lambda n: None
            return
        bars = self._bars
        bar = bars.add_task(name, total=total)
        yield lambda n: bars.advance(bar, n)
        task = bars.tasks[bar]
        bars.update(bar, total=max(task.completed, 1), completed=max(task.completed, 1))


def _bars() -> Bars | None:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
    except ImportError:
        return None  # without rich there are no bars
    columns = [
        TextColumn("{task.description:22}"),
        BarColumn(),
        TextColumn("{task.completed:>12,.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    return Bars(*columns, console=Console(stderr=True))
