"""Jobs of kind "rows": what is held out, how rows become batches, and that prepared tokens are the raw ones."""

from __future__ import annotations

import copy
import gzip
import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reproduce import rows, rows_data, rows_phrases, rows_plan, rows_raw
from reproduce.claims import unpack
from reproduce.job import Context
from tests.papers_data import write_data, write_tsv
from tokmix.core.model import Model, ModelConfig


@pytest.fixture(scope="module")
def paper_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def spec(**others: object) -> dict[str, object]:
    model = {"stack": "hypermixing(norm='none')*1", "dim": 8, "max_len": 64, "layout": "serialized", "dropout": 0.1, "vocab": 300}
    members = [{"seed": 0, "lr": 1e-2}, {"seed": 1, "lr": 1e-2}]
    made = {"data": "sst2", "model": model, "members": members, "batch": 16, "epochs": 8, "warmup": 5, "clip": 1.0, "dev": 0.2}
    made |= {"schedule": "cosine"}
    return made | {"fraction": 1.0, "limit": 64, "score": "valid", "embedding": 0.5} | others


@pytest.mark.parametrize("name", ["sst2", "snli"])
def test_prepared_tokens_are_the_raw_ones(paper_data: Path, tmp_path: Path, name: str) -> None:
    assert rows_data.prepare(paper_data, tmp_path, [name]) == [tmp_path / f"{name}.npz"]
    raw, prepared = rows_data.load(paper_data, name), rows_data.load(tmp_path, name)
    assert (raw.labels, raw.sources) == (prepared.labels, prepared.sources)
    assert set(raw.sources) == {rows_data.TOKENIZER, f"{name}/train.tsv.gz", f"{name}/valid.tsv.gz"}
    for split in raw.splits:
        for field in fields(rows_data.Texts):
            one, other = (getattr(getattr(table, split), field.name) for table in (raw, prepared))
            assert np.array_equal(one, other), (split, field.name)


def test_rows_are_read_and_encoded_whole(paper_data: Path) -> None:
    """Neither a lone quote nor the truncation and padding saved in the tokenizer's file may lose anything."""
    table = rows_data.load(paper_data, "snli")
    assert (len(table.train), len(table.valid)) == (300, 60)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(paper_data / rows_data.TOKENIZER))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    with gzip.open(paper_data / "snli" / "train.tsv.gz", "rt", encoding="utf-8") as file:
        premise, hypothesis, label = file.read().splitlines()[7].split("\t")
    ids = table.train.ids[table.train.starts[6] : table.train.starts[7]]
    cls, sep = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    parts = [tokenizer.encode(text, add_special_tokens=False).ids for text in (premise, hypothesis)]
    assert ids.tolist() == [cls, *parts[0], sep, *parts[1], sep]
    assert table.labels[table.train.labels[6]] == label
    shown = table.train.padded(np.array([6, 0]), 5)
    assert shown.shape == (2, 5) and shown[0].tolist() == ids[:5].tolist()


def test_long_rows_are_cut_and_counted(tmp_path: Path, paper_data: Path) -> None:
    (tmp_path / "tokenizers").symlink_to(paper_data / "tokenizers")
    for split in rows_raw.SPLITS:
        write_tsv(tmp_path / "long" / f"{split}.tsv.gz", ["text", "label"], [["good " * 500, "1"], ["bad", "0"]])
    table = rows_data.load(tmp_path, "long")
    assert table.train.lengths.tolist() == [rows_data.LIMIT, 3] and table.train.cut == 1
    assert [table.train.beyond(limit) for limit in (2, 64, 128, 256)] == [2, 1, 1, 1]


