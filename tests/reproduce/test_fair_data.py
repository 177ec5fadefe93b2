"""What the second edition reads: documents held out by hash, test rows, a bag of words, shapes at other lengths and places."""

from __future__ import annotations

import bz2
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from reproduce import bag, datasets, lm_data, lm_documents, rows_data, systematicity
from reproduce.claims import unpack
from reproduce.fair.systematicity import SETS
from reproduce.job import Context, runner
from reproduce.toy.data import LENGTH, make
from tests.papers_data import write_data, write_tsv
from tokmix.core.optional import np

pytest.importorskip("tokenizers")
WORDS = "river stone cloud lamp winter garden paper engine silver market bridge window forest letter button mirror".split()  # noqa: SIM905


def text(draw: random.Random, count: int = 30) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(count)) + "."


# --- documents -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, draw = tmp_path_factory.mktemp("text"), random.Random(0)
    for name in ("wiki", "novels", "speeches"):
        (root / name).mkdir()
        for part in range(2):
            body = "".join(f"Title {name} {part} {place}\n{text(draw)}\n{text(draw)}\n<|endoftext|>\n" for place in range(400))
            (root / name / f"part-{part:02}.txt.bz2").write_bytes(bz2.compress(body.encode()))
    return root


def test_a_document_is_on_one_side_and_where_its_text_says(folder: Path) -> None:
    found = list(lm_documents.documents(lm_documents.files(folder, "encyclopedia")))
    assert len(found) == 800 and found[0].startswith("Title wiki 0 0\n") and not any("<|" in one for one in found)
    sides = [lm_documents.split_of(one) for one in found]
    assert sides == [lm_documents.split_of(one) for one in found[::-1]][::-1]
    big = [lm_documents.split_of(str(number)) for number in range(40_000)]
    for name, share in lm_documents.HELD.items():
        assert big.count(name) / len(big) == pytest.approx(share, rel=0.2)


def test_tokens_of_each_split_are_those_of_its_documents(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_documents, "HELD", {"valid": 0.1, "test": 0.1})
    monkeypatch.setattr(lm_documents.encoded, "__defaults__", (600, 20_000))
    path = lm_data.prepare(folder, tmp_path, ["encyclopedia"])[0]
    read = lm_data.load(tmp_path, "encyclopedia")
    assert path == tmp_path / "encyclopedia.npz" and read.splits["train"].dtype == np.uint16
    documents = list(lm_documents.documents(lm_documents.files(folder, "encyclopedia")))
    for name, ids in read.splits.items():
        own = [one for one in documents if lm_documents.split_of(one) == name]
        assert (ids == read.before).sum() == len(own) > 20 and ids[-1] == read.before
        assert read.bytes[name] == sum(len(one.encode()) for one in own)
    assert set(read.sources) == {"wiki/part-00.txt.bz2", "wiki/part-01.txt.bz2"} and "trained on the first" in read.tokenizer
    again = lm_data.load(folder, "encyclopedia")
    assert all(np.array_equal(again.splits[name], ids) for name, ids in read.splits.items())


