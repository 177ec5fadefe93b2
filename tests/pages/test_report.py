"""`report`: what is read, what is shown, and the page in a real browser without a network."""

from __future__ import annotations

import json
import math
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from tests import browser as browsers
from tests import folders
from tests.lab import settings, write_table
from tokmix.cli.main import main
from tokmix.data.prepare.pipeline import prepare
from tokmix.pages.report import html, maps, read, series, tables, write
from tokmix.training.settings import Settings
from tokmix.training.train import run as train

EVIL = "<script>window.hacked=1<" + "\u2028'\"&"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    write_table(folder / "films.csv", 120)
    stack = "hypermixing(hidden=16), attention(heads=2)"
    train(folder / "films.csv", folder / "run", settings(model__stack=stack, train__epochs=1, train__evaluations=2), quiet=True)
    return folder / "run"


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> list[Path]:
    folder = tmp_path_factory.mktemp("folders")
    made = [folders.compare(folder / "compared"), folders.tune(folder / "tuned"), folders.run(folder / "one")]
    made.append(folders.run(folder / "evil", EVIL + "/script>", 0.9, labels=[EVIL], command=f"tokmix train {EVIL}"))
    return [*made, trained]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, everything: list[Path]) -> Path:
    return write(everything, tmp_path_factory.mktemp("page") / "report.html", title=f"All of it {EVIL}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsers.open_browser() as found:
        yield found


def data_of(page: Path) -> dict[str, Any]:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(block)


# --- what is read --------------------------------------------------------------------------------------------------------------


def test_folders_are_told_apart(everything: list[Path], trained: Path) -> None:
    found = read.read([*everything, trained / "model"])
    assert [group.name for group in found.compares] == ["compared"] and [group.name for group in found.tunes] == ["tuned"]
    assert [run.name for run in found.runs] == ["one", "evil", "run", "model"]
    assert len(found.compares[0].runs) == len(folders.ENTRIES) * len(folders.FRACTIONS) * 3 - 1  # one failed
    assert found.runs[2].log and not found.runs[3].log


def test_names_grow_until_they_differ(tmp_path: Path) -> None:
    made = [folders.run(tmp_path / place / "run") for place in ("a", "b")]
    assert [run.name for run in read.read([*made, made[0]]).runs] == ["a/run", "b/run"]


@pytest.mark.parametrize(("bag", "words"), [(0.7, "ahead of"), (0.8, "level with"), (0.95, "behind")])
def test_the_first_sentence_compares_the_best_run_with_the_simplest_model(tmp_path: Path, bag: float, words: str) -> None:
    made = [folders.run(tmp_path / f"run-{score}", score=score, baseline={"accuracy": bag}) for score in (0.6, 0.8)]
    text = write(made, tmp_path / "report.html").read_text()
    sentence = f"reaches accuracy 0.8000 on valid, {words} the simplest model on the same rows, which reaches {bag:.4f}."
    assert f"run-0.8 (the best of 2 runs, hypermixing*2) {sentence}" in text
    assert text.index(sentence) < text.index("<table")


def test_classes_and_mistakes_of_a_run_and_the_interval_of_its_score(trained: Path, tmp_path: Path) -> None:
    text = write([trained], tmp_path / "report.html").read_text()
    figures = json.loads((trained / "model" / "training.json").read_text())["figures"]
    low, high = figures["intervals"]["accuracy"]
    assert f"accuracy {figures['accuracy']:.4f} [{low:.4f}, {high:.4f}]" in text
    assert "Commonest mistakes" in text and "All 2 classes" in text
    wrong = max((figures["confusion"][a][1 - a], a) for a in (0, 1))
    row = [figures["labels"][wrong[1]], figures["labels"][1 - wrong[1]], str(wrong[0])]
    section = text[text.index('id="classes"') :]
    assert wrong[0] and re.findall(r"<td[^>]*>([^<]*)</td>", section)[:3] == row


def test_a_run_that_has_not_ended_shows_its_curve(tmp_path: Path) -> None:
    made = folders.run(tmp_path / "begun")
    (made / "model" / "training.json").unlink()
    path = write([made], tmp_path / "report.html")
    assert "has not ended" in path.read_text()
    views = {tuple(view["keys"]): view for view in data_of(path)["learning-0"]["views"]}
    assert next(iter(views)) == ("accuracy, held out", "steps")
    assert views["loss, training", "steps"]["series"][0]["x"] == list(range(10, 110, 10))
    assert views["accuracy, held out", "tokens"]["series"][0]["x"] == list(range(3000, 33000, 3000))


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (None, "", "no folder of train, tune or compare"),
        ("study.json", "{}", "is a folder of tune that has not ended"),
        ("asked.json", "{}", "is a folder of compare that has not ended"),
        ("compare.json", "{", "compare.json is damaged"),
        ("tune.json", "[1]", "does not hold an object"),
        ("tune.json", '{"format": "tokmix-compare"}', "format 'tokmix-compare', not 'tokmix-tune'"),
        ("compare.json", '{"format": "tokmix-compare", "version": 9}', "version 9"),
        ("training.json", '{"a": 1}', "does not describe a trained model"),
        ("compare.json", "[" * 100_000, "is damaged"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str | None, content: str, words: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    if file is not None:
        (folder / file).write_text(content)
    assert main(["report", str(folder), "--out", str(tmp_path / "report.html")]) == 1
    said = capsys.readouterr().err
    assert words in said and str(folder) in said and said.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("option", "given", "words"),
    [("--text", " ", "--text ' ' is empty"), ("--text", "\udcff", "not utf-8"), ("--title", "\udcff", "not utf-8")],
)
def test_words_that_no_page_can_show_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, given: str, words: str
) -> None:
    made = folders.run(tmp_path / "one")
    assert main(["report", str(made), "--out", str(tmp_path / "r.html"), option, given]) == 1
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1 and not (tmp_path / "r.html").exists()


