"""The items about shift mixing, the small HyperMLP language model, and the page of all causal mixers: jobs, verdicts, tables."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reproduce import draw, lm_table
from reproduce.beyond import causal
from reproduce.hsm import items
from reproduce.hsm.stacks import Ladder
from reproduce.hypermlp import lm as hyper
from reproduce.item import Item
from reproduce.job import Context, Job, runner
from reproduce.lm_table import Found
from tests import needs
from tokmix.core import stack

HYBRIDS, WIKITEXT, ENWIK8 = items.ITEMS
ALL = {f"{item.paper}-{item.name}": item for item in (*items.ITEMS, hyper.ITEM, causal.ITEM)}
Score = Callable[[Job, dict[str, Any]], float]


def results(item: Item, score: Score | None, quick: bool = False, flops: Callable[[str], float] = lambda key: 1.0) -> dict[str, Any]:
    """As if every run had ended with score(job, member); None: nothing has been run."""
    outcomes: dict[str, Any] = {}
    jobs: list[Job] = []
    while new := [job for job in item.jobs(quick, outcomes) if job.key not in {one.key for one in jobs}]:
        jobs += new
        if score is None:
            break
        outcomes |= {job.key: made_up(job, score, flops) for job in new}
    records = [{"key": job.key, "kind": job.kind, "spec": job.spec, "outcome": outcomes.get(job.key)} for job in jobs]
    return {"format": "tokmix-papers", "version": 1, "paper": item.paper, "item": item.name, "quick": quick, "jobs": records}


def made_up(job: Job, score: Score, flops: Callable[[str], float]) -> dict[str, Any]:
    if job.kind == "lm_speed":
        speed = {"tokens_per_s": 1e6, "decode_us": 50.0}
        return {"runs": [], "speeds": dict.fromkeys(job.spec["models"], speed)}
    runs = [
        {"seed": one["seed"], "lr": one["lr"], "state": "finished", "score": score(job, one), "accuracy": 0.5, "bits_per_byte": 1.0}
        for one in job.spec["members"]
    ]
    sizes = {"train": 1000, "valid": 100}
    return {"runs": runs, "parameters": 7, "flops": flops(job.key), "state_numbers": flops(job.key), "tokens": 500, "steps": 5,
            "split_tokens": sizes, "tokenizer": "bytes"}  # fmt: skip


def by_stack(losses: dict[str, float], other: float) -> Score:
    """A loss for each key, the rest `other`; seeds differ a little, and differently in each stack."""

    def score(job: Job, member: dict[str, Any]) -> float:
        wobble = zlib.crc32(f"{job.key} {member['seed']}".encode()) % 1000
        return losses.get(job.key, other) + 1e-7 * wobble

    return score


def cheaper(key: str) -> float:
    return 2.0 if key in ("attention-8", "attention-rotary-true-8") else 1.0


def test_the_ladder_has_every_variant_place_and_hybrid() -> None:
    ladder = Ladder(8)
    assert [entry.name for entry in ladder.places][:4] == [
        "attention, gate*7", "gate, attention, gate*6", "gate*2, attention, gate*5", "gate*3, attention, gate*4"
    ]  # fmt: skip
    for place, entry in enumerate(ladder.places):
        assert [spec.name for spec in stack.parse(entry.stack)].index("attention") == place
    assert ladder.ends.name == "attention, gate*6, attention"
    assert ladder.alternating["ab"].name == "(ab, attention)*4"
    assert all(len(stack.parse(entry.stack)) == 8 for entry in ladder.all())
    assert len({entry.key for entry in ladder.all()}) == len(ladder.all())
    assert {entry.key for entry in ladder.few()} <= {entry.key for entry in ladder.all()}


def test_speed_is_measured_last_and_by_itself() -> None:
    named = HYBRIDS.jobs(False, {})
    assert "speed" not in {job.key for job in named}
    outcomes = {job.key: {"runs": [], "error": "no"} for job in named}
    new = [job for job in HYBRIDS.jobs(False, outcomes) if job.key not in outcomes]
    assert [(job.key, job.kind) for job in new] == [("speed", "lm_speed")]


@pytest.mark.parametrize("name", ALL)
def test_what_has_not_been_run_reads_so(name: str, tmp_path: Path) -> None:
    item = ALL[name]
    told = item.tables(results(item, None))
    assert ": not run.**" in told and "| not run |" in told
    assert "yes" not in told and "Yes" not in told
    assert item.figures is not None and item.figures(results(item, None), tmp_path) == []


@pytest.mark.parametrize("name", ALL)
def test_tables_and_figures_of_all_jobs(name: str, tmp_path: Path) -> None:
    item = ALL[name]
    content = results(item, by_stack({}, 2.5))
    told = item.tables(content)
    assert "2.50" in told
    for line in told.splitlines():
        assert not line.startswith("|") or "nan" not in line
    needs.package("matplotlib")
    assert item.figures is not None
    assert all(path.read_text().startswith("<?xml") for path in item.figures(content, tmp_path))


def test_a_figure_calls_what_nothing_cheaper_beats_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves the stack without any mixing to the table."""
    ladder = Ladder(8)
    found = Found(results(HYBRIDS, by_stack({"gate-8": 2.4, "attention-8": 2.3}, 2.5), flops=cheaper))
    groups = {"all": [ladder.attention, ladder.pure["gate"], ladder.heads, ladder.narrow["ab"]], "none": [ladder.none]}
    panel = lm_table._panel("state", found, groups, "state_numbers", False)
    assert [name for _, _, name in panel.called] == ["gate*8", "attention*8"]
    apart = {"one": [ladder.attention], "two": [ladder.heads]}
    assert lm_table._panel("state", found, apart, "state_numbers", False).called == [], "the legend names them"
    drawn: list[draw.Panel] = []
    monkeypatch.setattr(draw, "panels", lambda path, panels, *_, **__: drawn.extend(panels))
    lm_table.against(Path("x.svg"), found, groups, "title")
    assert len(drawn) == 4 and all([curve.name for curve in panel.curves] == ["all"] for panel in drawn)


