"""The bag of words, what a model answers with, and the figures that say so."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("sklearn")

import torch  # noqa: E402

from tests.lab import QUICK, settings, write_scores, write_table  # noqa: E402
from tokmix.data.prepare.pipeline import prepare  # noqa: E402
from tokmix.data.tokens import TokenFiles  # noqa: E402
from tokmix.runtime import bag  # noqa: E402
from tokmix.study.explain.words import attribute  # noqa: E402
from tokmix.training import baseline, evaluate, linear, linear_search, metrics, model_folder, predict, report  # noqa: E402
from tokmix.training.checkpoint import load_tensors  # noqa: E402
from tokmix.training.mixture import BAG, BOTH, NETWORK, Mixture, choose  # noqa: E402
from tokmix.training.train import run  # noqa: E402

WORDS = {"a": "apple pear plum", "b": "bolt screw nail", "c": "cat dog cow"}


def rows(count: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    draw, texts, targets = random.Random(seed), [], []
    for _ in range(count):
        target = draw.randrange(3)
        texts.append(" ".join([*draw.choices(["the", "of", "it", "was"], k=4), draw.choice(list(WORDS.values())[target].split())]))
        targets.append(target)
    return texts, np.array(targets)


def test_a_bag_is_fitted_by_held_out_rows_and_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    texts, targets = rows(400)
    held = np.arange(400) >= 300
    bag = linear_search.fit("classify", texts, targets, 3, held)
    assert bag.rows == 300 and len({(one["kind"], one["C"]) for one in bag.tried}) >= 5
    scores = bag.scores(texts)
    assert (scores.argmax(-1) == targets)[held].mean() == 1
    bag.save(tmp_path)
    again = linear.load(tmp_path)
    assert again is not None and np.array_equal(again.scores(texts), scores) and again.kind == bag.kind
    assert sorted(path.name for path in tmp_path.iterdir()) == ["linear.json", "linear.safetensors"]
    (tmp_path / "linear.json").write_text("{}")
    with pytest.raises(ValueError, match="linear.json is damaged"):
        linear.load(tmp_path)


def test_many_rows_of_many_classes_are_fitted_on_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "WORK", 600)
    texts, targets = rows(400)
    bag = linear_search.fit("classify", texts, targets, 3, np.arange(400) >= 300)
    assert bag.rows == 200 == linear.rows_fitted(300, 3) and (bag.scores(texts).argmax(-1) == targets).mean() > 0.9


def test_rows_that_are_not_fitted_on_are_not_turned_into_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "WORK", 200)
    prepare(write_table(tmp_path / "t.csv", 400), tmp_path / "data")
    seen: list[int] = []
    made = baseline.bag_texts
    monkeypatch.setattr(baseline, "bag_texts", lambda *given: seen.append(len(given[3])) or made(*given))
    bag = baseline.fit_split(TokenFiles(tmp_path / "data"), None, None)
    assert sum(seen) == 100 == bag.rows


def test_the_words_of_a_pair_say_which_text_has_them() -> None:
    assert linear.pair_text(("A dog runs", "a cat runs")) == "a dog runs 2_a 2_cat 2_runs b_a n_cat b_runs m_dog"


def test_a_bag_counts_what_two_texts_have_in_common(tmp_path: Path) -> None:
    """Which words they are says nothing here; how many of them are shared says all."""
    draw, pairs, targets = random.Random(0), [], []
    for _ in range(600):
        words = draw.sample([f"w{i}" for i in range(300)], 12)
        shared = draw.randrange(7)
        pairs.append((" ".join(words[:6]), " ".join(draw.sample([*words[:shared], *words[6 + shared :]], 6))))
        targets.append(int(shared > 3))
    held = np.arange(600) >= 400
    bag = linear_search.fit("classify", pairs, np.array(targets), 2, held)
    scores = bag.scores(pairs)
    assert (scores.argmax(-1) == np.array(targets))[held].mean() > 0.95
    bag.save(tmp_path)
    again = linear.load(tmp_path)
    assert again is not None and np.array_equal(again.scores(pairs), scores)
    assert bag.scores([("", "w1"), ("w1", "")]).shape == (2, 2), "a text without words"


@pytest.mark.parametrize("noisy", [NETWORK, BAG])
def test_the_better_answers_and_both_where_they_err_on_other_rows(noisy: str) -> None:
    draw = np.random.default_rng(0)
    targets = draw.integers(0, 3, 2000)
    good = 3 * np.eye(3)[targets] + draw.normal(size=(2000, 3))
    bad = draw.normal(size=(2000, 3))
    network, bag = (bad, good) if noisy == NETWORK else (good, bad)
    chosen = choose("classify", network.astype(np.float32), bag.astype(np.float32), targets)
    assert chosen.by != noisy and chosen.held[noisy]["figure"] < 0.4
    both = choose("classify", 1.5 * np.eye(3)[targets] + draw.normal(size=(2000, 3)), 1.5 * np.eye(3)[targets] + bad, targets)
    assert both.by == BOTH and both.network > 0 and both.bag > 0
    assert both.held[BOTH]["figure"] > max(both.held[NETWORK]["figure"], both.held[BAG]["figure"]) + 0.03
    assert Mixture.of(json.loads(json.dumps(both.record()))) == both


def test_a_network_that_learns_nothing_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_table(tmp_path / "t.csv", 400)
    record = run(table, tmp_path / "run", settings(train__steps=1, train__baseline=True, train__evaluations=1, train__refit=True))
    shown = capsys.readouterr().out
    assert record["answers"]["by"] in (BAG, BOTH) and record["figures"]["accuracy"] >= record["baseline"]["accuracy"]
    assert shown.index("bag of words: accuracy") < shown.index("parameters; the best"), "the simplest thing is shown first"
    assert "the model answers by the" in shown and "95 % intervals" in shown
    assert record["learned_from"] == {"network": 400, "bag of words": 400}
    parts = record["data"]["splits"]
    assert record["baseline"]["rows"] == parts["train"]["rows"] + parts["valid"]["rows"], "the figure is of a bag that knows all but test"
    found = evaluate.figures(model_folder.load(tmp_path / "run"), table)
    assert found["accuracy"] > 0.95 and any(
        "400 of 400 rows (100 %) have a text that the model was trained on" in w for w in found["warnings"]
    )
    assert not list((tmp_path / "run" / "model").glob("*.pkl"))
    assert next(iter(predict.Predictor(model_folder.load(tmp_path / "run"))(["the lovely day"])))["label"] == "good"


def test_without_refit_the_bag_keeps_to_train(tmp_path: Path) -> None:
    more = {"train__steps": 1, "train__baseline": True, "train__refit": False}
    record = run(write_table(tmp_path / "t.csv", 300), tmp_path / "run", settings(**more), quiet=True)
    assert record["learned_from"]["bag of words"] == record["data"]["splits"]["train"]["rows"] == record["baseline"]["rows"] < 300


def test_the_network_goes_on_with_the_rows_held_out_once_its_figure_is_known(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", 300)
    given = {**QUICK, "train__epochs": 6}
    figures, weights = [], []
    for refit in (False, True):
        record = run(table, tmp_path / str(refit), settings(**given, train__refit=refit), quiet=True)
        figures.append(record["figures"])
        rows = record["learned_from"]["network"]
        assert rows == 300 if refit else rows < 270
        weights.append(load_tensors(tmp_path / str(refit) / "model" / "model.safetensors")[0])
        assert evaluate.figures(model_folder.load(tmp_path / str(refit)), table)["accuracy"] > 0.9
    assert figures[0] == figures[1] and any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_scores_have_a_bag_too(tmp_path: Path) -> None:
    table = write_scores(tmp_path / "s.tsv", 300)
    record = run(table, tmp_path / "run", settings(train__steps=2, train__baseline=True), quiet=True)
    assert record["baseline"]["pearson"] > 0.8 and record["figures"]["pearson"] > 0.8
    low, high = record["figures"]["intervals"]["pearson"]
    assert low < record["figures"]["pearson"] < high


@pytest.mark.parametrize("by_name", [False, True])
def test_nothing_is_learned_from_a_test_file(by_name: bool, tmp_path: Path) -> None:
    """The test rows carry the wrong labels and a word of their own: whatever learned from them would know the word."""
    folder = tmp_path / "tables"
    folder.mkdir()
    train = write_table(folder / "train.csv", 200)
    lines = write_table(tmp_path / "other.csv", 60, seed=1).read_text().splitlines()
    test = (folder if by_name else tmp_path) / "test.csv"
    test.write_text("\n".join([lines[0], *("zebra " + line for line in lines[1:])]) + "\n")
    more = {} if by_name else {"prepare__test_file": str(test)}
    run(
        folder if by_name else train,
        tmp_path / "run",
        settings(train__steps=1, train__baseline=True, train__refit=True, **more),
        quiet=True,
    )
    trained = model_folder.load(tmp_path / "run")
    assert trained.record["learned_from"] == {"network": 200, "bag of words": 200}
    assert trained.linear is not None and trained.linear.rows == 200
    assert "zebra" not in trained.linear.made.vectorizers[0].vocabulary_
    found = evaluate.figures(trained, test)
    assert not any("trained on" in line for line in found["warnings"]), "no hash of a test row is among those learned from"


def test_a_test_file_of_its_own(tmp_path: Path) -> None:
    given = settings(train__steps=1, prepare__test_file=str(write_table(tmp_path / "more.csv", 60, seed=1)))
    record = run(write_table(tmp_path / "t.csv", 200), tmp_path / "run", given, quiet=True)
    assert {name: split["rows"] for name, split in record["data"]["splits"].items()} == {"train": 200, "test": 60}


def test_balance_finds_a_class_that_is_never_likelier_than_the_other(tmp_path: Path) -> None:
    draw, lines = random.Random(0), ["text,label"]
    for i in range(1200):
        word, share = ("hot", 0.3) if i % 4 == 0 else ("cold", 0.01)
        lines.append(f"{' '.join(draw.choices(WORDS['a'].split(), k=5))} {word} {i},{'rare' if draw.random() < share else 'common'}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    recall = []
    for balance in (False, True):
        given = settings(**QUICK | {"train__epochs": 3}, train__balance=balance)
        recall.append(run(tmp_path / "t.csv", tmp_path / str(balance), given, quiet=True)["figures"]["classes"]["rare"]["recall"])
    assert recall[0] < 0.1 and recall[1] > 0.3
    with pytest.raises(ValueError, match=r"train.balance weighs the classes of classify, and this is regress"):
        run(write_scores(tmp_path / "s.tsv"), tmp_path / "no", settings(train__balance=True), quiet=True)


def labels_table(path: Path, count: int = 400) -> Path:
    draw, lines = random.Random(0), ["text,labels"]
    for _ in range(count):
        some = [name for name in WORDS if draw.random() < 0.4]
        text = " ".join([*draw.choices(["the", "of", "it"], k=3), *(draw.choice(WORDS[name].split()) for name in some)])
        lines.append(f"{text} {draw.randint(0, 99)},{'|'.join(some) or '[]'}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("bag", [True, False])
def test_several_labels_a_row_are_learned_predicted_and_measured(bag: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = labels_table(tmp_path / "t.csv")
    record = run(table, tmp_path / "run", settings(**QUICK, train__baseline=bag), quiet=True)
    assert record["task"] == "multilabel" and record["figures"]["micro_f1"] > 0.9 and record["figures"]["macro_f1"] > 0.9
    assert len(record["answers"]["thresholds"]) == 3
    predict.run(tmp_path / "run", ["the plum of it cow", "nail"])
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["labels"] for one in answers] == [["a", "c"], ["b"]]
    evaluate.run(tmp_path / "run", table)
    shown = capsys.readouterr().out
    name, figure = shown.splitlines()[-1].split()
    assert "95 % interval of micro_f1" in shown and name == "micro_f1" and float(figure) >= 0.9


def test_the_progress_of_several_labels_shows_their_figure(tmp_path: Path) -> None:
    log = report.Log(tmp_path / "log.jsonl", quiet=True)
    log({"step": 1, "total": 2, "epoch": 0, "held": {"rows": 9, "loss": 0.25, "micro_f1": 0.5}})
    assert log.held == "micro_f1 0.5000  loss 0.2500"


def test_top_classes_and_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(write_table(tmp_path / "t.csv", 300), tmp_path / "run", settings(train__steps=1, train__baseline=True), quiet=True)
    predict.run(tmp_path / "run", ["so lovely, it was", "a dull day"], format="csv")
    found = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert found[0] == ["text", "label", "probability"] and [row[:2] for row in found[1:]] == [
        ["so lovely, it was", "good"],
        ["a dull day", "bad"],
    ]
    predict.run(tmp_path / "run", ["so lovely"], top=1)
    assert list(json.loads(capsys.readouterr().out)["probabilities"]) == ["good"]
    predict.run(tmp_path / "run", ["so lovely"], top=2, format="csv")
    assert capsys.readouterr().out.splitlines()[0] == "text,label1,probability1,label2,probability2"


def test_the_words_that_made_a_label(tmp_path: Path) -> None:
    run(write_table(tmp_path / "t.csv", 400), tmp_path / "run", settings(**QUICK, train__baseline=True), quiet=True)
    trained = model_folder.load(tmp_path / "run")
    found = attribute(trained, ["the road was lovely and so it was"])
    assert found.answer == "good" and found.strongest(1)[0].text == "lovely" and found.strongest(1)[0].start == 13
    assert found.check is not None and found.check.without_strongest < found.check.without_random
    assert found.lines()[0].startswith("good 0.9") and "lovely +" in found.lines()[1]
    draw, better = random.Random(3), 0
    for _ in range(30):
        words = draw.choices(["the", "a", "one", "film", "day", "road", "with", "of", "in", "house"], k=9)
        words[draw.randrange(9)] = draw.choice(["fine", "bright", "dull", "awful"])
        check = attribute(trained, [" ".join(words)]).check
        better += check is not None and check.without_strongest < check.without_random
    assert better >= 27


def test_settings_of_a_small_table_are_chosen_by_cross_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal texts stay in one fold: labels that nothing but the text itself tells must not look learnable."""
    draw = np.random.default_rng(0)
    texts = [f"w{i // 4} v{i // 4}" for i in range(400)]  # each text four times, with a label of its own
    targets = np.repeat(draw.integers(0, 3, 100), 4)
    groups = np.array([hash(text) % 2**63 for text in texts], dtype=np.uint64)
    apart = linear_search.fit("classify", texts, targets, 3, np.arange(400) >= 360, groups=groups)
    together = linear_search.fit("classify", texts, targets, 3, np.arange(400) >= 360, groups=np.arange(400, dtype=np.uint64))
    assert max(one["score"] for one in apart.tried) < 0.6 and max(one["score"] for one in together.tried) > 0.9
    monkeypatch.setattr(linear_search, "FOLDED_TEXT", 0)  # as in a large table: the rows held out, 1 in 10
    held = linear_search.fit("classify", texts, targets, 3, np.arange(400) >= 360)
    assert all(round(40 * one["score"], 6).is_integer() for one in held.tried) and held.rows == 360


