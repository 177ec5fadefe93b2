"""The second edition: which jobs follow from which outcomes, what they cost, how the tables read them. Nothing is trained here."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from reproduce import command, plan, readme, results
from reproduce.claims import recorded
from reproduce.fair import estimate, imdb, language, power, recipe, rows, scale, search, shown, study, systematicity
from reproduce.item import Item, Outcomes, items
from reproduce.job import Job
from tokmix.core.budget import parameter_count
from tokmix.core.model import ModelConfig
from tokmix.core.optional import np

GRID = (1e-3, 2e-3, 4e-3, 8e-3)


def losses(outcome: dict[float, float | None]) -> dict[str, Any]:
    return {"runs": [{"seed": 100, "lr": rate, "state": "finished", "score": loss} for rate, loss in outcome.items()]}


@pytest.mark.parametrize(
    ("found", "next_rate"),
    [
        ({1e-3: 4.0, 2e-3: 3.0, 4e-3: 3.5}, None),  # inside
        ({1e-3: 4.0, 2e-3: 3.5, 4e-3: 3.0}, 8e-3),
        ({1e-3: 3.0, 2e-3: 3.5, 4e-3: 4.0}, 5e-4),
        ({1e-3: 4.0, 4e-3: 3.5, 1.6e-2: 3.1, 3.2e-2: 3.0}, None),  # three rates beyond the grid are enough
        ({1e-3: math.inf, 2e-3: math.inf, 4e-3: math.inf}, 5e-4),  # all diverged: lower ones may not
        ({}, None),
    ],
)
def test_rates_go_on_while_the_best_is_at_a_border(found: dict[float, float], next_rate: float | None) -> None:
    assert search.beyond(found, (1e-3, 2e-3, 4e-3)) == next_rate


def keys(jobs: list[Job], of: str = "") -> list[str]:
    return [job.key for job in jobs if of in job.key]


def test_seeds_follow_when_the_best_rate_is_inside_and_are_fresh() -> None:
    made, entry = language.plan(False), language.systems(False).rotary
    jobs, rate = search.rated(made, entry, {})
    assert [one["lr"] for one in jobs[0].spec["members"]] == list(GRID) and rate is None and len(jobs) == 1
    outcomes: Outcomes = {jobs[0].key: losses({1e-3: 4.0, 2e-3: 3.9, 4e-3: 3.8, 8e-3: 3.7})}
    jobs, rate = search.rated(made, entry, outcomes)
    assert rate is None and [one["lr"] for one in jobs[-1].spec["members"]] == [0.016] and jobs[-1].key.endswith("-rate-0.016")
    outcomes[jobs[-1].key] = losses({0.016: None})  # it diverged, so 8e-3 is inside
    jobs, rate = search.rated(made, entry, outcomes)
    assert rate == 8e-3 and len(jobs) == 2
    seeds = search.seeded(made, entry, rate)
    assert [one["seed"] for one in seeds.spec["members"]] == list(range(8)) and search.SEARCH_SEED not in range(8)
    assert {one["lr"] for one in seeds.spec["members"]} == {8e-3}


def test_a_search_that_failed_names_no_seeds() -> None:
    made, entry = language.plan(False), language.systems(False).rotary
    first = search.rated(made, entry, {})[0][0]
    jobs, rate = search.rated(made, entry, {first.key: {"error": "out of memory", "runs": []}})
    assert rate is None and jobs == [first]


def test_equal_seconds_are_those_of_the_yardstick_and_end_with_the_text() -> None:
    made, known = language.plan(False), language.systems(False)
    speed = lambda rate: {"speeds": {"512": {"tokens_per_s": rate}}, "runs": []}
    name = lambda entry: f"{entry.key}-speed"
    outcomes = {name(known.rotary): speed(1e6)}
    steps = lambda rate: search.in_the_seconds_of(
        made, known.rotary, known.ab_rotary, 2e-3, outcomes | {name(known.ab_rotary): speed(rate)}, language.MOST_STEPS
    )
    assert search.in_the_seconds_of(made, known.rotary, known.ab_rotary, 2e-3, outcomes, 9) is None  # its speed is not known yet
    job = steps(1.5e6)
    assert job is not None and job.spec["steps"] == made.steps * 3 // 2 and len(job.spec["members"]) == 8
    job = steps(1e9)
    assert job is not None and job.spec["steps"] == language.MOST_STEPS
    assert language.MOST_STEPS * made.setting.batch * made.setting.context < 76_839_126  # of the encyclopedia, to learn from


def test_all_systems_have_the_same_number_of_parameters_and_their_own_keys() -> None:
    entries = language.entries(False)
    assert len(entries) == 21 == len({entry.key for entry in entries})
    counts = []
    for entry in entries:
        model = language.SETTING.model(entry.stack, entry.arm, entry.settings)
        counts.append(parameter_count(ModelConfig(**model, head="lm", causal=True)))
    assert max(counts) / min(counts) < 1.011
    assert {dict(entry.settings).get("positions", "sinusoidal") for entry in entries if "rotary" in entry.stack} == {"none"}
    without = counts[0] - 8192 * language.SETTING.dim
    assert 9e6 < without < 11e6


def test_controls_for_the_hierarchy_differ_in_their_shifts_alone() -> None:
    from tokmix.core.model import Model

    shifts = {}
    for entry in (one for one in language.entries(False) if one.stack.startswith("hsm(variant='ab'")):
        model = language.SETTING.model(entry.stack, entry.arm, entry.settings)
        shifts[entry.stack] = (
            [layer.mixer.shifts[0] for layer in Model(ModelConfig(**model, head="lm", causal=True)).layers],
            model["feed_forward"],
        )
    assert [list(of) for of, _ in shifts.values()] == [
        [1, 2, 4, 8, 16, 32, 64, 128], [1] * 8, [128, 64, 32, 16, 8, 4, 2, 1], [1, 4, 16, 64, 128, 32, 8, 2]
    ]  # fmt: skip
    assert len({width for _, width in shifts.values()}) == 1


ALL = [*items("fair").values()]


@pytest.mark.parametrize("item", ALL, ids=lambda item: item.name)
def test_every_job_is_estimated_and_pieces_are_short_or_can_be_continued(item: Item) -> None:
    for quick in (True, False) if item.name in ("rows", "systematicity", "imdb") else (True,):
        jobs = plan.expected(item, quick, {})
        assert jobs and len({job.key for job in jobs}) == len(jobs) and len({job.file for job in jobs}) == len(jobs)
        for job in jobs:
            assert job.seconds is not None and job.seconds >= 0 and job.worth > 0, job.key
            assert job.resumable or job.seconds < 480, job.key  # it has to fit into a call of ten minutes
            assert job.file and json.loads(json.dumps(job.spec)) == json.loads(json.dumps(job.spec, sort_keys=True))


def content_of(item: Item, quick: bool, jobs: list[Job], outcomes: Outcomes) -> dict[str, Any]:
    records = [
        {"key": job.key, "kind": job.kind, "spec": job.spec, "outcome": outcomes.get(job.key), "measured": {"workers": 1}} for job in jobs
    ]
    return {"quick": quick, "item": item.name, "paper": "fair", "jobs": records, "calls": []}


@pytest.mark.parametrize("item", ALL, ids=lambda item: item.name)
def test_tables_and_claims_come_from_whatever_has_run(item: Item) -> None:
    """Nothing, a part, and all of a quick run with made-up outcomes."""
    empty = item.tables(content_of(item, True, [], {}))
    assert "not run" in empty and "**holds**" not in empty
    jobs = plan.expected(item, True, {})
    outcomes = {job.key: outcome(job) for job in jobs}
    for part in (dict(list(outcomes.items())[: len(outcomes) // 2]), outcomes):
        with recorded() as verdicts:
            text = item.tables(content_of(item, True, jobs, part))
        assert verdicts and "|" in text and "nan" not in text
    if item.name not in ("rows", "imdb"):  # those have no quick run of all that a claim needs
        assert any(one.word != "not run" for one in verdicts)


def outcome(job: Job) -> dict[str, Any]:
    made = plan.made_up(job) | {"parameters": 10, "tokens": 100, "flops": 5.0, "steps": 1, "tokenizer": "bytes", "state_numbers": 3}
    made |= {"split_tokens": {"train": 60, "valid": 5}, "training_seconds": 2.0, "training_joules": None, "data": {}}
    for run in made["runs"]:
        run["curve"] = [{"step": step, "loss": run["score"] + 1 / step} for step in (1, 2)]
        run |= dict.fromkeys(systematicity.SETS, run["score"] + run["seed"] / 100) if job.kind == "systematicity" else {}
        run["bits_per_byte"] = run["score"] / 3 + run["seed"] / 1000
    if job.kind == "bag":
        made["runs"] = [{"seed": 0, "state": "finished", "score": 0.8, "test": 0.7}]
    return made


def test_the_hybrid_of_the_claims_is_chosen_by_the_search_alone() -> None:
    known, item = language.systems(True), language.ITEM
    jobs = plan.expected(item, True, {})
    outcomes = {job.key: outcome(job) for job in jobs}
    for better in known.hybrids:
        worse = next(one for one in known.hybrids if one != better)
        for entry, loss in ((better, 2.0), (worse, 2.5)):
            outcomes[f"{entry.key}-rates"] = losses({1e-3: 9.0, 2e-3: loss, 4e-3: 9.0})
            outcomes[f"{entry.key}-seconds"] = outcomes[f"{entry.key}-seconds"] | {"runs": [{"seed": 0, "bits_per_byte": loss}]}
        made = language.claims(content_of(item, True, jobs, outcomes))
        assert better.name in made[0].says and better.name in made[1].says
        assert [run["seed"] for run in made[0].better] == [0, 1] and made[1].better == [{"seed": 0, "bits_per_byte": 2.0}]


def test_rows_say_what_keeps_them_from_deciding() -> None:
    known, made = language.systems(False), language.plan(False)
    entry = known.rotary
    seeds = search.seeded(made, entry, 4e-3)
    done = outcome(seeds)
    done |= {"runs": done["runs"][:3], "tokens": 150, "split_tokens": {"train": 60}}
    rates = search.rated(made, entry, {})[0][0]
    outcomes = {seeds.key: done, rates.key: losses({1e-3: 4.0, 2e-3: 3.0, 4e-3: 2.9})}
    text = shown.caveats(content_of(language.ITEM, False, [seeds, rates], outcomes), [entry], made)
    assert "the best rate tried is the highest" in text and "3 seeds" in text and "read 2.5 times" in text


def test_the_top_size_waits_for_the_best_hybrid_one_below() -> None:
    below, top = scale.SIZES[-2:]
    assert scale.systems(top, False, {}) == ()
    runs = lambda system, loss: {
        f"{scale.entry(below, system).key}-seed-{seed}": {"runs": [{"seed": seed, "state": "finished", "score": loss}]}
        for seed in range(below.seeds)
    }
    assert scale.systems(top, False, runs("ab-rotary", 3.0)) == ()
    assert scale.systems(top, False, runs("ab-rotary", 3.0) | runs("one-in-four", 2.9)) == ("rotary", "one-in-four")
    assert top.tokens >= 500_000_000 and top.seeds == 2
    made = scale.plan(top, False)
    model = made.setting.model(scale.entry(top, "rotary").stack, "parameters", language.NONE)
    assert 115e6 < parameter_count(ModelConfig(**model, head="lm", causal=True)) < 125e6


def test_what_pays_is_put_together() -> None:
    known = recipe.entries(True)
    bits = {"start": 1.0, "window": 1.1, "qk-norm": 0.9, "muon": 0.8}
    outcomes: Outcomes = {
        f"{known[name].key}-seconds": {"runs": [{"seed": 0, "state": "finished", "score": 3.0, "bits_per_byte": value}]}
        for name, value in bits.items()
    }
    assert recipe.paying(True, {}) is None and recipe.paying(True, outcomes) == ["qk-norm", "muon"]
    made = recipe.whole(True, ["qk-norm", "muon"])
    assert "qk_norm=True" in made.stack and "window" not in made.stack and made.optimizer == "muon"
    assert len({entry.key for entry in recipe.entries(False).values()}) == len(recipe.entries(False)) == 10


def test_rows_search_cells_then_seeds_then_ten_fresh_ones() -> None:
    named = lambda outcomes: {job.key: job for job in rows.jobs(False, outcomes) if job.key.startswith("sst2-gmlp-")}
    scored = lambda job, of: {"runs": [{**one, "state": "finished", "score": of(one)} for one in job.spec["members"]]}
    outcomes: Outcomes = {}
    first = named(outcomes)["sst2-gmlp-search"]
    assert len(first.spec["members"]) == 8 and {one["dropout"] for one in first.spec["members"]} == {0.1, 0.3}
    outcomes[first.key] = scored(first, lambda one: 0.8 + one["lr"] * (1 + one["dropout"]))  # the highest rate is best
    more = named(outcomes)["sst2-gmlp-rate-0.002"]
    outcomes[more.key] = scored(more, lambda one: 0.5)
    finals = named(outcomes)["sst2-gmlp-finals"]
    assert {one["seed"] for one in finals.spec["members"]} == {101, 102} and len(finals.spec["members"]) == 6
    outcomes[finals.key] = scored(finals, lambda one: 0.9 if one["lr"] == 5e-4 else 0.1)
    seeds = named(outcomes)["sst2-gmlp-seeds"]
    assert [one["seed"] for one in seeds.spec["members"]] == list(range(10)) and seeds.spec["test"] and seeds.spec["dev"] == 0.0
    assert {one["lr"] for one in seeds.spec["members"]} == {5e-4}
    assert {job.spec["epochs"] for job in named(outcomes).values()} == {5}  # the same for the search and the seeds


def test_positions_of_the_ablations_are_those_of_the_whole() -> None:
    models = {name: rows.recipe.VARIANTS[name].model(False) for name in rows.TABLE_5}
    assert models["feature-only"]["positions"] == "none" and models["feature-only-positions"]["positions"] == "sinusoidal"
    assert models["shared-vector-positions"] == models["shared-vector"] | {"positions": "sinusoidal"}


def test_imdb_searches_at_every_length() -> None:
    searches = [job for job in imdb.jobs(False, {}) if job.key.endswith("-search")]
    assert sorted(job.spec["limit"] for job in searches) == [256, 256, 1024, 1024, 4096, 4096]
    found = {job.key: {"runs": [{"lr": 2e-4, "state": "finished", "score": 0.9}]} for job in searches}
    seeds = [job for job in imdb.jobs(False, found) if not job.key.endswith("-search")]
    assert len(seeds) == 6 and all(len(job.spec["members"]) == 5 for job in seeds)


def test_both_starts_of_the_convolutions_differ_in_that_alone() -> None:
    known = study.entries(False)
    assert len(known) == 1 + 2 * len(study.VARIANTS)
    for name in study.VARIANTS:
        one, other = (known[name, start].stack for start in study.STARTS)
        assert "conv_init" not in one and re.sub(r"(, )?conv_init='normal'|\(conv_init='normal'\)", "", other) in (
            one,
            one.replace("*", "()*"),
        )


def test_estimates_follow_the_committed_speeds() -> None:
    seconds = estimate.flop_seconds()
    assert seconds["attention:rotary"] > seconds["attention:"] > seconds["identity:"] > 0
    model = {
        "stack": "attention(rotary=True)*8",
        "dim": 256,
        "vocab": 4096,
        "max_len": 256,
        "feed_forward": 1024,
        "positions": "sinusoidal",
    }
    assert 1 / estimate.seconds_per_token(model) == pytest.approx(1.67e6, rel=0.02)  # reproduce/beyond/results/causal.json
    hybrid = model | {"stack": "(hsm(variant='ab'), attention(rotary=True))*4"}
    assert 1 / estimate.seconds_per_token(hybrid) == pytest.approx(2.19e6, rel=0.08)  # measured, not used


def test_the_page_states_the_claims_and_the_power_as_computed() -> None:
    pytest.importorskip("scipy")
    text = (Path(readme.__file__).parent / "fair" / "README.md").read_text(encoding="utf-8")
    assert f"<!-- power -->\n{power.table()}\n<!-- /power -->" in text
    for item in ALL:
        assert f"| `{item.name}` |" in text


def test_the_power_is_that_of_simulated_tests() -> None:
    stats = pytest.importorskip("scipy.stats")
    drawn = np.random.default_rng(0).normal(power.detectable(1.0, 8), 1.0, (20_000, 8))
    t = drawn.mean(1) / drawn.std(1, ddof=1) * 8**0.5
    found = (np.abs(t) > stats.t.ppf(1 - power.ALPHA / power.CLAIMS / 2, 7)).mean()
    assert found == pytest.approx(power.POWER, abs=0.01)


def test_the_plan_is_printed_in_the_order_of_worth(tmp_path: Path) -> None:
    lines = list(plan.lines([systematicity.ITEM, imdb.ITEM], tmp_path, False))
    assert lines[0].split()[-2:] == ["systematicity", "none-0"] and "imdb" in lines[-2]
    assert re.search(r"^0 jobs are done, 20 are left: about [\d,]+ s of one GPU, 0\.\d hours$", lines[-1])
    assert any(line.startswith("later") for line in lines) and results.FORMAT


def test_items_without_their_data_are_left_out_of_a_whole_paper_but_not_when_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "imdb").mkdir()
    chosen = [imdb.ITEM, rows.ITEM, systematicity.ITEM]
    assert command.with_data(chosen, False, False, tmp_path) == [imdb.ITEM, systematicity.ITEM]
    told = capsys.readouterr().out
    assert told.startswith("left out: fair rows reads snli_33, but") and told.count("\n") == 1
    with pytest.raises(ValueError, match="fair rows reads snli_33"):
        command.with_data(chosen, True, False, tmp_path)
    with pytest.raises(ValueError, match="fair rows reads snli_33"):
        command.with_data([rows.ITEM], False, False, tmp_path)
