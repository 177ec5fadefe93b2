"""The trials of each part of the campaign. A trial harms a command, then lets it go on, and compares what it came to."""

from __future__ import annotations

import math
import random
import shutil
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from tests.campaign.children import Child, Tally, start, verdict
from tests.campaign.damage import KINDS, hostile, mutations
from tests.campaign.faults import CheckpointFault, PowerCut, count_operations, end_at, full_disk, note_training
from tests.campaign.odd_requests import odd_requests
from tests.campaign.programs import CHECKPOINTS, Program, free_port, programs, whole
from tokmix.runs.files import PARTIAL
from tokmix.study.verify import DAMAGED, verify

RANKS = ("train on two ranks", "train in parts on two ranks")
# Their trials take longest: one of eight.
SLOW = ("compare", "compare side by side", "train on two ranks", "train in parts on two ranks", "tune", "tune side by side", "export")


class References:
    """What each program comes to without faults."""

    def __init__(self, folder: Path, only: Collection[str] | None = None):
        self.folder, self.all = folder, programs(folder)
        self.programs = [one for one in self.all if only is None or one.name in only]
        self.whole: dict[str, Path] = {}
        self.seconds: dict[str, float] = {}
        self.operations: dict[str, int] = {}  # file operations of its process

    def make(self, parts: Collection[str]) -> None:
        self.all[0].run(self.folder / "warm")  # imports and caches, which children then share
        wanted = {name for part in parts for name in self.needed(part)}
        wanted |= {one.of for one in self.all if one.of is not None and one.name in wanted}
        for program in (one for one in self.all if one.name in wanted):
            began, out, count = time.monotonic(), whole(self.folder, program.name), self.folder / "count"
            out.parent.mkdir(exist_ok=True)
            children = go(self.folder, program, out, before=lambda rank, count=count: count_operations(count))  # type: ignore[misc]
            codes = [child.wait() for child in children]
            if any(codes):
                raise SystemExit(f"{program.name} does not run: {codes} {children[0].said()[-500:]}")
            self.whole[program.name], self.seconds[program.name] = out, time.monotonic() - began
            self.operations[program.name] = int(count.read_text())
            print(f"  {program.name}: {self.seconds[program.name]:.1f} s, {self.operations[program.name]} file operations", flush=True)

    def needed(self, part: str) -> Collection[str]:
        """The programs of a part."""
        if part in ("operations", "disks", "cuts"):
            return [one.name for one in self.programs if one.name not in SLOW]
        if part in ("checkpoint_kills", "checkpoint_disks"):
            return [one.name for one in self.programs if one.name in CHECKPOINTS]
        if part in ("kills", "interrupts", "pairs"):
            return [one.name for one in self.programs if part == "kills" or one.ranks == 1]
        if part == "mutations":
            return [one.name for one in self.programs if any(one.name in names for _, names in KINDS.values())]
        return ("train",)


def unsound(out: Path) -> list[str]:
    """What a command that ended well should not leave: parts of files, in its folder or next to it, and what `tokmix verify` calls
    damaged."""
    left = [str(path) for path in [*out.rglob("*"), *out.parent.glob(f".{out.name}{PARTIAL}*")] if _is_left_over(path.name)]
    try:
        return left + [one.note for one in verify(out) if one.state == DAMAGED]
    except ValueError as error:  # such as a folder of vectors
        return left if "is no folder of tokmix" in str(error) else [*left, str(error)]


def _is_left_over(name: str) -> bool:
    return name.startswith(".tmp") or PARTIAL in name


def go(folder: Path, program: Program, out: Path, more: tuple[str, ...] = (), before: Callable[[int], None] | None = None) -> list[Child]:
    """Start it; `before` is called in each child first, with its rank."""
    port = free_port() if program.ranks > 1 else 0

    def act(rank: int) -> int:
        if before is not None:
            before(rank)
        return program.run(out, rank, port, more)

    return [start(folder / f"errors-{rank}", lambda rank=rank: act(rank)) for rank in range(program.ranks)]  # type: ignore[misc]


def complete(out: Path) -> bool:
    return out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir())