def test_punctuation_is_left_out_where_it_says_nothing(tmp_path: Path) -> None:
    texts, targets = rows(300)
    draw = random.Random(0)
    noisy = [" ".join(word + draw.choice([".", " ,", " ! ?", " ( )", ""]) for word in text.split()) for text in texts]
    made = linear.fit_kind("classify", noisy, targets, 3, linear.Kind("svm", 1.0, plain=True))
    assert not any(set(term) & set(".,!?()") for term in made.made.vectorizers[0].vocabulary_)
    assert str(made.kind) == "linear SVM with C 1 on word 1-2 grams without punctuation"
    made.save(tmp_path)
    again = linear.load(tmp_path)
    assert again is not None and again.kind == made.kind and np.array_equal(again.scores(noisy), made.scores(noisy))
    np.testing.assert_allclose(bag.load(tmp_path).scores(noisy), made.scores(noisy), atol=1e-5)


def test_the_border_of_several_labels_is_not_what_settings_are_chosen_by() -> None:
    targets = np.array([[1, 0], [1, 1], [0, 0]])
    assert linear_search.quality("multilabel", np.array([[-1.0, -3.0], [-1.2, -1.1], [-2.0, -4.0]]), targets) == 1
    assert linear_search.quality("multilabel", np.array([[-3.0, -1.0], [-3.0, -3.0], [-1.0, -1.0]]), targets) < 0.8


