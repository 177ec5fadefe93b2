"""The trials of each part of the campaign. A trial harms a command, then lets it go on, and compares what it came to."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from tests.campaign.children import Child, Tally, start, verdict
from tests.campaign.damage import hostile, mutations
from tests.campaign.faults import CheckpointFault, PowerCut, end_at, full_disk
from tests.campaign.odd_requests import odd_requests
from tests.campaign.programs import BAG, CHECKPOINTS, Program, free_port, programs
from tokmix.cli.main import main

RANKS = ("train on two ranks", "train in parts on two ranks")
# Their trials take longest: one of eight.
SLOW = ("compare", "compare side by side", "train on two ranks", "train in parts on two ranks", "tune", "tune side by side")


class References:
    """What each program comes to without faults."""

    def __init__(self, folder: Path):
        self.folder, self.programs = folder, programs(folder)
        self.whole: dict[str, Path] = {}
        self.seconds: dict[str, float] = {}

    def make(self, parts: Collection[str]) -> None:
        self.programs[0].run(self.folder / "warm")  # imports and caches, which children then share
        wanted = {name for part in parts for name in self.needed(part)}
        for program in (one for one in self.programs if one.name in wanted):
            began, out = time.monotonic(), self.folder / "whole" / program.name.replace(" ", "-")
            out.parent.mkdir(exist_ok=True)
            children = go(self.folder, program, out)
            codes = [child.wait() for child in children]
            if any(codes):
                raise SystemExit(f"{program.name} does not run: {codes} {children[0].said()[-500:]}")
            self.whole[program.name], self.seconds[program.name] = out, time.monotonic() - began
            print(f"  {program.name}: {self.seconds[program.name]:.1f} s", flush=True)
        if "mutations" in parts:
            out = self.whole["export"] = self.folder / "whole" / "export"
            if start(self.folder / "errors", lambda: main(["export", str(self.whole[BAG]), "--out", str(out)])).wait():
                raise SystemExit("export does not run")

    def needed(self, part: str) -> Collection[str]:
        """The programs of a part."""
        if part in ("operations", "disks", "cuts"):
            return [one.name for one in self.programs if one.name not in SLOW]
        if part in ("checkpoint_kills", "checkpoint_disks"):
            return CHECKPOINTS
        if part in ("kills", "interrupts", "pairs"):
            return [one.name for one in self.programs if part == "kills" or one.ranks == 1]
        return ("train", BAG, "distill", "transfer", "tune", "compare") if part == "mutations" else ("train",)


def go(folder: Path, program: Program, out: Path, more: tuple[str, ...] = (), before: Callable[[int], None] | None = None) -> list[Child]:
    """Start it; `before` is called in each child first, with its rank."""
    port = free_port() if program.ranks > 1 else 0

    def act(rank: int) -> int:
        if before is not None:
            before(rank)
        return program.run(out, rank, port, more)

    return [start(folder / f"errors-{rank}", lambda rank=rank: act(rank)) for rank in range(program.ranks)]  # type: ignore[misc]


class Trials:
    """Of one unit of work, in a folder of its own."""

    def __init__(self, folder: Path, references: References, draw: random.Random):
        self.folder, self.of, self.draw = folder, references, draw
        self.programs = references.programs

    def pick(self, without: tuple[str, ...] = ()) -> Program:
        quick = [one for one in self.programs if one.name not in SLOW and one.name not in without]
        slow = [one for one in self.programs if one.name in SLOW and one.name not in without]
        return self.draw.choice(slow) if slow and self.draw.random() < 1 / 8 else self.draw.choice(quick)

    def finish(self, tally: Tally, program: Program, out: Path, note: str, more: tuple[str, ...] = (), kept: int | None = None) -> None:
        """Without faults it goes on, and comes to the same as if nothing had been."""
        if program.name == "prepare" and out.exists():
            codes, said = [0], ""
        else:
            children = go(self.folder, program, out, more)
            codes, said = [child.wait() for child in children], children[0].said()
        right = not any(codes) and program.result(out) == program.result(self.of.whole[program.name])
        counts = {len(list(one.iterdir())) for one in out.rglob("checkpoints")}
        if right and kept is not None and counts - {kept}:
            right, note = False, f"{note}, {sorted(counts)} checkpoints are kept and not {kept}"
        told = f"{program.name}, {note}: exit {codes}: {said.strip()[-200:]}"
        found = verdict(max(codes, key=abs), said, right)
        tally.add(found, told)
        if found == "clean":  # it went on without a fault, and should have held
            tally.notes.append(told)
            print(f"  error: {told}", flush=True)
        shutil.rmtree(out, ignore_errors=True)

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
            clean = code == 130 and len(lines) == 1 and "Traceback" not in said and ("--resume" in lines[0] or not out.exists())
            if code and not clean:
                tally.add("wrong", f"{program.name}, Ctrl-C {number}, twice {twice}: exit {code}: {said.strip()[-250:]}")
                shutil.rmtree(out, ignore_errors=True)
                continue
            self.finish(tally, program, out, f"Ctrl-C {number}")
        return [tally]

    def operations(self, count: int) -> list[Tally]:
        tally = Tally("kills at the k-th file operation")
        for _ in range(count):
            program, out, k = self.pick(SLOW), self.folder / "killed", self.draw.randint(1, 60)
            go(self.folder, program, out, before=lambda rank, k=k: end_at(k))[0].wait()  # type: ignore[misc]
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
        tally = Tally("full disks")
        for _ in range(count):
            program, out, size = (
                self.pick(SLOW),
                self.folder / "full",
                int(10 ** self.draw.uniform(2.7, 5.3)),
            )  # the line of the error has to fit
            child = go(self.folder, program, out, before=lambda rank, size=size: full_disk(size))[0]  # type: ignore[misc]
            code = child.wait()
            said = child.said()
            if code and verdict(code, said, True) != "clean":
                tally.add("wrong", f"{program.name}, {size} bytes: exit {code}: {said.strip()[-200:]}")
                shutil.rmtree(out, ignore_errors=True)
                continue
            self.finish(tally, program, out, f"{size} bytes")
        return [tally]

    def cuts(self, count: int) -> list[Tally]:
        tally = Tally("power cuts (simulated)")
        for number in range(count):
            program, place, k = self.pick(SLOW), self.folder / "place", self.draw.randint(2, 80)
            out, seed = place / "cut", self.draw.randrange(2**31)
            place.mkdir(exist_ok=True)
            go(self.folder, program, out, before=lambda rank, place=place, k=k, seed=seed: PowerCut(place, k, seed).arm())[0].wait()  # type: ignore[misc]
            self.finish(tally, program, out, f"power cut {number} at operation {k}")
        return [tally]

    def pairs(self, count: int) -> list[Tally]:
        """One does it, and the other says why it does not; or they share the work, as `tune` does. Half of them are of `train`."""
        tally = Tally("pairs of processes in one folder")
        for number in range(count):
            program, out = self.pick(RANKS) if number % 2 else self.programs[0], self.folder / "pair"
            first = go(self.folder, program, out)[0]
            time.sleep(self.draw.random() * self.draw.choice([0.02, 0.3, 1.2]) * self.of.seconds[program.name])
            second = start(self.folder / "errors-second", lambda program=program, out=out: program.run(out))  # type: ignore[misc]
            codes = [first.wait(), second.wait()]
            told = [child.said() for child, code in zip((first, second), codes, strict=True) if code]
            note = f"{program.name}, pair {number}: exit {codes}: {told}"
            if 0 not in codes or any("in use by" not in text and "exists already" not in text for text in told):
                tally.add("wrong", note)
            else:
                same = program.result(out) == program.result(self.of.whole[program.name])
                tally.add("held" if same else "wrong", f"{note}, another result")
            shutil.rmtree(out, ignore_errors=True)
        return [tally]

    def mutations(self, count: int) -> list[Tally]:
        return mutations(self.folder, self.of.whole, {program.name: program for program in self.programs}, count, self.draw)

    def hostile(self, count: int) -> list[Tally]:
        return [hostile(self.folder, self.of.whole["train"])]

    def requests(self, count: int) -> list[Tally]:
        return [odd_requests(self.of.whole["train"], count, self.draw)]
