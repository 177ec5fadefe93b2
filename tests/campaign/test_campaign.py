"""The campaign finds what it is to find: programs with a fault come out wrong, and the same without it holds.

They write a folder as a command does, within milliseconds. The faults are those of a product that forgot something.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

pytest.importorskip("optuna")
pytest.importorskip("transformers")

from tests.campaign import trials
from tests.campaign.__main__ import Results
from tests.campaign.children import Tally, start, verdict
from tests.campaign.faults import count_operations
from tests.campaign.programs import Program, tree
from tests.campaign.trials import References, Trials
from tokmix.runs.files import new_folder, remove_partial, sync_file, write_text
from tokmix.runs.locks import owning

TEXT = "right " * 500


def well(out: Path) -> None:
    with owning(out):
        remove_partial(out)
        if not (out / "made").exists():
            time.sleep(0.02)
            with new_folder(out / "made") as folder:
                write_text(folder / "text", TEXT)


def without_sync(out: Path) -> None:
    """The folder has its name, and what is in it is not on the disk."""
    if not (out / "made").exists():
        (out / "half").mkdir(parents=True)
        (out / "half" / "text").write_text(TEXT)
        (out / "half").rename(out / "made")


def without_sync_of_the_folder(out: Path) -> None:
    out.mkdir(exist_ok=True)
    if not (out / "text").exists():
        (out / "new").write_text(TEXT)
        sync_file(out / "new")
        (out / "new").rename(out / "text")


def in_place(out: Path) -> None:
    """A kill in the middle leaves a half that passes for the whole."""
    out.mkdir(exist_ok=True)
    if not (out / "text").exists():
        with open(out / "text", "w") as file:
            file.write(TEXT[:1000])
            file.flush()
            sync_file(out / "text")
            time.sleep(0.02)
            file.write(TEXT[1000:])


def without_a_lock(out: Path) -> None:
    """Of two, the second takes what the first writes for abandoned."""
    if not (out / "made").exists():
        remove_partial(out)
        (out / ".made.partial-0").mkdir(parents=True)
        time.sleep(0.05)
        write_text(out / ".made.partial-0" / "text", TEXT)
        (out / ".made.partial-0").rename(out / "made")


def with_a_thread_that_breaks(out: Path) -> None:
    def fail() -> None:
        raise RuntimeError("nobody looks")

    threading.excepthook = threading.__excepthook__  # pytest has one of its own
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    well(out)


def with_a_part_left(out: Path) -> None:
    well(out)
    (out / ".text.partial-0").write_text("half")


class Fake(Program):
    """A program that is a function."""

    def run(self, out: Path, rank: int = 0, port: int = 0, more: tuple[str, ...] = ()) -> int:
        try:
            cast(Callable[[Path], None], self.command)(out)
        except (ValueError, OSError) as error:
            print(f"tokmix fake: {error}", file=sys.stderr)
            return 1
        return 0


def counted(part: str, act: Callable[[Path], None], folder: Path, count: int) -> Tally:
    program, whole = Fake("fake", cast(Callable[[Path], list[str]], act), tree), folder / "whole"
    child = start(folder / "e", lambda: (count_operations(folder / "count"), program.run(whole))[1])
    assert child.wait(20) == 0, child.said()
    (whole / ".text.partial-0").unlink(missing_ok=True)
    operations = {"fake": int((folder / "count").read_text())}
    of = SimpleNamespace(programs=[program], all=[program], whole={"fake": whole}, seconds={"fake": 0.1}, operations=operations)
    (folder / "trials").mkdir()
    (tally,) = getattr(Trials(folder / "trials", cast(References, of), random.Random(8)), part)(count)
    assert tally.tried == count
    return tally


@pytest.mark.parametrize("part", ["kills", "operations", "disks", "cuts", "pairs"])
def test_a_program_without_a_fault_holds(part, tmp_path):
    tally = counted(part, well, tmp_path, 12)
    assert tally.wrong == 0, tally.notes


@pytest.mark.parametrize(
    ("part", "act"),
    [
        ("cuts", without_sync), ("cuts", without_sync_of_the_folder), ("cuts", in_place), ("operations", in_place), ("kills", in_place),
        ("pairs", without_a_lock), ("operations", with_a_thread_that_breaks), ("operations", with_a_part_left), ("cuts", with_a_part_left),
    ],
)  # fmt: skip
def test_a_fault_is_found(part, act, tmp_path):
    assert counted(part, act, tmp_path, 25).wrong > 0


def test_a_hang_a_traceback_and_an_error_that_nobody_expected_are_wrong(tmp_path):
    child = start(tmp_path / "e", lambda: time.sleep(60) or 0)
    assert child.wait(0.3) == -99 and verdict(-99, "", True) == "wrong"
    assert verdict(1, "tokmix train: no such file\n", True) == "clean"
    assert verdict(1, "tokmix train: KeyError: 'x' (unexpected error; add --debug to see the traceback)\n", True) == "wrong"
    assert verdict(1, "Traceback (most recent call last):\ntokmix train: no\n", True) == "wrong"
    assert verdict(0, "Traceback (most recent call last):\n", True) == verdict(0, "", False) == verdict(-6, "tokmix a: b", True) == "wrong"


def test_what_a_command_leaves_is_looked_at(tmp_path):
    (tmp_path / "out").mkdir()
    assert trials.unsound(tmp_path / "out") == []
    (tmp_path / "out" / "study.json").write_text("{")
    (tmp_path / "out" / ".tmpAb12").write_text("x")
    (tmp_path / ".out.partial-00").mkdir()
    assert len(trials.unsound(tmp_path / "out")) == 3


def test_counts_of_a_part_that_is_tried_more_often_are_made_anew(tmp_path):
    path = tmp_path / "last.json"
    results = Results(path, {"seed": 1, "counts": {"kills": 10, "cuts": 10}})
    results.add("kills", 0, "abc", 1.0, [{"name": "k", "part": "kills", "tried": 10, "held": 10, "clean": 0, "wrong": 0}])
    results.add("cuts", 0, "abc", 1.0, [{"name": "c", "part": "cuts", "tried": 10, "held": 10, "clean": 0, "wrong": 0}])
    again = Results(path, {"seed": 1, "counts": {"kills": 10, "cuts": 20, "pairs": 5}})
    assert again.done == ["kills-0"] and set(again.tallies) == {"k"} and set(again.commits) == {"kills"}
    assert Results(path, {"seed": 2, "counts": {"kills": 10, "cuts": 10}}).done == []
