"""What a run is measured with: counters of energy that are made up, meters on top of them, peak memory, the machine."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("transformers")

from tokmix.runs.machine import machine, versions
from tokmix.training import meter as meters
from tokmix.training.meter import Meter, Nvml, Rapl, add_up, energy_counter

CPU = torch.device("cpu")


# --- counters ----------------------------------------------------------------------------------------------------------------


def zone(root: Path, name: str, kind: str, microjoules: int, largest: int = 1_000_000) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    for file, value in (("name", kind), ("energy_uj", microjoules), ("max_energy_range_uj", largest)):
        (folder / file).write_text(f"{value}\n")
    return folder


def test_rapl_adds_packages_and_memory_and_survives_wrapping(tmp_path):
    one, two = zone(tmp_path, "intel-rapl:0", "package-0", 900_000), zone(tmp_path, "intel-rapl:1", "package-1", 0)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 10)
    others = [zone(tmp_path, "intel-rapl:0:0", "core", 5), zone(tmp_path, "intel-rapl:2", "psys", 5)]
    others.append(zone(tmp_path, "intel-rapl-mmio:0", "package-0", 5))  # the package once more
    counter = Rapl(tmp_path)
    assert counter.joules() == 0 and counter.note == "whole machine: package-0, package-1, dram"
    (one / "energy_uj").write_text("100000")  # past 1,000,000 and on
    (two / "energy_uj").write_text("300000")
    (memory / "energy_uj").write_text("50010")
    for other in others:
        (other / "energy_uj").write_text("999999")
    assert counter.joules() == pytest.approx(0.2 + 0.3 + 0.05)
    (one / "energy_uj").write_text("50000")  # and round again
    assert counter.joules() == pytest.approx(0.55 + 0.95)
    assert counter.joules() == pytest.approx(1.5)


def test_what_cannot_be_read_is_not_measured_and_says_why(tmp_path, monkeypatch):
    assert "no RAPL counter" in str(energy_counter(CPU, tmp_path))
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    assert isinstance(energy_counter(CPU, tmp_path), Rapl)
    read = Path.read_text

    def forbidden(path, *given, **more):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *given, **more)

    monkeypatch.setattr(Path, "read_text", forbidden)
    assert str(energy_counter(CPU, tmp_path)).endswith("energy_uj may not be read by this user")
    meter = Meter(CPU, lambda device: energy_counter(device, tmp_path))
    meter.start()
    meter.stop()
    found = meter.totals()
    assert found["energy_joules"] is None and found["energy_source"] == "not measured" and "may not be read" in found["energy_note"]


class Broken(Exception):
    pass


def fake_nvml(readings: list[Any]) -> types.ModuleType:
    module = types.ModuleType("pynvml")

    def energy(handle):
        assert handle == "the handle"
        value = readings.pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    def by_identity(identity):
        assert identity == "GPU-12ab"
        return "the handle"

    module.NVMLError, module.nvmlInit = Broken, lambda: None
    module.nvmlDeviceGetHandleByUUID, module.nvmlDeviceGetTotalEnergyConsumption = by_identity, energy
    return module


@pytest.fixture
def one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="12ab"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 123)
    return torch.device("cuda", 0)


def test_nvml_counts_millijoules_of_the_gpu_in_use(one_gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([5_000, 7_500, 9_000]))
    counter = Nvml(one_gpu)
    assert counter.joules() == 2.5 and counter.joules() == 4.0


def test_a_counter_that_fails_midway_measures_nothing(one_gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([5_000, 7_500, Broken("GPU is lost")]))
    meter = Meter(one_gpu)
    meter.start()
    meter.sample(now=True)
    assert meter.totals()["energy_joules"] == 2.5 and meter.totals()["energy_source"] == "nvml"
    meter.stop()
    found = meter.totals()
    assert found["energy_joules"] is None and found["energy_source"] == "not measured" and "GPU is lost" in found["energy_note"]
    assert found["peak_memory_bytes"] == 123 and found["peak_memory_of"] == "gpu"


def test_a_gpu_without_a_counter_or_the_package_is_not_measured(one_gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([Broken("Not Supported")]))
    assert energy_counter(one_gpu) == "NVML: Not Supported"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is not installed" in str(energy_counter(one_gpu))


# --- meters ------------------------------------------------------------------------------------------------------------------


class Steady:
    """As many joules as it was asked, times ten."""

    source, note = "rapl", "made up"

    def __init__(self):
        self.asked = 0

    def joules(self) -> float:
        self.asked += 1
        return 10.0 * self.asked


def part(seconds: float, joules: float | None, source: str = "rapl", peak: int | None = 1, note: str = "") -> dict[str, Any]:
    memory = {"peak_memory_bytes": peak, "peak_memory_of": "process"}
    return {"seconds": seconds, **memory, "energy_joules": joules, "energy_source": source, "energy_note": note}


def test_a_meter_reads_its_counter_only_now_and_then():
    now, made = [0.0], []
    meter = Meter(CPU, lambda device: made.append(Steady()) or made[-1], clock=lambda: now[0])
    assert meter.totals()["seconds"] == 0 and meter.totals()["energy_source"] == "not measured"
    meter.start()
    for second in (1.0, 2.0, 6.0, 7.0):
        now[0] = second
        meter.sample()
    assert made[0].asked == 1 and meter.totals()["seconds"] == 6.0 and meter.totals()["energy_joules"] == 10.0
    now[0] = 8.0
    meter.stop()
    now[0] = 100.0
    meter.sample(now=True)  # after the end nothing is added
    assert meter.totals()["seconds"] == 8.0 and meter.totals()["energy_joules"] == 20.0
    assert meter.totals()["peak_memory_bytes"] > 10**6


def test_what_came_before_a_resume_is_added():
    assert add_up(part(2.0, 5.0, peak=7), part(3.0, 1.0, peak=4)) == part(5.0, 6.0, peak=7)
    lost = add_up(part(2.0, 5.0), part(3.0, None, "not measured", note="no counter"))
    assert lost["energy_joules"] is None and lost["seconds"] == 5.0, "joules of a part are not joules of the whole"
    mixed = add_up(part(2.0, 5.0, "nvml"), part(3.0, 4.0))
    assert mixed["energy_source"] == "not measured" and "nvml before a resume, by rapl after" in mixed["energy_note"]
    meter = Meter(CPU, lambda device: Steady())
    meter.resume(part(2.0, 5.0, peak=10**15))
    assert meter.totals() == part(2.0, 5.0, peak=10**15), "nothing left to do: nothing is added"
    meter.start()
    meter.stop()
    found = meter.totals()
    assert found["energy_joules"] == 15.0 and found["seconds"] >= 2.0 and found["peak_memory_bytes"] == 10**15


def test_processes_side_by_side():
    meter = Meter(CPU)
    gpus = meter.totals([part(2.0, 5.0, "nvml", 3), part(2.1, 6.0, "nvml", 9)])
    assert gpus["energy_joules"] == 11.0 and gpus["peak_memory_bytes"] == 9 and gpus["seconds"] == 2.0
    assert meter.totals([part(2.0, 5.0), part(2.0, 5.1)])["energy_joules"] == 5.0, "one machine has one set of counters"
    half = meter.totals([part(2.0, 5.0, "nvml"), part(2.0, None, "not measured", note="why")])
    assert half["energy_joules"] is None and half["energy_source"] == "not measured" and half["energy_note"] == "why"


def test_peak_memory_is_that_of_the_stretch_measured():
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this system cannot forget an earlier peak")
    meters.reset_peak(CPU)
    before = meters.peak_memory(CPU)
    block = torch.ones(240 * 2**20 // 4)
    during = meters.peak_memory(CPU)
    assert before and during and during - before > 200 * 2**20
    del block
    assert meters.peak_memory(CPU, Path("/nowhere")) > 10**6  # without /proc: the whole process


def test_machine_and_versions_say_what():
    found = machine()
    assert {"platform", "cpu", "cores", "threads", "gpu"} <= found.keys() and found["threads"] == 1 and found["cores"] >= 1
    assert {"python", "torch", "tokmix", "numpy", "transformers"} <= versions().keys()
