"""Token files for the pretraining experiments, and parts of a folder that are small enough to be carried.

python -m reproduce.encoder.data prepare TEXT TABLES --out DATA [--megabytes N] [--teacher FOLDER]   raw text and tables -> token files
python -m reproduce.encoder.data pack FOLDER --out PARTS [--most 48]              one folder -> files of at most so many MiB
python -m reproduce.encoder.data join PARTS --out FOLDER                          and back; every part is compared with its hash

TEXT holds .txt or .txt.bz2 files whose documents end at <|endoftext|>; TABLES a folder for each table with train, valid and test files, as
in TOKMIX_DATA. DATA gets the folders text and tables/NAME. Documents are held out by a hash, so no document has lines on both sides. All
tables use the text's tokenizer. With --teacher, a sentence encoder, that is the teacher's, and DATA/teacher has its weights in float16.
"""

from __future__ import annotations

import argparse
import bz2
import hashlib
import io
import json
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import transformers

from reproduce.encoder.items import TABLES, TEXT
from reproduce.encoder.stacks import LENGTH, TEACHER, VOCAB
from tokmix.core.checks import printable
from tokmix.data.prepare.pipeline import prepare as prepare_tokens
from tokmix.runs.files import check_free, new_folder
from tokmix.training.distill.teacher import check as check_teacher

INDEX, ENDING = "parts.json", "<|endoftext|>\n"
HELD = 0.005  # of the documents, to choose by, and as many to report on
SETTINGS = {"cola": "classify", "stsb": "regress"}  # where the task should not be guessed


def prepare(
    text: Path, tables: Path, out: Path, megabytes: float | None = None, vocab: int = VOCAB, teacher: Path | None = None
) -> Iterator[str]:
    """Says what each folder holds."""
    words: dict[str, object] = {"vocab": vocab} if teacher is None else {"tokenizer": str(teacher / "tokenizer.json")}
    with new_folder(out) as folder:
        if teacher is not None:
            _write_half(teacher, folder / TEACHER)
        with tempfile.TemporaryDirectory(prefix="tokmix-") as plain:
            files = sorted(path for path in text.rglob("*") if path.name.endswith((".txt", ".txt.bz2")))
            if not files:
                raise ValueError(f"{text} has no .txt or .txt.bz2 file")
            for place, file in enumerate(files):
                share = None if megabytes is None else int(megabytes * 1e6 / len(files))
                (Path(plain) / f"{place:03}-{file.name.removesuffix('.bz2')}").write_text(_documents(file, share), encoding="utf-8")
            yield _told(TEXT, folder / TEXT, Path(plain), task="mlm", valid=HELD, test=HELD, **words)
        (folder / "tables").mkdir()
        for name in TABLES:
            if (tables / name).is_dir():
                task = {"task": SETTINGS[name]} if name in SETTINGS else {}
                tokenizer = str(folder / TEXT / "tokenizer.json")
                yield _told(name, folder / "tables" / name, tables / name, tokenizer=tokenizer, max_len=LENGTH, **task)


def _write_half(teacher: Path, out: Path) -> None:
    """A teacher's folder with weights in float16, which are small enough to be carried."""
    check_teacher(teacher)
    out.mkdir()
    model = transformers.AutoModel.from_pretrained(teacher, local_files_only=True, dtype=torch.float16)
    model.save_pretrained(out)
    shutil.copy(teacher / "tokenizer.json", out)
    if (teacher / "1_Pooling").is_dir():
        shutil.copytree(teacher / "1_Pooling", out / "1_Pooling")


def _documents(file: Path, most: int | None) -> str:
    """The file's text, or as many of its first characters as end with a document."""
    with bz2.open(file, "rt", encoding="utf-8") if file.suffix == ".bz2" else open(file, encoding="utf-8") as source:
        text = source.read() if most is None else source.read(most)
    if most is None or len(text) < most or ENDING not in text:
        return text
    return text[: text.rindex(ENDING) + len(ENDING)]


def _told(name: str, out: Path, source: Path, **settings: object) -> str:
    began = time.monotonic()
    card = prepare_tokens(source, out, progress=False, **settings)
    size = sum(file.stat().st_size for file in out.iterdir())
    tokens = ", ".join(f"{split} {part.rows:,} rows, {part.tokens:,} tokens" for split, part in card.splits.items())
    return f"{name}: {tokens}; {size / 2**20:.1f} MiB in {time.monotonic() - began:.0f} s"


def pack(folder: Path, out: Path, most: float = 48) -> list[Path]:
    """A compressed archive, cut into files."""
    if not folder.is_dir():
        raise ValueError(f"no folder {str(folder)!r}")
    buffer, size = io.BytesIO(), int(most * 2**20)
    with tarfile.open(fileobj=buffer, mode="w:bz2") as archive:
        archive.add(folder, arcname=".", filter=_plain)
    data = buffer.getvalue()
    with new_folder(out) as made:
        hashes = {}
        for place, start in enumerate(range(0, len(data), size)):
            piece, name = data[start : start + size], f"part-{place:03}.bin"
            (made / name).write_bytes(piece)
            hashes[name] = hashlib.sha256(piece).hexdigest()
        (made / INDEX).write_text(json.dumps(hashes, indent=1), encoding="utf-8")
    return sorted(out.glob("part-*.bin"))


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files and folders alone, without owners and times; nothing of a run but its model and its log."""
    if not (entry.isfile() or entry.isdir()) or "checkpoints" in Path(entry.name).parts:
        return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def join(parts: Path, out: Path) -> Path:
    if not (parts / INDEX).is_file():
        raise ValueError(f"{parts} has no {INDEX}: it is no folder that `pack` wrote")
    hashes, data = json.loads((parts / INDEX).read_text(encoding="utf-8")), b""
    check_free(out)
    for name, known in hashes.items():
        if not (parts / name).is_file():
            raise ValueError(f"{parts / name} is missing: {len(hashes)} parts belong together")
        piece = (parts / name).read_bytes()
        if hashlib.sha256(piece).hexdigest() != known:
            raise ValueError(f"{parts / name} is damaged: its content has changed")
        data += piece
    with new_folder(out) as folder, tarfile.open(fileobj=io.BytesIO(data), mode="r:bz2") as archive:
        archive.extractall(folder, filter="data")
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reproduce.encoder.data", description="Token files, and parts to carry.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare", help="raw text and tables -> token files")
    one.add_argument("text", type=Path)
    one.add_argument("tables", type=Path)
    one.add_argument("--megabytes", type=float, help="of the text, taken evenly from its files; default: all")
    one.add_argument("--vocab", type=int, default=VOCAB, help="default: %(default)s")
    one.add_argument("--teacher", type=Path, help="a sentence encoder, whose tokenizer is taken (items states and tune)")
    two = commands.add_parser("pack", help="a folder -> files of a bounded size")
    two.add_argument("folder", type=Path)
    two.add_argument("--most", type=float, default=48, help="MiB of a file (default: %(default)s)")
    three = commands.add_parser("join", help="such files -> the folder")
    three.add_argument("parts", type=Path)
    for command in (one, two, three):
        command.add_argument("--out", type=Path, required=True, help="a new folder")
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "prepare":
            for line in prepare(asked.text, asked.tables, asked.out, asked.megabytes, asked.vocab, asked.teacher):
                print(line, flush=True)
        elif asked.command == "pack":
            for path in pack(asked.folder, asked.out, asked.most):
                print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
        else:
            print(join(asked.parts, asked.out))
    except (ValueError, OSError) as error:
        print(printable(f"data: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