def rare_labels(count: int, labels: int = 8) -> tuple[list[str], np.ndarray]:
    """Labels that are less likely than not even where their word stands."""
    draw = np.random.default_rng(0)
    there = draw.random((count, labels)) < 0.2
    texts = [" ".join(["the", *(f"w{k}" for k in np.flatnonzero(row)), *(f"n{k}" for k in draw.integers(0, 50, 5))]) for row in there]
    return texts, (draw.random((count, labels)) < np.where(there, 0.4, 0.01)).astype(np.int64)


def test_a_bag_gives_labels_by_the_border_that_is_best_and_keeps_it_when_it_is_fitted_again(tmp_path: Path) -> None:
    texts, targets = rare_labels(1200)
    found = linear_search.fit("multilabel", texts, targets, 8, np.arange(1200) >= 800)
    again = linear.fit_kind("multilabel", texts[:800], targets[:800], 8, found.kind)
    assert found.kind.border < 0 and np.array_equal(again.bias, found.bias)
    scores, wanted = found.scores(texts[800:]), targets[800:]
    best, _ = metrics.best_border(scores, wanted)
    assert metrics.figure("multilabel", scores, wanted) > best - 0.03
    assert metrics.figure("multilabel", scores + found.kind.border, wanted) < best - 0.1, "LinearSVC's own border"


