"""python -m tests.campaign [--short] [--seed N] [--out FILE]"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch

from tests.campaign.children import Child, Tally, start, verdict
from tests.campaign.damage import hostile, mutations
from tests.campaign.faults import PowerCut, end_at, full_disk
from tests.campaign.odd_requests import odd_requests
from tests.campaign.programs import Program, free_port, programs

FULL = {"kills": 300, "operations": 150, "disks": 60, "cuts": 50, "pairs": 200, "mutations": 1000, "requests": 4000}
SHORT = {"kills": 30, "operations": 30, "disks": 15, "cuts": 30, "pairs": 20, "mutations": 200, "requests": 500}
SLOW = ("compare", "train on two ranks", "tune")  # their trials take longest: one of eight


class Campaign:
    def __init__(self, folder: Path, counts: dict[str, int], seed: int):
        self.folder, self.counts, self.draw, self.seed = folder, counts, random.Random(seed), seed
        self.programs = programs(folder)
        self.whole: dict[str, Path] = {}
        self.seconds: dict[str, float] = {}
        self.tallies: list[Tally] = []

    def go(self, program: Program, out: Path, before: object = None) -> list[Child]:
        """Start it; `before` is called in the child first."""
        port = free_port() if program.ranks > 1 else 0

        def act(rank: int) -> int:
            if callable(before):
                before()
            return program.run(out, rank, port)

        return [start(self.folder / f"errors-{rank}", lambda rank=rank: act(rank)) for rank in range(program.ranks)]  # type: ignore[misc]

    def references(self) -> None:
        for program in self.programs:
            began = time.monotonic()
            out = self.folder / "whole" / program.name.replace(" ", "-")
            out.parent.mkdir(exist_ok=True)
            children = self.go(program, out)
            codes = [child.wait(300) for child in children]
            if any(codes):
                sys.exit(f"{program.name} does not run: {codes} {children[0].said()[-500:]}")
            self.whole[program.name], self.seconds[program.name] = out, time.monotonic() - began
            print(f"  {program.name}: {self.seconds[program.name]:.1f} s", flush=True)

    def pick(self, without: tuple[str, ...] = ()) -> Program:
        quick = [one for one in self.programs if one.name not in SLOW and one.name not in without]
        slow = [one for one in self.programs if one.name in SLOW and one.name not in without]
        return self.draw.choice(slow) if slow and self.draw.random() < 1 / 8 else self.draw.choice(quick)

    def finish(self, tally: Tally, program: Program, out: Path, note: str) -> None:
        """Without faults it goes on, and comes to the same as if nothing had been."""
        if program.name == "prepare" and out.exists():
            codes, said = [0], ""
        else:
            children = self.go(program, out)
            codes, said = [child.wait(300) for child in children], children[0].said()
        right = not any(codes) and program.result(out) == program.result(self.whole[program.name])
        tally.add(verdict(max(codes, key=abs), said, right), f"{program.name}, {note}: exit {codes}: {said.strip()[-200:]}")
        shutil.rmtree(out, ignore_errors=True)

    def kills(self) -> None:
        tally = self.open("kills at random times")
        for number in range(self.counts["kills"]):
            program, out = self.pick(), self.folder / "killed"
            for _ in range(self.draw.randint(1, 2)):
                children = self.go(program, out)
                time.sleep(self.draw.random() * self.seconds[program.name])
                for child in children[: 1 if self.draw.random() < 0.5 else None]:
                    child.kill()
                for child in children:
                    child.wait(120)
            self.finish(tally, program, out, f"kill {number}")

    def operations(self) -> None:
        tally = self.open("kills at the k-th file operation")
        for _ in range(self.counts["operations"]):
            program, out, k = self.pick(SLOW), self.folder / "killed", self.draw.randint(1, 60)
            self.go(program, out, lambda k=k: end_at(k))[0].wait()  # type: ignore[misc]
            self.finish(tally, program, out, f"operation {k}")

    def disks(self) -> None:
        tally = self.open("full disks")
        for _ in range(self.counts["disks"]):
            program, out, size = self.pick(SLOW), self.folder / "full", int(10 ** self.draw.uniform(1.5, 5.3))
            child = self.go(program, out, lambda size=size: full_disk(size))[0]  # type: ignore[misc]
            code = child.wait()
            said = child.said()
            if code and verdict(code, said, True) != "clean":
                tally.add("wrong", f"{program.name}, {size} bytes: exit {code}: {said.strip()[-200:]}")
                shutil.rmtree(out, ignore_errors=True)
                continue
            self.finish(tally, program, out, f"{size} bytes")

    def cuts(self) -> None:
        tally = self.open("power cuts (simulated)")
        for number in range(self.counts["cuts"]):
            program, place, k = self.pick(SLOW), self.folder / "place", self.draw.randint(2, 80)
            out = place / "cut"
            place.mkdir(exist_ok=True)
            self.go(program, out, lambda place=place, k=k, seed=self.seed + number: PowerCut(place, k, seed).arm())[0].wait()  # type: ignore[misc]
            self.finish(tally, program, out, f"power cut {number} at operation {k}")

    def pairs(self) -> None:
        tally = self.open("pairs of processes in one folder")
        train = self.programs[0]
        for number in range(self.counts["pairs"]):
            out = self.folder / "pair"
            first = self.go(train, out)[0]
            time.sleep(self.draw.random() * self.draw.choice([0.02, 0.3, 1.2]) * self.seconds["train"])
            second = start(self.folder / "errors-second", lambda out=out: train.run(out))  # type: ignore[misc]
            codes = [first.wait(), second.wait()]
            told = [child.said() for child, code in zip((first, second), codes, strict=True) if code]
            if 0 not in codes or any("in use by" not in text for text in told):
                tally.add("wrong", f"pair {number}: exit {codes}: {told}")
            else:
                same = train.result(out) == train.result(self.whole["train"])
                tally.add("held" if same else "wrong", f"pair {number}: other weights")
            shutil.rmtree(out, ignore_errors=True)

    def open(self, name: str) -> Tally:
        print(f"{name} ...", flush=True)
        self.tallies.append(Tally(name))
        return self.tallies[-1]

    def run(self) -> None:
        print("what they come to without faults:", flush=True)
        self.references()
        for part in (self.kills, self.operations, self.disks, self.cuts, self.pairs):
            part()
        print("mutations ...", flush=True)
        by_name = {program.name: program for program in self.programs}
        self.tallies += mutations(self.folder, self.whole, by_name, self.counts["mutations"], self.draw)
        print("hostile folders ...", flush=True)
        self.tallies.append(hostile(self.folder, self.whole["train"]))
        print("requests ...", flush=True)
        self.tallies.append(odd_requests(self.whole["train"], self.counts["requests"], self.draw))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign")
    parser.add_argument("--short", action="store_true", help="a few of each: minutes instead of an hour")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=None, help="where the counts go, as JSON")
    for name, count in FULL.items():
        parser.add_argument(f"--{name}", type=int, default=None, help=f"default: {count}, short: {SHORT[name]}")
    asked = parser.parse_args()
    usual = SHORT if asked.short else FULL
    counts = {name: usual[name] if getattr(asked, name) is None else getattr(asked, name) for name in FULL}
    torch.set_num_threads(1)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    import optuna  # noqa: F401 - before the forks
    import sklearn.linear_model  # noqa: F401
    import transformers  # noqa: F401

    import tokmix.hf
    import tokmix.training.train  # noqa: F401

    print(f"seed {asked.seed}, {counts}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        campaign = Campaign(Path(folder), counts, asked.seed)
        campaign.run()
    for tally in campaign.tallies:
        print(tally.line())
    wrong = sum(tally.wrong for tally in campaign.tallies)
    print(f"seed {asked.seed}, {time.monotonic() - began:.0f} s, {sum(tally.tried for tally in campaign.tallies)} tried, {wrong} wrong")
    if asked.out is not None:
        from tokmix.runs.files import write_json

        kind = "short" if asked.short else "full" if counts == FULL else "chosen"
        told = {"kind": kind, "seed": asked.seed, "counts": counts, "seconds": round(time.monotonic() - began), "torch": torch.__version__}
        write_json(asked.out, told | {"tallies": [asdict(tally) for tally in campaign.tallies]})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
