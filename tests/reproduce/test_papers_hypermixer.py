"""The HyperMixer paper's items: sizes of its models, jobs in phases, tables from results files whole and with holes, a small run."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reproduce import page, results, rows, timing
from reproduce.claims import pack
from reproduce.hypermixer import cost, figure2, figure3, figure4, longdocs, paper, recipe, table1, table5, table6
from reproduce.item import Item
from reproduce.job import Context, Job
from tests.papers_data import write_data
from tokmix.cli.main import main
from tokmix.core.model import Model, ModelConfig

SEARCHED = [table1.ITEM, table5.ITEM, table6.ITEM, figure3.ITEM, figure4.ITEM, cost.ITEM, longdocs.ITEM]
ITEMS = [*SEARCHED, figure2.ITEM]
LEVEL = {"hypermixer": 0.80, "transformer": 0.75, "hypermixing": 0.9, "attention": 0.8}


@pytest.fixture(scope="module")
def paper_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def made_up(job: Job) -> dict[str, Any]:
    """An outcome of that job: a model's accuracy grows with the data, and is best at a learning rate of 2e-4."""
    if job.kind == "timing":
        names = ((mixer, length) for mixer in job.spec["mixers"] for length in job.spec["lengths"])
        return {
            "runs": [{"mixer": m, "length": n, "us": n * (2.0 if m == "attention" else 1.0), "matmul_counted": 10**6 * n} for m, n in names]
        }
    name = next((name for name in LEVEL if f"{name}-" in job.key), "")
    level = LEVEL.get(name, 0.7) + 0.05 * np.log10(job.spec["fraction"])
    chance = np.random.default_rng(len(job.key))
    runs = []
    for member in job.spec["members"]:
        right = chance.random(2000) < level - 0.02 * abs(np.log10(member["lr"] / 2e-4))
        score = float(right.mean())
        runs.append({**member, "state": "finished", "score": score, "dev": score, "right": pack(right), "examples": 2000})
    counts = {"train": round(1000 * job.spec["fraction"]), "dev": 100, "pieces": 0, "valid": 400, "cut": 3}
    return {
        "runs": runs, "parameters": 10_582_530, "steps": 10, "tokens": 10**6, "columns": 10**6, "flops": 10**12, "rows": counts,
        "flops_row": 2.0 if "hyper" in job.key else 1.0, "chance": 0.5, "training_seconds": 3.0,
        "pace": {"seconds": 1.5, "joules": 600.0},
    }  # fmt: skip


def filled(item: Item, quick: bool = False) -> dict[str, Any]:
    """A results file with every job done."""
    outcomes: dict[str, Any] = {}
    while new := [job for job in item.jobs(quick, outcomes) if job.key not in outcomes]:
        outcomes |= {job.key: made_up(job) for job in new}
    records = [
        {
            "key": job.key,
            "kind": job.kind,
            "spec": job.spec,
            "outcome": outcomes[job.key],
            "measured": {"seconds": 2.0, "energy_joules": None, "workers": 4},
        }
        for job in item.jobs(quick, outcomes)
    ]
    calls = [{"seconds": 600.0, "workers": 4, "energy_joules": 3.6e6}]
    return {
        "format": "tokmix-papers",
        "version": 1,
        "paper": item.paper,
        "item": item.name,
        "quick": quick,
        "calls": calls,
        "jobs": records,
    }


@pytest.mark.parametrize(
    ("variant", "millions", "limit"),
    [
        ("feature-only", 9.39, 128), ("fnet", 9.39, 128), ("hypermixer", 10.57, 128), ("untied", 11.75, 128), ("transformer", 10.97, 128),
        ("mlpmixer", 10.93, 250), ("gmlp", 10.63, 100), ("shared-vector", 9.40, 128),
    ],
)  # fmt: skip
def test_models_have_the_papers_sizes(variant: str, millions: float, limit: int) -> None:
    """Within 0.02 M: the paper cuts the second digit off."""
    model = recipe.VARIANTS[variant].model(quick=False) | {"max_len": limit}
    with torch.device("meta"):
        made = Model(ModelConfig(**{"causal": False, "head": "classify", "classes": 2, "vocab": 30522, **model}))
    assert made.parameter_count() / 1e6 == pytest.approx(millions, abs=0.02)


