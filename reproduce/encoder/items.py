"""The pretraining experiments. What is claimed and how many seeds each claim has was written down before the runs (README.md).

search    a minute of GPU each: every stack once, the first phase of choosing
long      the best three and the attention twin for eight minutes each
seeds     the final pair and the twin, three pretraining seeds
gap       the final pair and the twin after 50 M, 200 M and 1 B tokens
states    the shipped pair and its attention twin: they learn a teacher's hidden states from the same tokens
tune      all tables, from these three and from nothing, three seeds
"""

from __future__ import annotations

from typing import Any

from reproduce.claims import Claim, Run
from reproduce.encoder.stacks import ARMS, BY_NAME, TAUGHT, TEACHER, TWIN, Arm, settings
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job
from reproduce.page import claims_table, runs, spread, table
from reproduce.results import outcomes as outcomes_of

TEXT, SECONDS, LONG, SEEDS = "text", 75, 480, (0, 1, 2)
GAPS = (50_000_000, 200_000_000, 1_000_000_000)
STATES = 165  # seconds of the whole run
# table -> (figure, epochs, rows of a batch): published figures or twins on the same rows stand beside them in the README
TABLES = {
    "sst2": ("accuracy", 4, 128), "cola": ("matthews", 10, 64), "mrpc": ("accuracy", 15, 64), "rte": ("accuracy", 15, 64),
    "stsb": ("pearson", 15, 64), "trec": ("accuracy", 15, 64), "agnews_28": ("accuracy", 4, 64), "qnli": ("accuracy", 8, 64),
    "snli_33": ("accuracy", 3, 256), "mnli_11": ("accuracy", 5, 128), "qqp_complete": ("accuracy", 3, 256),
}  # fmt: skip
SEARCHED = ("trec", "rte", "stsb", "qnli")  # a quick look at each stack of the search, one seed


def pretraining(arm: Arm, name: str, quick: bool, seed: int = 0, **length: int) -> Job:
    given = {"tokens": 4096 * 3} if quick else length
    spec = {"name": name, "text": TEXT, "settings": settings(arm, quick, **{"train.seed": seed}), **given}
    return Job(f"pretrain-{name}", "encoder_pretrain", spec, weight=float(length.get("seconds", length.get("tokens", 0) / 2e6)))


def tuning(name: str | None, arm: Arm, data: str, quick: bool, seeds: tuple[int, ...]) -> Job:
    figure, epochs, rows = TABLES[data]
    fresh = {key: value for key, value in settings(arm, quick).items() if key in ("model.stack", "model.dim", "model.feed_forward")}
    given: dict[str, Any] = {"train.epochs": 1 if quick else epochs, "train.evaluations": 2 if quick else 10, "train.rows": rows}
    spec = {"encoder": name, "set": data, "seeds": list(seeds), "figure": figure, "settings": given | ({} if name else fresh)}
    weight = {"qqp_complete": 9.0, "snli_33": 5.0, "sst2": 4.0, "mnli_11": 3.0}.get(data, 1.0)
    return Job(f"tune-{name or 'nothing-' + arm.name}-{data}", "encoder_tune", spec, weight=weight)


def search(quick: bool, outcomes: Outcomes) -> list[Job]:
    arms = ARMS[:2] if quick else ARMS
    jobs = [pretraining(arm, f"search-{arm.name}", quick, seconds=SECONDS) for arm in arms]
    done = [arm for arm, job in zip(arms, jobs, strict=True) if usable(outcomes.get(job.key))]
    sets = SEARCHED[:1] if quick else SEARCHED
    return jobs + [tuning(f"search-{arm.name}", arm, data, quick, (0,)) for arm in done for data in sets]


def usable(outcome: dict[str, Any] | None) -> bool:
    return outcome is not None and "error" not in outcome


def best(outcomes: Outcomes, attention_free: bool, count: int) -> list[Arm]:
    """By the loss of the search."""
    arms = [arm for arm in ARMS if arm is not TWIN and arm.attention_free == attention_free]
    scored = [(outcomes[key]["runs"][0]["score"], arm) for arm in arms if usable(outcomes.get(key := f"pretrain-search-{arm.name}"))]
    return [arm for _, arm in sorted(scored, key=lambda one: one[0])[:count]]


