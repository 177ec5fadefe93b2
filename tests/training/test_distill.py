"""Distillation: a student that learns a teacher's sentence embeddings, resumes exactly, and is started from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import transformers

import tokmix
from tests.lab import REST
from tokmix.cli.main import main
from tokmix.core.optional import np
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.prepare.tokenize import train_tokenizer
from tokmix.data.tokens import TokenFiles
from tokmix.training import model_folder
from tokmix.training.distill.task import losses
from tokmix.training.distill.teacher import BLOCK, Teacher, Vectors

WORDS = sorted(set(REST.split()))
SMALL = {"model.dim": 8, "stack": "hsm, hypermixing(heads=2)", "train.rows": 16, "train.threads": 1}


def write_texts(path: Path, rows: int = 300) -> Path:
    draw = np.random.default_rng(0)
    lines = [" ".join(draw.choice(WORDS, draw.integers(1, 9))) for _ in range(rows)]
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    words = train_tokenizer("wordpiece", lambda: [" ".join(WORDS)] * 3, 120, True)
    words.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=words.get_vocab_size(), num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=40,
    )  # fmt: skip
    model = transformers.BertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


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
    plain = tmp_path / "plain.txt"
    plain.write_text("some words\n" * 200)
    for old, data, more, said in (
        (tmp_path / "nothing", texts, [], "no sentence encoder"),
        (pooled, texts, [], "mean over its tokens"),
        (teacher, plain, [], "one text a row"),
        (teacher, texts, ["--model.dim", "32"], "wider than the teacher"),
    ):
        assert main(["distill", str(old), str(data), "--out", str(tmp_path / "run"), "--prepare.max_len", "32", *more]) == 1
        assert said in capsys.readouterr().err
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
    prepare(texts, tmp_path / "others", progress=False, task="mlm", vocab=100)
    assert main(["distill", str(teacher), str(tmp_path / "others"), "--out", str(tmp_path / "run")]) == 1
    assert "another tokenizer" in capsys.readouterr().err
