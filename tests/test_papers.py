"""`tokmix papers`: what is listed, the claims' statistics, tables and figures from results files, and the READMEs that are committed."""

from __future__ import annotations

import base64
import gzip
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests import browser as browsers
from tests import needs as test_needs
from tokmix.cli import main
from tokmix.compare import pool
from tokmix.lab.statistics import Resamples, holm, paired_t
from tokmix.papers import claims, draw, page, readme, results
from tokmix.papers import item as catalogue
from tokmix.papers import needs as data_needs
from tokmix.papers.claims import Claim, judge
from tokmix.papers.hypermixer import recipe
from tokmix.papers.item import Item, Outcomes, Results
from tokmix.papers.job import Job
from tokmix.report import markdown, write

ROOT = Path(__file__).parent.parent
MODELS = {"hyper": 0.8, "attention": 0.7}


def runs(of: float, seeds: int = 5, spread: float = 0.01, examples: int = 0) -> list[dict[str, Any]]:
    chance = np.random.default_rng(int(of * 1000))
    made = []
    for seed in range(seeds):
        run: dict[str, Any] = {"seed": seed, "lr": 1e-3, "state": "finished", "score": of + spread * float(chance.normal())}
        if examples:
            right = np.arange(examples) < of * examples
            run |= {"right": claims.pack(right), "examples": examples, "score": float(right.mean()) + spread * (seed - 2)}
        made.append(run)
    return made


HYPER = f"{100 * statistics.fmean(run['score'] for run in runs(MODELS['hyper'])):.1f} ("  # how its cell begins


# --- claims --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("better", "worse", "word"),
    [
        (runs(0.8), runs(0.7), "holds"),
        (runs(0.7), runs(0.8), "does not hold"),
        (runs(0.8, spread=0.3), runs(0.79, spread=0.3), "unclear"),
        (runs(0.8, seeds=1), runs(0.7, seeds=1), "unclear"),
        (runs(0.8), [], "not run"),
        (runs(0.8), [{"seed": 0, "state": "failed", "score": None}], "not run"),
    ],
)
def test_a_verdict_is_what_the_seeds_say(better: list[dict], worse: list[dict], word: str) -> None:
    (found,) = judge([Claim("a before b", better, worse)])
    assert found.word == word


def test_lower_is_better_and_a_margin_moves_the_line() -> None:
    loss_a, loss_b = runs(2.30), runs(2.34)
    assert judge([Claim("a has the lower loss", loss_a, loss_b, higher=False)])[0].word == "holds"
    assert judge([Claim("b has the lower loss", loss_b, loss_a, higher=False)])[0].word == "does not hold"
    close = judge([Claim("b comes within 0.1 of a", loss_b, loss_a, higher=False, margin=0.1)])[0]
    assert close.word == "holds" and close.difference == pytest.approx(-0.04, abs=0.02)
    assert judge([Claim("b leads by 0.1", loss_b, loss_a, higher=False, margin=-0.1)])[0].word == "does not hold"


def test_the_claims_of_an_item_are_corrected_together() -> None:
    pair = (runs(0.75, spread=0.02), runs(0.72, spread=0.02))
    alone = judge([Claim("one", *pair)])[0]
    many = judge([Claim(f"{i}", *pair) for i in range(20)])
    plain = paired_t(*([run["score"] for run in side] for side in pair))
    assert alone.t == plain and many[0].t == holm([plain] * 20)[0] and alone.t is not None and many[0].t > alone.t


def test_only_seeds_that_both_have_are_paired() -> None:
    found = judge([Claim("a before b", runs(0.8, seeds=5), runs(0.7, seeds=3))])[0]
    assert found.seeds == 3


