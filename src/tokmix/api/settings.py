"""Settings as keyword arguments: the names of the command line, without dashes."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tokmix.core.checks import nearest

if TYPE_CHECKING:
    from tokmix.training.settings import Settings

SHORT = {name: f"train.{name}" for name in ("seed", "minutes", "epochs", "pretrain", "start")} | {
    "stack": "model.stack",
    "objective": "train.task",
    "test": "prepare.test_file",
}
WARM_UP = 30  # epochs of pretrain=True


def settings_of(config: str | Path | None, given: Mapping[str, object]) -> Settings:
    """given: {"minutes": 1, "model.dim": 64}, short names and full ones."""
    from tokmix.training.settings import Settings

    if config is not None and not isinstance(config, (str, Path)):
        raise ValueError(f"config is of type {type(config).__name__}, not a file or the name of a recipe; settings are keyword arguments")
    return Settings.of(config, full_names(given))


def full_names(given: Mapping[str, object]) -> dict[str, object]:
    from dataclasses import fields

    from tokmix.training.settings import GROUPS

    every = [f"{group}.{one.name}" for group, settings in GROUPS.items() for one in fields(settings)]
    found: dict[str, object] = {}
    named = given.get("settings", {})  # settings={"model.dim": 64}
    if not isinstance(named, Mapping):
        raise ValueError(f"settings is of type {type(named).__name__}, not a dictionary such as {{'model.dim': 64}}")
    for name, value in [*((one, value) for one, value in given.items() if one != "settings"), *named.items()]:
        full = SHORT.get(name, name)
        if full not in every:
            ends = [one for one in every if one.endswith(f".{name}")]
            hint = f', did you mean settings={{"{ends[0]}": {value!r}}}?' if ends else nearest(name, [*SHORT, *every])
            raise ValueError(f"unknown setting {name!r}{hint}")
        if full in found:
            raise ValueError(f"{full} is given twice, as {name!r} too")
        found[full] = value
    if found.get("train.pretrain") is True:
        found["train.pretrain"] = WARM_UP
    elif found.get("train.pretrain") is False:
        found["train.pretrain"] = 0
    return found


@contextmanager
def printing(verbose: bool) -> Iterator[Callable[[str], None]]:
    """A function that prints lines if verbose; otherwise it drops them, and no progress bars are drawn."""
    from tokmix.show.progress import silent

    if verbose:
        yield print
        return
    with silent():
        yield lambda line: None


class Kept:
    """A temporary folder that is removed with this object. (TemporaryDirectory would warn that it was not closed.)"""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="tokmix-")
        weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)


def as_folder(name: str, given: object) -> Path:
    """The path in an argument, which may be anything."""
    if not isinstance(given, (str, Path)):
        hint = "; texts and labels are one argument, (texts, labels)" if isinstance(given, Iterable) else ""
        raise ValueError(f"{name} is of type {type(given).__name__}, not a path{hint}")
    if not str(given).strip():
        raise ValueError(f"{name}={str(given)!r} names no folder")
    return Path(given)


def output_folder(out: str | Path | None) -> tuple[Path, Kept | None]:
    """The given folder; else a temporary folder, which is removed with the second value."""
    if out is not None:
        return as_folder("out", out), None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("several processes need one folder: name it with out=")
    kept = Kept()
    return Path(kept.name) / "run", kept
