"""One run of a benchmark: its device, clock, results and file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from bench.speed import ceilings, machine
from bench.speed.clock import Call, Clock, GpuClock, Timing
from bench.speed.rule import Verdict
from bench.speed.settings import BenchSettings
from bench.speed.table import Row
from tokmix.runs.files import finite, write_json


def device_of(asked: str | None) -> str:
    device = asked or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r} is unknown to the benchmarks; known: cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device 'cuda' is not there: torch {torch.__version__} finds no GPU")
    return device


class Session:
    def __init__(self, asked: BenchSettings, say: Callable[[str], None] = print):
        self.device, self.named_device = device_of(asked.device), asked.device is not None
        self.asked = asked.sized(self.device)
        if self.asked.threads is not None:
            torch.set_num_threads(self.asked.threads)
        self.say, self.began = say, time.monotonic()
        self.dtype: torch.dtype = getattr(torch, self.asked.dtype or "float32")
        self.clock = (GpuClock if self.device == "cuda" else Clock)(*((0.02, 2, 3) if asked.quick else ()))
        self.glance = (GpuClock if self.device == "cuda" else Clock)(0.02, 1, 3)  # to choose among candidates
        self.ceilings: dict[str, float] = {}
        self.rows: list[Row] = []
        self.models: list[Row] = []  # rows of whole models
        self.checks: list[Row] = []
        self.notes: list[str] = []
        self.names: dict[str, None] = {}  # every name that --only may select, in order
        torch.manual_seed(0)
        self.machine = machine.describe(self.device)
        self.say(self.machine["words"])

    # --- what is found -----------------------------------------------------------------------------------------------

    def measure_ceilings(self) -> None:
        self.ceilings = ceilings.measure(self.clock, self.device, self.dtype, self.asked.tokens * self.asked.dim, self.asked.quick)
        shown = "{copy_gbs:.0f} GB/s copied, {activation_copy_gbs:.0f} for one activation, {matmul_tflops:.3g} TFLOP/s multiplied"
        self.say("ceilings: " + shown.format(**self.ceilings))

    def time(self, call: Call, row: Row, flops: float = 0, moved: float = 0) -> Row | None:
        """A row with its time and, if counts are given, rates; None and a note if the call does not work here."""
        named = ", ".join(str(row[key]) for key in ("name", "body", "way") if key in row) + f", N={row['N']}"
        try:
            timing = self.clock(call)
        except torch.OutOfMemoryError:
            self.note(f"{named}: out of memory")
            return None
        except Exception as failure:  # a failing body must not end the run
            self.note(f"{named}: {type(failure).__name__}: {' '.join(str(failure).split())[:160]}")
            return None
        finally:
            if self.device == "cuda":
                torch.cuda.empty_cache()
        return self.add(row | asdict(timing), flops, moved)

    def add(self, row: Row, flops: float = 0, moved: float = 0) -> Row:
        if flops or moved:
            row |= {"flops": flops, "bytes": moved, "tflops": flops / row["us"] / 1e6, "gbs": moved / row["us"] / 1e3}
        if self.ceilings and (flops or moved):
            floor = ceilings.floor_us(self.ceilings, flops, moved)
            row |= {"floor_us": floor, "times_floor": row["us"] / floor}
        row["at_s"] = time.monotonic() - self.began
        self.rows.append(row)
        self.save()
        return row

    def checked(self, name: str, shape: Sequence[int], verdicts: list[Verdict]) -> bool:
        """Record a check; a failed one names the numbers over the limit."""
        over = [str(verdict) for verdict in verdicts if not verdict.holds]
        self.checks.append({"name": name, "shape": list(shape), "dtype": self.asked.dtype, "passes": not over,
                            "verdicts": [verdict._asdict() for verdict in verdicts]})  # fmt: skip
        if over:
            self.say(f"REFUSED {name} at {list(shape)}: its numbers are wrong, so it is not timed: {'; '.join(over)}")
        return not over

    def failed(self, name: str, shape: Sequence[int], failure: Exception) -> None:
        problem = f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}"
        self.checks.append({"name": name, "shape": list(shape), "dtype": self.asked.dtype, "passes": False, "problem": problem})
        self.say(f"REFUSED {name} at {list(shape)}: it fails: {problem}")

    def note(self, line: str) -> None:
        self.notes.append(line)
        self.say(f"left out: {line}")

    # --- how far -----------------------------------------------------------------------------------------------------

    def wanted(self, name: str) -> bool:
        self.names[name] = None
        return not self.asked.only or any(part in name for part in self.asked.only)

    def check_names(self) -> None:
        """Checked at the end, because a benchmark finds its names while it runs."""
        unknown = [part for part in self.asked.only if not any(part in name for name in self.names)]
        if unknown and len(unknown) == len(self.asked.only):
            raise ValueError(
                f"--only {' '.join(unknown)}: bench {self.asked.what} has nothing of that name; it has: {'; '.join(self.names)}"
            )
        for part in unknown if not self.late() else []:  # out of time, names may be missing
            self.note(f"{part}: nothing has such a name")

    def late(self) -> bool:
        over = self.asked.minutes is not None and time.monotonic() - self.began > self.asked.minutes * 60
        if over and not any(line.startswith("everything after") for line in self.notes):
            self.note(f"everything after {self.asked.minutes} minutes")
        return over

    @property
    def refused(self) -> list[str]:
        return list(dict.fromkeys(check["name"] for check in self.checks if not check["passes"]))

    def record(self) -> Row:
        asked = asdict(self.asked) | dict.fromkeys(["out", *self.asked.unread])
        return {"bench": self.asked.what, "asked": asked, "machine": self.machine, "ceilings": self.ceilings, "checks": self.checks,
                "refused": self.refused, "rows": self.rows, **({"models": self.models} if self.models else {}), "left_out": self.notes,
                "seconds": time.monotonic() - self.began}  # fmt: skip

    def save(self) -> None:
        """Save after every row, so that an interrupted run leaves its results."""
        if self.asked.out is not None:
            write_json(Path(self.asked.out), finite(self.record()))


def tensors_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def moved(given: Sequence[torch.Tensor], result: torch.Tensor, backward: bool) -> int:
    """The fewest bytes: inputs read once and the result written once; backward, inputs and the result's gradient read, and a
    gradient written for each input."""
    inputs, output = tensors_bytes(given), tensors_bytes([result])
    return 3 * inputs + 2 * output if backward else inputs + output


__all__ = ["BenchSettings", "Row", "Session", "Timing", "device_of", "moved", "tensors_bytes"]