def test_the_bootstrap_over_examples_is_that_of_many_resamples() -> None:
    chance = np.random.default_rng(0)
    right = chance.random((2, 3, 300)) < np.array([0.8, 0.74])[:, None, None]  # [systems, seeds, examples]
    sums = np.stack([right.astype(float), np.ones(right.shape)], -1)
    many = Resamples(sums, lambda part: part[..., 0] / part[..., 1], draws=20_000)
    exact = claims.over_examples(list(zip(*right, strict=True)))
    assert exact == pytest.approx(many.over_examples(0, 1, [0, 1, 2]), abs=0.015)
    assert claims.over_examples([(right[0, 0], right[0, 0])]) == pytest.approx(1.0)
    assert claims.over_examples([(right[0, 0][:0], right[0, 0][:0])]) is None


def test_examples_can_undo_what_seeds_say() -> None:
    """Seeds that agree on a test set of 40 do not make it larger."""
    small = judge([Claim("a", runs(0.80, examples=40, spread=0), runs(0.775, examples=40, spread=1e-6))])[0]
    assert small.t is not None and small.t < 0.05 and small.examples is not None and small.examples > 0.05 and small.word == "unclear"
    large = judge([Claim("a", runs(0.80, examples=4000, spread=0), runs(0.775, examples=4000, spread=1e-6))])[0]
    assert large.word == "holds"


def test_bits_survive_the_file() -> None:
    for n in (1, 8, 13, 872):
        right = np.random.default_rng(n).random(n) < 0.5
        assert (claims.unpack(json.loads(json.dumps(claims.pack(right))), n) == right).all()
    with pytest.raises(ValueError, match="does not fit 20 examples"):
        claims.unpack(claims.pack(np.ones(8, bool)), 20)


# --- cells and tables ----------------------------------------------------------------------------------------------------------


def test_cells() -> None:
    assert page.cell([{"seed": i, "score": score} for i, score in enumerate((0.820, 0.822, 0.826))], scale=100) == "82.3 (0.3)"
    assert page.cell([{"seed": 0, "score": 0.5}], digits=2) == "0.50" and page.cell([]) == "not run"
    lost = [{"seed": 0, "score": 0.5, "state": "finished"}, {"seed": 1, "score": None, "state": "failed"}]
    assert page.cell(lost) == "0.5, 1 of 2" and page.cell(lost[1:]) == "failed"
    assert page.cell([{"seed": 0, "score": 0.5, "state": "diverged"}, *lost[:1]]).endswith("1 diverged")
    assert page.table(["a", "b"], [["x|y", None]]) == "| a | b |\n| --- | --- |\n| x\\|y | not run |"
    shown = page.claims_table([Claim("a before b", runs(0.8), runs(0.7)), Claim("c", [], [])], scale=100)
    assert shown.splitlines()[2].startswith("| a before b | **holds** | +") and "| c | **not run** |" in shown and "examples" not in shown
    assert page.count_verdicts(shown) == {"holds": 1, "not run": 1}


