"""Hugging Face data sets: folders written by `save_to_disk`, and names on the hub. The one file that imports `datasets`."""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tokmix.core.optional import need
from tokmix.data.read.files import Part, name_classes, place
from tokmix.data.split import split_of_name

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

PATIENCE = 5.0  # seconds for the hub to answer


class HubSplit(Part):
    unit = "row"

    def __init__(self, name: str, split: str | None, table: Dataset, paths: Sequence[Path] = ()):
        super().__init__(name, split, paths)
        self.table = table

    def fingerprint(self) -> str:
        return str(self.table._fingerprint)

    def columns(self) -> list[str]:
        return list(self.table.column_names)

    def classes(self, column: str) -> list[str] | None:
        return getattr(self.table.features[column], "names", None)

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, list[object]]]:
        names = self.columns()
        for column in columns:
            place(self.name, names, column)
        known = {i: classes for i, column in enumerate(columns) if (classes := self.classes(column))}
        number = 0
        for batch in self.table.select_columns(list(dict.fromkeys(columns))).iter(batch_size=1024):
            for values in zip(*(batch[column] for column in columns), strict=True):
                number += 1
                yield number, name_classes(self.where(number), list(values), known)


def is_saved(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or ((folder / "state.json").is_file() and (folder / "dataset_info.json").is_file())


def saved(folder: Path) -> list[Part]:
    """A folder written by `save_to_disk`."""
    datasets = need("datasets", f"reading the data set folder {folder}")
    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:
        raise ValueError(f"{folder} is a damaged data set folder: {_line(error)}") from None
    return _parts(folder.name, loaded, folder)


def fetched(name: str, subset: str | None) -> list[Part]:
    """A data set of the hub, by its name: hub:NAME. Where the hub does not answer at once, from the cache or not at all."""
    datasets = need("datasets", f"reading the data set {name!r} of the Hugging Face hub")
    try:
        with _quiet(), _offline_unless_reachable():
            loaded = datasets.load_dataset(name, subset)
    except Exception as error:
        raise ValueError(f"the Hugging Face hub gave no data set {name!r}: {_line(error)}") from None
    return _parts(name, loaded, None)


@contextmanager
def _offline_unless_reachable() -> Iterator[None]:
    """The hub's library tries for half a minute. Try once for a short time first; without an answer, set the library offline."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not before[0] and not _reachable(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _reachable(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return True  # it answered
    except OSError:
        return False
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a line for every time the hub did not answer: the last error says it."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _parts(name: str, loaded: Dataset | DatasetDict, folder: Path | None) -> list[Part]:
    tables = dict(loaded) if hasattr(loaded, "keys") else {"": loaded}
    parts: list[Part] = []
    for split, table in tables.items():
        home = None if folder is None else folder / split
        paths = sorted(home.glob("*.arrow")) if home else []
        parts.append(HubSplit(f"{name}[{split}]" if split else name, split_of_name(split) if split else None, table, paths))
    return parts


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