def long(quick: bool, outcomes: Outcomes) -> list[Job]:
    """Two without attention, one hybrid, the twin: named when the search has told which."""
    first = search(quick, outcomes)
    chosen = [*best(outcomes, True, 2), *best(outcomes, False, 1), TWIN]
    if not all(job.key in outcomes for job in first if job.kind == "encoder_pretrain"):
        return first
    jobs = [pretraining(arm, f"long-{arm.name}", quick, seconds=LONG) for arm in chosen]
    return [*first, *jobs]


def final(outcomes: Outcomes) -> list[Arm]:
    """The pair that is shipped, by the loss of the long runs, and the twin."""
    found: list[Arm] = []
    for free in (True, False):
        known = [
            (outcomes[key]["runs"][0]["score"], arm.name)
            for arm in ARMS
            if arm.attention_free == free and arm is not TWIN and usable(outcomes.get(key := f"pretrain-long-{arm.name}"))
        ]
        found += [BY_NAME[min(known)[1]]] if known else []
    return [*found, TWIN] if found else []


def states(quick: bool, outcomes: Outcomes) -> list[Job]:
    jobs = []
    for arm in TAUGHT[:1] if quick else TAUGHT:
        given = settings(arm, quick, **({} if quick else {"train.compile": "yes", "train.lr": 2e-3}))
        length = {"tokens": 4096 * 3} if quick else {"seconds": STATES}
        spec = {"name": f"states-{arm.name}", "text": TEXT, "teacher": TEACHER, "settings": given, **length}
        jobs.append(Job(f"pretrain-states-{arm.name}", "encoder_pretrain", spec, weight=STATES))
    return jobs


def tune(quick: bool, outcomes: Outcomes) -> list[Job]:
    before = states(quick, outcomes)
    arms = [arm for arm in TAUGHT if usable(outcomes.get(f"pretrain-states-{arm.name}"))]
    sets = list(TABLES)[5:6] if quick else list(TABLES)
    seeds = SEEDS[:1] if quick else SEEDS
    jobs = [tuning(f"states-{arm.name}", arm, data, quick, seeds) for arm in arms for data in sets]
    return before + jobs + [tuning(None, arm, data, quick, seeds) for arm in arms[:1] for data in sets]


def seeds(quick: bool, outcomes: Outcomes) -> list[Job]:
    before = long(quick, outcomes)
    return before + [
        pretraining(arm, f"long-{arm.name}-{seed}", quick, seed, seconds=LONG) for arm in final(outcomes) for seed in SEEDS[1:]
    ]


def gap(quick: bool, outcomes: Outcomes) -> list[Job]:
    before = long(quick, outcomes)
    sizes = GAPS[:1] if quick else GAPS
    return before + [pretraining(arm, f"gap-{arm.name}-{size}", quick, tokens=size) for arm in final(outcomes) for size in sizes]


def pretraining_table(content: Results, prefix: str) -> str:
    found = outcomes_of(content)
    rows = []
    for arm in sorted(ARMS, key=lambda arm: [run["score"] for run in runs(found.get(f"pretrain-{prefix}-{arm.name}"))] or [1e9]):
        one = found.get(f"pretrain-{prefix}-{arm.name}") or {}
        losses = [run["score"] for key in seeds_of(found, f"pretrain-{prefix}-{arm.name}") for run in runs(found[key])]
        cost = one.get("cost") or {}
        seen = f"{cost['tokens'] / 1e6:.0f} M" if cost.get("tokens") else None
        rate = f"{cost['tokens'] / cost['seconds'] / 1e6:.2f} M" if cost.get("tokens") and cost.get("seconds") else None
        rows.append([f"`{arm.stack}`", spread(losses, 3), seen, rate, cost.get("parameters")])
    return table(["stack", "loss on hidden tokens", "tokens seen", "tokens/s", "parameters"], rows)


def seeds_of(found: Outcomes, key: str) -> list[str]:
    return [name for name in (key, *(f"{key}-{seed}" for seed in SEEDS[1:])) if name in found]