def test_curves_are_drawn_with_the_same_bytes_twice(tmp_path: Path) -> None:
    test_needs.package("matplotlib")
    curves = [draw.over_seeds("ours", {5: [70.0, 72.0], 10: [], 100: [80.0, 83.0]}), draw.Curve("ours", [5, 100], [71, 79], dashed=True)]
    assert list(curves[0].x) == [5, 100] and curves[0].low[0] == pytest.approx(71 - 2**0.5)
    shown = [draw.Panel(curves, "share", "accuracy", "SNLI", log_x=True, log_y=True, ticks=[5, 100])]
    shown.append(draw.Dots(["SST-2", "SNLI"], {"ours": [1.0, None]}, "accuracy", {"ours": [0.1, 0.0]}))  # type: ignore[arg-type]
    first, second = (draw.panels(tmp_path / name, shown, "A title").read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second and b"<svg" in first


# --- a made-up paper -----------------------------------------------------------------------------------------------------------


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    found = [Job(f"{name}-search", "rows", {"data": "sst2", "model": name, "quick": quick}) for name in MODELS]
    return found + [Job(f"{name}-seeds", "rows", {"data": "sst2", "model": name}) for name in MODELS if f"{name}-search" in outcomes]


def tables(content: Results) -> str:
    known = {name: page.runs(results.outcomes(content).get(f"{name}-seeds")) for name in MODELS}
    rows = [[f"`{name}` <script>", page.cell(of, scale=100), "80.7 (0.8)"] for name, of in known.items()]
    return f"### Accuracy\n{page.table(['model', 'ours', 'the paper'], rows)}\n\nAll of it.\n- one\n- two\n\n" + page.claims_table(
        [Claim("hyper before attention", known["hyper"], known["attention"])], 100
    )


def figures(content: Results, folder: Path) -> list[Path]:
    known = {name: page.scores(page.runs(results.outcomes(content).get(f"{name}-seeds"))) for name in MODELS}
    return [draw.panels(folder / "table1.svg", [draw.Dots(["sst2"], {name: of[:1] for name, of in known.items()}, "accuracy")])]


TABLE = Item("hypermixer", "table1", "a table", jobs, tables, figures)
FIGURE = Item("hypermixer", "figure2", "a figure", lambda quick, outcomes: [], lambda content: "nothing", None)


def results_file(complete: bool = True, quick: bool = False, failed: bool = False) -> dict[str, Any]:
    keys = [job for job in jobs(quick, {f"{name}-search": {} for name in MODELS}) if complete or job.key != "attention-seeds"]
    records = []
    for job in keys:
        outcome: dict[str, Any] = {"runs": runs(MODELS[job.spec["model"]]), "parameters": 1000}
        if failed and job.key == "attention-seeds":
            outcome = {"error": "ValueError: no luck", "runs": []}
        records.append({"key": job.key, "kind": job.kind, "spec": job.spec, "outcome": outcome, "measured": {"seconds": 1.5}})
    if not complete:
        records.append({"key": "attention-seeds", "kind": "rows", "spec": {"data": "sst2", "model": "attention"}, "outcome": None})
    call = {"command": "tokmix papers hypermixer table1", "seconds": 12.5, "workers": 2, "energy_joules": None, "machine": {"gpu": None}}
    return {
        "format": "tokmix-papers", "version": 1, "paper": "hypermixer", "item": "table1", "quick": quick, "calls": [call], "jobs": records,
    }  # fmt: skip


def put(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table1.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A paper of two items in the place of the real ones, its README, and nothing run."""
    module = ModuleType("tokmix.papers.hypermixer.made_up")
    module.ITEMS = [TABLE, FIGURE]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(catalogue, "PAPERS", {"hypermixer": ["made_up"]})
    monkeypatch.setattr(data_needs, "PAPERS", {"hypermixer": ["made_up"]})
    monkeypatch.delenv("TOKMIX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "papers" / "hypermixer"
    folder.mkdir(parents=True)
    blocks = "\n".join(f"## {name}\n\n<!-- item:{name} -->\nSTALE\n<!-- /item:{name} -->\n" for name in ("table1", "figure2"))
    (folder / "README.md").write_text(f"# Made up\n\nWords.\n\n{blocks}")
    (folder.parent / "README.md").write_text("# Papers\n\n<!-- items -->\n<!-- /items -->\n\nthe end\n")
    return folder


def say(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, str, str]:
    code = main(["papers", *command])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_list_says_what_is_run(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line: Callable[[], str] = lambda: next(line for line in say(capsys)[1].splitlines() if "table1" in line)
    assert line() == "  table1   a table: not run"
    put(paper / "results", results_file(complete=False))
    assert line().endswith("a table: partial, 3 of 4 jobs")
    put(paper / "results", results_file())
    assert line().endswith("a table: complete")
    put(paper / "results", results_file(failed=True))
    assert line().endswith("a table: complete, 1 failed")
    changed = results_file()
    changed["jobs"][0]["spec"]["epochs"] = 3  # made by another recipe than today's
    put(paper / "results", changed)
    assert line().endswith("partial, 3 of 4 jobs")


def test_tables_are_written_and_then_there_is_nothing_to_change(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test_needs.package("matplotlib")
    put(paper / "results", results_file())
    assert say(capsys, "hypermixer", "--tables", "--check")[0] == 1
    assert (paper / "README.md").read_text().count("STALE") == 2, "--check changes nothing"
    code, told, _ = say(capsys, "hypermixer", "--tables")
    assert code == 0 and told.count("written") == 3
    text = (paper / "README.md").read_text()
    assert text.startswith("# Made up\n\nWords.\n") and HYPER in text and "**holds**" in text and "STALE" not in text
    assert "![a table (table1.svg)](figures/table1.svg)" in text and (paper / "figures" / "table1.svg").is_file()
    assert "Not run: `tokmix papers hypermixer figure2` has no results file yet." in text
    assert "| complete | 1 holds |" in (paper.parent / "README.md").read_text()
    assert say(capsys, "hypermixer", "--tables", "--check")[0] == 0
    assert say(capsys, "hypermixer", "--tables")[1].strip().endswith("nothing to change")

    (paper / "README.md").write_text(text.replace(HYPER, "99.9 ("))
    code, told, _ = say(capsys, "hypermixer", "--tables", "--check")
    assert code == 1 and "does not say what the results files give" in told
    (paper / "figures" / "table1.svg").rename(paper / "figures" / "older.svg")
    assert {"table1.svg is missing", "older.svg belongs to no results file"} <= {
        line.split("figures/")[-1] for line in readme.differences("hypermixer", paper)
    }
    readme.write("hypermixer", paper)
    assert [path.name for path in (paper / "figures").iterdir()] == ["table1.svg"] and not readme.differences("hypermixer", paper)


def test_a_partial_file_says_what_is_missing(paper: Path) -> None:
    put(paper / "results", results_file(complete=False))
    body, _ = readme.section(TABLE, paper / "results")
    assert "1 of 4 jobs are not run" in body and "not run | 80.7 (0.8)" in body and "**not run**" in body


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["hypermixxer"], "unknown paper 'hypermixxer'; known: hypermixer, prepare, did you mean 'hypermixer'?"),
        (["hypermixer", "tabel1"], "did you mean 'table1'?"),
        (["hypermixer", "table1"], "hypermixer table1 reads sst2: give the folder that holds them as --data DIR or in TOKMIX_DATA"),
        (["hypermixer", "table1", "--data", "."], "has neither a folder sst2 nor sst2.npz"),
        (["hypermixer", "table1", "--data", "no"], "no folder 'no' (--data)"),
        (["hypermixer", "--tables", "--out", "."], "no README.md"),
        (["hypermixer", "table1", "--tables"], "takes no ITEM"),
        (["hypermixer", "--check"], "--check goes with --tables"),
        (["prepare", "--out", "x"], "give --data DIR or set TOKMIX_DATA"),
        (["prepare", "--data", "."], "give --out DIR"),
        (["prepare", "--data", ".", "--out", "x"], "has none of the data sets that items read: sst2"),
        (["prepare", "sst3", "--data", ".", "--out", "x"], "did you mean 'sst2'?"),
    ],
)
def test_what_does_not_work_is_said_in_one_line(paper: Path, capsys: pytest.CaptureFixture[str], command: list[str], words: str) -> None:
    code, _, told = say(capsys, *command)
    assert code == 1 and words in told and told.count("\n") == 1


def test_quick_results_fill_no_table(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(paper / "results", results_file(quick=True))
    before = (paper / "README.md").read_text()
    code, _, told = say(capsys, "hypermixer", "--tables")
    assert code == 1 and "comes from --quick: such numbers fill no table" in told and (paper / "README.md").read_text() == before
    (paper / "sst2").mkdir()
    code, _, told = say(capsys, "hypermixer", "table1", "--data", str(paper))
    assert code == 1 and "holds results of --quick" in told
    put(paper / "results", results_file())
    code, _, told = say(capsys, "hypermixer", "table1", "--quick", "--data", str(paper), "--out", str(paper / "results"))
    assert code == 1 and "holds results of full runs" in told


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("item:figure2", "item:figure9"), "item 'figure9' that is not known"),
        (lambda text: text.replace("<!-- item:figure2 -->\n", ""), "should have one pair"),
        (lambda text: text + "<!-- item:table1 -->\n<!-- /item:table1 -->\n", "should have one pair"),
    ],
)
def test_markers_and_items_belong_together(paper: Path, change: Callable[[str], str], words: str) -> None:
    (paper / "README.md").write_text(change((paper / "README.md").read_text()))
    with pytest.raises(ValueError, match=words):
        readme.build("hypermixer", paper)


def test_a_file_of_another_item_is_refused(paper: Path) -> None:
    put(paper / "results", results_file() | {"item": "table5"})
    with pytest.raises(ValueError, match="holds results of hypermixer table5, not of hypermixer table1"):
        readme.state(TABLE, paper / "results")


def test_a_results_file_alone_can_be_gone_on_with(paper: Path) -> None:
    """The jobs' own files are not committed; what the results file holds is not done twice, and never lost."""
    folder, before = put(paper / "results", results_file(complete=False)), results_file(complete=False)
    readme.go_on(TABLE, folder, quick=False)
    jobs_known, outcomes = results.known(TABLE, results.jobs_folder(folder, "table1"), quick=False)
    assert [job.key for job in jobs_known if job.key not in outcomes] == ["attention-seeds"]
    results.collect(TABLE, folder, quick=False)
    again = results.load(folder / "table1.json")
    key = lambda record: record["key"]
    assert sorted(again["jobs"], key=key) == sorted(before["jobs"], key=key) and again["calls"] == before["calls"]


# --- the page ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("a **b** `c<d`", "<p>a <strong>b</strong> <code>c&lt;d</code></p>"),
        ("see [x](y.md) **does not hold**", '<p>see x <strong class="bad">does not hold</strong></p>'),
        ("![p](f.svg)", ""),
        ("- a\n  b\n- c", "<ul><li>a\n  b</li><li>c</li></ul>"),
        ("<details><summary>more</summary>\n\n2\\*\n\n</details>", "<details><summary>more</summary>\n<p>2*</p>\n</details>"),
        ("<b>", "<p>&lt;b&gt;</p>"),
    ],
)
def test_markdown(text: str, made: str) -> None:
    assert markdown.render(text) == made


