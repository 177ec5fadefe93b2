"""The benchmarks at sizes of a second: what they check, what they refuse, what they write. No test looks at a time."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from bench.speed import table
from bench.speed.cases import Size, draw
from bench.speed.decode import state_after, stepped
from bench.speed.rivals import Rival, attention_layers, linear_core, linear_layer
from bench.speed.rule import Tensors, Verdict, with_gradients
from bench.speed.run import run
from bench.speed.settings import BenchSettings
from tests.benches import quick
from tokmix.core.mixer import create
from tokmix.ops import shift_mix

SIZE = Size(2, 48, 32, 16)


def test_ops_are_checked_timed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = quick("ops", "--only", "attention", "shift_mix, gate", "heads of 16, tied", "hyper_glu", out=tmp_path / "ops.json")
    printed = capsys.readouterr().out
    assert code == 0 and found["refused"] == []
    rows, asked, machine = found["rows"], found["asked"], found["machine"]
    names = {"attention, full", "attention, causal", "shift_mix, gate", "hyper_mix, heads of 16, tied", "hyper_glu"}
    assert {row["name"] for row in rows} == names and all(f"\n{name} " in printed for name in names)
    assert {(row["way"], row["N"]) for row in rows} == {(way, N) for way in ("forward", "forward+backward") for N in asked["lengths"]}
    numbers = ("us", "low", "high", "wall_us", "gbs", "tflops", "floor_us", "times_floor", "peak_mib", "flops", "bytes", "repeats", "at_s")
    assert all(row[key] >= 0 for row in rows for key in numbers) and all(row["rows"] * row["N"] == 64 for row in rows)
    assert {check["name"] for check in found["checks"] if check["passes"]} >= {"shift_mix, gate", "hyper_glu"}
    assert all({"what", "error", "plain", "allowed"} <= set(verdict) for check in found["checks"] for verdict in check["verdicts"])
    assert machine["versions"]["torch"] == torch.__version__.split("+")[0] or machine["versions"]["torch"] == torch.__version__
    assert len(machine["code"]["source_sha256"]) == 64 and "commit" in machine["code"] and machine["threads"] == 1
    assert set(found["ceilings"]) == {"copy_gbs", "activation_copy_gbs", "matmul_tflops"}
    assert (tmp_path / "ops.png").stat().st_size > 10_000
    assert any("flash-linear-attention" in line for line in found["left_out"])


@pytest.mark.parametrize("how", ["forward", "backward", "crash"])
def test_an_op_with_wrong_numbers_is_refused(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = shift_mix.shift_mix

    def wrong(x: Tensor, weights: list[Tensor], shifts: tuple[int, ...]) -> Tensor:
        if how == "crash":
            raise RuntimeError("no kernel image")
        y = right(x, weights, shifts)
        return y * 1.01 if how == "forward" else y + (weights[0] - weights[0].detach()) * 0.1

    monkeypatch.setattr(shift_mix, "shift_mix", wrong)
    code, found = quick("ops", "--only", "shift_mix, vector", "shift_mix, matrix", out=tmp_path / "ops.json")
    assert code == 1 and found["refused"] == ["shift_mix, vector"]  # norm_shift_mix, vector has an op of its own
    assert {row["name"] for row in found["rows"]} == {"shift_mix, matrix", "norm_shift_mix, vector"}
    assert "REFUSED shift_mix, vector" in capsys.readouterr().out


def test_a_layer_with_wrong_numbers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokmix.layers.hsm import HSM
    from tokmix.ops import dispatch

    right = HSM.mix_in_layout

    def wrong(self: HSM, x: Tensor, segments: object) -> Tensor | None:
        y = right(self, x, segments)  # type: ignore[arg-type]
        return y if y is None or dispatch.forced() == "reference" else y + 0.01

    monkeypatch.setattr(HSM, "mix_in_layout", wrong)
    code, found = quick("layers", "--only", "hsm, vector", "fnet", out=tmp_path / "layers.json")
    assert code == 1 and found["refused"] == ["hsm, vector"]
    assert {row["name"] for row in found["rows"]} == {"fnet"}


def test_what_flash_linear_attention_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its op gets what lies behind the projections, and its first result is read; both here by a loop over tokens."""

    def chunk_linear_attn(q: Tensor, k: Tensor, v: Tensor, normalize: bool) -> tuple[Tensor, None]:
        assert not normalize
        state, rows = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3], dtype=q.dtype), []
        for t in range(q.shape[1]):
            state = state + k[:, t, :, :, None] * v[:, t, :, None]
            rows.append((q[:, t, :, None] * q.shape[3] ** -0.5 @ state)[:, :, 0])
        return torch.stack(rows, 1), None

    for name in ("fla", "fla.ops", "fla.ops.linear_attn"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["fla.ops.linear_attn"].chunk_linear_attn = chunk_linear_attn  # type: ignore[attr-defined]
    for rival in (linear_core(16), linear_layer(16)):
        given = draw(rival.shapes(SIZE), torch.float64, "cpu")
        torch.testing.assert_close(rival.body(given), rival.plain(given))
    with FlopCounterMode(display=False) as counter:
        rival.body(given)
    projections = 8 * SIZE.rows * SIZE.length * SIZE.dim**2
    assert rival.flops(SIZE) - linear_core(16).flops(SIZE) == projections <= counter.get_total_flops()


def test_layers(tmp_path: Path) -> None:
    code, found = quick("layers", "--lengths", "16", out=tmp_path / "layers.json")
    assert code == 0 and {row["way"] for row in found["rows"]} == {"forward+backward"}
    names = {row["name"] for row in found["rows"]}
    assert len(names) == 17 and {"attention, full", "attention, causal", "hypermlp", "fnet", "hypermixing, causal, heads of 16"} <= names
    best = table.against_attention(found["rows"])
    assert all(best(row) == 1 for row in found["rows"] if row["name"].startswith("attention"))


def test_decode(tmp_path: Path) -> None:
    code, found = quick("decode", out=tmp_path / "decode.json")
    rows = {(row["name"], row["batch"], row["N"]): row for row in found["rows"]}
    assert code == 0 and len(rows) == 7 * 2 * 2 and found["left_out"] == []
    for batch in (1, 2):
        assert rows["attention", batch, 32]["state_bytes"] == 4 * 2 * 32 * 32 + 8  # k and v, and a position
        assert rows["hypermixing", batch, 16]["state_bytes"] == rows["hypermixing", batch, 32]["state_bytes"]
        ladder = rows["hsm, ladder", batch, 32]
        assert ladder["layers"] == 5 and ladder["state_bytes"] == (4 * 31 * 32) / 5 + 8  # shifts 1 + 2 + 4 + 8 + 16
    assert all(row["us_step"] == pytest.approx(row["us"] / row["tokens"] / row["layers"]) for row in rows.values())


def test_decoding_models_beside_gpt2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    code, found = quick("decode", "--only", "hsm*3", "GPT-2", out=tmp_path / "decode.json")
    ours, dynamic, static = found["models"]
    assert code == 0 and found["rows"] == []
    assert (ours["name"], ours["body"]) == ("(hsm*3, attention(heads=2))*2", "tokmix.generate") and dynamic["name"] == static[
        "name"
    ] == "GPT-2"
    for row in found["models"]:
        best = [max(pair) for pair in zip(dynamic["rates"], static["rates"], strict=True)]
        ratios = [rate / other for rate, other in zip(row["rates"], best, strict=True)]
        assert row["ratios"] == pytest.approx(ratios) and row["ratio"] == pytest.approx(sum(ratios) / 2)
    attention = 8 * (4 * (32 * 32 + 32) + 2 * 32 * 64 + 64 + 32 + 4 * 32) + 2 * 32 + 64 * 32
    assert dynamic["parameters"] == attention + (16 + 6) * 32, "the layers of attention*8, and learned positions"
    assert "times GPT-2" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["hsm", "hypermixing", "linear_attention", "attention"])
