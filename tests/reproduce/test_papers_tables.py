"""`tokmix papers`: what is listed, READMEs filled from results files, what is refused, and the READMEs that are committed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from reproduce import datasets as data_needs
from reproduce import item as catalogue
from reproduce import readme, results
from reproduce.hypermixer import recipe
from tests import needs
from tests.papers_data import write_data
from tests.papers_made_up import HYPER, TABLE, install, put, results_file
from tokmix.cli.main import main
from tokmix.runs import pool

ROOT = Path(__file__).parents[2]


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return install(tmp_path, monkeypatch)


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
    needs.package("matplotlib")
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


def test_without_a_name_the_tables_are_those_of_all_papers(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs.package("matplotlib")
    put(paper / "results", results_file())
    assert say(capsys, "--tables", "--check")[0] == 1
    assert say(capsys, "--tables")[0] == 0 and HYPER in (paper / "README.md").read_text()
    assert say(capsys, "--tables", "--check")[0] == 0


def test_a_partial_file_says_what_is_missing(paper: Path) -> None:
    put(paper / "results", results_file(complete=False))
    body, _ = readme.section(TABLE, paper / "results")
    assert "1 of 4 jobs are not run" in body and "not run | 80.7 (0.8)" in body and "**not run**" in body


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


# --- what is refused ---------------------------------------------------------------------------------------------------------


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
        (["hypermixer", "--check"], "--check needs --tables"),
        (["hypermixer", "--tables", "--workers", "0"], "--workers does not go with --tables"),
        (["hypermixer", "--tables", "--only", "a"], "--only does not go with --tables"),
        (["--quick"], "--quick needs the NAME of a paper"),
        (["--tables", "--only", "a"], "--only needs the NAME of a paper"),
        (["prepare", "--tables"], "--tables does not go with prepare"),
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


# --- from end to end ---------------------------------------------------------------------------------------------------------


def test_from_text_to_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Text is prepared, a quick Table 1 is run in two calls, and its results are listed and shown."""
    needs.package("tokenizers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKMIX_DATA", str(write_data(tmp_path / "data")))
    monkeypatch.setitem(recipe.QUICK, "tasks", ("sst2",))
    for module in (catalogue, data_needs):
        monkeypatch.setattr(module, "PAPERS", {"hypermixer": ["table1"]})
    monkeypatch.setattr(pool, "share_out", lambda device, workers, jobs: ([device] * workers, 1))  # threads: other tests run beside it
    code, told, _ = say(capsys, "prepare", "--out", "tokens")
    assert code == 0 and "tokens/sst2.npz" in told and "MB in tokens" in told and "not in" in told
    command = ["hypermixer", "table1", "--quick", "--data", "tokens", "--workers", "1", "--device", "cpu"]
    code, told, _ = say(capsys, *command, "--minutes", "0")
    assert code == 0 and "not run (reproduce-quick/hypermixer/table1.json)" in told and "the same command continues" in told
    code, told, _ = say(capsys, *command)
    assert code == 0 and "complete, quick (reproduce-quick/hypermixer/table1.json)" in told and "| HyperMixer, tied |" in told
    content = results.load(Path("reproduce-quick/hypermixer/table1.json"))
    assert content["quick"] and len(content["calls"]) == 1 and all(job["outcome"]["data"] for job in content["jobs"])


# --- what is committed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(catalogue.PAPERS))
def test_the_committed_tables_are_those_of_the_results_files(name: str) -> None:
    needs.package("matplotlib")
    assert readme.differences(name, ROOT / "reproduce" / name) == []


def test_the_committed_overview_is_that_of_the_results_files() -> None:
    assert readme.index_differs(ROOT / "reproduce") == []


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


@pytest.mark.parametrize("path", sorted((ROOT / "reproduce").rglob("README.md")), ids=lambda path: path.parent.name)
def test_links_of_the_papers_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        assert re.match(r"[a-z]+:", target) or (path.parent / target.partition("#")[0]).exists(), target


def test_the_help_names_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["papers", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"a paper: {', '.join(catalogue.PAPERS)} (or: prepare)" in told
