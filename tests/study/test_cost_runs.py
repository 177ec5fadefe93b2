"""What a run did cost: the examples it read, their FLOPs, what a resume adds to, and the command about folders."""

from __future__ import annotations

import json
import shutil
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
from tokmix.cli.main import main
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.training import model_folder
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.cost_record import Read, examples_read
from tokmix.training.distributed import World
from tokmix.training.engine import Engine
from tokmix.training.meter import Meter
from tokmix.training.progress import Diverged
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask
from tokmix.training.train import run

CPU = torch.device("cpu")
KEYS = {
    "parameters", "flops", "length", "steps", "tokens", "seconds", "processes", "device",
    "flops_forward", "flops_pointwise", "flops_training", "examples", "distinct_examples", "mean_length", "trials",
    "peak_memory_bytes", "peak_memory_of", "energy_joules", "energy_source", "energy_note", "machine", "versions",
}  # fmt: skip


# --- runs --------------------------------------------------------------------------------------------------------------------


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
    return Engine(TrainingTask(TokenFiles(data / name), Settings.of(None, stack | more)), world or World(), Checkpoints(folder))


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
    epoch, last = 0, steps - 1
    while last >= batches.steps(epoch):
        epoch, last = epoch + 1, last - batches.steps(epoch)
    return examples_read(batches, epoch, last + 1)


def test_e_is_what_the_counter_finds_for_the_very_examples(trained, data):
    """A real model, forward and backward, each length that was read: the mean, to the nearest whole operation."""
    known = model_folder.load(trained)
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


def test_a_language_model_counts_windows(data, tmp_path):
    given = {"model.stack": "hsm*2", "model.dim": 8, "model.length": 32, "train.epochs": 2, "train.tokens": 128}
    cost = run(data / "stream", tmp_path / "run", Settings.of(None, given), quiet=True)["cost"]
    windows = -(-cost["tokens"] // 2 // 32)  # of an epoch, or one more where the first is short
    assert 2 * windows <= cost["examples"] <= 2 * windows + 4 and 0 < cost["mean_length"] <= 32
    assert cost["examples"] > cost["distinct_examples"] >= windows


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
    first.checkpoints.finish()  # the last one is written in the background
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


# --- the command about folders -----------------------------------------------------------------------------------------------


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
    for option in (["--check"], ["--dim", "16"], ["--feed-forward", "0"], ["--vocab", "9"], ["--causal"], ["--farthest", "9"], ["--paper"]):
        assert f"{option[0]} is about stacks" in complaint(str(trained), *option)
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
