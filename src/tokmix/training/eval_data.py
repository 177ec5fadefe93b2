"""Data for a trained model: read as it was for training, with the model's own tokenizer, columns and classes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokmix.data.prepare.pipeline import prepare
from tokmix.data.read.files import Delimited, Part, Text, format_of, open_source
from tokmix.data.read.hub import is_saved
from tokmix.data.tokens import TokenFiles, TokenSplit, is_prepared
from tokmix.training.defaults import is_pair
from tokmix.training.model_folder import Trained
from tokmix.training.preflight import check_not_late

# Settings of prepare that say how files are read.
READING = ("format", "pattern", "header", "encoding", "subset", "separator", "sheet", "label_separator", "merge_labels")


def columns_of(trained: Trained) -> dict[str, str]:
    """The columns it was trained on, as settings of prepare."""
    columns = trained.about.columns
    if not columns.text:
        return {}
    known = {"text": ",".join(columns.text), "label": columns.target, "split_column": columns.split}
    return {name: value for name, value in known.items() if value is not None}


def reading_of(trained: Trained, data: str | Path) -> dict[str, Any]:
    """The settings of prepare by which its training data was read, without those that do not apply to this data."""
    noted, path = trained.about.reading, Path(data)
    known = {name: noted[name] for name in READING if noted.get(name) is not None}
    trained_on = {format_of(Path(name)) for name in trained.about.sources}
    if path.is_file() and format_of(path) not in (None, *trained_on):
        known.pop("format", None)  # the file name says another format
    if not path.is_dir() or is_saved(path):
        known.pop("pattern", None)
    if path.exists():
        known.pop("subset", None)
    return known


def table_or_text(trained: Trained, path: Path, encoding: str) -> Part:
    """A file of texts only. Format and column names are those of the training data unless the file has its own."""
    known = {"text": columns_of(trained).get("text", ""), **reading_of(trained, path), "encoding": encoding}
    known["format"] = known.get("format") or format_of(path) or "txt"
    if known.get("header") and _has_header(path, known):
        del known["header"]
    (part,) = _parts(path, known)
    return part


@contextmanager
def token_files(trained: Trained, data: str | Path, settings: Mapping[str, object]) -> Iterator[TokenFiles]:
    """Prepared data directly (it has to fit the model); other data is prepared in a temporary folder."""
    if is_prepared(data):
        check_not_late(data, settings)
        files = TokenFiles(data)
        _check_fits(trained, data, files)
        files.verify()
        yield files
        return
    with tempfile.TemporaryDirectory(prefix="tokmix-") as folder:
        out = Path(folder) / "data"
        known = _settings(trained, data, settings)
        prepare(data, out, **known)
        yield TokenFiles(out)


def _check_fits(trained: Trained, data: str | Path, files: TokenFiles) -> None:
    card = files.card
    if card.tokenizer["sha256"] != trained.about.tokenizer_hash:
        raise ValueError(f"{data} was prepared with another tokenizer than {trained.folder}: give the data itself, or prepare it anew")
    if card.stream != trained.about.stream or trained.task not in (card.task, "mlm"):  # mlm reads rows or text of any task
        raise ValueError(f"{data} was prepared for {card.task}, and {trained.folder} is a model for {trained.task}")
    if is_pair(card) != trained.pair:
        one, other = ("pairs of texts", "single texts") if trained.pair else ("single texts", "pairs of texts")
        raise ValueError(f"{trained.folder} is a model of {one}, and {data} holds {other}")
    if trained.labels and card.labels != trained.labels:
        raise ValueError(f"{data} has the classes {', '.join(card.labels)}, but the model {', '.join(trained.labels)}")


def _settings(trained: Trained, data: str | Path, settings: Mapping[str, object]) -> dict[str, Any]:
    task = "lm" if trained.task == "mlm" and trained.about.stream else trained.task
    known = reading_of(trained, data) | columns_of(trained)
    known |= {"task": task, "tokenizer": str(trained.folder / "tokenizer.json"), **settings}
    if not trained.about.stream:
        known.setdefault("max_len", trained.model.config.max_len)
    if trained.labels:
        known["labels"] = trained.labels
    if "header" not in settings and "header" in known and _has_header(data, known):
        del known["header"]
    parts = _parts(data, known)
    for name in [name for name in known if name not in settings and _is_idle(name, known, parts)]:
        del known[name]
    if not has_splits(parts, known.get("split_column")):
        known["into"] = only_split(parts) or "test"
    return known


def _has_header(data: str | Path, known: dict[str, Any]) -> bool:
    """Whether the first line names the columns, although the training data had no such line."""
    part = _parts(data, known | {"header": None})[0]
    return isinstance(part, Delimited) and set(known.get("text", "").split(",")) <= set(part.columns())


def _is_idle(name: str, known: Mapping[str, object], parts: list[Part]) -> bool:
    """Whether this setting of the training data does not apply here."""
    if name in ("text", "label", "split_column") and isinstance(parts[0], Text):
        return True  # plain text has no columns
    if name == "split_column":
        return not all(known[name] in part.columns() for part in parts)
    if name == "sheet":
        return not hasattr(parts[0], "sheet")
    return name in ("header", "separator") and not any(isinstance(part, Delimited) for part in parts)


def _parts(data: str | Path, known: dict[str, Any]) -> list[Part]:
    header = [name.strip() for name in known["header"].split(",")] if known.get("header") else None
    return open_source(
        data, format=known.get("format"), pattern=known.get("pattern"), header=header, encoding=known.get("encoding", "utf-8"),
        subset=known.get("subset"), task=known.get("task"), separator=known.get("separator"), sheet=known.get("sheet"),
    )  # fmt: skip


def has_splits(parts: list[Part], column: str | None) -> bool:
    """Whether file names or a column give splits. Evaluation data need not have train."""
    if len({part.split for part in parts} - {None}) > 1:
        return True
    return not isinstance(parts[0], Text) and (column or "split") in {name if column else name.lower() for name in parts[0].columns()}


def only_split(parts: list[Part]) -> str | None:
    """The split that the names of all files say."""
    names = {part.split for part in parts}
    return names.pop() if len(names) == 1 else None


def choose_split(files: TokenFiles, asked: str | None) -> TokenSplit:
    """The given split, else the only one, else test, else valid."""
    if asked is not None:
        files.card.split(asked)
        return files[asked]
    order = [name for name in ("test", "valid", "train") if name in files]
    return files[order[0]]


def data_beside(trained: Trained) -> TokenFiles | None:
    """The data that a model was trained on, if it is next to the model folder and has the model's tokenizer."""
    for place in (trained.folder, *trained.folder.resolve().parents[:3]):  # a run, or one of several of a comparison or search
        if is_prepared(place / "data"):
            files = TokenFiles(place / "data")
            return files if files.card.tokenizer["sha256"] == trained.about.tokenizer_hash else None
    return None