def test_a_made_up_state_is_one_that_reading_leaves(name: str) -> None:
    mixer = create(name, 16, causal=True, max_len=64)
    x = torch.randn(2, 8, 16)
    read = mixer.step(x, mixer.init_state(2, x))[1]
    made = state_after(mixer, 2, 8, x)
    shapes = lambda state: tree_map(lambda part: (tuple(part.shape), part.dtype), state)
    assert shapes(made) == shapes(read)
    call, layers, _ = stepped([mixer], 2, 8)
    assert layers == 1 and torch.isfinite(call()).all()


def test_training(tmp_path: Path) -> None:
    code, found = quick("train", "--lengths", "16", out=tmp_path / "train.json")
    assert code == 0 and [(row["model"], row["body"]) for row in found["rows"]] == [("HyperMixer", "eager")] * 2 + [("LM", "eager")] * 2
    assert all(row["tokens"] == 64 and row["tokens_per_s"] > 0 and row["graph_tokens_per_s"] is None for row in found["rows"])
    assert sum("attention" in row["name"] and "hsm" not in row["name"] for row in found["rows"]) == 2


def test_the_models_are_the_ones_asked_for() -> None:
    from bench.speed.train import models
    from tokmix.core.model import Model, ModelConfig

    mixed, lm = models("cuda", quick=False)
    assert (mixed.stack, mixed.config["dim"]) == ("hypermixing(heads=4, hidden=512)*6", 256)
    for trained in (mixed, lm):
        with torch.device("meta"):
            ours, *others = (
                Model(ModelConfig(stack=stack, max_len=512, **trained.config)) for stack in (trained.stack, *trained.attention)
            )
        assert all(len(other.layers) == len(ours.layers) for other in others)


