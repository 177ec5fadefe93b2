"""What a run did cost: meters with made-up counters, what is counted, what a resume adds to, and the command about folders."""

from __future__ import annotations

import json
import os
import shutil
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tests.lab import write_table, write_text
from tokmix.cli import main
from tokmix.data.prepare import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.lab import meter as meters
from tokmix.lab import modelfolder
from tokmix.lab.account import Read, examples_read
from tokmix.lab.checkpoint import Checkpoints
from tokmix.lab.engine import Diverged, Engine
from tokmix.lab.machine import machine, versions
from tokmix.lab.meter import Meter, Nvml, Rapl, add_up, energy_counter
from tokmix.lab.settings import Settings
from tokmix.lab.task import Work
from tokmix.lab.train import run
from tokmix.lab.world import World

CPU = torch.device("cpu")
KEYS = {
    "parameters", "flops", "length", "steps", "tokens", "seconds", "processes", "device",
    "flops_forward", "flops_pointwise", "flops_training", "examples", "distinct_examples", "mean_length", "trials",
    "peak_memory_bytes", "peak_memory_of", "energy_joules", "energy_source", "energy_note", "machine", "versions",
}  # fmt: skip


# --- counters --------------------------------------------------------------------------------------------------------


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


# --- meters ----------------------------------------------------------------------------------------------------------


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
    block = torch.ones(60 * 2**20 // 4)
    during = meters.peak_memory(CPU)
    assert before and during and during - before > 50 * 2**20
    del block
    assert meters.peak_memory(CPU, Path("/nowhere")) > 10**6  # without /proc: the whole process


def test_machine_and_versions_say_what():
    found = machine()
    assert {"platform", "cpu", "cores", "threads", "gpu"} <= found.keys() and found["threads"] == 1 and found["cores"] >= 1
    assert {"python", "torch", "tokmix", "numpy", "transformers"} <= versions().keys()


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cost")
    prepare(write_table(folder / "t.csv", 120), folder / "rows", vocab=200)
    prepare(write_text(folder / "text", 30), folder / "stream", vocab=300)
    return folder


@pytest.fixture(scope="module")
def trained(data) -> Path:
    given = {"train.steps": 9, "train.rows": 16, "train.evaluations": 2, "train.baseline": False, "model.dim": 16}
    run(data / "rows", data / "run", Settings.of(None, given | {"model.stack": "hypermixing(hidden=16), hsm"}), quiet=True)
    return data / "run"


def engine(data: Path, name: str, folder: Path, world: World | None = None, **given: Any) -> Engine:
    stack = {"model.stack": "hsm, identity", "model.dim": 8, "model.length": 32, "train.tokens": 128, "train.rows": 8}
    more = {key.replace("__", "."): value for key, value in given.items()}
    return Engine(Work(TokenFiles(data / name), Settings.of(None, stack | more)), world or World(), Checkpoints(folder))


@pytest.mark.parametrize("name", ["rows", "stream"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_examples_are_those_that_batches_held(data, tmp_path, name, ranks):
    """At the end of an epoch, within one, and after none; over all ranks."""
    worlds = [World(rank, ranks, CPU) for rank in range(ranks)]
    parts = [engine(data, name, tmp_path).work.train_batches(world) for world in worlds]
    steps = [parts[0].steps(epoch) for epoch in range(3)]
    for epoch, inner in ((0, 0), (0, 3), (0, steps[0]), (1, 0), (2, 1), (2, steps[2])):
        lengths: Counter[int] = Counter()
        for at, until in [*((whole, steps[whole]) for whole in range(epoch)), (epoch, inner)]:
            for batches in parts:
                for step in range(until):
                    batch = batches.batch(at, step)
                    if batch.weight:
                        real = [batch.ids.shape[1]] * len(batch.rows) if batch.segments is None else batch.segments.mask.sum(1).tolist()
                        lengths.update(real)
        read = examples_read(parts[0], epoch, inner)
        assert read.lengths == lengths and read.examples == lengths.total()
        assert read.tokens == sum(n * count for n, count in lengths.items())
        assert read.distinct <= read.examples and (read.distinct == read.examples or epoch > 0)


def test_a_run_records_e_d_and_what_it_took(trained, data):
    record = json.loads((trained / "model" / "training.json").read_text())
    cost = record["cost"]
    assert cost.keys() >= KEYS
    read = read_in(data, 9)
    assert (cost["examples"], cost["tokens"], cost["distinct_examples"]) == (read.examples, read.tokens, read.distinct)
    assert cost["mean_length"] == pytest.approx(read.tokens / read.examples, abs=1e-3) and cost["steps"] == 9 and cost["seconds"] > 0
    assert cost["peak_memory_bytes"] > 10**7 and cost["peak_memory_of"] == "process"
    if cost["energy_source"] == "not measured":
        assert cost["energy_joules"] is None and cost["energy_note"]
    card = (trained / "model" / "README.md").read_text()
    assert f"= {cost['flops_training']:,} FLOPs · {cost['examples']:,} examples · 1 trial" in card and "energy" in card
    lines = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["cost"] == cost and all({"peak_memory_bytes", "energy_joules"} <= line.keys() for line in lines if "loss" in line)


def read_in(data: Path, steps: int) -> Read:
    """In the first steps of the run `trained`."""
    batches = engine(data, "rows", data / "none", train__rows=16, train__tokens=4096).batches
    epoch, last = batches.locate(steps - 1)
    return examples_read(batches, epoch, last + 1)


def test_e_is_what_the_counter_finds_for_the_very_examples(trained, data):
    """A real model, forward and backward, each length that was read: the mean, to the nearest whole operation."""
    known = modelfolder.load(trained)
    read = read_in(data, 9)
    forward = training = 0
    for length, count in read.lengths.items():
        ids = torch.zeros(1, length, dtype=torch.long)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            known.model(ids)
        forward += count * counter.get_total_flops()
        with FlopCounterMode(display=False) as counter:
            known.model(ids).sum().backward()
        training += count * counter.get_total_flops()
    assert known.record["cost"]["flops_forward"] == round(forward / read.examples)
    assert known.record["cost"]["flops_training"] == round(training / read.examples)


def test_a_resumed_run_adds_to_what_was_measured(data, tmp_path):
    now = [0.0]

    def made() -> Engine:
        one = engine(data, "rows", tmp_path, train__steps=6, train__save_steps=2, train__save_seconds=1e9)
        one.meter = Meter(CPU, lambda device: Ticking(), clock=lambda: now[0])
        step = one.step

        def timed() -> None:
            now[0] += 3.0
            step()
            if one.progress.step == 5 and one.meter.before == {}:
                raise KeyboardInterrupt  # as a kill would: between two checkpoints

        one.step = timed
        return one

    class Ticking:
        source, note = "rapl", "made up"

        def __init__(self):
            self.first = now[0]

        def joules(self) -> float:
            return 2 * (now[0] - self.first)

    first = made()
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = made()
    assert second.restore() and second.progress.step == 4
    assert second.progress.measured["seconds"] == 12.0, "what came after the checkpoint is lost, and will be done again"
    second.run()
    measured = second.progress.measured
    assert measured["seconds"] == 18.0 and measured["energy_joules"] == 36.0 and measured["energy_source"] == "rapl"
    third = made()
    assert third.restore()
    third.run()
    assert third.meter.totals() == measured, "a finished run that is resumed costs no more"


def test_a_warm_up_is_part_of_what_a_run_cost(data, tmp_path):
    given = {"train.steps": 4, "train.rows": 16, "train.pretrain": 1, "train.baseline": False, "model.dim": 8, "model.stack": "hsm"}
    cost = run(data / "rows", tmp_path / "run", Settings.of(None, given), quiet=True)["cost"]
    alone = run(data / "rows", tmp_path / "alone", Settings.of(None, given | {"train.pretrain": 0}), quiet=True)["cost"]
    warm = cost["warm_up"]
    for name in ("examples", "tokens", "steps"):
        assert cost[name] == warm[name] + alone[name] > alone[name]
    both = warm["flops_training"] * warm["examples"] + alone["flops_training"] * alone["examples"]
    assert cost["flops_training"] * cost["examples"] == pytest.approx(both, abs=cost["examples"])
    assert cost["seconds"] > warm["seconds"] > 0


def test_a_run_that_diverges_says_what_it_had_cost(data, tmp_path):
    given = {"train.steps": 30, "train.rows": 8, "train.lr": 1e30, "train.warmup": 0.0, "train.baseline": False, "model.dim": 8}
    with pytest.raises(Diverged) as caught:
        run(data / "rows", tmp_path / "run", Settings.of(None, given), quiet=True)
    cost = caught.value.cost
    assert cost is not None and cost.keys() >= KEYS and 0 < cost["steps"] < 30 and cost["seconds"] > 0
    last = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert last["cost"] == cost


# --- the command about folders -----------------------------------------------------------------------------------------


def table(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    assert main(["cost", *command]) == 0
    told = capsys.readouterr().out
    return json.loads(told)["results"] if "--json" in command else told


def test_cost_of_a_run_and_of_its_model(trained, capsys):
    cost = json.loads((trained / "model" / "training.json").read_text())["cost"]
    told = table(capsys, str(trained))
    assert f"{cost['flops_training']:,}" in told and f"{cost['flops_training'] * cost['examples']:.3e}" in told
    one, two = table(capsys, str(trained), str(trained / "model"), "--json")
    assert one["flops"] == two["flops"] == cost["flops_training"] * cost["examples"]
    assert one["flops"] == pytest.approx(one["flops_training"] * one["examples"] * one["trials"])


def cost_of(e: int, d: int, seconds: float, joules: float | None, source: str = "nvml") -> dict[str, Any]:
    memory = {"peak_memory_bytes": 2**20 * int(seconds), "peak_memory_of": "gpu"}
    return {"flops_training": e, "examples": d, "seconds": seconds, **memory, "energy_joules": joules, "energy_source": source}


def test_cost_of_a_search_counts_every_trial(tmp_path, capsys):
    trials = [
        {"number": 0, "state": "finished", "cost": cost_of(100, 10, 60, 5.0)},
        {"number": 1, "state": "finished", "cost": cost_of(200, 30, 80, 6.0)},
    ]
    (tmp_path / "tune.json").write_text(json.dumps({"format": "tokmix-tune", "trials": trials}))
    (found,) = table(capsys, str(tmp_path), "--json")
    assert (found["trials"], found["flops"], found["examples"], found["flops_training"]) == (2, 7000, 20, 175)
    assert found["flops_training"] * found["examples"] * found["trials"] == found["flops"]
    assert (found["seconds"], found["energy_joules"], found["energy_source"], found["peak_memory_bytes"]) == (140, 11.0, "nvml", 80 * 2**20)
    trials.append({"number": 2, "state": "diverged", "cost": {"steps": 3, "seconds": 1.0}})
    (tmp_path / "tune.json").write_text(json.dumps({"trials": trials}))
    told = table(capsys, str(tmp_path))
    assert "at least 7.000e+03" in told and "1 of 3 left no record" in told


def test_cost_of_a_comparison_by_entry_and_fraction(tmp_path, capsys):
    runs: list[dict[str, Any]] = []
    for fraction in (0.5, 1.0):
        cost = cost_of(100, int(100 * fraction), 60, None, "not measured")
        runs += [{"entry": "hsm", "fraction": fraction, "seed": seed, "state": "finished", "cost": cost} for seed in (0, 1)]
    runs.append({"entry": "bag of words", "fraction": 1.0, "state": "finished", "cost": {"seconds": 0.1, "flops_training": None}})
    (tmp_path / "compare.json").write_text(json.dumps({"format": "tokmix-compare", "runs": runs}))
    found = table(capsys, str(tmp_path), "--json")
    assert [(one["result"], one["trials"], one["flops"]) for one in found] == [("hsm at 50 %", 2, 10_000), ("hsm at 100 %", 2, 20_000)]
    assert all(one["energy_joules"] is None and one["energy_source"] == "not measured" for one in found)
    assert "not measured" in table(capsys, str(tmp_path))


def test_folders_that_say_nothing_are_one_line(trained, tmp_path, capsys):
    def complaint(*command: str) -> str:
        assert main(["cost", *command]) == 1
        told = capsys.readouterr().err
        assert len(told.splitlines()) == 1
        return told

    assert "give stacks or results, not both" in complaint(str(trained), "hsm")
    assert "--check is about stacks" in complaint(str(trained), "--check")
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "run.json").write_text("{}")
    assert "has not ended" in complaint(str(tmp_path / "open"))
    (tmp_path / "tune").mkdir()
    for text, words in (
        ("{", "not JSON"),
        ("[]", "does not hold an object"),
        ("{}", "not a list of runs"),
        ('{"trials": []}', "no finished trial"),
    ):
        (tmp_path / "tune" / "tune.json").write_text(text)
        assert words in complaint(str(tmp_path / "tune"))
    shutil.copytree(trained / "model", tmp_path / "old")
    record = json.loads((tmp_path / "old" / "training.json").read_text())
    del record["cost"]["flops_training"]
    (tmp_path / "old" / "training.json").write_text(json.dumps(record))
    assert "written by an older tokmix, or is damaged" in complaint(str(tmp_path / "old"))


def test_a_language_model_counts_windows(data, tmp_path):
    given = {"model.stack": "hsm*2", "model.dim": 8, "model.length": 32, "train.epochs": 2, "train.tokens": 128}
    cost = run(data / "stream", tmp_path / "run", Settings.of(None, given), quiet=True)["cost"]
    windows = -(-cost["tokens"] // 2 // 32)  # of an epoch, or one more where the first is short
    assert 2 * windows <= cost["examples"] <= 2 * windows + 4 and 0 < cost["mean_length"] <= 32
    assert cost["examples"] > cost["distinct_examples"] >= windows
