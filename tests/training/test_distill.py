"""Distillation: a student that learns a teacher's sentence embeddings, resumes exactly, and is started from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import transformers

import tokmix
from tests.lab import REST
from tests.teachers import write_teacher
from tokmix.api.settings import full_names
from tokmix.cli.main import main
from tokmix.core.optional import np
from tokmix.core.segments import Segments
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.runs.files import Damaged
from tokmix.study.verify import verify
from tokmix.training import model_folder
from tokmix.training.distill.task import Distill, losses
from tokmix.training.distill.teacher import BLOCK, Teacher, Vectors
from tokmix.training.distill.tokens import DistillTokens
from tokmix.training.distributed import World
from tokmix.training.settings import Settings
from tokmix.training.tasks import task_for

WORDS = sorted(set(REST.split()))
SMALL = {"model.dim": 8, "stack": "hsm, hypermixing(heads=2)", "train.rows": 16, "train.threads": 1}


def write_texts(path: Path, rows: int = 300) -> Path:
    draw = np.random.default_rng(0)
    lines = [" ".join(draw.choice(WORDS, draw.integers(1, 9))) for _ in range(rows)]
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_teacher(tmp_path_factory.mktemp("teacher"), WORDS)


@pytest.fixture(scope="module")
def run(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> tokmix.Run:
    folder = tmp_path_factory.mktemp("student")
    texts = write_texts(folder / "texts.jsonl")
    return tokmix.distill(teacher, texts, folder / "run", **{**SMALL, "train.steps": 60, "train.lr": 1e-2, "prepare.max_len": 32})


def test_the_vectors_are_means_of_the_teachers_tokens(teacher: Path, run: tokmix.Run) -> None:
    files = TokenFiles(run.folder / "data")
    model = transformers.AutoModel.from_pretrained(teacher).eval()
    for name in ("train", "test"):
        found = Vectors(files).of(name)
        for row in (0, 3):
            with torch.inference_mode():
                hidden = model(input_ids=torch.from_numpy(files[name].row(row))[None]).last_hidden_state[0]
            wanted = F.normalize(hidden.mean(0), dim=0)
            torch.testing.assert_close(torch.from_numpy(found[row].astype(np.float32)), wanted, atol=1e-3, rtol=0)


def test_a_student_learns_and_is_started_from(run: tokmix.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = [one["cosine"] for one in run.record["selection"]["history"]]
    assert run.task == "distill" and history[-1] > history[0] + 0.02 and run.figures["cosine"] > 0.7
    teacher = run.record["teacher"]
    assert teacher["tokens"] == sum(split["tokens"] for split in run.record["data"]["splits"].values()) and teacher["seconds"] > 0
    assert f"about {teacher['flops']:.3g} FLOPs" in (run.folder / "model" / "README.md").read_text()
    assert run.model.embed([WORDS[0], "a longer text"]).shape == (2, 8)
    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "".join(f"{a} {b},{a > 'm'}\n" for a in WORDS for b in WORDS[:9]))
    assert tokmix.train(table, tmp_path / "tuned", start=str(run.folder), **{"train.steps": 4, "train.threads": 1}).figures["accuracy"] > 0
    assert main(["predict", str(run.folder), "a day"]) == 1
    assert "distill" in capsys.readouterr().err


def test_the_loss_is_that_of_a_loop_over_rows() -> None:
    torch.manual_seed(0)
    ours, theirs, weights = torch.randn(5, 4), torch.randn(5, 4), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    found = losses(ours, theirs, 0.1, weights)
    one, other = F.normalize(ours, dim=1), F.normalize(theirs, dim=1)
    for row in range(4):
        near = [neighbour for neighbour in range(4) if neighbour != row]  # the row of weight 0 is nobody's neighbour
        p, q = (torch.stack([unit[row] @ unit[n] for n in near]).div(0.1).softmax(0) for unit in (other, one))
        torch.testing.assert_close(found[row], 1 - one[row] @ other[row] + (p * (p / q).log()).sum())
    assert losses(theirs, theirs, 0.1).abs().max() < 1e-5


def test_a_run_resumes_exactly_and_so_does_the_teacher(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokmix.training.distill.teacher.BLOCK", 50)
    given = {**SMALL, "train.steps": 6, "train.save_steps": 3, "train.keep": 9, "prepare.max_len": 32}
    texts = write_texts(tmp_path / "texts.jsonl", 160)
    tokmix.distill(teacher, texts, tmp_path / "run", **given)
    whole = model_folder.load(tmp_path / "run").model.state_dict()
    (tmp_path / "run" / "model").rename(tmp_path / "away")
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        if "0000003" not in file.name:
            file.unlink()
    path = tmp_path / "run" / "data" / "teacher" / "train.float16"
    vectors = path.read_bytes()
    path.write_bytes(vectors[: 50 * 2 * 16 + 7])  # one block and a part of a row
    read: list[int] = []
    compute = Teacher.vectors
    monkeypatch.setattr(Teacher, "vectors", lambda self, texts: (read.append(len(texts)), compute(self, texts))[1])
    tokmix.distill(teacher, texts, tmp_path / "run", resume=True, **given)
    again = model_folder.load(tmp_path / "run").model.state_dict()
    assert path.read_bytes() == vectors and sum(read) == len(vectors) // 32 - 50 and BLOCK > 50
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_what_cannot_be_distilled_is_said_in_a_line(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = write_texts(tmp_path / "texts.jsonl", 60)
    pooled = Path(shutil.copytree(teacher, tmp_path / "first"))
    (pooled / "1_Pooling").mkdir()
    (pooled / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    odd = Path(shutil.copytree(teacher, tmp_path / "odd"))
    (odd / "model.safetensors").write_bytes(b"")
    plain = tmp_path / "plain.txt"
    plain.write_text("some words\n" * 200)
    for old, data, more, said in (
        (tmp_path / "nothing", texts, [], "no sentence encoder"),
        (pooled, texts, [], "mean over its tokens"),
        (odd, texts, [], f"distill: {odd} holds no model that can be read: "),
        (teacher, plain, ["--train.documents"], "leave it out"),
        (teacher, plain, ["--model.length", "100", "--model.dim", "8"], "80 tokens at most"),
        (teacher, texts, ["--model.dim", "32"], "wider than the teacher"),
    ):
        assert main(["distill", str(old), str(data), "--out", str(tmp_path / "run"), "--prepare.max_len", "32", *more]) == 1
        assert said in capsys.readouterr().err
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
    prepare(texts, tmp_path / "others", progress=False, task="mlm", vocab=100)
    assert main(["distill", str(teacher), str(tmp_path / "others"), "--out", str(tmp_path / "run")]) == 1
    assert "another tokenizer" in capsys.readouterr().err


LONG = {"model.dim": 8, "stack": "hsm, hypermixing(heads=2)*3", "model.length": 64, "train.tokens": 512, "train.threads": 1}


def write_prose(path: Path, documents: int = 60) -> Path:
    draw = np.random.default_rng(0)
    path.write_text("".join(" ".join(draw.choice(WORDS, draw.integers(40, 90))) + "\n<|endoftext|>\n" for _ in range(documents)))
    return path


@pytest.fixture(scope="module")
def prose_run(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> tokmix.Run:
    folder = tmp_path_factory.mktemp("prose")
    text = write_prose(folder / "text.txt")
    return tokmix.distill(teacher, text, folder / "run", **{**LONG, "train.steps": 120, "train.lr": 1e-2})


def test_a_student_learns_the_states_of_a_running_text(prose_run: tokmix.Run) -> None:
    history = [one["loss"] for one in prose_run.record["selection"]["history"]]
    assert history[-1] < 0.9 * history[0] and prose_run.figures["cosine"] > 0.5
    assert not any("hint" in name for name in prose_run.model._trained.model.state_dict())  # dropped after training
    embedded = prose_run.model.embed([" ".join(WORDS[:3]), WORDS[0]])
    assert embedded.shape == (2, 8)


def task_of_states(teacher: Path, run: tokmix.Run) -> DistillTokens:
    given = full_names({**LONG, "train.task": "distill", "train.teacher": str(teacher)})
    task = task_for(TokenFiles(run.folder / "data"), Settings.of(None, given))
    assert isinstance(task, DistillTokens)
    task.before(World(), True)
    return task


def test_targets_are_the_teachers_states(teacher: Path, prose_run: tokmix.Run) -> None:
    task = task_of_states(teacher, prose_run)
    model = transformers.AutoModel.from_pretrained(teacher).eval()
    batches = task.train_batches(World())
    batch = next(one for one in (batches.batch(0, step) for step in range(9)) if one.segments is None and len(one.ids) == 8)
    parts = list(task.pieces(batch))
    assert [ids.shape[1] for ids, _ in parts] == [64, 8] and sum(ids.numel() for ids, _ in parts) == batch.ids.numel()
    roles = task.card.tokenizer["roles"]
    for ids, segments in parts:
        assert (ids[:, 0] == roles["cls"]).all() and (ids[:, -1] == roles["sep"]).all() and segments is None
        assert not torch.isin(ids, torch.tensor([roles["mask"], roles["eot"]])).any()  # the teacher reads the whole text
        with torch.inference_mode():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
        last, middle = task.wanted(ids, None)
        torch.testing.assert_close(last, states[-1] @ task.scales.directions)
        torch.testing.assert_close(middle * task.scales.deviation + task.scales.mean, states[1])
        hidden = torch.rand(ids.shape) < 0.5
        given = Mock(return_value=(last, middle))
        found = task.errors(given, ids, hidden, None)
        assert float(found[0]) == 0 and float(found[1]) == 0  # the teacher itself would be right
        assert (
            torch.equal(given.call_args.args[0] == roles["mask"], hidden & (ids != roles["cls"]) & (ids != roles["sep"])) and hidden.any()
        )


def test_padding_changes_no_target(teacher: Path, prose_run: tokmix.Run) -> None:
    task = task_of_states(teacher, prose_run)
    ids = torch.randint(5, 60, (2, 12))
    alone = task.wanted(ids[:1, :7], None)
    beside = task.wanted(ids, Segments.padded(torch.tensor([7, 12]), 12))
    for one, other in zip(alone, beside, strict=True):
        torch.testing.assert_close(one[0], other[0, :7])
    model = task.build(torch.device("cpu"))
    whole = task.errors(model, ids, None, Segments.padded(torch.tensor([7, 12]), 12))
    pieces = [task.errors(model, ids[:1, :7], None, None), task.errors(model, ids[1:], None, None)]
    for place in (0, 1):
        torch.testing.assert_close(whole[place], pieces[0][place] + pieces[1][place])


def test_a_stopped_run_of_states_ends_with_the_same_weights(teacher: Path, prose_run: tokmix.Run, tmp_path: Path) -> None:
    given = {**LONG, "train.steps": 12, "train.lr": 1e-2}
    whole = tokmix.distill(teacher, prose_run.folder / "data", tmp_path / "whole", **given)
    tokmix.distill(teacher, prose_run.folder / "data", tmp_path / "cut", **{**given, "train.save_steps": 5})
    shutil.rmtree(tmp_path / "cut" / "model")
    newest = max((tmp_path / "cut" / "checkpoints").iterdir(), key=lambda path: path.name)
    shutil.rmtree(newest) if newest.is_dir() else newest.unlink()
    again = tokmix.distill(teacher, prose_run.folder / "data", tmp_path / "cut", resume=True, **{**given, "train.save_steps": 5})
    for name, tensor in whole.model._trained.model.state_dict().items():
        assert torch.equal(tensor, again.model._trained.model.state_dict()[name]), name


@pytest.mark.parametrize("name", ["train", "vocabulary"])
def test_changed_vectors_are_found_and_computed_again(name: str, teacher: Path, run: tokmix.Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run.folder / "data", tmp_path / "data"))
    path = copy / "teacher" / f"{name}.float16"
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 8]) + whole[101:])  # where a run would go on, nobody would see it
    assert [one.state for one in verify(copy) if one.path.name == "teacher"] == ["damaged"]
    Vectors(TokenFiles(copy)).make(str(teacher), torch.device("cpu"), False)
    assert path.read_bytes() == whole
    assert all(one.state == "whole" for one in verify(copy))
    card = copy / "teacher" / "card.json"
    card.write_text(card.read_text().replace('"width": 16', '"width": 8'))
    with pytest.raises(Damaged, match=r"card\.json has changed"):
        Vectors(TokenFiles(copy)).make(str(teacher), torch.device("cpu"), False)


def test_a_teacher_of_the_same_shape_with_other_weights_is_another_teacher(teacher: Path, run: tokmix.Run, tmp_path: Path) -> None:
    other = Path(shutil.copytree(teacher, tmp_path / "other"))
    model = transformers.AutoModel.from_pretrained(other)
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight[0, 0] += 1
    model.save_pretrained(other)
    with pytest.raises(ValueError, match="vectors of another teacher"):
        Vectors(TokenFiles(run.folder / "data")).make(str(other), torch.device("cpu"), False)


def test_changed_directions_are_an_error(run: tokmix.Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run.folder / "data", tmp_path / "data"))
    (path,) = (copy / "teacher").glob("directions-*")
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)
    given = Settings.of(None, {"train.task": "distill", "train.teacher": "teacher", "model.dim": 8, "model.stack": "hsm"})
    with pytest.raises(Damaged, match="content has changed"):
        _ = Distill(TokenFiles(copy), given).directions
