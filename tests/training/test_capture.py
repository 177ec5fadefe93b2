"""Steps as CUDA graphs. On a CPU a fake recorder stands in for graphs: it shows that shapes, static buffers and state are right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tests.lab import write_scores, write_table, write_text
from tokmix.data.batches.mask import IGNORE
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.training.capture import Captured, CudaRecorder, Work, why_not
from tokmix.training.checkpoint import Checkpoints, load_tensors
from tokmix.training.distributed import World
from tokmix.training.engine import Engine
from tokmix.training.optimizers import Optimizers, means
from tokmix.training.settings import Settings
from tokmix.training.static_shapes import LADDER, BatchSlot, bucket, pad
from tokmix.training.step import Step
from tokmix.training.task import TrainingTask
from tokmix.training.tasks import task_for
from tokmix.training.train import run

GIVEN = {
    "model.stack": "hsm(variant='fusion'), hypermixing(hidden=16)", "model.dim": 16, "model.dropout": 0.0, "train.rows": 16,
    "train.token_dropout": 0.0, "train.baseline": False, "train.steps": 8, "train.evaluations": 2, "train.save_steps": 3,
}  # fmt: skip


def on_gpu(test):
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")(test))


class Fake:
    """Records by remembering: replay runs the work again."""

    def __init__(self) -> None:
        self.recorded = 0

    def warm(self, work: Work) -> None:
        for _ in range(2):
            work()

    def record(self, work: Work) -> Work:
        self.recorded += 1
        return work


class Refusing(Fake):
    def record(self, work: Work) -> Work:
        raise RuntimeError("operation not permitted when stream is capturing\n  more")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("capture")
    prepare(write_table(folder / "t.csv", 160), folder / "data", vocab=200)
    return folder / "data"


@pytest.fixture(scope="module")
def scores(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scores")
    prepare(write_scores(folder / "t.tsv", 120), folder / "data", vocab=200)
    return folder / "data"


@pytest.fixture(scope="module")
def labels(tmp_path_factory) -> Path:
    """Several labels a row, as many of them as some rows have tokens."""
    folder = tmp_path_factory.mktemp("labels")
    rows = [f"film {'fine ' * (i % 3)}{'dull ' * (i % 4)}day,{'|'.join('abcd'[: 1 + i % 4])}" for i in range(120)]
    (folder / "t.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    prepare(folder / "t.csv", folder / "data", vocab=200, task="multilabel", label_separator="|")
    return folder / "data"


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    prepare(write_text(folder / "t"), folder / "data", vocab=300, task="lm")
    return folder / "data"


def task_of(data: Path, **more) -> TrainingTask:
    return TrainingTask(TokenFiles(data), Settings.of(None, GIVEN | more))


def step_of(task: TrainingTask, capturable: bool, **more) -> Step:
    engine = Engine(task, World(), Checkpoints(Path("unused")))
    optimizers = Optimizers(engine.model.named_parameters(), 1e-2, capturable=capturable, kind=task.train.optimizer, weight_decay=0.05)
    return Step(engine.model, optimizers, engine.sharding, task.batch_loss, clip=1.0, average=means(engine.parameters), **more)


def test_the_ladder_has_few_sizes_and_none_wastes_much():
    assert sorted(LADDER) == LADDER and LADDER[:10] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert all(n <= bucket(n) <= 1.5 * n for n in range(1, 5000))
    assert bucket(60, 60) == 60 and bucket(50, 60) == 60 and bucket(30, 60) == 32 and bucket(70, 60) == 96


@pytest.mark.parametrize("kind", ["table", "balanced", "scores", "labels", "text", "mlm"])
def test_a_padded_batch_has_the_same_loss_and_gradients(request, kind):
    data = request.getfixturevalue({"mlm": "text", "balanced": "table"}.get(kind, kind))
    more = (
        {"train.task": "mlm", "model.length": 24}
        if kind == "mlm"
        else {"train.balance": True, "train.rows": 13}
        if kind == "balanced"
        else {}
    )
    more |= {"model.stack": "hsm, attention(heads=2)", "model.length": 24} if kind == "text" else {}
    task = task_of(data, **more)
    step, batches = step_of(task, False), task.train_batches(World())
    causal = task.config.causal
    for place in (0, batches.steps(0) - 1):
        batch = batches.batch(0, place)
        padded = pad(batch, task.config.max_len, None, causal)
        assert padded.ids.shape[0] == bucket(batch.ids.shape[0]) and padded.total == batch.total
        found = []
        for one in (batch, padded):
            step.optimizers.zero_grad()
            loss = step.forward_backward(one, 1 / batch.total)
            found.append((loss, [parameter.grad.clone() for parameter in step.parameters if parameter.grad is not None]))
        (loss, grads), (other, others) = found
        assert torch.allclose(loss, other, atol=1e-6)
        assert len(grads) == len(others) and all(torch.allclose(a, b, atol=1e-5) for a, b in zip(grads, others, strict=True))


def test_whole_rows_have_no_segments(text):
    task = task_of(text, **{"model.length": 24, "train.task": "mlm", "train.tokens": 250})
    batches = task.train_batches(World())
    padded = [pad(batches.batch(0, place), 24, batches.size) for place in range(batches.steps(0))]
    assert {tuple(one.ids.shape) for one in padded[:-1]} == {(10, 24)} and len(padded) >= 5, "no row is added to a full batch"
    assert sum(one.segments is None for one in padded) >= len(padded) - 2, "the first and the last window of a text may be short"


def test_added_rows_have_no_target(table):
    task = task_of(table, **{"train.rows": 13})
    batch = task.train_batches(World()).batch(0, 0)
    padded = pad(batch, 64, None)
    assert padded.ids.shape[0] == 16 > batch.ids.shape[0] and (padded.targets[len(batch.targets) :] == IGNORE).all()
    assert padded.segments.cu_seqlens.diff().tolist()[len(batch.targets) :] == [1] * (16 - len(batch.targets))


@pytest.mark.parametrize("more", [{}, {"train.optimizer": "muon"}], ids=["adamw", "muon"])
@pytest.mark.parametrize("together", [1, 3])
def test_captured_steps_are_the_steps(table, more, together):
    """Same padded batches, same seeds and rates: the same weights; warm-ups and recordings leave no trace."""
    task = task_of(table, **more, **{"model.dropout": 0.2})
    batches, recorder = task.train_batches(World()), Fake()
    plain, inner = step_of(task, False), step_of(task, True)
    captured, shapes = Captured(inner, recorder, BatchSlot, whole=together == 1), set()
    taken = [pad(batches.batch(0, place), task.config.max_len, task.train.rows) for place in range(6)]
    for place in range(0, 6, together):
        some = taken[place : place + together]
        shapes |= {(*batch.ids.shape, batch.segments is None) for batch in some}
        given = (some, [7 * place + i for i in range(together)], 0.01 / (1 + place), 0.9)
        assert torch.allclose(plain(*given), captured(*given), atol=1e-6)
    assert len(shapes) > 1
    assert recorder.recorded == len(shapes) + (together > 1), "a graph for each shape, and of a step of several batches one to finish it"
    for one, other in zip([*plain.parameters, *plain.average], [*inner.parameters, *inner.average], strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_what_cannot_be_captured_runs_as_it_is_and_is_said_once(table):
    task, said = task_of(table), []
    plain, inner = step_of(task, False), step_of(task, True)
    captured = Captured(inner, Refusing(), BatchSlot, said.append)
    batches = task.train_batches(World())
    for place in range(3):
        given = ([pad(batches.batch(0, place), 64, 16)], [place], 0.01, 0.9)
        assert torch.allclose(plain(*given), captured(*given), atol=1e-6)
    assert said == ["steps run one kernel at a time, not as CUDA graphs: operation not permitted when stream is capturing more"]


def test_why_not():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert why_not(gpu, 1, False, False, True) is None
    assert why_not(cpu, 1, False, False, True) == "there is no GPU"
    assert "several processes" in why_not(gpu, 2, False, False, True) and "packed" in why_not(gpu, 1, True, False, True)
    assert "checkpoint_layers" in why_not(gpu, 1, False, True, True) and "train.capture" in why_not(gpu, 1, False, False, False)


def test_compiling_needs_a_gpu(table, tmp_path):
    with pytest.raises(ValueError, match="train.compile='yes' is for a GPU, and this run is on cpu"):
        run(table, tmp_path / "run", Settings.of(None, GIVEN | {"train.compile": "yes", "train.device": "cpu"}), quiet=True)


# --- on a GPU ----------------------------------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("more", [{}, {"train.optimizer": "muon"}, {"train.accumulate": 2}], ids=str)
def test_on_a_gpu_captured_steps_are_eager_ones(table, tmp_path, more):
    """In float32, without dropout: only the order of sums may differ."""
    found = []
    for capture in (True, False):
        made = GIVEN | more | {"train.precision": "float32", "train.device": "cuda", "train.capture": capture}
        engine = Engine(TrainingTask(TokenFiles(table), Settings.of(None, made)), World(device=torch.device("cuda")), Checkpoints(tmp_path))
        for _ in range(8):
            engine.step()
        if capture:
            assert isinstance(engine.update, Captured) and engine.update.reason is None
        found.append(engine.look()[:])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


@on_gpu
@pytest.mark.parametrize("compiled", ["no", "yes"])
def test_on_a_gpu_a_resumed_run_ends_with_the_same_bits(table, tmp_path, monkeypatch, compiled):
    settings = Settings.of(None, GIVEN | {"model.dropout": 0.2, "train.device": "cuda", "train.compile": compiled})
    run(table, tmp_path / "whole", settings, quiet=True)
    step = Engine.step

    def stopping(self):
        step(self)
        self.stop = self.progress.step == 4

    monkeypatch.setattr(Engine, "step", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(table, tmp_path / "run", settings, quiet=True)
    monkeypatch.setattr(Engine, "step", step)
    run(table, tmp_path / "run", settings, resume=True, quiet=True)
    one, other = (load_tensors(tmp_path / name / "model" / "model.safetensors")[0] for name in ("whole", "run"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@on_gpu
@pytest.mark.parametrize("task", ["table", "scores", "labels", "mlm", "rtd", "text"])
def test_on_a_gpu_every_task_is_captured(request, tmp_path, task):
    """With a reader that pins memory while shapes are recorded, and classes that are balanced."""
    data = request.getfixturevalue({"mlm": "text", "rtd": "text"}.get(task, task))
    made = GIVEN | {"model.dropout": 0.2, "train.device": "cuda", "train.balance": task == "table", "model.length": 24}
    made |= {"train.task": task} if task in ("mlm", "rtd") else {}
    made |= {"model.stack": "hsm, attention(heads=2)"} if task == "text" else {}
    engine = Engine(task_for(TokenFiles(data), Settings.of(None, made)), World(device=torch.device("cuda")), Checkpoints(tmp_path))
    for _ in range(12):
        engine.step()
    assert engine.update.reason is None and engine.update.graphs
    assert all(0 < loss < 100 for loss in engine.look())


@on_gpu
def test_on_a_gpu_a_step_that_asks_the_device_runs_eager_with_its_dropout(table, tmp_path):
    """A recording that breaks off leaves the random generator as it was."""
    made = GIVEN | {"model.dropout": 0.5, "train.device": "cuda"}
    engine = Engine(TrainingTask(TokenFiles(table), Settings.of(None, made)), World(device=torch.device("cuda")), Checkpoints(tmp_path))
    said: list[str] = []
    engine.say = said.append
    engine.model.norm.register_forward_hook(lambda module, given, found: found * (1 + 0 * float(found.sum().item())))
    _, batches = engine._next_batches(0, 0)
    losses = [float(engine.update(batches, [seed], 0.0, 0.0)[0]) for seed in (1, 2, 1)]
    assert len(said) == 1 and losses[0] == losses[2] != losses[1]


@on_gpu
def test_on_a_gpu_dropout_follows_the_seed_of_the_step(table, tmp_path):
    made = GIVEN | {"model.dropout": 0.5, "train.device": "cuda"}
    engine = Engine(TrainingTask(TokenFiles(table), Settings.of(None, made)), World(device=torch.device("cuda")), Checkpoints(tmp_path))
    _, batches = engine._next_batches(0, 0)
    losses = [float(engine.update(batches, [seed], 0.0, 0.0)[0]) for seed in (1, 2, 1)]
    assert losses[0] == losses[2] != losses[1]
    assert isinstance(engine.update.recorder, CudaRecorder)