def test_claims_are_asked_again_at_each_ones_best_rate() -> None:
    """At the shared rate attention is ahead of the hybrid, which has its best loss, the lowest of all, at another."""
    best = {
        ("attention-8", 1e-3): 2.42, ("ab-attention-4", 1e-3): 2.45,
        ("attention-8-rates", 2e-3): 2.40, ("ab-attention-4-rates", 4e-3): 2.30, ("ab-8-rates", 2e-3): 2.45,
    }  # fmt: skip

    def score(job: Job, member: dict[str, Any]) -> float:
        return by_stack({}, best.get((job.key, member["lr"]), 2.6))(job, member)

    content = results(HYBRIDS, score)
    asked = [line for line in HYBRIDS.tables(content).splitlines() if line.startswith("| `(ab, attention)*4` has a lower")]
    assert ["does not hold" in line for line in asked] == [True, False] and "holds" in asked[1] and "+0.1000" in asked[1]
    again = HYBRIDS.tables(content).split("**Other learning rates.**")[1]
    assert re.search("For [^.]*`\\(ab, attention\\)\\*4`[^.]* it lies at the border", again)
    assert not re.search("For [^.]*`ab\\*8`[^.]* it lies at the border", again)
    assert "| `ab*8` is at most 5% behind `attention*8` | **holds** | -0.0500 [" in again
    next(job for job in content["jobs"] if job["key"] == "ab-8-rates")["outcome"] = None
    assert "| verdict |" not in HYBRIDS.tables(content).split("**Other learning rates**")[1], "a rate is missing"


def test_a_failed_job_is_a_failed_row_and_the_rest_stands() -> None:
    content = results(HYBRIDS, by_stack({}, 2.5))
    record = next(job for job in content["jobs"] if job["key"] == "gate-8")
    record["outcome"] = {"runs": [], "error": "RuntimeError: out of memory"}
    told = HYBRIDS.tables(content)
    row = next(line for line in told.splitlines() if line.startswith("| `gate*8` | 1408"))
    assert "failed" in row and "not run" not in row


def test_hybrids_that_are_better_and_cheaper_confirm_the_claim() -> None:
    score = by_stack({"ab-attention-4": 2.3, "gate-3-attention-gate-4": 2.4}, 2.5)
    told = HYBRIDS.tables(results(HYBRIDS, score, flops=cheaper))
    assert "Hybrids beat all attention at lower cost: yes." in told
    assert "| `(ab, attention)*4` | `attention*8` | 50% | 50% |" in told
    assert "best as layer 4 (2.40" in told


def test_better_but_not_cheaper_does_not_confirm_it_and_worse_refutes_it() -> None:
    better = by_stack({"ab-attention-4": 2.3}, 2.5)
    assert "at lower cost: unclear." in HYBRIDS.tables(results(HYBRIDS, better))
    worse = by_stack({"attention-8": 2.0, "attention-rotary-true-8": 2.0}, 2.5)
    assert "at lower cost: no." in HYBRIDS.tables(results(HYBRIDS, worse, flops=cheaper))