def tune_table(content: Results, prefix: str) -> str:
    found = outcomes_of(content)
    names = {key.removeprefix("tune-").rsplit("-", 1)[0] for key in found if key.startswith("tune-") and prefix in key}
    sets = [name for name in TABLES if any(key.endswith(f"-{name}") for key in found)] or list(TABLES)[:1]
    rows = [
        [name, *(spread([run["score"] for run in runs(found.get(f"tune-{name}-{one}"))], 1, 100) for one in sets)] for name in sorted(names)
    ] or [["-", *("not run" for _ in sets)]]
    return table(["start", *(f"{one}, {TABLES[one][0]}" for one in sets)], rows)


def search_tables(content: Results) -> str:
    return pretraining_table(content, "search") + "\n\n" + tune_table(content, "search-")


def long_tables(content: Results) -> str:
    return pretraining_table(content, "long")


def seeds_tables(content: Results) -> str:
    found = outcomes_of(content)
    claims = []
    for arm in (one for one in final(found) if one is not TWIN):
        claims.append(Claim(f"`{arm.stack}` has a loss at most 0.1 above attention's", every(found, arm), every(found, TWIN), False, 0.1))
    return pretraining_table(content, "long") + ("\n\n" + claims_table(claims, digits=3) if claims else "")


def every(found: Outcomes, arm: Arm) -> list[Run]:
    return [run for key in seeds_of(found, f"pretrain-long-{arm.name}") for run in runs(found[key])]


def gap_tables(content: Results) -> str:
    found = outcomes_of(content)
    rows = [
        [f"`{arm.stack}`", *(spread([run["score"] for run in runs(found.get(f"pretrain-gap-{arm.name}-{size}"))], 3) for size in GAPS)]
        for arm in final(found) or [TWIN]
    ]
    return table(["stack", *(f"{size // 10**6:,} M tokens" for size in GAPS)], rows)


def tune_tables(content: Results) -> str:
    found, claims = outcomes_of(content), []
    small, hybrid, twin = (arm.name for arm in TAUGHT)
    for data in TABLES:
        ours, mixed, twins = (runs(found.get(f"tune-states-{name}-{data}")) for name in (small, hybrid, twin))
        fresh = runs(found.get(f"tune-nothing-{small}-{data}"))
        claims.append(Claim(f"{data}: {small} is at most a point behind the attention twin", ours, twins, True, 0.01))
        claims.append(Claim(f"{data}: {hybrid} is at most a point behind the attention twin", mixed, twins, True, 0.01))
        claims.append(Claim(f"{data}: {small} is ahead of the same model from nothing", ours, fresh))
    return tune_table(content, "") + "\n\n" + claims_table(claims, scale=100)


def states_tables(content: Results) -> str:
    found, rows = outcomes_of(content), []
    for arm in TAUGHT:
        one = found.get(f"pretrain-states-{arm.name}") or {}
        figures, cost = one.get("figures") or {}, one.get("cost") or {}
        joules = f"{cost['energy_joules'] / 1000:,.0f} kJ" if cost.get("energy_joules") else None
        seconds = f"{cost['seconds']:.0f}" if cost.get("seconds") else None
        seen = f"{cost['tokens'] / 1e6:.0f} M" if cost.get("tokens") else None
        cells = [f"{figures[name]:.4f}" if name in figures else None for name in ("loss", "cosine")]
        rows.append([arm.name, f"`{arm.stack}`", *cells, seen, seconds, joules, cost.get("parameters")])
    return table(["name", "stack", "error of the states", "cosine of the means", "tokens", "seconds", "energy", "parameters"], rows)


ITEMS = [
    Item("encoder", "search", "every stack for 75 s of one GPU at equal parameters (give --workers 1)", search, search_tables),
    Item("encoder", "long", "the best three of the search and the attention twin, 8 minutes each (give --workers 1)", long, long_tables),
    Item("encoder", "states", "the shipped pair and its twin learn a teacher's states (give --workers 1)", states, states_tables),
    Item("encoder", "tune", "the shipped pair, the twin and fresh models on eleven tables, three seeds", tune, tune_tables),
    Item("encoder", "gap", "loss after 50 M, 200 M and 1 B tokens (give --workers 1)", gap, gap_tables),
    Item("encoder", "seeds", "three pretraining seeds of the final pair and the twin (give --workers 1)", seeds, seeds_tables),
]
