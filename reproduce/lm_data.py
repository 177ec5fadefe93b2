"""Running text as token ids: from raw text files, or from the compact file that `tokmix papers prepare` made of them.

    tinystories, wikitext2   FOLDER/NAME/{train,valid,test}.txt[.gz]: byte-level BPE trained on train; stories end with <|endoftext|>
    enwik8                   FOLDER/enwik8[.gz]: bytes, 90 / 5 / 5 %; of train the first 32 million, more than the runs here read
    encyclopedia, english    millions of documents, held out by hash (lm_documents.py)
    made-up                  no file at all: sentences drawn from a few words, for --quick and the tests

A compact file, NAME.npz, needs numpy alone: ids of all splits in a row, where each begins, and what was done, as JSON.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduce import lm_documents
from tokmix.core import checks
from tokmix.core.optional import np
from tokmix.data.prepare.documents import cuts
from tokmix.runs.files import replacing

FORMAT = "tokmix-papers-text-1"
VOCAB = {"tinystories": 4096, "wikitext2": 4096, "enwik8": 256, "made-up": 256, **dict.fromkeys(lm_documents.FOLDERS, lm_documents.VOCAB)}
LARGE = 10_000_000  # tokens from which on a file is not compressed: `pack` (reproduce/encoder/data.py) does that better
ENWIK8_TRAIN = 32_000_000  # bytes of train that are kept
NEWLINE = 10  # stands before the first byte of a text of bytes
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Text:
    """splits   token ids, uint16; bytes: of the text they stand for
    before   the id that is read before a split's first token, so that this one is predicted too
    sources  file -> sha256 of it
    """

    name: str
    vocab: int
    before: int
    splits: dict[str, np.ndarray]
    bytes: dict[str, int]
    sources: dict[str, str]
    tokenizer: str


def load(folder: Path | None, name: str) -> Text:
    checks.one_of("text", name, VOCAB)
    if name == "made-up":
        return _made_up()
    if folder is None:
        raise ValueError(f"{name} is read from files: give --data FOLDER or set TOKMIX_DATA")
    compact = folder / f"{name}.npz"
    return read(compact) if compact.is_file() else _raw(folder, name)


def prepare(folder: Path, out: Path, names: Sequence[str]) -> list[Path]:
    """Compact files of these texts, for a machine without the package tokenizers."""
    out.mkdir(parents=True, exist_ok=True)
    return [write(load(folder, name), out / f"{name}.npz") for name in names]


def there(folder: Path) -> list[str]:
    """The texts whose files are in a folder, raw or compact."""
    return [name for name in VOCAB if name != "made-up" and ((folder / f"{name}.npz").is_file() or _has_raw(folder, name))]


def write(text: Text, path: Path) -> Path:
    names = list(text.splits)
    facts = {"format": FORMAT, "name": text.name, "vocab": text.vocab, "before": text.before, "splits": names, "bytes": text.bytes,
             "sources": text.sources, "tokenizer": text.tokenizer}  # fmt: skip
    offsets = np.cumsum([0, *(len(text.splits[name]) for name in names)])
    ids = np.concatenate([text.splits[name] for name in names])
    ids = ids.astype(np.uint8) if text.vocab <= 256 else ids
    save = np.savez if len(ids) >= LARGE else np.savez_compressed
    with replacing(path) as partial, partial.open("wb") as file:
        save(file, ids=ids, offsets=offsets, facts=np.array(json.dumps(facts)))
    return path


@functools.lru_cache(maxsize=4)
def read(path: Path) -> Text:
    try:
        with np.load(path) as file:
            ids, offsets, facts = file["ids"], file["offsets"], json.loads(str(file["facts"]))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is no compact text file: {error}") from None
    if facts.get("format") != FORMAT:
        raise ValueError(f"{path} is no compact text file of this version: its format is {facts.get('format')!r}, not {FORMAT!r}")
    splits = {name: ids[offsets[i] : offsets[i + 1]].astype(np.uint16) for i, name in enumerate(facts["splits"])}
    rest: dict[str, Any] = {key: facts[key] for key in ("name", "vocab", "before", "bytes", "sources", "tokenizer")}
    return Text(splits=splits, **rest)


def _find(folder: Path, stem: str) -> Path | None:
    return next((path for end in ("", ".gz") if (path := folder / f"{stem}{end}").is_file()), None)


def _files(folder: Path, name: str) -> dict[str, Path]:
    """Split -> file; enwik8 is one file."""
    if name == "enwik8":
        found = _find(folder, "enwik8") or _find(folder / "enwik8", "enwik8")
        return {} if found is None else {"all": found}
    return {split: path for split in SPLITS if (path := _find(folder / name, f"{split}.txt")) is not None}


def _has_raw(folder: Path, name: str) -> bool:
    if name in lm_documents.FOLDERS:
        return bool(lm_documents.files(folder, name))
    found = _files(folder, name)
    return "all" in found or {"train", "valid"} <= set(found)


@functools.lru_cache(maxsize=4)
def _raw(folder: Path, name: str) -> Text:
    if not _has_raw(folder, name):
        if name in lm_documents.FOLDERS:
            wanted = ", ".join(lm_documents.FOLDERS[name])
            raise ValueError(f"{folder} has no {name}.npz, and neither it nor TOKMIX_TEXT has folders of text: {wanted}")
        wanted = "enwik8 or enwik8.gz" if name == "enwik8" else f"{name}/train.txt.gz and {name}/valid.txt.gz"
        raise ValueError(f"{folder} has neither {name}.npz nor {wanted}")
    if name in lm_documents.FOLDERS:
        return _documents(name, lm_documents.files(folder, name))
    files = _files(folder, name)
    sources = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files.values()}
    return _enwik8(files["all"], sources) if name == "enwik8" else _words(name, files, sources)


def _content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _enwik8(path: Path, sources: dict[str, str]) -> Text:
    content = np.frombuffer(_content(path), dtype=np.uint8)
    valid, test = len(content) * 90 // 100, len(content) * 95 // 100
    parts = (content[: min(valid, ENWIK8_TRAIN)], content[valid:test], content[test:])
    return _of_bytes("enwik8", dict(zip(SPLITS, parts, strict=True)), sources)


def _of_bytes(name: str, splits: dict[str, np.ndarray], sources: dict[str, str]) -> Text:
    sizes = {split: len(part) for split, part in splits.items()}
    return Text(name, 256, NEWLINE, {split: part.astype(np.uint16) for split, part in splits.items()}, sizes, sources, "bytes")


def _words(name: str, files: dict[str, Path], sources: dict[str, str]) -> Text:
    """Our own byte-level BPE, trained on train."""
    from tokmix.data.prepare.tokenize import Encoder, make_ready, train_tokenizer

    pieces = {split: list(cuts([_content(path).decode("utf-8")])) for split, path in files.items()}
    tokenizer = train_tokenizer("bpe", lambda: (piece.text for piece in pieces["train"]), VOCAB[name])
    end = np.array([make_ready(tokenizer, "lm")["eot"]], dtype=np.uint16)
    encoder, splits = Encoder(tokenizer), {}
    for split, found in pieces.items():
        parts: list[np.ndarray] = []
        for piece, ids in zip(found, encoder.documents([piece.text for piece in found]), strict=True):
            parts += [end] if piece.first and parts else []  # of the document before
            parts.append(ids.astype(np.uint16))
        splits[split] = np.concatenate([*parts, end])
    sizes = {split: sum(len(piece.text.encode()) for piece in found) for split, found in pieces.items()}
    return Text(name, VOCAB[name], int(end[0]), splits, sizes, sources, f"byte-level BPE of {VOCAB[name]}, trained on train")


def _documents(name: str, paths: list[Path]) -> Text:
    splits, sizes, end, told = lm_documents.encoded(paths)
    sources = {f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return Text(name, lm_documents.VOCAB, end, splits, sizes, sources, told)


@functools.cache
def _made_up() -> Text:
    draw = random.Random(0)
    who, does, what = (("a cat", "the dog", "my aunt"), ("sees", "finds", "paints"), ("a tree.", "the sea.", "red boats.", "nothing."))
    lines = [" ".join((draw.choice(who), draw.choice(does), draw.choice(what))) for _ in range(600)]
    content = np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)
    cut = len(content) * 9 // 10
    return _of_bytes(
        "made-up", {"train": content[:cut], "valid": content[cut:]}, {"made-up": hashlib.sha256(content.tobytes()).hexdigest()}
    )