def test_a_folder_spelled_twice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folders.run(tmp_path / "one")
    monkeypatch.chdir(tmp_path)
    assert [run.name for run in read.read(["one", str(made), "./one"]).runs] == ["one"]


def test_only_a_report_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, out = folders.run(tmp_path / "one"), tmp_path / "deep" / "report.html"
    assert main(["report", str(made), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    assert main(["report", str(made), "--out", str(out)]) == 0
    out.write_text("my notes")
    assert main(["report", str(made), "--out", str(out)]) == 1
    assert out.read_text() == "my notes" and "nothing is overwritten" in capsys.readouterr().err
    assert main(["report", str(made), "--out", str(tmp_path)]) == 1
    assert main(["report", str(tmp_path / "no"), "--out", str(out)]) == 1
    assert sorted(path.name for path in out.parent.iterdir()) == ["report.html"]


def test_keys_that_are_missing_or_of_another_kind_are_borne(tmp_path: Path) -> None:
    for kind in ("compare", "tune"):
        known = json.loads((getattr(folders, kind)(tmp_path / kind) / f"{kind}.json").read_text())
        for place, name in enumerate(known):
            if name in ("format", "version"):
                continue
            for change in ({}, {name: None}, {name: "text"}):
                folder = tmp_path / f"{kind}-{place}-{len(change)}"
                folders.write(folder / f"{kind}.json", {key: value for key, value in known.items() if key != name} | change)
                write([folder], tmp_path / "report.html")


# --- what is shown -------------------------------------------------------------------------------------------------------------


def test_the_page_holds_everything_and_needs_nothing(page: Path) -> None:
    text = page.read_text()
    ours = ("Results", "Comparison: compared", "Expected validation performance", "Tuning: tuned", "Learning curves", "Who reads whom")
    for heading in (*ours, "Commands and versions"):
        assert f"<h2>{heading}</h2>" in text
    assert "tokmix tune films.csv --out tuned --trials 30" in text and "2.13.0" in text
    assert "Failed runs, left out of the means: identity*2, seed 0, 10 % of train: out of memory" in text
    assert "not measured" in text
    assert "Cost(R) = E · D · H = 2.7 M FLOPs · 3 k examples · 30 trials; all in all 235 G FLOPs, of 29 trials that know theirs." in text
    lost = {tuple(view["keys"]): view["note"] for view in data_of(page)["frontier-0"]["views"]}
    assert "bag of words" in lost["FLOPs of training",] and lost["parameters",] == ""
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text) and "url(" not in text and "@import" not in text
    assert page.stat().st_size < 400_000
    kept = {"evp", "trials-0", "low-0", "frontier-0", "learning-0", "maps", "frontier-runs-0"}
    assert kept <= set(data_of(page))


def test_a_name_that_is_code_stays_a_name(page: Path) -> None:
    text = page.read_text()
    assert "<script>window" not in text and "&lt;script&gt;window" in text
    assert len(re.findall(r"</script", text)) == 3, "the data block and two of our own"
    names = [one["name"] for one in data_of(page)["frontier-runs-0"]["views"][0]["series"]]
    assert "evil" in names


def test_cost_is_the_product_of_its_factors(tmp_path: Path) -> None:
    found = read.read([folders.run(tmp_path / "one")])
    cost = found.runs[0].cost
    shown = tables.costs(found.runs)
    assert f'data-value="{float(cost["flops_training"] * cost["examples"])!r}"' in shown and "8.1 G" in shown
    assert tables.command(found.runs[0]) == "tokmix train films.csv --out one --model.stack 'hypermixing*2' --train.lr 0.01"


def test_the_command_of_a_run_asks_for_its_settings(trained: Path) -> None:
    """Read by the command line, it gives the settings that were recorded."""
    from tokmix.cli.commands.train import train_settings
    from tokmix.cli.main import command_parser

    found = read.read([trained]).runs[0]
    words = shlex.split(tables.command(found))
    assert words[:5] == ["tokmix", "train", "films.csv", "--out", "run"] and "--no-train.baseline" in words
    again = Settings.of(None, train_settings(command_parser("train").parse_args(words[2:])))
    assert found.record is not None and json.loads(json.dumps(again.record())) == found.record["settings"]


def test_the_command_of_a_run_on_prepared_data_begins_with_preparing(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("")
    prepare(write_table(tmp_path / "films.csv", 60), tmp_path / "ready", vocab=300, max_len=20, lowercase=False)
    given = Settings.of(None, {"model.dim": 16, "train.steps": 2, "train.pretrain": 0, "train.baseline": False})
    train(tmp_path / "ready", tmp_path / "run", given, imports=[tmp_path / "own.py"], quiet=True)
    first, second = tables.command(read.read([tmp_path / "run"]).runs[0]).splitlines()
    assert first.startswith("tokmix prepare films.csv --out ready") and first.count("--out") == 1
    assert all(words in first for words in (" --vocab 300", " --max-len 20", " --no-lowercase"))
    assert second.startswith("tokmix train ready --out run --import own.py --model.dim 16")


def test_prepared_data_of_which_only_the_hash_is_known_is_not_called_by_its_file(tmp_path: Path) -> None:
    folders.write(folders.run(tmp_path / "one") / "run.json", {"source": "a" * 64})
    assert tables.command(read.read([tmp_path / "one"]).runs[0]).startswith("tokmix train DATA ")


def test_a_diverged_trial_is_not_mapped_and_no_password_is_shown(tmp_path: Path) -> None:
    known = json.loads((folders.tune(tmp_path / "tuned") / "tune.json").read_text())
    known["command"] = "tokmix tune films.csv --storage=postgresql://anna:SECRETPW@host/db --out tuned"
    best = max(known["trials"], key=lambda trial: trial["score"])["number"]
    known["trials"].append({"number": 99, "parameters": {}, "state": "diverged", "score": 0.99, "seconds": 1.0, "cost": None})
    folders.write(tmp_path / "tuned" / "tune.json", known)
    found = read.read([tmp_path / "tuned"])
    assert list(maps.models(found)) == [f"tuned, trial {best}"] and series._best(found.tunes[0])[0]["number"] == best
    shown = tables.commands(found)
    assert "SECRETPW" not in shown and "anna:***@host/db --out tuned" in shown


def test_a_head_without_words_has_no_button() -> None:
    assert html.table(["", "b"], [["x", 1]]).count("<button") == 1


def test_expected_performance_is_drawn_as_it_was_computed(page: Path, everything: list[Path]) -> None:
    known = json.loads((everything[1] / "tune.json").read_text())
    views = {tuple(view["keys"]): view["series"][0] for view in data_of(page)["evp"]["views"]}
    curve = views["with replacement", "trials"]
    assert curve["x"] == list(range(1, 31))
    assert curve["y"] == pytest.approx(known["evp"]["with_replacement"]["mean"], rel=1e-5)
    assert curve["high"][0] - curve["y"][0] == pytest.approx(known["evp"]["with_replacement"]["deviation"][0], rel=1e-4)
    spent = folders.cost()["flops_training"] * folders.cost()["examples"]
    assert views["with replacement", "FLOPs of training"]["x"] == pytest.approx([spent * n for n in range(1, 31)], rel=1e-5)


def test_a_run_of_several_labels_shows_its_main_figure_first() -> None:
    log = [{"step": step, "tokens": 9, "held": {"loss": 0.5, "hamming": 0.1, "micro_f1": 0.3}} for step in (1, 2)]
    chart = series.learning([("a", "a", read.Run("a", Path("a"), log=log))], series.Colours())
    assert chart is not None and chart["views"][0]["keys"][0] == "micro_f1, held out"


def test_the_front_is_what_no_other_point_beats() -> None:
    draw = random.Random(0)
    for _ in range(200):
        points = [(draw.randint(1, 6), draw.randint(1, 6)) for _ in range(draw.randint(0, 9))]
        for higher in (True, False):
            sign = 1 if higher else -1
            beaten = [any(p != q and q[0] <= p[0] and sign * q[1] >= sign * p[1] for q in points) for p in points]
            alone = sorted({p for p, lost in zip(points, beaten, strict=True) if not lost})
            assert series.front(points, higher) == alone


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="NaN is no number of JSON"):  # tokmix itself never writes one
        write([folders.run(tmp_path / "one", score=math.nan)], tmp_path / "report.html")
    assert html.data({"a": [math.inf, 1.0], "b": "</script>"}) == '{"a":[null,1.0],"b":"\\u003c/script>"}'


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (9999, "9999"), (20_000, "20 k"), (8_100_000_000, "8.1 G"), (0.81234, "0.8123"), (None, "–"), (math.nan, "–")],
)
def test_numbers_are_short(value: float | None, shown: str) -> None:
    assert html.cell(value).shown == shown


