"""Files that appear complete or not at all, and stay so through a kill, a full disk or a power cut.

Every write goes to a hidden name next to its target, is flushed to the disk, and is renamed; then the folder is flushed too:

    .NAME.partial-RANDOM  --fsync-->  NAME  --fsync of the folder-->  done

A folder is filled in the same way, under a lock that the system lets go when the process ends. What a killed process left behind is
told by its free lock, never by a process number: in a container every process has the same one.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokmix.runs.locks import Held, lock_path

JsonObject = dict[str, Any]  # its values are what its file says: whoever reads one knows its keys, or asks for their types
PARTIAL = ".partial"
MOST_JSON = 2**28  # bytes of a record that are read
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Damaged(ValueError):
    """A file that is not what was written."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to. At the end its content is flushed to the disk and takes the name `path`, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_partial(path.parent, path.name)
    partial, lock = _locked(path, Path.touch)
    try:
        yield partial
        sync_file(partial)
        partial.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if out_of_space(error):
            raise OSError(errno.ENOSPC, f"no space left for {path}; what was saved before is untouched") from None
        raise
    finally:
        if lock is not None:
            lock.release()


def write_text(path: Path, text: str) -> None:
    # Names of files that are not UTF-8 have lone surrogates, which JSON spells as Python does.
    with replacing(path) as partial, open(partial, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def write_json(path: Path, content: object, *, ascii: bool = True) -> None:
    """ValueError for NaN and infinities, which are not JSON."""
    write_text(path, dump_json(content, ascii=ascii))


def dump_json(content: object, *, ascii: bool = True) -> str:
    return json.dumps(content, indent=1, ensure_ascii=ascii, allow_nan=False) + "\n"


def read_json(path: Path) -> JsonObject:
    """An object. Damaged, naming the file, for anything else: also for NaN, 1e400, what is nested too deeply to be read, and what is no
    ordinary file, such as a pipe, from which nothing may ever come."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_JSON:
        raise Damaged(f"{path} is damaged: {path.name} is no file of at most {MOST_JSON:,} bytes")
    try:
        known = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant, parse_float=_finite_float)
    except RecursionError:
        raise Damaged(f"{path} is damaged: {path.name} is not JSON that can be read (it is nested too deeply)") from None
    except ValueError as error:
        raise Damaged(f"{path} is damaged: {path.name} is not JSON ({error})") from None
    if not isinstance(known, dict):
        raise Damaged(f"{path} is damaged: {path.name} does not hold an object")
    return known


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _finite_float(word: str) -> float:
    if not math.isfinite(value := float(word)):
        raise ValueError(f"{word[:20]} is too large a number")
    return value


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder that appears under its name complete or not at all: it is filled next to `out` and renamed at the end."""
    check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    remove_partial(out.parent, out.name)
    partial, lock = _locked(out, Path.mkdir)
    try:
        yield partial
        sync_tree(partial)
        check_free(out)
        partial.rename(out)
        sync_folder(out.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if out_of_space(error):
            raise OSError(errno.ENOSPC, f"no space left for {out}; what was written of it has been removed") from None
        raise
    finally:
        if lock is not None:
            lock.release()


def _locked(out: Path, make: Callable[[Path], None]) -> tuple[Path, Held | None]:
    """A new file or folder and its lock. Another process may take one without a lock for abandoned and remove it: then the next one."""
    while True:
        partial = _partial(out)
        make(partial)
        try:
            if (lock := lock_path(partial)) is not None:
                return partial, lock
        except OSError:  # a file system without locks: what a kill leaves there stays
            return partial, None


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}{PARTIAL}-{secrets.token_hex(6)}")


def remove_partial(folder: Path, name: str = "*") -> None:
    """What killed processes left of files and folders called `name`. Those that a living process fills are spared by their lock. The
    library that writes tensors swaps the file under its lock: call this with name="*" only where a lock of the whole folder is held."""
    for partial in folder.glob(f".{name if name == '*' else glob.escape(name)}{PARTIAL}-*"):
        if name == "*" and (partial.is_symlink() or not partial.is_dir()):
            partial.unlink(missing_ok=True)
        elif not partial.is_symlink() and (partial.is_dir() or partial.is_file()):
            with contextlib.suppress(OSError):
                if (lock := lock_path(partial)) is not None:
                    shutil.rmtree(partial, ignore_errors=True) if partial.is_dir() else partial.unlink(missing_ok=True)
                    lock.release()


def remove_folder(out: Path) -> None:
    """A run that is given up. Where that is interrupted, what is left can be resumed: folders get a hidden name before they are emptied,
    and records go last."""
    for path in sorted(out.iterdir()):
        if path.is_dir() and not path.is_symlink():
            hidden = _partial(path)
            path.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)


def check_free(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise ValueError(f"{out} exists already; nothing is overwritten: name another folder, or remove it")
    for above in out.parents:
        if above.exists():
            if not above.is_dir():
                raise ValueError(f"{out} cannot be made: {above} is a file")
            return


def out_of_space(error: BaseException) -> bool:
    """Also where a library says it in words of its own."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    return any(os.strerror(number) in str(error) for number in FULL)


def sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # pragma: no cover - not a Unix
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Every file and folder in it: a rename must not overtake the content of what it names."""
    for place, _, files in os.walk(folder):
        for name in files:
            sync_file(Path(place) / name)
        sync_folder(Path(place))


def sha256_file(path: Path, advance: Callable[[int], None] = lambda n: None) -> tuple[int, str]:
    """(bytes, SHA-256 of the content)"""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while data := file.read(2**20):
            digest.update(data)
            size += len(data)
            advance(len(data))
    return size, digest.hexdigest()


def sha256_together(paths: Iterable[Path]) -> str:
    """One hash of the names and contents of some files."""
    return hashlib.sha256(json.dumps([(path.name, sha256_file(path)[1]) for path in sorted(paths)]).encode()).hexdigest()


def check_files(folder: Path, record: Mapping[str, object], name: str, only: Sequence[str] | None = None) -> int:
    """Compare files of a folder (None: all) with the hashes in the record called `name`, and the record with its own -> files compared."""
    known = record.get("files")
    if not isinstance(known, dict):
        raise Damaged(f"{folder} is damaged: {name} has no 'files'")
    chosen = list(known if only is None else only)
    for one in chosen:
        if Path(one).name != one or not (folder / one).is_file():
            raise Damaged(f"{folder} is damaged: {one} is missing")
        if sha256_file(folder / one)[1] != known.get(one):
            raise Damaged(f"{folder / one} is damaged: the content of {one} has changed")
    check_seal(record, folder / name)
    return len(chosen) + 1


def finite(content: Any) -> Any:
    """With None where a number is NaN or infinite, which JSON does not know."""
    if isinstance(content, dict):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def seal(content: Mapping[str, object]) -> dict[str, object]:
    """With a checksum of the rest, so that a changed record is told from the one that was written."""
    return {**content, "checksum": _checksum(content)}


def check_seal(content: Mapping[str, object], path: Path) -> None:
    if content.get("checksum") != _checksum({name: value for name, value in content.items() if name != "checksum"}):
        raise Damaged(f"{path} is damaged: the content of {path.name} has changed")


def _checksum(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
