"""Files and folders appear whole or not at all; locks are trusted, process numbers are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tokmix.runs import files
from tokmix.runs.files import Damaged, check_seal, new_folder, read_json, remove_partial, replacing, seal, write_json, write_text
from tokmix.runs.locks import RUN_LOCK, owning
from tokmix.runs.records import from_json


def test_a_file_is_synced_before_it_gets_its_name_and_its_folder_after(tmp_path, monkeypatch):
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        done.append("sync " + Path(os.readlink(f"/proc/self/fd/{handle}")).name.split("-")[0])
        sync(handle)

    def replaced(self: Path, target: Path) -> Path:
        done.append(f"rename {target.name}")
        return replace(self, target)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    write_text(tmp_path / "a.json", "x")
    assert done == ["sync .a.json.partial", "rename a.json", f"sync {tmp_path.name.split('-')[0]}"]


def test_every_file_of_a_new_folder_is_synced_before_the_folder_appears(tmp_path, monkeypatch):
    synced: set[str] = set()
    sync = os.fsync

    def note(handle: int) -> None:
        assert not (tmp_path / "out").exists() or Path(os.readlink(f"/proc/self/fd/{handle}")) == tmp_path
        synced.add(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        sync(handle)

    monkeypatch.setattr("os.fsync", note)
    with new_folder(tmp_path / "out") as folder:
        (folder / "inner").mkdir()
        for name in ("weights", "inner/config"):
            (folder / name).write_text("x")  # as a library would, without a sync
    assert {"weights", "config", "inner", tmp_path.name} <= synced


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    write_text(tmp_path / "a", "old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "a") as partial:
        partial.write_text("new")
        raise RuntimeError("no")
    with pytest.raises(OSError, match="no space left for"), replacing(tmp_path / "a") as partial:
        raise OSError(28, "No space left on device")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old"}


def test_a_folder_left_by_a_process_of_our_own_number_is_removed(tmp_path):
    """In a container every process is number 1: what a killed one left must not block the next for ever."""
    left = tmp_path / f".out.partial-{os.getpid()}"
    left.mkdir()
    (left / "half").write_text("x")
    with new_folder(tmp_path / "out") as folder:
        (folder / "whole").write_text("y")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_folders_that_are_being_filled_are_spared(tmp_path):
    with new_folder(tmp_path / "out") as folder:
        (folder / "x").write_text("x")
        remove_partial(tmp_path)
        assert (folder / "x").exists()


def test_what_a_killed_writer_left_of_a_file_is_removed_by_the_next_one(tmp_path):
    """And what a living one writes is spared."""
    (tmp_path / ".[v].npy.partial-00").write_text("half")
    (tmp_path / ".other.npy.partial-00").write_text("half")
    with replacing(tmp_path / "[v].npy") as first, replacing(tmp_path / "[v].npy") as second:
        assert sorted(tmp_path.glob(".*")) == sorted([tmp_path / ".other.npy.partial-00", first, second])
        first.write_text("1")
        second.write_text("2")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"[v].npy": "1", ".other.npy.partial-00": "half"}


def test_no_pipe_is_opened_to_see_whether_it_was_left(tmp_path):
    os.mkfifo(tmp_path / ".a.partial-00")
    (tmp_path / ".a.partial-01").symlink_to("/dev/zero")
    write_text(tmp_path / "a", "x")
    assert (tmp_path / "a").read_text() == "x"
    remove_partial(tmp_path)  # by the owner of the folder: whatever it is
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_json_that_cannot_be_read_is_one_line(tmp_path):
    path = tmp_path / "a.json"
    for content in (b"", b"[1]", b'{"a": NaN}', b"{", b"\xff\xfe", b"\0" * 40, b'{"a": 1e400}', b'{"a": ' * 100_000, b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=r"a\.json is damaged") as caught:
            read_json(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError):
        write_json(path, {"a": float("nan")})


def test_a_record_may_name_a_file_whose_name_is_not_utf_8(tmp_path):
    name = os.fsdecode(b"\xff\xfe.csv")
    write_json(tmp_path / "r.json", seal({"name": name, "other": "é"}), ascii=False)
    known = read_json(tmp_path / "r.json")
    check_seal(known, tmp_path / "r.json")
    assert known["name"] == name and known["other"] == "é" and "é" in (tmp_path / "r.json").read_text()


def test_a_changed_record_does_not_fit_its_checksum(tmp_path):
    sealed = seal({"labels": ["a", "b"], "n": 1})
    check_seal(json.loads(json.dumps(sealed)), tmp_path / "r.json")
    for wrong in ({**sealed, "labels": ["b", "a"]}, {**sealed, "checksum": "0"}, {"labels": ["a", "b"], "n": 1}):
        with pytest.raises(Damaged, match="has changed"):
            check_seal(wrong, tmp_path / "r.json")


@dataclass
class Inner:
    rows: int
    names: list[str]


@dataclass
class Outer:
    parts: dict[str, Inner]
    score: float | None = None


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({}, "has no 'parts'"),
        ({"parts": []}, "no 'parts' that can be read"),
        ({"parts": {"a": {"rows": True, "names": []}}}, "no 'parts.a.rows'"),
        ({"parts": {"a": {"rows": 1, "names": [3]}}}, r"no 'parts.a.names\[0\]'"),
        ({"parts": {}, "score": float("inf")}, "no 'score'"),
        ({"parts": {}, "wings": 2}, "unknown field 'wings'"),
    ],
)
def test_records_are_checked_by_their_types(known, words, tmp_path):
    with pytest.raises(Damaged, match=words):
        from_json(Outer, known, tmp_path / "r.json")
    assert from_json(Outer, {"parts": {"a": {"rows": 1, "names": ["x"]}}}, tmp_path / "r.json") == Outer({"a": Inner(1, ["x"])})


HOLD = """
import sys
from pathlib import Path
from tokmix.runs.locks import owning
with owning(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_has_one_owner_and_the_second_says_who_it_is(tmp_path):
    out = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=rf"run is in use by process {other.pid} on .* since 20"), owning(out):
            pass
        assert (out / RUN_LOCK).exists()
        other.kill()
    with owning(out):  # the lock went with its process; the file it left says nothing
        assert json.loads((out / RUN_LOCK).read_text())["process"] == os.getpid()
    assert list(out.iterdir()) == []


def test_an_owner_may_remove_the_folder(tmp_path):
    with owning(tmp_path / "run"):
        files.shutil.rmtree(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_record_that_is_no_ordinary_file_is_not_read(tmp_path):
    """A pipe would never end, /dev/zero never stop."""
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    for name in ("zero", "pipe", "huge"):
        with pytest.raises(Damaged, match="no file of at most 268,435,456 bytes"):
            read_json(tmp_path / f"{name}.json")