def test_reviews_are_split_by_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_raw, "QUARTER", 2)
    reviews = [{"t": f"review {i}", "s": int(i >= 4)} for i in range(8)]
    (tmp_path / "reviews.json").write_text(json.dumps(reviews))
    found, files = rows_raw.read(tmp_path)
    assert [row[0][-1] for row in found["train"]] == list("2367") and [row[1] for row in found["train"]] == list("0011")
    assert [row[0][-1] for row in found["valid"]] == list("0145") and files == [tmp_path / "reviews.json"]
    (tmp_path / "reviews.json").write_text(json.dumps(reviews[:-1]))
    with pytest.raises(ValueError, match="holds 7 reviews instead of 8"):
        rows_raw.read(tmp_path)


def test_errors_name_the_file(tmp_path: Path, paper_data: Path) -> None:
    with pytest.raises(ValueError, match=r"holds neither sst3.npz nor a folder sst3, did you mean 'sst2'"):
        rows_data.load(paper_data, "sst3")
    (tmp_path / "sst2.npz").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"sst2.npz is no file of tokens"):
        rows_data.load(tmp_path, "sst2")
    write_tsv(tmp_path / "odd" / "train.tsv.gz", ["text", "label"], [["one", "two", "1"]])
    (tmp_path / "tokenizers").symlink_to(paper_data / "tokenizers")
    with pytest.raises(ValueError, match=r"train.tsv.gz, line 2: 3 cells"):
        rows_data.load(tmp_path, "odd")


def texts(hashes: list[int]) -> rows_data.Texts:
    n = len(hashes)
    return rows_data.Texts(
        np.zeros(n, np.uint16), np.arange(n + 1), np.zeros(n, np.int64), np.array(hashes, dtype=np.uint64), np.ones(n, bool), 0
    )  # fmt: skip


def test_held_out_rows_share_no_text_with_the_rest() -> None:
    chance = np.random.default_rng(0)
    table = texts([int(value) for value in chance.choice(chance.integers(2**64, size=300, dtype=np.uint64), 1000)])
    learned, aside = rows_data.held_out(table, 0.1)
    assert sorted([*learned, *aside]) == list(range(1000)) and 50 < len(aside) < 150
    assert not set(table.hashes[learned]) & set(table.hashes[aside])
    parts = [rows_data.held_out(table, 0.1, fraction) for fraction in (0.05, 0.25, 0.5)]
    for (small, kept), (large, _), fraction in zip(parts, [*parts[1:], (learned, aside)], (0.05, 0.25, 0.5), strict=True):
        assert set(small) < set(large) and len(small) == round(fraction * len(learned)) and np.array_equal(kept, aside)


def test_pieces_go_with_their_sentences() -> None:
    """Sentences are held out, and what stands in no other one with them; only sentences are scored."""
    texts = ["a fine film ", "a fine  film", "fine film", "film", "a dull film", "dull", "quite dull", "never"]
    hashes, whole = rows_phrases.sentences(texts, np.array([10, 10, 900, 901, 50, 902, 30, 70], dtype=np.uint64))
    assert whole.tolist() == [True, True, False, False, True, False, True, True]
    assert hashes.tolist() == [10, 10, 10, 50, 50, 50, 30, 70], "a piece has the largest hash of its sentences"


def test_held_out_pieces_are_neither_learned_nor_scored() -> None:
    table = texts([10, 20, 10, 2**63])
    table = replace(table, whole=np.array([True, True, False, False]))
    learned, aside = rows_data.held_out(table, 0.1)
    assert learned.tolist() == [3] and aside.tolist() == [0, 1]