def test_close_means_five_percent_and_among_the_best_one() -> None:
    near = {"attention-8": 2.5, "ab-8": 2.58, "vector-8": 2.58, "gate-8": 2.57, "identity-8": 3.3}
    told = HYBRIDS.tables(results(HYBRIDS, by_stack(near, 2.58)))
    assert "Simple variants come close to attention: yes." in told and "`ab*8` 90%" in told
    assert "gets the parameters: yes." in told and "| gate, " in told
    far = {"attention-8": 2.5, "ab-8": 2.9, "vector-8": 2.9, "gate-8": 2.55}
    told = HYBRIDS.tables(results(HYBRIDS, by_stack(far, 2.8)))
    assert "Simple variants come close to attention: in part." in told
    assert "gets the parameters: no." in told


def test_the_share_of_r1_and_the_papers_order() -> None:
    keys = {name: entry.key for name, entry in hyper.entries(False).items()}
    losses = {keys["plain"]: 2.8, keys["r1"]: 2.62, keys["hypermlp"]: 2.6, keys["hyperglu"]: 2.55, keys["no-lag"]: 3.5}
    told = hyper.ITEM.tables(results(hyper.ITEM, by_stack(losses, 2.7)))
    assert "R1 alone brings 90% of what both sequence mixers gain." in told
    assert "| R1 only brings more than half of what both sequence mixers gain | **holds** | +0.0800 [" in told
    assert "| no lag layout | 4.3567 | 3.5" in told


def test_that_r1_is_most_of_the_gain_is_asked_of_the_seeds() -> None:
    """More than half by the means, and by one seed alone: the runs do not decide it, and it counts among the claims that stand together."""
    keys = {name: entry.key for name, entry in hyper.entries(False).items()}
    losses = {keys["plain"]: 2.8, keys["hypermlp"]: 2.6}

    def score(job: Job, member: dict[str, Any]) -> float:
        return (2.4, 2.71, 2.72)[member["seed"]] if job.key == keys["r1"] else by_stack(losses, 2.7)(job, member)

    told = hyper.ITEM.tables(results(hyper.ITEM, score))
    assert "most of it holds" not in told and "| R1 only brings more than half of what both sequence mixers gain | **unclear** |" in told
    assert f"Of {len(hyper.ORDER) + 2} orderings" in told


def test_the_other_arm_does_not_stand_for_equal_parameters() -> None:
    """(a,b) is the best with an equal feed-forward; with equal parameters it has not been run."""
    content = results(HYBRIDS, by_stack({"ab-8-narrow": 2.3}, 2.5))
    next(job for job in content["jobs"] if job["key"] == "ab-8")["outcome"] = None
    assert "gets the parameters: not run." in HYBRIDS.tables(content)


def test_rows_are_ranked_over_the_seeds_that_all_have() -> None:
    """One place of the attention layer has more seeds than the others; here the best by those, and not by the common ones."""
    place = Ladder(8).places[Ladder(8).middle].key

    def score(job: Job, member: dict[str, Any]) -> float:
        return by_stack({"gate-4-attention-gate-3": 2.45}, 2.3 if job.key == place and member["seed"] > 2 else 2.5)(job, member)

    assert "One attention layer is best as layer 5 (2.45" in HYBRIDS.tables(results(HYBRIDS, score))


def test_what_is_linear_in_length_is_known_from_the_mixers() -> None:
    linear = {entry.name for entry in causal.entries(False) if causal.is_linear(entry)}
    assert "(ab, linear_attention)*4" in linear and "ab*8" in linear
    assert not {"attention*8", "gmlp*8", "(ab, attention)*4", "(ab, hypermlp)*4"} & linear


def test_a_quick_item_from_jobs_to_tables(tmp_path: Path) -> None:
    """For real: the second text's item is the smallest with all claims, and needs no data."""
    context = Context(torch.device("cpu"), None, lambda text: None)
    content = results(WIKITEXT, None, quick=True)
    for record in content["jobs"]:
        spec = json.loads(json.dumps(record["spec"]))  # as a worker gets it
        record["outcome"] = json.loads(json.dumps(runner(record["kind"])(spec, context), allow_nan=False))
    told = WIKITEXT.tables(content)
    assert "made-up (bytes" in told and "| not run |" not in told
    assert [run["state"] for record in content["jobs"] for run in record["outcome"]["runs"]] == ["finished"] * 20


@pytest.mark.parametrize(("item", "key"), [(hyper.ITEM, "hypermlp-lag-false-2"), (causal.ITEM, "ab-hypermixing-heads-8")])
def test_a_quick_job_of_the_other_items(item: Item, key: str) -> None:
    job = next(one for one in item.jobs(True, {}) if one.key == key)
    outcome = runner(job.kind)(job.spec, Context(torch.device("cpu"), None, lambda text: None))
    assert [run["state"] for run in outcome["runs"]] == ["finished"] * 2