def test_maps_come_from_the_data_or_a_given_text(page: Path, trained: Path, tmp_path: Path) -> None:
    (made,) = data_of(page)["maps"]["maps"]
    assert made["name"] == "run" and made["tokens"][0] == "[CLS]" and made["tokens"][-1] == "[SEP]"
    assert [one["title"].split(":")[0] for one in made["maps"]] == [
        "layer 1, hypermixing",
        "layer 2, attention",
        "layer 2, attention",
        "whole stack",
    ]
    assert len(made["maps"][0]["weights"]) == len(made["tokens"])
    given = write([trained / "model"], tmp_path / "report.html", text="one fine day")
    assert data_of(given)["maps"]["maps"][0]["tokens"][1:4] == ["one", "fine", "day"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (trained / "model").rename(elsewhere / "model")
    try:
        assert "give a text with --text" in write([elsewhere / "model"], tmp_path / "report.html").read_text()
    finally:
        (elsewhere / "model").rename(trained / "model")


def test_the_words_that_made_an_answer_are_shaded(page: Path) -> None:
    shown = page.read_text().split('<section id="words">', 1)[1].split("</section>")[0]
    assert "Which words made the answer" in shown and shown.count('class="for"') + shown.count('class="against"') >= 2
    assert "--share: 100%" in shown and "words for" in shown


# --- in a browser --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "dark"), [(browsers.DESKTOP, False), (browsers.PHONE, True)], ids=["desktop", "phone, dark"])
def test_the_page_loads_without_a_network(browser: Any, page: Path, size: tuple[int, int], dark: bool) -> None:
    with browsers.open_page(browser, page.as_uri(), size, dark) as shown:
        assert shown.evaluate("window.hacked") is None
        assert "<script>window.hacked=1<" in shown.inner_text("h1")
        for figure in shown.locator("figure.chart").all():
            assert figure.locator("svg").count() == 1
        pictures = shown.locator("figure.chart svg, figure.chart canvas").all()
        assert len(pictures) > 1 and all(one.get_attribute("role") == "img" and one.get_attribute("aria-label") for one in pictures)
        smallest = shown.evaluate(
            "Math.min(...[...document.querySelectorAll('.plot svg text')].map(t => parseFloat(getComputedStyle(t).fontSize)))"
        )
        assert smallest >= 11, "letters of a chart stay legible on a phone"


def test_the_controls_work(browser: Any, page: Path) -> None:
    with browsers.open_page(browser, page.as_uri()) as shown:
        learning = shown.locator('figure[data-chart="learning-0"]')
        before = learning.locator("polyline").count()
        path = learning.locator("polyline").first.get_attribute("points")
        learning.locator("select[data-dim=figure]").select_option("loss, training")
        assert learning.locator("polyline").first.get_attribute("points") != path
        learning.locator(".legend button").first.click()
        assert learning.locator("polyline").count() == before - 1
        learning.locator(".legend button").first.click()
        assert learning.locator("polyline").count() == before

        costs = shown.locator('figure[data-chart="frontier-0"]')
        costs.locator("select").select_option("joules")
        assert "joules" in costs.locator("svg").text_content()
        costs.locator("circle").first.hover(force=True)
        assert "accuracy:" in costs.locator(".tip").inner_text()
        places = "circles => circles.map(circle => circle.getAttribute('cx'))"
        before_log = costs.locator("circle").evaluate_all(places)
        costs.locator("input[data-log=x]").uncheck()
        assert costs.locator("circle").evaluate_all(places) != before_log

        maps = shown.locator('figure[data-chart="maps"]')
        maps.locator("canvas").hover(position={"x": 3, "y": 3})
        assert maps.locator(".tip").inner_text().startswith("[CLS] (1) reads [CLS] (1)")
        picture = maps.locator("canvas").evaluate("canvas => canvas.toDataURL()")
        maps.locator("select[data-dim=map]").select_option(index=3)
        assert maps.locator("canvas").evaluate("canvas => canvas.toDataURL()") != picture

        table = shown.locator("#tune-0 table").first
        scores = [float(cell) for cell in table.locator("tbody tr td:nth-child(5)").all_inner_texts()]
        assert scores == sorted(scores, reverse=True)
        table.locator("th button").nth(4).click()
        assert [float(cell) for cell in table.locator("tbody tr td:nth-child(5)").all_inner_texts()] == sorted(scores)


def test_long_names_fit_on_a_phone(browser: Any, tmp_path: Path) -> None:
    """Of maps, which a select shows in one line, and of classes."""
    path = write_table(tmp_path / "films.csv", 120)
    path.write_text(path.read_text().replace(",good", ",a_long_name_of_a_class_without_a_blank_in_it_that_nobody_can_break"))
    train(path, tmp_path / "run", settings(model__stack="hsm(variant='fusion')*2", train__epochs=1), quiet=True)
    made = write([tmp_path / "run"], tmp_path / "report.html")
    with browsers.open_page(browser, made.as_uri(), browsers.PHONE) as page:  # open_page sees whether anything is wider than the window
        page.click("text=All 2 classes")
