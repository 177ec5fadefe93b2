"""Wall time, peak memory and energy of training. Each is measured or null; nothing is estimated.

    energy   on a GPU    NVML's total energy counter of that GPU's board (package nvidia-ml-py)
             on a CPU    RAPL, /sys/class/powercap: the processor packages and their memory, whoever uses them
             else        null, "not measured", and why
    memory   on a GPU    the most that torch had allocated there;  on a CPU the most resident memory of the process

A meter counts from start() to stop(). What was measured before a checkpoint is in the checkpoint and is added to.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypedDict

import torch

POWERCAP = Path("/sys/class/powercap")
NOT_MEASURED = "not measured"
OFTEN = 5.0  # seconds between readings: a RAPL counter may wrap around within minutes, and reading NVML takes a while


class Brief(TypedDict, total=False):
    peak_memory_bytes: int | None  # None: not measured
    energy_joules: float | None


class Measured(Brief, total=False):
    """Empty before anything was measured."""

    seconds: float
    peak_memory_of: str  # gpu or process
    energy_source: str
    energy_note: str  # what the number does not cover, or why there is none


class EnergyCounter(Protocol):
    source: str  # nvml, rapl
    note: str  # what it covers

    def joules(self) -> float:
        """Joules since this counter was made; OSError if it cannot be read any more."""


class Rapl:
    """The sum of all processor packages, and of memory if it has a separate counter."""

    source = "rapl"

    def __init__(self, root: Path = POWERCAP):
        self.zones = _zones(root)
        if not self.zones:
            raise OSError(f"{root} has no RAPL counter of a processor package")
        self.total = 0
        self.last = [_microjoules(zone) for zone in self.zones]
        self.note = "whole machine: " + ", ".join((zone / "name").read_text().strip() for zone in self.zones)

    def joules(self) -> float:
        for place, zone in enumerate(self.zones):
            now = _microjoules(zone)
            gone = now - self.last[place]
            if gone < 0:  # the counter wrapped around
                gone += int((zone / "max_energy_range_uj").read_text())
            self.total, self.last[place] = self.total + gone, now
        return self.total / 1e6


def _zones(root: Path) -> list[Path]:
    """Packages (intel-rapl:0, ...; AMD's have the same name) and their dram. Cores are part of the package, and so, in
    counters named psys and intel-rapl-mmio, are packages counted once more."""
    packages = [zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1 and _named(zone, "package")]
    memory = [zone for package in packages for zone in sorted(root.glob(f"{package.name}:*")) if _named(zone, "dram")]
    return packages + memory


def _named(zone: Path, start: str) -> bool:
    return (zone / "name").is_file() and (zone / "name").read_text().startswith(start)


def _microjoules(zone: Path) -> int:
    return int((zone / "energy_uj").read_text())


class Nvml:
    """One GPU's own counter, in millijoules since its driver was loaded."""

    source = "nvml"

    def __init__(self, device: torch.device):
        try:
            import pynvml
        except ImportError as error:
            raise OSError("the package nvidia-ml-py is not installed: pip install 'tokmix[lab]'") from error
        self.nvml = pynvml
        try:
            pynvml.nvmlInit()
            # By UUID: CUDA_VISIBLE_DEVICES renumbers the GPUs for torch, not for NVML.
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        except pynvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from None
        self.first = self._millijoules()
        self.note = "GPU board alone"

    def _millijoules(self) -> int:
        try:
            return int(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle))
        except self.nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from None

    def joules(self) -> float:
        return (self._millijoules() - self.first) / 1e3


def energy_counter(device: torch.device, root: Path = POWERCAP) -> EnergyCounter | str:
    """The counter for work on this device, or the reason why there is none."""
    try:
        return Nvml(device) if device.type == "cuda" else Rapl(root)
    except PermissionError as error:
        return f"{error.filename} may not be read by this user"
    except (OSError, ValueError) as error:
        return str(error)