def test_the_training_loop(tmp_path: Path) -> None:
    code, found = quick("train-loop", out=tmp_path / "loop.json")
    rows = {(row["name"], row["body"]): row for row in found["rows"]}
    loops = ("engine", "plain, same reader", "plain, batches in memory")
    assert code == 0 and set(rows) == {(task, loop) for task in ("classify", "lm") for loop in loops}
    for task in ("classify", "lm"):
        assert rows[task, "engine"]["ratio"] == 1
        plain = rows[task, loops[1]]
        ratios = sorted(a / b for a, b in zip(rows[task, "engine"]["rates"], plain["rates"], strict=True))
        assert len(ratios) == plain["turns"] == 3 and plain["ratio"] == pytest.approx(ratios[1])


def test_engine_and_plain_loop_read_the_same_batches_and_learn_the_same(tmp_path: Path) -> None:
    from bench.speed import train_loop
    from tokmix.data.prepare.pipeline import prepare
    from tokmix.data.tokens import TokenFiles
    from tokmix.training.distributed import World
    from tokmix.training.settings import Settings
    from tokmix.training.task import TrainingTask

    prepare(train_loop.write_data(tmp_path, train_loop.ON_CPU["classify"], 200), tmp_path / "data", progress=False, vocab=300)
    given = {"train.holdout": 0.0, "train.token_dropout": 0.0, "model.dim": 16, "train.tokens": 256, "model.dropout": 0.0}
    given |= {"train.lr": 1e-4, "train.average": 0.0, "train.warmup": 0.0, "train.weight_decay": 0.01, "train.beta2": 0.999}
    work, world = TrainingTask(TokenFiles(tmp_path / "data"), Settings.of(None, given | {"train.steps": 1000})), World()
    engine = train_loop.ByEngine(work, world, tmp_path)
    plain = train_loop.Plain(work, world.device, train_loop._endless(work, world))
    assert engine.run(1) == plain.run(1)
    for a, b in zip(engine.engine.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=3e-6)  # a step of 1e-4; biases decay in one of them
    assert engine.run(5) == plain.run(5)