def test_a_table_of_markdown_can_be_sorted() -> None:
    made = markdown.render("| a | b |\n|---|---|\n| 1 x | 82.1 (0.3) |\n| y\\|z | -3.5% |\n| q | not run |\n| r | < 0.001 |\nand on")
    assert re.findall(r'data-value="([^"]*)"', made) == ["82.1", "-3.5", "0.001"]
    assert "y|z" in made and made.endswith("<p>and on</p>")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsers.open_browser() as found:
        yield found


def test_the_results_page_in_a_browser(paper: Path, browser: Any) -> None:
    """Everything of a results file is on the page, in light and on a phone in dark, without a network."""
    test_needs.package("matplotlib")
    put(paper / "results", results_file(complete=False))
    assert main(["report", "papers", "--out", "page.html"]) == 0
    for size, dark in ((browsers.DESKTOP, False), (browsers.PHONE, True)):
        with browsers.open_page(browser, Path("page.html").resolve().as_uri(), size, dark) as shown:
            text = shown.inner_text("main")
            for words in ("Paper: hypermixer", "table1: a table", "hyper <script>", HYPER, "1 of 4 jobs are not run", "Not run: tokmix"):
                assert words in text
            assert shown.locator("strong.open").inner_text() == "not run"
            picture = shown.locator("img.picture")
            assert picture.count() == 1 and picture.evaluate("image => image.naturalWidth") > 300
            shown.locator("summary", has_text="every run").click()
            assert shown.locator("figure.chart svg").count() == 1 and "attention-search" in shown.inner_text("main")