class Trials:
    """Of one unit of work, in a folder of its own."""

    def __init__(self, folder: Path, references: References, draw: random.Random):
        self.folder, self.of, self.draw = folder, references, draw
        self.programs = references.programs

    def pick(self, without: tuple[str, ...] = ()) -> Program:
        quick = [one for one in self.programs if one.name not in SLOW and one.name not in without]
        slow = [one for one in self.programs if one.name in SLOW and one.name not in without]
        return self.draw.choice(slow) if slow and (not quick or self.draw.random() < 1 / 8) else self.draw.choice(quick)

    def finish(self, tally: Tally, program: Program, out: Path, note: str, more: tuple[str, ...] = (), kept: int | None = None) -> None:
        """Without faults it goes on, and comes to the same as if nothing had been."""
        if program.once and complete(out):
            codes, said = [0], ""
        else:
            children = go(self.folder, program, out, more)
            codes, said = [child.wait() for child in children], children[0].said()
        told = f"{program.name}, {note}: exit {codes}: {said.strip()[-200:]}"
        if any(codes):  # it went on without a fault, and should have held
            tally.add("wrong", told)
        else:
            self.judge(tally, program, out, told, said, kept)
        shutil.rmtree(out, ignore_errors=True)

    def judge(self, tally: Tally, program: Program, out: Path, told: str, said: str = "", kept: int | None = None) -> None:
        """What a command came to that ended with exit code 0."""
        counts = {len(list(one.iterdir())) for one in out.rglob("checkpoints")}
        if kept is not None and counts - {kept}:
            tally.add("wrong", f"{told}: {sorted(counts)} checkpoints are kept and not {kept}")
        elif not complete(out) or program.result(out) != program.result(self.of.whole[program.name]):
            tally.add("wrong", f"{told}: another result")
        elif left := unsound(out):
            tally.add("wrong", f"{told}: {left}")
        else:
            tally.add(verdict(0, said, True), told)

    def kills(self, count: int) -> list[Tally]:
        tally = Tally("kills at random times")
        for number in range(count):
            program, out = self.pick(), self.folder / "killed"
            wanted, struck = self.draw.randint(1, 2), 0
            while struck < wanted:
                if self._killed(program, out):
                    struck += 1
                elif struck:
                    break
                else:  # it had ended, so there was no kill
                    shutil.rmtree(out)
            self.finish(tally, program, out, f"kill {number}")
        return [tally]

    def _killed(self, program: Program, out: Path) -> bool:
        """Whether it was still there. How long it takes changes with the load of the machine."""
        began, children = time.monotonic(), go(self.folder, program, out)
        end = began + self.draw.random() * self.of.seconds[program.name]
        while time.monotonic() < end and not all(child.ended() for child in children):
            time.sleep(0.005)
        there = not all(child.ended() for child in children)
        for child in children[: 1 if self.draw.random() < 0.5 else None]:
            child.kill(workers=self.draw.random() < 0.5)
        for child in children:
            child.wait()
        if not there:
            self.of.seconds[program.name] = time.monotonic() - began
        return there

    def interrupts(self, count: int) -> list[Tally]:
        """Ctrl-C, sometimes again a moment later: exit code 130 and one line, which says how to go on where something was begun."""
        tally = Tally("Ctrl-C at random times")
        for number in range(count):
            program, out, twice = self.pick(RANKS), self.folder / "stopped", self.draw.random() < 0.3

            def before(rank: int) -> None:
                signal.signal(signal.SIGINT, signal.default_int_handler)

            began, child = time.monotonic(), go(self.folder, program, out, before=before)[0]
            end = began + 0.1 + self.draw.random() * self.of.seconds[program.name]
            while time.monotonic() < end and not child.ended():
                time.sleep(0.005)
            for _ in range(1 + twice):
                if not child.ended():
                    child.interrupt()
                    time.sleep(self.draw.random() * 0.1)
            code, said = child.wait(), child.said()
            lines = [line for line in said.splitlines() if line.startswith("tokmix")]
            clean = code == 130 and len(lines) == 1 and "Traceback" not in said
            clean = clean and (program.once or "--resume" in lines[0] or not out.exists())
            if code and not clean:
                tally.add("wrong", f"{program.name}, Ctrl-C {number}, twice {twice}: exit {code}: {said.strip()[-250:]}")
                shutil.rmtree(out, ignore_errors=True)
                continue
            self.finish(tally, program, out, f"Ctrl-C {number}")
        return [tally]

    def operations(self, count: int) -> list[Tally]:
        tally = Tally("kills at the k-th file operation")
        while tally.tried < count:
            program, out = self.pick(SLOW), self.folder / "killed"
            k = self.draw.randint(1, self.of.operations[program.name])
            code = go(self.folder, program, out, before=lambda rank, k=k: end_at(k))[0].wait()  # type: ignore[misc]
            if code != -signal.SIGKILL:  # it has fewer operations than counted: there was no kill
                shutil.rmtree(out, ignore_errors=True)
                continue
            self.finish(tally, program, out, f"operation {k}")
        return [tally]

    def checkpoint_kills(self, count: int) -> list[Tally]:
        return self._checkpoints("checkpoints killed while they are written", count, full=False)

    def checkpoint_disks(self, count: int) -> list[Tally]:
        return self._checkpoints("disks that fill while a checkpoint is written", count, full=True)

    def _checkpoints(self, name: str, count: int, full: bool) -> list[Tally]:
        """Steps go on meanwhile. With any number of checkpoints kept; on two ranks it is one of them, or both at their own moment."""
        tally, programs = Tally(name), [one for one in self.programs if one.name in CHECKPOINTS]
        for number in range(count):
            program, out = self.draw.choice([*programs, *programs[:2]]), self.folder / "saving"
            keep, struck = self.draw.choice([1, 2, 3, 5]), self.draw.choice([(0,), (1,), (0, 1)]) if program.ranks > 1 else (0,)
            faults = {rank: CheckpointFault(self.draw.randint(1, 45), full, self.draw.random(), self.folder / "stage") for rank in struck}
            more = ("--train.keep", str(keep))
            (self.folder / "stage").unlink(missing_ok=True)

            def before(rank: int, faults: dict[int, CheckpointFault] = faults) -> None:
                if rank in faults:
                    faults[rank].arm()

            children = go(self.folder, program, out, more, before)
            codes, said = [child.wait() for child in children], [child.said() for child in children]
            stage = (self.folder / "stage").read_text() if (self.folder / "stage").exists() else "not reached"
            tally.stages[stage] = tally.stages.get(stage, 0) + 1
            note = f"{number}, {stage}, keep {keep}, ranks {struck}"
            bad = [f"{code}: {text.strip()[-200:]}" for code, text in zip(codes, said, strict=True) if verdict(code, text, True) == "wrong"]
            if full and bad:
                tally.add("wrong", f"{program.name}, {note}: {bad}")
                shutil.rmtree(out, ignore_errors=True)
                continue
            self.finish(tally, program, out, note, more, kept=min(keep, 6))
        return [tally]

    def disks(self, count: int) -> list[Tally]:
        """No file may grow beyond a size below that of the largest: a command that fits says nothing, and is not counted."""
        tally = Tally("full disks")
        while tally.tried < count:
            program, out = self.pick(SLOW), self.folder / "full"
            most = max(path.stat().st_size for path in self.of.whole[program.name].rglob("*") if path.is_file())
            size = int(10 ** self.draw.uniform(2.7, math.log10(most)))  # the line of the error has to fit
            child = go(self.folder, program, out, before=lambda rank, size=size: full_disk(size))[0]  # type: ignore[misc]
            code = child.wait()
            said = child.said()
            if code and verdict(code, said, True) != "clean":
                tally.add("wrong", f"{program.name}, {size} bytes: exit {code}: {said.strip()[-200:]}")
            elif code:
                self.finish(tally, program, out, f"{size} bytes")
            shutil.rmtree(out, ignore_errors=True)
        return [tally]

    def cuts(self, count: int) -> list[Tally]:
        """At a file operation, and then it goes on; or after the end: what was reported as written is there without another run."""
        tally = Tally("power cuts (simulated)")
        while tally.tried < count:
            program, place, after = self.pick(SLOW), self.folder / "place", self.draw.random() < 0.25
            k = 10**9 if after else self.draw.randint(1, self.of.operations[program.name])
            out, seed = place / "cut", self.draw.randrange(2**31)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            children = go(self.folder, program, out, before=lambda rank, place=place, k=k, seed=seed: PowerCut(place, k, seed).arm())  # type: ignore[misc]
            code, note = children[0].wait(), f"power cut {tally.tried} at operation {k}"
            if after:
                self.judge(tally, program, out, f"{program.name}, power cut {tally.tried} after the end: exit {code}")
            elif code == -signal.SIGKILL:
                self.finish(tally, program, out, note)
            stage = "after the end" if after else "before the end"
            tally.stages[stage] = tally.stages.get(stage, 0) + 1
        return [tally]

    def pairs(self, count: int) -> list[Tally]:
        """One does it, and the other says why it does not; or they share the work, as `tune` does. Half of them are of `train`."""
        tally = Tally("pairs of processes in one folder")
        for number in range(count):
            program, out = self.pick(RANKS) if number % 2 else self.programs[0], self.folder / "pair"
            trained = self.folder / "trained"
            trained.unlink(missing_ok=True)

            def act(program: Program = program, out: Path = out, trained: Path = trained) -> int:
                note_training(trained)
                return program.run(out)

            first = start(self.folder / "errors-first", act)
            time.sleep(self.draw.random() * self.draw.choice([0.02, 0.3, 1.2]) * self.of.seconds[program.name])
            second = start(self.folder / "errors-second", act)
            codes = [first.wait(), second.wait()]
            told = [child.said() for child, code in zip((first, second), codes, strict=True) if code]
            note = f"{program.name}, pair {number}: exit {codes}: {told}"
            if 0 not in codes or any("in use by" not in text and "exists already" not in text for text in told):
                tally.add("wrong", note)
            elif program.name not in SLOW and trained.exists() and len(set(trained.read_text().split())) > 1:
                tally.add("wrong", f"{note}: both trained")
            else:
                self.judge(tally, program, out, note)
            shutil.rmtree(out, ignore_errors=True)
        return [tally]

    def mutations(self, count: int) -> list[Tally]:
        return mutations(self.folder, self.of.whole, {program.name: program for program in self.of.all}, count, self.draw)

    def hostile(self, count: int) -> list[Tally]:
        return [hostile(self.folder, self.of.whole["train"])]

    def requests(self, count: int) -> list[Tally]:
        return [odd_requests(self.of.whole["train"], count, self.draw)]
