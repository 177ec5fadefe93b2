"""Sentence embeddings: the contrastive loss, hard negatives, a run that learns and resumes, Spearman, and `tokmix embed`."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest
import torch

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import tokmix
from tests.lab import REST, write_text
from tokmix.cli.main import main
from tokmix.core.model import Model
from tokmix.core.optional import np
from tokmix.data.tokens import TokenFiles
from tokmix.training import contrast, model_folder
from tokmix.training.distributed import World
from tokmix.training.settings import Settings

TOPICS = REST.split()


def write_pairs(path: Path, rows: int = 300, scored: bool = False) -> Path:
    """A pair means the same where its two words are the same, in whatever order and company."""
    draw = random.Random(1)
    lines = ["sentence1\tsentence2\t" + ("score" if scored else "label")]
    for _ in range(rows):
        words = draw.sample(TOPICS, 2)
        shared = draw.choice([0, 1, 2]) if scored else draw.choice([0, 2, 2])
        other = [*words[:shared], *draw.sample([one for one in TOPICS if one not in words], 2 - shared)]
        draw.shuffle(other)
        told = f"{2.5 * shared:.1f}" if scored else "entailment" if shared == 2 else draw.choice(["contradiction", "neutral"])
        lines.append(f"{' '.join(words)}\t{' '.join(other)} .\t{told}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    tokmix.pretrain(write_text(folder / "texts", documents=120), folder / "run", stack="hsm, hypermixing(shift=1)", **{
        "model.dim": 32, "model.length": 32, "train.threads": 1, "prepare.vocab": 200, "train.steps": 5,
    })  # fmt: skip
    return folder / "run"


def test_the_loss_is_that_of_a_loop_over_pairs() -> None:
    torch.manual_seed(0)
    pooled = torch.randn(9, 5, dtype=torch.float64)
    #        a0 b0 n0 a1 b1 a0' b0' (padding)
    targets = torch.tensor([0, 1, 2, 3, 4, 0, 1, -100, -100])
    losses, nearest = contrast.contrast(pooled, targets, 0.1)
    unit = torch.nn.functional.normalize(pooled.float(), dim=-1)
    for first, answers in ((0, [1, 2, 4]), (3, [4, 1, 2, 6]), (5, [6, 2, 4])):  # never the second text of a pair with the same first
        scores = torch.stack([unit[first] @ unit[other] / 0.1 for other in answers])
        torch.testing.assert_close(losses[first], scores.logsumexp(0) - scores[0])
        assert bool(nearest[first]) == bool(scores[0] >= scores.max())
    assert losses[[1, 2, 4, 6, 7, 8]].abs().max() == 0


def test_batches_hold_pairs_that_mean_the_same_and_hard_negatives(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    rows = [
        ("a day", "day a", "entailment"),
        ("a day", "it was", "contradiction"),
        ("the road", "road the", "entailment"),
        ("a", "b", "neutral"),
    ]
    path.write_text("premise\thypothesis\tlabel\n" + "\n".join("\t".join(row) for row in rows * 30) + "\n")
    from tokmix.data.prepare.pipeline import prepare

    prepare(path, tmp_path / "tokens", progress=False, task="classify", tokenizer=str(made / "model" / "tokenizer.json"), max_len=32)
    files = TokenFiles(tmp_path / "tokens")
    work = contrast.Contrast(files, Settings.of(None, {"train.task": "embed", "train.start": str(made), "train.rows": 6}))
    words = files.tokenizer()
    batch = work.train_batches(World()).batch(0, 0)
    assert batch.segments is not None and batch.total == batch.count == 6
    texts = [words.decode(row[:n].tolist()) for row, n in zip(batch.ids, batch.segments.lengths, strict=True)]
    told = list(zip(texts, (batch.targets % 3).tolist(), strict=True))
    assert ("it was", 2) in told and ("a day", 0) in told and ("day a", 1) in told and not any(text == "b" for text, _ in told)
    assert len({int(group) for group, text in zip(batch.targets // 3, texts, strict=True) if text == "a day"}) == 1
    roles = files.card.tokenizer["roles"]
    assert all(row[0] == roles["cls"] for row in batch.ids)


def test_embeddings_are_learned_and_measured(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs, scores = write_pairs(tmp_path / "pairs.tsv"), write_pairs(tmp_path / "scores.tsv", 200, scored=True)
    given = {"train.steps": 120, "train.threads": 1, "train.lr": 3e-3, "train.rows": 24, "train.evaluations": 3}
    run = tokmix.embed_train(made, pairs, tmp_path / "run", **given)
    history = [one["retrieved"] for one in run.record["selection"]["history"]]
    assert run.task == "embed" and history[-1] > 0.3 and run.figures["pairs"] > 5
    assert type(model_folder.load(tmp_path / "run").model) is Model and run.model.embed("a day").shape == (32,)
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), str(scores), "--split", "train"]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("spearman ") and float(last.split()[1]) > 0.6
    assert main(["eval", str(tmp_path / "run"), str(write_text(tmp_path / "plain", 12))]) == 1
    assert main(["predict", str(tmp_path / "run"), "a day"]) == 1


def test_a_run_resumes_exactly(made: Path, tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs.tsv", 120)
    given = {"train.steps": 6, "train.threads": 1, "train.rows": 16, "train.save_steps": 3, "train.keep": 9}
    tokmix.embed_train(made, pairs, tmp_path / "run", **given)
    whole = model_folder.load(tmp_path / "run").model.state_dict()
    (tmp_path / "run" / "model").rename(tmp_path / "away")
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        if "0000003" not in file.name:
            file.unlink()
    tokmix.embed_train(made, pairs, tmp_path / "run", resume=True, **given)
    again = model_folder.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_embed_writes_lines_csv_and_numpy(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("a day\n\nthe road was so\n")
    expected = tokmix.load(made).embed(["a day", "the road was so"])
    assert main(["embed", str(made), "a day", "the road was so"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["text"] for one in lines] == ["a day", "the road was so"]
    np.testing.assert_allclose([one["embedding"] for one in lines], expected, atol=1e-5)
    for name in ("out.npy", "out.csv", "out.jsonl"):
        assert main(["embed", str(made), str(texts), "--out", str(tmp_path / name)]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-6)
    rows = list(csv.reader((tmp_path / "out.csv").read_text().splitlines()))
    assert rows[0][:2] == ["text", "e0"] and rows[2][0] == "the road was so" and len(rows) == 3
    capsys.readouterr()
    for words, told in (
        ([str(texts), "--out", str(tmp_path / "out.npy")], "exists already"),
        ([str(texts), "--out", str(tmp_path / "out.pickle")], "should end with"),
        ([str(texts), "--format", "npy"], "name it with --out"),
        ([str(tmp_path / "nothing.txt"), "--out", str(tmp_path / "x.npy")], "no file"),
    ):
        assert main(["embed", str(made), *words]) == 1
        said = capsys.readouterr().err
        assert told in said and said.count("\n") == 1
    assert not (tmp_path / "x.npy").exists()


@pytest.mark.parametrize(("labels", "told"), [(("good", "bad"), "which pairs mean the same"), (("entailment", "neutral"), None)])
def test_pairs_that_do_not_say_what_is_the_same_are_refused(made: Path, tmp_path: Path, labels: tuple[str, str], told: str | None) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("premise\thypothesis\tlabel\n" + "".join(f"a day {i}\tday {i}\t{labels[i % 2]}\n" for i in range(60)))
    if told is None:
        assert tokmix.embed_train(made, path, tmp_path / "run", **{"train.steps": 1, "train.threads": 1}).task == "embed"
        return
    with pytest.raises(ValueError, match=told):
        tokmix.embed_train(made, path, tmp_path / "run", **{"train.steps": 1})
    assert not (tmp_path / "run").exists()