def test_the_page_takes_one_paper_or_a_quick_folder(paper: Path) -> None:
    quick = put(paper.parent.parent / "papers-quick" / "hypermixer", results_file(quick=True))
    assert "its numbers mean nothing" in write([quick], "page.html").read_text()
    put(paper / "results", results_file(failed=True))
    text = write([paper], "page.html").read_text()
    assert "no luck" in text and base64.b64encode(b"<?xml version").decode()[:12] in text
    (paper / "figures").mkdir()
    with pytest.raises(ValueError, match="holds no results of papers"):
        write([paper / "figures"], "page.html")


# --- from end to end -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """The table that a quick Table 1 reads, made up."""
    test_needs.package("tokenizers")
    from tokmix.data.tokenize import make_ready, train_tokenizer

    folder = tmp_path / "data"
    (folder / "sst2").mkdir(parents=True)
    for split, rows in (("train", 60), ("valid", 20)):
        lines = ["text\tlabel", *(f"a {'good' if i % 2 else 'bad'} film {i}\t{i % 2}" for i in range(rows))]
        (folder / "sst2" / f"{split}.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    tokenizer = train_tokenizer("wordpiece", lambda: ["a good bad film 0 1 2 3 4 5 6 7 8 9"] * 9, 100)
    make_ready(tokenizer, "classify", pair=True)
    (folder / "tokenizers").mkdir()
    tokenizer.save(str(folder / "tokenizers" / "bert-base-uncased.json"))
    return folder


def test_from_text_to_a_table(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Text is prepared, a quick Table 1 is run in two calls, and its results are listed and shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKMIX_DATA", str(reviews))
    monkeypatch.setitem(recipe.QUICK, "tasks", ("sst2",))
    for module in (catalogue, data_needs):
        monkeypatch.setattr(module, "PAPERS", {"hypermixer": ["table1"]})
    monkeypatch.setattr(pool, "share_out", lambda device, workers, jobs: ([device] * workers, 1))  # threads: other tests run beside it
    code, told, _ = say(capsys, "prepare", "--out", "tokens")
    assert code == 0 and "tokens/sst2.npz" in told and "MB in tokens" in told and "not in" in told
    command = ["hypermixer", "table1", "--quick", "--data", "tokens", "--workers", "1", "--device", "cpu"]
    code, told, _ = say(capsys, *command, "--minutes", "0")
    assert code == 0 and "not run (papers-quick/hypermixer/table1.json)" in told and "the same command goes on" in told
    code, told, _ = say(capsys, *command)
    assert code == 0 and "complete, quick (papers-quick/hypermixer/table1.json)" in told and "| HyperMixer, tied |" in told
    content = results.load(Path("papers-quick/hypermixer/table1.json"))
    assert content["quick"] and len(content["calls"]) == 1 and all(job["outcome"]["data"] for job in content["jobs"])


# --- what is committed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(catalogue.PAPERS))
def test_the_committed_tables_are_those_of_the_results_files(name: str) -> None:
    test_needs.package("matplotlib")
    assert readme.differences(name, ROOT / "papers" / name) == []


def test_the_committed_overview_is_that_of_the_results_files() -> None:
    assert readme.index_differs(ROOT / "papers") == []


@pytest.mark.parametrize("name", list(catalogue.PAPERS))
def test_every_item_can_be_named_and_shown_before_it_is_run(name: str, tmp_path: Path) -> None:
    for one, item in catalogue.items(name).items():
        assert item.paper == name and item.name == one and len(item.about) < 100 and "\n" not in item.about
        jobs_ = item.jobs(True, {})
        assert len({job.key for job in jobs_}) == len(jobs_) and all(re.fullmatch(r"[\w.,=-]+", job.key) for job in jobs_)
        records = [{"key": job.key, "kind": job.kind, "spec": job.spec, "outcome": None} for job in jobs_]
        assert json.loads(json.dumps(records)) == records, "specs are plain JSON"
        content = {**results_file(), "paper": name, "item": one, "quick": True, "calls": [], "jobs": records}
        assert "not run" in item.tables(content)
        assert item.figures is None or item.figures(content, tmp_path) == []


@pytest.mark.parametrize("path", sorted((ROOT / "papers").rglob("README.md")), ids=lambda path: path.parent.name)
def test_links_of_the_papers_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        assert re.match(r"[a-z]+:", target) or (path.parent / target.partition("#")[0]).exists(), target


def test_the_help_names_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["papers", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"a paper: {', '.join(catalogue.PAPERS)} (or: prepare)" in told