class Meter:
    def __init__(
        self,
        device: torch.device,
        counter: Callable[[torch.device], EnergyCounter | str] = energy_counter,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.device, self.make_counter, self.clock = device, counter, clock
        self.before: Measured = {}  # values from a checkpoint
        self.counter: EnergyCounter | str | None = None  # a string: why there is none
        self.began: float | None = None
        self.seconds, self.energy, self.read_at = 0.0, 0.0, 0.0
        self.peak: int | None = None

    def start(self) -> None:
        self.counter, self.began = self.make_counter(self.device), self.clock()
        self.read_at = self.began
        reset_peak(self.device)
        self.peak = peak_memory(self.device)

    def sample(self, now: bool = False) -> None:
        """Read the counters unless they were read recently."""
        if self.began is None or (not now and self.clock() - self.read_at < OFTEN):
            return
        self.read_at = self.clock()
        self.seconds, self.peak = self.read_at - self.began, peak_memory(self.device)
        if self.counter is not None and not isinstance(self.counter, str):
            try:
                self.energy = self.counter.joules()
            except (OSError, ValueError) as error:
                self.counter = f"the counter failed: {error}"

    def stop(self) -> None:
        self.sample(now=True)
        self.began = None

    def resume(self, measured: Measured) -> None:
        """Continue from the values of an earlier process."""
        self.before = measured.copy()

    def own(self) -> Measured:
        """The values of this process since start(), at the last sample."""
        energy: float | None = None
        if self.counter is None or isinstance(self.counter, str):
            source, note = NOT_MEASURED, self.counter or ""
        else:
            energy, source, note = self.energy, self.counter.source, self.counter.note
        return {
            "seconds": self.seconds,
            "peak_memory_bytes": self.peak,
            "peak_memory_of": "gpu" if self.device.type == "cuda" else "process",
            "energy_joules": energy,
            "energy_source": source,
            "energy_note": note,
        }

    def brief(self) -> Brief:
        """For a line of the log: values of this process at the last reading."""
        totals = self.totals()
        return {"peak_memory_bytes": totals["peak_memory_bytes"], "energy_joules": totals["energy_joules"]}

    def totals(self, parts: list[Measured] | None = None) -> Measured:
        """Everything measured by earlier processes and all current ones; `parts` holds own() of each."""
        if self.before and self.counter is None:  # no work was left
            return self.before.copy()
        now = _together([self.own()] if parts is None else parts)
        return add_up(self.before, now) if self.before else now


def _together(parts: list[Measured]) -> Measured:
    """Parallel processes: each has its own GPU. On a CPU all read the same counters, so only the first one counts."""
    first = parts[0]
    peaks = [part["peak_memory_bytes"] for part in parts if part["peak_memory_bytes"] is not None]
    joined = first | {"peak_memory_bytes": max(peaks, default=None)}
    if first["energy_source"] == "nvml":
        joined["energy_joules"] = _sum([part["energy_joules"] for part in parts])
    return joined if joined["energy_joules"] is not None else joined | _unmeasured([part["energy_note"] for part in parts])


def add_up(before: Measured, after: Measured) -> Measured:
    """Sequential parts. If one part has no energy, the sum has none."""
    peaks = [part["peak_memory_bytes"] for part in (before, after) if part["peak_memory_bytes"] is not None]
    joined = after | {"seconds": before["seconds"] + after["seconds"], "peak_memory_bytes": max(peaks, default=None)}
    same = before["energy_source"] == after["energy_source"]
    joined["energy_joules"] = _sum([before["energy_joules"], after["energy_joules"]]) if same else None
    if joined["energy_joules"] is None:
        change = "" if same else f"by {before['energy_source']} before a resume, by {after['energy_source']} after it"
        joined |= _unmeasured([change, before["energy_note"], after["energy_note"]])
    return joined


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _unmeasured(reasons: list[str]) -> Measured:
    return {"energy_joules": None, "energy_source": NOT_MEASURED, "energy_note": next((reason for reason in reasons if reason), "")}


# --- memory ----------------------------------------------------------------------------------------------------------


def reset_peak(device: torch.device, proc: Path = Path("/proc/self")) -> None:
    """Reset the peak memory of this process, if the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # if it cannot, the peak is that of the whole process so far
        (proc / "clear_refs").write_text("5")


def peak_memory(device: torch.device, proc: Path = Path("/proc/self")) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        for line in (proc / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _peak_of_process()


def _peak_of_process() -> int | None:
    if os.name != "posix":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