def test_text_is_found_by_its_variable_too(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKMIX_TEXT", raising=False)
    assert lm_documents.files(tmp_path, "english") == [] and not datasets.there(tmp_path, "english")
    with pytest.raises(ValueError, match="neither it nor TOKMIX_TEXT has folders of text: wiki, novels, speeches"):
        lm_data.load(tmp_path, "english")
    monkeypatch.setenv("TOKMIX_TEXT", str(folder))
    assert len(lm_documents.files(tmp_path, "english")) == 6 and datasets.there(tmp_path, "english")


# --- rows ----------------------------------------------------------------------------------------------------------------------


KEYS = ("good", "bad", "film", "plot", "actor", "dull", "fine", "great", "awful")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two texts: the label says whether they share their key word."""
    root, draw = write_data(tmp_path_factory.mktemp("tables")), random.Random(1)
    for split, count in (("train", 240), ("valid", 60), ("test", 80)):
        lines = []
        for _ in range(count):
            same, key = draw.random() < 0.5, draw.choice(KEYS)
            other = key if same else draw.choice([word for word in KEYS if word != key])
            lines.append([f"{'very ' * draw.randrange(12)}the {key}", f"a {other}", "yes" if same else "no"])
        write_tsv(root / "pairs" / f"{split}.tsv.gz", ["a", "b", "label"], lines)
    return root


def test_test_rows_are_kept_apart_and_stand_in_for_missing_valid_ones(table: Path, tmp_path: Path) -> None:
    whole = rows_data.load(table, "pairs")
    assert whole.test is not None and (len(whole.valid), len(whole.test)) == (60, 80)
    assert "pairs/test.tsv.gz" in whole.sources
    rows_data.prepare(table, tmp_path, ["pairs"])
    read = rows_data.load(tmp_path, "pairs")
    assert read.test is not None and np.array_equal(read.test.ids, whole.test.ids) and np.array_equal(read.known(), whole.known())
    (tmp_path / "tokenizers").symlink_to(table / "tokenizers")
    (tmp_path / "other").mkdir()
    for split in ("train", "test"):
        (tmp_path / "other" / f"{split}.tsv.gz").symlink_to(table / "pairs" / f"{split}.tsv.gz")
    without = rows_data.load(tmp_path, "other")
    assert without.test is None and np.array_equal(without.valid.ids, whole.test.ids)


def test_test_rows_are_scored_once_at_the_end(table: Path) -> None:
    model = {"stack": "attention", "dim": 16, "max_len": 64, "feed_forward": 16, "positions": "none"}
    made = {"data": "pairs", "model": model, "members": [{"seed": 0, "lr": 1e-3, "dropout": 0.1}], "batch": 32, "epochs": 1, "warmup": 2}
    made |= {"clip": 1.0, "dev": 0.0, "schedule": "cosine", "fraction": 1.0, "limit": 64, "score": "valid", "embedding": 0.5, "test": True}
    context = Context(torch.device("cpu"), table, lambda line: None)
    run = runner("rows")(made, context)["runs"][0]
    assert run["test_examples"] == 80 and run["test"] == unpack(run["test_right"], 80).mean() and run["examples"] == 60
    assert "test" not in runner("rows")(made | {"test": False}, context)["runs"][0]


def test_the_bag_of_words_is_logistic_regression() -> None:
    linear_model, sparse = pytest.importorskip("sklearn.linear_model"), pytest.importorskip("scipy.sparse")
    draw, penalty = np.random.default_rng(0), 1e-4
    rows = [np.unique(draw.zipf(1.3, 20) % 500) for _ in range(200)]
    labels = np.array([int(row.sum()) % 3 for row in rows])
    one = bag.Bag.__new__(bag.Bag)
    one.rows, one.labels = rows, torch.from_numpy(labels)
    x = one.weighted(one.idf(), torch.device("cpu"))
    starts = np.append(x.starts.numpy(), len(x.values))
    table = sparse.csr_matrix((x.values.numpy(), x.columns.numpy(), starts), shape=(len(rows), bag.BUCKETS))
    known = linear_model.LogisticRegression(C=1 / (2 * penalty * len(rows)), max_iter=3000, tol=1e-8).fit(table, labels)
    weight, bias = bag.fit(x, one.labels, 3, penalty)
    ours, theirs = x.scores(torch.cat([weight, bias[None]])).softmax(1).numpy(), known.predict_proba(table)
    assert np.abs(ours - theirs).max() < 0.02


def test_a_bag_of_words_sees_what_texts_share_and_is_chosen_on_held_out_rows(table: Path) -> None:
    made = {"data": "pairs", "dev": 0.2, "limit": 64, "penalties": [1e-5, 10.0]}
    run = bag.run(made, Context(torch.device("cpu"), table, lambda line: None))["runs"][0]
    assert run["score"] > 0.8 and run["test"] > 0.8 and run["penalty"] == 1e-5 and run["examples"] == 60
    assert run["score"] == unpack(run["right"], 60).mean()


def test_features_of_a_row_are_its_words_pairs_and_what_both_texts_have() -> None:
    one = bag.features(np.array([101, 5, 6, 102], dtype=np.uint16))
    assert len(one) == 3  # two words and a pair
    both = bag.features(np.array([101, 5, 6, 102, 6, 5, 102], dtype=np.uint16))
    assert len(both) == 3 + 3 + 2 and set(one) <= set(both)
    assert set(bag.features(np.array([101, 5, 102, 6, 102]))) != set(bag.features(np.array([101, 6, 102, 5, 102])))


# --- shapes --------------------------------------------------------------------------------------------------------------------


def test_shapes_stand_where_they_should_at_any_length() -> None:
    for length, low, high in SETS.values():
        made = systematicity.unseen(40, 0, length, low, high)
        assert made.inputs.shape == (40, length) and made.covered().shape == (40, 4, length)
        assert float(made.centres.min()) >= low and float(made.centres.max()) <= high
        there = made.covered().any(1).any(0).nonzero()
        assert int(there.min()) >= low - 6 and int(there.max()) <= high + 6
    assert SETS["unseen places"][1] > LENGTH


def test_the_usual_sequences_are_as_they_were() -> None:
    made = make(3, torch.Generator().manual_seed(0))
    assert made.inputs.shape == (3, LENGTH)
    assert torch.equal(made.inputs, make(3, torch.Generator().manual_seed(0), LENGTH, (5.5, 94.5)).inputs)


def test_the_error_is_that_where_shapes_stand() -> None:
    from reproduce.toy import model as toy

    data = make(5, torch.Generator().manual_seed(0), 200, (5.5, 194.5))
    model = toy.build("none", make(9, torch.Generator().manual_seed(1)), 0)
    there = data.covered().any(1)
    with torch.no_grad():
        outputs = model(data.inputs)
    away = [float((one - other) ** 2) for one, other in zip(outputs[there], data.targets[there], strict=True)]
    assert systematicity.error(model, data) == pytest.approx(100 * sum(away) / len(away), rel=1e-5) != toy.error(model, data)


def test_models_are_scored_on_every_set() -> None:
    from reproduce.fair.systematicity import MODELS, QUICK

    members: list[dict[str, Any]] = [{"model": name, "item": MODELS[name][1], "seed": 0} for name in ("none", "hypermixing-code")]
    found = systematicity.run(QUICK | {"members": members}, Context(torch.device("cpu"), None, lambda line: None))
    for run in found["runs"]:
        assert run["state"] == "finished" and run["score"] == run["length 100"] and all(run[name] > 0 for name in SETS)
        assert len({round(run[name], 6) for name in SETS}) == len(SETS)
