"""A search in this process: what it writes, what diverges, what is refused; trials that are claimed, lost and found."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("optuna")

from tests.lab import write_scores, write_table, write_text
from tests.tuning import DIVERGED, SEED, SPACE, TRIALS, small, trials_of
from tokmix import cli
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.tokens import TokenFiles
from tokmix.study.expected_performance import with_replacement, without_replacement
from tokmix.study.tune.chance import Figure, figure_of
from tokmix.study.tune.report import best
from tokmix.study.tune.search import run
from tokmix.study.tune.space import Space
from tokmix.study.tune.store import JOURNAL, Store, hide_password
from tokmix.study.tune.trials import DEATHS, Finished, Trials
from tokmix.training import train
from tokmix.training.settings import Settings
from tokmix.training.task import TrainingTask


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    write_table(folder / "t.csv")
    run(folder / "t.csv", folder / "study", small(), trials=TRIALS, space=Space.of(SPACE), workers=1, quiet=True)
    return folder


def again(folder: Path, given: Settings | None = None, **more):
    more = {"trials": TRIALS, "space": Space.of(SPACE), "workers": 1, "quiet": True} | more
    return run(folder / "t.csv", folder / "study", given or small(), **more)


def test_every_trial_is_a_run_of_its_own_with_its_parameters(searched):
    found = json.loads((searched / "study" / "tune.json").read_text())
    assert (found["format"], found["version"], found["seed"], found["space"]) == ("tokmix-tune", 1, SEED, SPACE)
    assert (found["metric"], found["higher_is_better"], found["split"]) == ("accuracy", True, "valid")
    assert [trial["number"] for trial in found["trials"]] == list(range(TRIALS))
    for trial in found["trials"]:
        assert trial["parameters"] == Space.of(SPACE).draw(SEED, trial["number"])
        folder = searched / "study" / "trials" / f"{trial['number']:04d}"
        assert not (folder / "data").exists(), "the data is prepared once, for all"
        if trial["state"] == "finished":
            record = json.loads((folder / "model" / "training.json").read_text())
            assert record["figures"]["accuracy"] == trial["score"] and record["baseline"] is None and trial["error"] is None
            assert record["settings"]["train"]["lr"] == trial["parameters"]["train.lr"]
            assert record["settings"]["model"]["dropout"] == trial["parameters"]["model.dropout"]
            assert trial["cost"] == record["cost"]
    assert (searched / "study" / "evp.png").read_bytes()[:4] == b"\x89PNG"


def test_a_diverged_trial_is_finished_and_scores_chance(searched):
    found = json.loads((searched / "study" / "tune.json").read_text())
    targets = TokenFiles(searched / "study" / "data")["valid"].targets.tolist()
    assert found["chance"] == max(targets.count(0), targets.count(1)) / len(targets)
    diverged = [trial for trial in found["trials"] if trial["state"] == "diverged"]
    assert [trial["number"] for trial in diverged] == DIVERGED
    assert all(trial["score"] == found["chance"] and "not a finite number" in trial["error"] for trial in diverged)
    assert all(0 < trial["cost"]["steps"] < 10 for trial in diverged), "what it cost up to there"
    assert len(found["trials"]) == TRIALS, "none was dropped, none was put in its place"


def test_what_to_expect_counts_every_trial(searched):
    found = json.loads((searched / "study" / "tune.json").read_text())
    scores = [trial["score"] for trial in found["trials"]]
    for name, curve in (("with_replacement", with_replacement(scores)), ("without_replacement", without_replacement(scores))):
        assert found["evp"][name] == vars(curve)
    assert found["evp"]["without_replacement"]["mean"][-1] == max(scores)


def test_the_best_setting_is_a_command_that_gives_its_score_again(searched, tmp_path, monkeypatch, capsys):
    found = json.loads((searched / "study" / "tune.json").read_text())
    best = max((trial for trial in found["trials"] if trial["state"] == "finished"), key=lambda trial: trial["score"])
    assert found["best"]["number"] == best["number"]
    monkeypatch.chdir(tmp_path)
    assert cli.main([*shlex.split(found["best"]["command"])[1:], "--train.final", "valid"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"accuracy {best['score']:.4f}"


def test_a_finished_search_is_told_again_without_training(searched, monkeypatch, capsys):
    before = trials_of(searched / "study")
    monkeypatch.setattr(train, "run", None)
    again(searched, quiet=False, resume=True)
    assert trials_of(searched / "study") == before
    lines = capsys.readouterr().out.splitlines()
    table = next(i for i, line in enumerate(lines) if line.split() == ["trial", "train.lr", "model.dropout", "accuracy", "time"])
    shown = [line.split() for line in lines[table + 1 : table + 1 + TRIALS]]
    assert {int(row[0]): float(row[3]) for row in shown} == {number: round(score, 4) for number, _, _, score in before}
    assert [float(row[3]) for row in shown] == sorted((float(row[3]) for row in shown), reverse=True)
    assert sum("diverged: scored at chance" in line for line in lines) == len(DIVERGED)
    assert lines[-1].startswith("tokmix train ")


def test_more_trials_leave_the_first_as_they_were(searched, tmp_path):
    write_table(tmp_path / "t.csv")
    again(tmp_path, trials=2)
    first = trials_of(tmp_path / "study")
    again(tmp_path, trials=3)
    assert trials_of(tmp_path / "study")[:2] == first == trials_of(searched / "study")[:2]
    assert trials_of(tmp_path / "study") == trials_of(searched / "study")[:3]


@pytest.mark.parametrize(
    ("given", "more", "words"),
    [
        ({"train__rows": 16}, {}, "was begun with other settings: train.rows=16, was 32"),
        (
            {},
            {"space": Space.of({"train.lr": {"choice": [1e-3, 2e-3]}})},
            "was begun with other settings: the space's train.lr={'choice': .*, was {",
        ),
        ({}, {"trials": 3}, "has 5 trials already: --trials 3 would drop some"),
        ({}, {"threads": 2}, "threads=2, was 1"),
    ],
    ids=["settings", "space", "fewer trials", "threads"],
)
def test_a_study_goes_on_only_as_it_was_begun(searched, given, more, words):
    before = (searched / "study" / JOURNAL).read_bytes()
    settings = Settings.of(None, {f"{g}.{n}": v for g, part in small().record().items() for n, v in part.items()} | {
        name.replace("__", "."): value for name, value in given.items()
    })  # fmt: skip
    with pytest.raises(ValueError, match=words) as told:
        again(searched, settings, **more)
    assert "\n" not in str(told.value) and (searched / "study" / JOURNAL).read_bytes() == before


def test_other_data_and_other_folders_are_refused(searched, tmp_path):
    other = write_table(tmp_path / "t.csv", 100)
    with pytest.raises(ValueError, match="was begun on other data: t.csv, .* bytes, not t.csv, .* bytes"):
        run(other, searched / "study", small(), trials=TRIALS, space=Space.of(SPACE))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="exists and is not a study of tokmix tune"):
        run(other, tmp_path / "full", small())
    assert [one.name for one in (tmp_path / "full").iterdir()] == ["letter.txt"]  # not even a lock
    with pytest.raises(ValueError, match="letter.txt exists and is not a study"):
        run(other, tmp_path / "full" / "letter.txt", small())
    assert (tmp_path / "full" / "letter.txt").read_text() == "dear"


BAD = {
    "--storage sqlite:///x.db": "is not postgresql://",
    "--train.lr 0.1": "--train.lr 0.1 is set, but the space searches it",
    "--trials 0": "--trials=0 is not a whole number of at least 1",
    "--workers 0": "--workers=0 is not a whole number of at least 1",
    "--study films": "--study films is about a study in a database: give --storage too",
    "--patience 9": "--patience 9 is about a study in a database",
    "--resume": "--resume: there is no study in",
    "--space nowhere.json": "no file 'nowhere.json'",
    "--train.final test": "compares trials by valid",
    "--stack attention(heads=3) --model.dim 16": "heads=3 does not divide dim=16",
    "--storage postgresql://127.0.0.1:1/x?user=anna&password=secret": "--storage postgresql://127.0.0.1:1/x[?]user=anna&password=[*]{3}: ",
    "--storage postgresql://anna:sec%ret@127.0.0.1:1/x": '--storage postgresql://anna:[*]{3}@127.0.0.1:1/x: .*"[*]{3}"',
    "--storage postgresql://anna:sec@ret@127.0.0.1:1/x": "anna:[*]{3}@127.0.0.1:1/x: an @ in a user or password is written %40",
    "--storage postgresql://anna:secret@127.0.0.1:1/x": "--storage postgresql://anna:[*]{3}@127.0.0.1:1/x: .*onnection",
}


@pytest.mark.parametrize("words", BAD, ids=str)
def test_what_does_not_work_is_said_in_one_line_and_leaves_nothing(words, tmp_path, capsys):
    write_table(tmp_path / "t.csv", 60)
    assert cli.main(["tune", str(tmp_path / "t.csv"), "--out", str(tmp_path / "study"), *words.split()]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and said.startswith("tokmix tune: ")
    assert re.search(BAD[words], said), said
    assert not (tmp_path / "study").exists() and not re.search("sec.?ret", said)


def test_a_shape_that_some_trial_would_have_is_tried_first(tmp_path):
    table = write_table(tmp_path / "t.csv", 60)
    space = Space.of({"model.stack": {"choice": ["hsm", "attention(heads=5)"]}})
    with pytest.raises(ValueError, match=r"no trial can have model.stack='attention\(heads=5\)': heads=5 does not divide dim"):
        run(table, tmp_path / "study", small(), space=space, trials=2, quiet=True)
    assert not (tmp_path / "study").exists()


def test_chance_of_every_kind_of_task(tmp_path):
    prepare(write_scores(tmp_path / "pairs.tsv", 60), tmp_path / "scores", vocab=200)
    figure = figure_of(TrainingTask(TokenFiles(tmp_path / "scores"), Settings()))
    assert (figure.name, figure.higher, figure.chance) == ("pearson", True, 0.0)
    prepare(write_text(tmp_path / "text"), tmp_path / "lm", vocab=300)
    files = TokenFiles(tmp_path / "lm")
    figure = figure_of(TrainingTask(files, Settings()))
    vocab, part = files.card.tokenizer["vocab"], files.card.splits["valid"]
    assert (figure.name, figure.higher, figure.split) == ("bits_per_byte", False, "valid")
    assert figure.chance == pytest.approx(math.log2(vocab) * part.tokens / part.bytes)
    figure = figure_of(TrainingTask(files, Settings.of(None, {"train.task": "mlm"})))
    assert (figure.name, figure.higher, figure.chance) == ("loss", False, pytest.approx(math.log(vocab)))


def test_without_a_valid_split_a_held_out_part_decides_and_never_test(tmp_path):
    write_table(tmp_path / "t.csv", 200)
    given = small(prepare__valid=0.0, prepare__test=0.2, train__holdout=0.2)
    found = run(tmp_path / "t.csv", tmp_path / "study", given, trials=1, space=Space.of(SPACE), workers=1, quiet=True)
    record = json.loads((tmp_path / "study" / "trials" / "0000" / "model" / "training.json").read_text())
    assert found["split"] == "held out" and found["trials"][0]["score"] == record["selection"]["score"]


def test_killed_before_its_first_trial_a_search_is_resumed(tmp_path, monkeypatch):
    write_table(tmp_path / "t.csv", 60)
    asked = {"trials": 1, "space": Space.of(SPACE), "workers": 1, "quiet": True}

    def killed(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trials, "begin", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "t.csv", tmp_path / "study", small(), **asked)
    found = run(tmp_path / "t.csv", tmp_path / "study", small(), resume=True, **asked)
    assert len(found["trials"]) == 1


# --- trials alone, without training ----------------------------------------------------------------------------------


ASKED = {"settings": small().record(), "space": SPACE, "threads": 1, "source": "t.csv", "data": "0"}


def begin(folder: Path, count: int = 3) -> Trials:
    return Trials.begin(Store(folder, "study"), count, ASKED, higher=True)


def test_a_trial_is_claimed_once_and_finished_once(tmp_path):
    one, other = begin(tmp_path), begin(tmp_path)
    claims = [one.claim(), other.claim(), one.claim()]
    assert [claim.index for claim in claims] == [0, 1, 2]
    assert other.claim() is None and one.running() == [0, 1, 2]
    assert one.finish(claims[0], 0.5, {"state": "finished"})
    assert not one.finish(claims[0], 0.7, {"state": "finished"})
    assert [(trial.index, trial.score) for trial in other.finished()] == [(0, 0.5)]
    assert claims[1].parameters == Space.of(SPACE).draw(SEED, 1)


def test_the_trial_of_a_dead_worker_is_claimed_again_with_the_same_parameters(tmp_path):
    one, other = begin(tmp_path), begin(tmp_path)
    lost = one.claim()
    lost.lock.release()  # as the operating system does when a process dies
    found = other.claim()
    assert (found.index, found.parameters) == (lost.index, lost.parameters)
    assert not one.finish(lost, 0.1, {}), "what comes from the dead is not heard"
    assert other.finish(found, 0.2, {"state": "finished"})
    assert [trial.score for trial in one.finished()] == [0.2]


def test_a_trial_given_back_is_claimed_again_as_often_as_it_takes(tmp_path):
    trials = begin(tmp_path, 1)
    for _ in range(DEATHS + 1):
        claim = trials.claim()
        trials.give_back(claim)
        claim.lock.release()
    assert trials.claim().index == 0 and not trials.left_alone()


def test_a_trial_that_kills_its_workers_is_left_alone_until_the_next_start(tmp_path):
    trials = begin(tmp_path, 2)
    for _ in range(DEATHS):
        claim = trials.claim()
        assert claim.index == 0
        claim.lock.release()
    assert trials.claim().index == 1 and trials.left_alone() == [0]
    assert begin(tmp_path, 2).claim().index == 0


def test_a_line_cut_short_by_a_crash_does_not_end_the_journal(tmp_path):
    trials = begin(tmp_path)
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(b'{"op_code": 4, "worker')
    claim = begin(tmp_path).claim()
    assert claim.index == 0 and trials.running() == [0]


def trial(index: int, score: float, state: str = "finished") -> Finished:
    return Finished(index, {"train.lr": 1e-3}, score, {"state": state})


def test_a_diverged_trial_is_never_the_best():
    figure = Figure("accuracy", True, 0.5, "valid")
    assert best([trial(0, 0.5, "diverged"), trial(1, 0.4), trial(2, 0.45), trial(3, 0.45)], figure).index == 2
    assert best([trial(0, 0.5, "diverged")], figure) is None


def test_where_all_trials_diverge_there_is_no_best(tmp_path, capsys):
    write_table(tmp_path / "t.csv", 60)
    again(tmp_path, trials=1, space=Space.of({"train.lr": {"choice": [1e30]}}), quiet=False)
    found = json.loads((tmp_path / "study" / "tune.json").read_text())
    assert found["best"] is None and found["evp"]["with_replacement"]["mean"] == [found["chance"]]
    assert capsys.readouterr().out.splitlines()[-1].startswith("best: none, as every trial diverged")


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("--storage=postgresql://anna:SECRET@host/db", "--storage=postgresql://anna:***@host/db"),
        ("postgresql://host/db?user=anna&password=SECRET", "postgresql://host/db?user=anna&password=***"),
        ("postgresql://host:5432/db?password=SEC@RET&user=anna", "postgresql://host:5432/db?password=***&user=anna"),
        ("postgresql://anna:SEC@RE/T?@host/db", "postgresql://anna:***@host/db"),
        ("postgresql://anna@[::1]:5432/db", "postgresql://anna@[::1]:5432/db"),
    ],
)
def test_passwords_are_hidden_in_every_spelling(word, shown):
    assert hide_password(word) == shown


def test_the_record_of_a_search_does_not_tell_the_password(searched, monkeypatch):
    monkeypatch.setattr("sys.argv", ["tokmix", "tune", "--storage=postgresql://anna:SECRETPW@host/db"])
    again(searched)
    assert "SECRETPW" not in (searched / "study" / "tune.json").read_text()


def test_passwords_are_hidden():
    assert hide_password("postgresql://anna:pa%40ss@host:5432/db") == "postgresql://anna:***@host:5432/db"
    assert [hide_password(word) for word in ("--out", "postgresql://host/db", "hypermixing(hidden=16)")] == [
        "--out", "postgresql://host/db", "hypermixing(hidden=16)",
    ]  # fmt: skip
