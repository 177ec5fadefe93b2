"""The pretraining experiments: token files, parts to carry, figures from numpy alone, and the whole queue in small on a CPU."""

from __future__ import annotations

import bz2
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from reproduce.encoder import data, items, stacks, tune
from reproduce.item import Results
from reproduce.job import Context, runner
from tests.papers_data import write_tsv
from tests.teachers import write_teacher
from tokmix.core.budget import parameter_count
from tokmix.core.model import ModelConfig
from tokmix.core.optional import np
from tokmix.data.tokens import TokenFiles
from tokmix.training import metrics

WORDS = """the a film day road house was it good bad fine dull and then so warm cold bright grey awful lovely""".split()  # noqa: SIM905


def words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(count))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("raw"), random.Random(0)
    (folder / "text").mkdir()
    for part in range(2):
        documents = "".join(f"{words(draw, 60)}.\n<|endoftext|>\n" for _ in range(300))
        (folder / "text" / f"part-{part}.txt.bz2").write_bytes(bz2.compress(documents.encode()))
    for split, rows in (("train", 160), ("test", 40)):
        write_tsv(folder / "tables" / "trec" / f"{split}.tsv.gz", ["text", "label"], [
            [f"{words(draw, 5)} {word}", str(WORDS.index(word) % 2)] for word in draw.choices(WORDS, k=rows)
        ])  # fmt: skip
    out = folder / "data"
    told = list(data.prepare(folder / "text", folder / "tables", out, vocab=300))
    assert len(told) == 2 and told[1].startswith("trec: train 160 rows")
    return out


@pytest.fixture(scope="module")
def taught(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in the words of a teacher."""
    teacher = write_teacher(tmp_path_factory.mktemp("teacher"), WORDS, width=48, longest=128)
    out = tmp_path_factory.mktemp("taught") / "data"
    list(data.prepare(prepared.parent / "text", prepared.parent / "tables", out, teacher=teacher))
    return out


def test_tables_speak_the_texts_tokens_and_documents_are_held_out(prepared: Path) -> None:
    text, table = TokenFiles(prepared / "text"), TokenFiles(prepared / "tables" / "trec")
    assert text.tokenizer().get_vocab() == table.tokenizer().get_vocab()
    assert set(text.splits) == {"train", "valid", "test"} and text.card.dtype == "uint16"


def test_a_part_of_the_text_ends_with_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n<|endoftext|>\ntwo\n<|endoftext|>\nthree")
    assert data._documents(path, 30) == "one\n<|endoftext|>\n" and data._documents(path, None).endswith("three")


def test_parts_come_back_as_the_folder_and_damage_is_told(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data.main(["pack", str(prepared / "text"), "--out", str(tmp_path / "parts"), "--most", "0.01"]) == 0
    parts = sorted((tmp_path / "parts").glob("*.bin"))
    assert len(parts) > 1 and all(path.stat().st_size <= 0.01 * 2**20 for path in parts)
    assert data.main(["join", str(tmp_path / "parts"), "--out", str(tmp_path / "back")]) == 0
    for file in (prepared / "text").iterdir():
        assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes()
    TokenFiles(tmp_path / "back").verify()
    capsys.readouterr()
    for change, told in ((lambda: parts[0].write_bytes(b"x"), "damaged"), (parts[1].unlink, "damaged"), (parts[0].unlink, "missing")):
        change()
        assert data.main(["join", str(tmp_path / "parts"), "--out", str(tmp_path / "none")]) == 1
        said = capsys.readouterr().err
        assert told in said and said.count("\n") == 1 and not (tmp_path / "none").exists()


def test_figures_are_those_of_scipy_and_scikit_learn() -> None:
    pytest.importorskip("scipy")
    known = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(0)
    a, b = draw.integers(0, 9, 60) / 2.0, draw.normal(size=60)
    assert tune.correlation(a, b) == pytest.approx(metrics.pearson(a, b))
    assert tune.correlation(tune.ranks(a), tune.ranks(b)) == pytest.approx(metrics.spearman(a, b))
    said, wanted = draw.integers(0, 3, 60), draw.integers(0, 3, 60)
    assert tune.matthews(said, wanted) == pytest.approx(known.matthews_corrcoef(wanted, said))
    assert tune.matthews(np.zeros(5, dtype=int), np.ones(5, dtype=int)) == 0


def test_stacks_have_equal_parameters_and_the_first_is_the_twin() -> None:
    for arm in stacks.ARMS[:4]:
        width = stacks.width_of(arm.stack)
        config = ModelConfig(arm.stack, stacks.DIM, stacks.VOCAB, "mlm", causal=False, max_len=128, feed_forward=width)
        assert abs(parameter_count(config) / stacks.PARAMETERS - 1) < 0.005
        assert arm.attention_free == ("attention" not in arm.stack)
    assert not stacks.TWIN.attention_free and len(stacks.BY_NAME) == len(stacks.ARMS)


def test_which_jobs_there_are_follows_from_what_came_back() -> None:
    def outcome(loss: float) -> dict[str, Any]:
        return {"runs": [{"seed": 0, "score": loss}]}

    searched = {f"pretrain-search-{arm.name}": outcome(3 + place / 10) for place, arm in enumerate(stacks.ARMS)}
    searched["pretrain-search-hyper"] = {"error": "it broke", "runs": []}
    named = [job.key for job in items.long(False, searched) if job.key.startswith("pretrain-long")]
    assert named == ["pretrain-long-shifted", "pretrain-long-coded", "pretrain-long-fusion-attention", "pretrain-long-attention"]
    assert not any(job.key.startswith("tune-search-hyper-") for job in items.search(False, searched))
    longer = searched | {key: outcome(2 + place) for place, key in enumerate(named)}
    assert [arm.name for arm in items.final(longer)] == ["shifted", "fusion-attention", "attention"]
    taught = {f"pretrain-states-{arm.name}": outcome(1.0) for arm in stacks.TAUGHT}
    tuned = [job.key for job in items.tune(False, taught) if job.key.startswith("tune-states")]
    assert len(tuned) == 3 * len(items.TABLES) and "tune-states-small-sst2" in tuned
    assert [job.spec["tokens"] for job in items.gap(False, longer) if "gap-shifted" in job.key] == list(items.GAPS)
    assert sum("long-attention-" in job.key for job in items.seeds(False, longer)) == 2


@pytest.mark.slow
def test_the_queue_in_small(taught: Path) -> None:
    context, outcomes = Context(torch.device("cpu"), taught, lambda line: None), {}
    records: dict[str, dict[str, Any]] = {}
    for item in items.ITEMS:
        while todo := [job for job in item.jobs(True, outcomes) if job.key not in outcomes]:
            for job in todo:
                outcomes[job.key] = json.loads(json.dumps(runner(job.kind)(job.spec, context)))
                records[job.key] = {"key": job.key, "kind": job.kind, "spec": job.spec, "outcome": outcomes[job.key]}
    assert len(outcomes) > 10
    for key, outcome in outcomes.items():
        assert 0 <= outcome["runs"][0]["score"] < 20, key
    content: Results = {"quick": True, "jobs": list(records.values())}
    for item in items.ITEMS:
        text = item.tables(content)
        assert "|" in text
    assert "not run" not in items.gap_tables(content).splitlines()[2].split("|")[2]
    with pytest.raises(ValueError, match="there is no encoder nowhere"):
        tune.run({"encoder": "nowhere", "set": "trec", "seeds": [0], "settings": {}, "figure": "accuracy"}, context)