class Remembering:
    """Records by remembering: a replay runs the work again. There is no warm-up, which on a GPU moves the weights a little."""

    def warm(self, work: Callable[[], None]) -> None:
        pass

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        return work


def test_a_captured_loop_by_hand_makes_the_steps_of_the_plain_one(tmp_path: Path) -> None:
    from bench.speed import train_loop
    from tokmix.data.prepare.pipeline import prepare
    from tokmix.data.tokens import TokenFiles
    from tokmix.training.distributed import World
    from tokmix.training.settings import Settings
    from tokmix.training.task import TrainingTask

    prepare(train_loop.write_data(tmp_path, train_loop.ON_CPU["classify"], 200), tmp_path / "data", progress=False, vocab=300)
    given = {"train.holdout": 0.0, "model.dim": 16, "train.tokens": 256, "model.dropout": 0.0}
    work, world, recorder = TrainingTask(TokenFiles(tmp_path / "data"), Settings.of(None, given)), World(), Remembering()
    plain = train_loop.Plain(work, world.device, train_loop._endless(work, world))
    graphed = train_loop.Graphed(work, world.device, train_loop._endless(work, world), recorder, compiled=False)
    assert plain.run(6) == graphed.run(6) and len(graphed.graphs) > 1
    for a, b in zip(plain.model.parameters(), graphed.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("made", attention_layers(64, False, "cpu"), ids=lambda made: made.name)
def test_what_is_drawn_for_a_layer_has_the_scale_that_it_has_in_one(made: Rival) -> None:
    """Attention with scores of hundreds reads one token a row, and whether torch and a kernel choose the same one is luck."""
    given = draw(made.shapes(Size(2, 48, 64, 16)), torch.float32, "cpu")
    for name in given.keys() - {"x"}:
        assert 0.8 < float((given["x"] @ given[name]).std()) < 1.2, name


def _told(check: dict[str, Any]) -> str:
    """What is over in a check that fails."""
    over = [str(one) for one in (Verdict(**one) for one in check.get("verdicts", [])) if not one.holds]
    return f"{check['name']} {check['shape']}: {check.get('problem', '; '.join(over))}"


def test_what_is_asked_of_y_lies_as_y_does() -> None:
    """Whatever the layout of what is drawn: cuDNN's plan of a backward pass is kept for the first one that it met."""
    strides = []

    def turned(given: Tensors) -> Tensor:
        y = (2 * given["x"]).transpose(0, 1)
        y.register_hook(lambda dy: strides.append(dy.stride()))
        return y

    found = with_gradients(turned, {"x": torch.ones(3, 5)}, dy := torch.randn(5, 3), torch.float64)
    assert strides == [(1, 5)]
    assert torch.equal(found["x"], 2 * dy.double().T)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@pytest.mark.parametrize("what", ["ops", "layers", "decode", "train", "train-loop"])
def test_on_a_gpu(what: str, tmp_path: Path) -> None:
    session = run(BenchSettings(what, quick=True, device="cuda", out=tmp_path / "found.json"), say=lambda line: None)
    refused = [_told(check) for check in session.checks if not check["passes"]]
    assert session.rows and not refused, "\n".join(refused)
    if what in ("ops", "layers", "decode"):
        assert {row["how"] for row in session.rows} <= {"graph", "events"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_call_that_cannot_be_captured_is_timed_by_events() -> None:
    from bench.speed.clock import GpuClock

    clock, net = GpuClock(0.01, 2, 3), nn.Linear(64, 64).cuda()
    x = torch.randn(8, 64, device="cuda")
    assert clock(lambda: net(x)).how == "graph"
    assert clock(lambda: float(net(x).detach().sum())).how == "events"  # it asks the device
    assert clock(lambda: net(x)).how == "graph"