def test_every_variant_takes_the_longest_text() -> None:
    assert all(variant.limit >= recipe.LIMIT for variant in recipe.VARIANTS.values())


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_jobs_are_named_once_and_depend_on_nothing_hidden(item: Item) -> None:
    for quick in (False, True):
        jobs = item.jobs(quick, {})
        assert len({job.key for job in jobs}) == len(jobs) > 0
        assert [job.mark for job in jobs] == [job.mark for job in item.jobs(quick, {})]
        assert all(re.fullmatch(r"[a-z0-9-]+", job.key) for job in jobs)
    full, small = ({job.mark for job in item.jobs(quick, {})} for quick in (False, True))
    assert not full & small, "a small run must not pass for a full one"


def test_energy_is_told_where_one_job_ran_at_a_time_alone() -> None:
    content = filled(longdocs.ITEM)
    assert "not measured" in longdocs.ITEM.tables(content)
    for record in content["jobs"]:
        record["measured"]["workers"] = 1
    told = longdocs.ITEM.tables(content)
    assert "not measured" not in told and "| 0.50 | 0.67 M | 0.20 |" in told, "a third of 1.5 s, of a third of a million tokens, of 600 J"


def test_a_search_comes_before_its_seeds() -> None:
    first = table1.ITEM.jobs(False, {})
    assert len(first) == 8 * 5 and all(job.key.endswith("-search") and job.spec["score"] == "dev" for job in first)
    assert all([member["lr"] for member in job.spec["members"]] == list(paper.RATES) for job in first)
    outcomes = {job.key: made_up(job) for job in first[:-1]}
    outcomes[first[-1].key] = {"error": "it failed", "runs": []}
    second = [job for job in table1.ITEM.jobs(False, outcomes) if job.key not in outcomes]
    assert len(second) == 8 * 5 - 1, "without a rate there is no run"
    for job in second:
        looked = {run["lr"]: run["score"] for run in outcomes[job.key.replace("-finals", "-search")]["runs"]}
        rates = [member["lr"] for member in job.spec["members"]]
        assert len(rates) == 3 and min(looked[rate] for rate in rates) >= sorted(looked.values())[-3], "the best three"
        assert job.spec["epochs"] == recipe.TASKS[job.spec["data"]].epochs and job.spec["score"] == "dev"
    outcomes |= {job.key: made_up(job) for job in second}
    then = [job for job in table1.ITEM.jobs(False, outcomes) if job.key not in outcomes]
    assert len(then) == 8 * 5 - 1
    for job in then:
        short, whole = (outcomes[job.key.replace("-seeds", phase)] for phase in ("-search", "-finals"))
        epochs = recipe.TASKS[job.spec["data"]].epochs
        choice = recipe.best([(-(-epochs // 3), short), (epochs, whole)])
        assert [member["lr"] for member in job.spec["members"]] == [choice.rate] * 5 and job.spec["epochs"] == choice.epochs
        assert job.spec["dev"] == 0 and job.spec["score"] == "valid", "on all of train"
        assert recipe.SEARCH_SEED not in [member["seed"] for member in job.spec["members"]]


def test_the_best_run_decides_rate_and_epochs() -> None:
    of = lambda *runs: {"runs": [{"lr": lr, "score": score, "state": state} for lr, score, state in runs]}
    short = of((1e-3, 0.8, "finished"), (5e-4, 0.7, "finished"))
    assert recipe.best([(2, short), (5, of((1e-3, 0.79, "finished"), (5e-4, 0.75, "finished")))]) == (1e-3, 2)
    assert recipe.best([(2, short), (5, of((1e-3, 0.9, "diverged"), (5e-4, 0.8, "finished")))]) == (5e-4, 5), "the longer one"


def test_items_share_the_jobs_they_have_in_common() -> None:
    """Same key, same spec: what Table 1 has run need not be run again."""
    files = {item.name: {job["key"]: Job(job["key"], job["kind"], job["spec"]).file for job in filled(item)["jobs"]} for item in SEARCHED}
    for other in (table5, figure3, cost):
        common = set(files["table1"]) & set(files[other.ITEM.name])
        assert len(common) >= 10 and all(files["table1"][key] == files[other.ITEM.name][key] for key in common)
    assert set(files["cost"]) == set(files["figure3"]) | set(files["figure4"])


def test_a_diverged_rate_is_never_the_best() -> None:
    runs = [{"lr": 1e-3, "score": 0.9, "state": "diverged"}, {"lr": 1e-4, "score": 0.6, "state": "finished"}]
    assert recipe.best_rate({"runs": runs}) == 1e-4
    assert recipe.best_rate({"runs": runs[:1]}) is None and recipe.best_rate(None) is None


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_tables_of_a_complete_file_have_no_hole(item: Item, tmp_path: Path) -> None:
    content = filled(item)
    text = item.tables(content)
    assert page.NOT_RUN not in text and "nan" not in text
    if item.figures is not None:
        drawn = item.figures(content, tmp_path)
        assert [path.name for path in drawn] == [f"{item.name}.svg"] and drawn[0].stat().st_size > 1000


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_what_is_not_run_reads_so(item: Item, tmp_path: Path) -> None:
    content = filled(item)
    empty = copy.deepcopy(content)
    for job in empty["jobs"]:
        job["outcome"] = None
    text = item.tables(empty)
    assert text.count(page.NOT_RUN) >= 5
    if item.figures is not None:
        assert item.figures(empty, tmp_path) == []
    for job in content["jobs"][::2]:
        job["outcome"] = None
    for job in content["jobs"][1::4]:
        job["outcome"] = {"error": "CUDA out of memory", "runs": []}
    holes = item.tables(content)
    assert page.NOT_RUN in holes and "nan" not in holes


def test_table1_says_what_the_runs_say() -> None:
    text = table1.ITEM.tables(filled(table1.ITEM))
    (line,) = [line for line in text.splitlines() if line.startswith("| HyperMixer, tied |") and "10.58 M" in line]
    assert "/ 66.2 (0.2)" in line and "/ 80.7 (0.8)" in line
    assert "six models of the paper, seeds | 30 | 150 |" in text and "took 10.0 minutes, and 1.00 kWh" in text
    killed = filled(table1.ITEM) | {"calls": [{"seconds": 1.0, "workers": 4, "energy_joules": 1.0}]}
    assert "From first to last" not in table1.ITEM.tables(killed)  # it does not hold all of its jobs
    orders = next(line for line in text.splitlines() if line.startswith("| Linear Transformer | +"))
    assert orders.count("†") == 2, "on MNLI and SNLI the paper has the Linear Transformer ahead"
    assert orders.count("does not hold") == 2 and orders.count("**holds**") == 3
    assert "SST-2, where we have all of the training data" in text


def test_border_rates_are_marked() -> None:
    content = filled(table1.ITEM)
    for job in content["jobs"]:
        if job["key"] == "sst2-gmlp-search":
            next(run for run in job["outcome"]["runs"] if run["lr"] == 1e-3)["score"] = 1.0  # the largest
    text = table1.ITEM.tables(content)
    assert re.search(r"\| gMLP \|.*1e-3\\\* \(2\)", text) and "at the border of the grid" in text


def test_rows_to_reach_an_accuracy() -> None:
    points = [(100, 50.0), (1000, 60.0), (10_000, 70.0)]
    assert cost.rows_to_reach(points, 60.0) == pytest.approx(1000)
    assert cost.rows_to_reach(points, 65.0) == pytest.approx(10**3.5)
    assert cost.rows_to_reach(points, 40.0) == 100 and cost.rows_to_reach(points, 71.0) is None


def test_cost_is_the_product() -> None:
    content = filled(cost.ITEM)
    outcomes = results.outcomes(content)
    found, tried = cost.data(outcomes, "mnli"), cost.trials(outcomes, "mnli")
    assert found is not None and tried is not None and found[1] < found[2], "the better model needs fewer rows"
    line = next(line for line in cost.tables(content).splitlines() if line.startswith("| MNLI"))
    assert line.split("|")[5].strip(" *") == f"{2.0 * found[1] / found[2] * tried[1] / tried[2]:.2f}"


def test_cost_says_where_epochs_differ() -> None:
    """A row counts once, however often it is read."""
    content = filled(cost.ITEM)
    assert "Epochs are not counted" not in cost.tables(content)
    next(job for job in content["jobs"] if job["key"] == "mnli-hypermixer-seeds")["spec"]["epochs"] += 5
    epochs = {name: job["spec"]["epochs"] for job in content["jobs"] for name in cost.PAIR if job["key"] == f"mnli-{name}-seeds"}
    assert f"on MNLI ({epochs['hypermixer']} and {epochs['transformer']})." in cost.tables(content)


def test_both_models_get_the_same_random_trials() -> None:
    drawn = figure4.trials(20)
    assert drawn == figure4.trials(20) and len({trial["seed"] for trial in drawn}) == 20
    assert all(1e-8 <= trial["lr"] <= 1e-1 and 0 <= trial["dropout"] <= 0.5 for trial in drawn)
    jobs = {job.key: job.spec["members"] for job in figure4.ITEM.jobs(False, {})}
    assert jobs["qqp-hypermixer-trials2"] == jobs["qqp-transformer-trials2"] == drawn[10:15]


def small(job: Job, folder: Path) -> dict[str, Any]:
    """Of a quick job even less: fifty rows, and the made-up tokenizer's few ids."""
    spec = job.spec | {"rows": 48, "batch": 16, "epochs": 1}
    spec["model"] = spec["model"] | {"dim": 8, "feed_forward": 16 if spec["model"]["feed_forward"] else 0, "vocab": 300}
    return rows.run(spec, Context(torch.device("cpu"), folder, lambda text: None))


@pytest.mark.parametrize("variant", recipe.VARIANTS)
def test_every_model_of_the_tables_trains(variant: str, paper_data: Path) -> None:
    outcome = small(recipe.search("snli", variant, quick=True), paper_data)
    assert [run["state"] for run in outcome["runs"]] == ["finished"] * 2
    assert recipe.best_rate(outcome) in (1e-3, 3e-4)


def test_a_quick_item_from_data_to_table(paper_data: Path) -> None:
    item, outcomes = table1.ITEM, {}
    while new := [job for job in item.jobs(True, outcomes) if job.key not in outcomes]:
        outcomes |= {job.key: small(job, paper_data) for job in new}
    assert len(outcomes) == 2 * 2 * 2
    records = [{"key": key, "kind": "rows", "spec": {}, "outcome": outcome} for key, outcome in outcomes.items()]
    text = item.tables({"jobs": records, "calls": [], "quick": True})
    line = next(line for line in text.splitlines() if line.startswith("| HyperMixer, tied |"))
    assert len(re.findall(r"\d+\.\d \(\d+\.\d\) /", line)) == 2 and line.count(f"{page.NOT_RUN} /") == 3


def test_a_layer_is_timed_and_counted() -> None:
    (job,) = figure2.ITEM.jobs(True, {})
    spec = job.spec | {"lengths": [4, 8], "dim": 16}
    context = Context(torch.device("cpu"), None, lambda text: None)
    runs = timing.run(spec, context)["runs"]
    assert [(run["mixer"], run["length"]) for run in runs] == [(mixer, n) for mixer in figure2.MIXERS for n in (4, 8)]
    assert all(run["us"] > 0 and run["matmul_counted"] == run["matmul"] > 0 for run in runs)
    with pytest.raises(ValueError, match="timed on a GPU"):
        timing.run(spec | {"on": "gpu"}, context)


def test_what_another_table_has_run_is_not_run_again(tmp_path: Path) -> None:
    """A results file is all that is kept of a table; Table 5 has the rows of HyperMixer from Table 1's."""
    data, out = tmp_path / "data", tmp_path / "out"
    for folder in (*(data / task for task in paper.TASKS), out):
        folder.mkdir(parents=True)
    shutil.copy(Path(__file__).parents[2] / "reproduce/hypermixer/results/table1.json", out)
    assert main(["papers", "hypermixer", "table5", "--data", str(data), "--out", str(out), "--minutes", "0", "--workers", "1"]) == 0
    done = {job["key"] for job in json.loads((out / "table5.json").read_text())["jobs"] if job["outcome"] is not None}
    assert {f"{task}-hypermixer-{phase}" for task in paper.TASKS for phase in ("search", "finals", "seeds")} == done