def test_several_labels_are_compared_by_the_border_that_answers() -> None:
    """No label is likelier than not: by the border of one half, network and bag would be equally bad."""
    draw = np.random.default_rng(0)
    logits = draw.normal(-3, 1, (2000, 4))
    targets = (draw.random((2000, 4)) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    chosen = choose("multilabel", draw.normal(size=(2000, 4)), logits, targets)
    assert chosen.by != NETWORK and chosen.held[BAG]["figure"] > chosen.held[NETWORK]["figure"] + 0.05
    given = chosen.raised(chosen.outputs(np.zeros((2000, 4)), logits))
    assert metrics.figure("multilabel", given, targets) > 0.9 * metrics.best_border(logits, targets)[0]


def test_a_search_without_time_for_everything_tries_the_neighbours_of_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of these settings is found by six fits of twenty."""
    texts, targets = rows(60)
    search = linear_search._Search("classify", texts, targets, 3, False, None)
    done: list[linear.Kind] = []

    def score(kind: linear.Kind, *given: object) -> float:
        done.append(kind)
        return kind.plain - abs(np.log(kind.C / 10)) - (kind.kind != "svm")

    monkeypatch.setattr(search, "_score", score)
    search.clock = lambda: float(len(done))
    search.end, search.seconds = 5.5, 0.0
    assert search.best([(np.arange(40), np.arange(40, 60))]) == linear.Kind("svm", 10.0, plain=True) and len(done) == 6


@pytest.mark.parametrize(("rows", "wrong"), [(12, 0), (400, 400)])
def test_a_network_that_guesses_is_left_out_once_the_rows_can_tell(rows: int, wrong: int) -> None:
    draw = np.random.default_rng(1)
    targets = draw.integers(0, 2, rows)
    bag_scores = np.eye(2)[targets] * 2 + draw.normal(size=(rows, 2))
    network = 10.0 * np.eye(2)[1 - targets] if wrong else bag_scores * 3  # sure of the wrong class, or saying the same
    chosen = choose("classify", network, bag_scores, targets)
    assert chosen.by == BOTH or wrong
    assert (chosen.outputs(network, bag_scores).argmax(-1) == targets).mean() >= (bag_scores.argmax(-1) == targets).mean() - 0.01
    assert chosen.held[BOTH]["figure"] <= 1 and set(chosen.held) == {BOTH, NETWORK, BAG}