def test_equal_first_texts_have_equal_hashes(paper_data: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizers").symlink_to(paper_data / "tokenizers")
    lines = [["a film", "good", "1"], ["a film", "bad", "0"], ["the film", "bad", "1"]]
    for split in rows_raw.SPLITS:
        write_tsv(tmp_path / "t" / f"{split}.tsv.gz", ["premise", "hypothesis", "label"], lines)
    first, second, third = rows_data.load(tmp_path, "t").train.hashes
    assert first == second != third


@pytest.mark.parametrize(("n", "batch"), [(1000, 64), (1000, 7), (37, 16), (5, 16), (64, 64), (3, 8)])
def test_an_epoch_gives_every_row_once(n: int, batch: int) -> None:
    lengths = np.random.default_rng(n).integers(3, 60, n)
    wide = rows_plan.widths(lengths, 3)
    made = list(rows_plan.epoch(lengths, wide, batch, [4, 5, 4], 0))
    assert len(made) == sum(rows_plan.batch_counts(lengths, wide, batch)) == -(-n // batch)
    for member in range(3):
        seen = np.concatenate([index[member] for _, index in made])
        counts = np.bincount(seen, minlength=n)
        assert counts.min() == 1 or counts.min() > 1 == len(made), "a row was left out"
        assert counts.sum() - n == -n % batch, "only the last batch is topped up"
        if n > batch:
            assert all(len(set(index[member])) == batch for _, index in made), "a row stands twice in a batch"
        assert all(lengths[index[member]].max() <= width for width, index in made)
    assert all(np.array_equal(index[0], index[2]) for _, index in made), "equal seeds have equal rows"
    assert n < 10 or any(not np.array_equal(index[0], index[1]) for _, index in made)


def test_epochs_differ_but_not_in_what_they_cost() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 500)
    first, second = (list(rows_plan.epoch(lengths, [16, 32, 64], 32, [0], number)) for number in (0, 1))
    assert sorted(width for width, _ in first) == sorted(width for width, _ in second)
    assert not np.array_equal(first[0][1], second[0][1])
    assert [width for width, _ in first] != sorted(width for width, _ in first), "narrow batches first would be a curriculum"


def test_widths_leave_the_fewest_columns_empty() -> None:
    lengths = np.array([3] * 100 + [20] * 50 + [61] * 2)
    assert rows_plan.widths(lengths, 1) == [64]
    assert rows_plan.widths(lengths, 2) == [24, 64]
    assert rows_plan.widths(lengths, 3) == [8, 24, 64]
    assert rows_plan.widths(lengths, 9) == [8, 24, 64]


def test_given_widths_end_with_the_longest_row() -> None:
    wide = (24, 40, 128)
    assert rows_plan.fitting(wide, np.array([3, 20])) == [24] and rows_plan.fitting(wide, np.array([3])) == [8]
    assert rows_plan.fitting(wide, np.array([3, 41])) == [24, 40, 48] and rows_plan.fitting(wide, np.array([40, 7])) == [24, 40]


def test_a_job_learns_and_says_what_it_did(paper_data: Path) -> None:
    outcome = rows.run(spec(), Context(torch.device("cpu"), paper_data, lambda text: None))
    json.dumps(outcome)
    assert 0 < 7 * outcome["pace"]["seconds"] < outcome["training_seconds"], "of eight epochs the first is left out"
    assert sum(outcome["rows"][part] for part in ("train", "dev", "pieces")) == 300 and outcome["rows"]["valid"] == 60
    assert outcome["steps"] == 8 * -(-outcome["rows"]["train"] // 16) and outcome["columns"] > outcome["tokens"] > 0
    for run in outcome["runs"]:
        assert run["state"] == "finished" and len(run["dev_curve"]) == 8
        assert run["dev"] == run["dev_curve"][-1]
        assert run["score"] == pytest.approx(unpack(run["right"], run["examples"]).mean())
        assert run["score"] > 0.8, "the last word tells it"
        assert run["loss_curve"][-1] < run["loss_curve"][0]
    again = rows.run(spec(), Context(torch.device("cpu"), paper_data, lambda text: None))
    assert [run["dev_curve"] for run in again["runs"]] == [run["dev_curve"] for run in outcome["runs"]]


def test_the_first_epoch_and_scoring_do_not_count_for_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counter:
        source, note, read = "made up", "", 0.0

        def joules(self) -> float:
            return self.read

    pace, counter = rows.Pace(torch.device("cpu")), Counter()
    monkeypatch.setattr(pace, "counter", counter)
    for taken in (100.0, 2.0, 4.0):  # joules of an epoch
        counter.read += taken
        pace.end()
        known = pace.of_an_epoch()
        counter.read += 50.0  # of scoring
        pace.begin()
        assert known is None if taken == 100.0 else known is not None
    assert known is not None and known["joules"] == 3.0 and known["seconds"] is not None


def test_all_of_train_may_be_learned_from(paper_data: Path) -> None:
    outcome = rows.run(spec(dev=0.0, epochs=1), Context(torch.device("cpu"), paper_data, lambda text: None))
    assert [outcome["rows"][part] for part in ("train", "dev", "pieces", "valid")] == [300, 0, 0, 60]
    assert all(run["dev"] is None and run["examples"] == 60 for run in outcome["runs"])
    with pytest.raises(ValueError, match=r"sst2: dev=0.0 holds out none of 300 rows"):
        rows.run(spec(dev=0.0, score="dev"), Context(torch.device("cpu"), paper_data, lambda text: None))


def test_nothing_held_out_is_trained_on(paper_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reaches the loss comes from the rows to learn from."""
    table = rows_data.load(paper_data, "sst2")
    learned, aside = rows_data.held_out(table.train, 0.2)
    kept = {tuple(row) for row in table.train.padded(learned, 64).tolist()}
    seen: set[tuple[int, ...]] = set()
    logits = rows.Split.logits

    def watched(self: rows.Split, model: torch.nn.Module, index: torch.Tensor, width: int) -> torch.Tensor:
        if torch.is_grad_enabled():  # a step; scores are computed without
            ids = torch.nn.functional.pad(torch.from_numpy(table.known())[self.ids[index].long()], (0, 64 - self.ids.shape[1]))
            seen.update(tuple(row) for row in ids.tolist())
        return logits(self, model, index, width)

    monkeypatch.setattr(rows.Split, "logits", watched)
    rows.run(spec(epochs=1), Context(torch.device("cpu"), paper_data, lambda text: None))
    assert seen == kept and len(aside)


def test_a_model_of_the_ids_that_occur_is_the_whole_one(paper_data: Path) -> None:
    """Outputs, and all that training changes: the other rows of the embedding have no gradient."""
    table = rows_data.load(paper_data, "sst2")
    known, few, device = table.known(), np.arange(6), torch.device("cpu")
    small, whole = (rows.Split(table.valid, few, ids, 64, device) for ids in (known, np.arange(rows_data.VOCAB)))
    torch.manual_seed(0)
    model = Model(ModelConfig(stack="hypermixing", dim=16, vocab=rows_data.VOCAB, head="classify", causal=False, max_len=64))
    less = copy.deepcopy(model)
    rows.keep(less, known)
    assert len(less.embedding.weight) == len(known) < rows_data.VOCAB
    width, index = small.ids.shape[1], torch.arange(6)
    found = [split.loss(one, index, width) for one, split in ((less, small), (model, whole))]
    assert torch.equal(*found)
    for loss in found:
        loss.sum().backward()
    assert model.embedding.weight.grad is not None and less.embedding.weight.grad is not None
    assert torch.equal(model.embedding.weight.grad[known], less.embedding.weight.grad)
    elsewhere = np.setdiff1d(np.arange(rows_data.VOCAB), known)
    assert not model.embedding.weight.grad[elsewhere].any()


def test_a_search_is_scored_on_what_is_held_out(paper_data: Path) -> None:
    outcome = rows.run(spec(score="dev", epochs=1), Context(torch.device("cpu"), paper_data, lambda text: None))
    assert all(run["score"] == run["dev"] and "right" not in run for run in outcome["runs"])


def test_a_run_that_diverges_scores_chance(paper_data: Path) -> None:
    members = [{"seed": 0, "lr": 1e30, "dropout": 0.0}, {"seed": 0, "lr": 1e-3}]
    outcome = rows.run(spec(members=members, epochs=1, warmup=0), Context(torch.device("cpu"), paper_data, lambda text: None))
    lost, sound = outcome["runs"]
    assert lost["state"] == "diverged" and lost["score"] == outcome["chance"] and "error" in lost
    assert sound["state"] == "finished"
