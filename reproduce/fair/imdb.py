"""IMDB at 256, 1,024 and 4,096 tokens as in `hypermixer longdocs`, with the learning rate searched at every length and five seeds."""

from __future__ import annotations

from dataclasses import replace

from reproduce import page, results
from reproduce.claims import Claim
from reproduce.fair import estimate
from reproduce.hypermixer import longdocs, recipe
from reproduce.hypermixer.longdocs import LIMITS, RATES, VARIANTS, key
from reproduce.item import Item, Outcomes, Results
from reproduce.job import Job

SEEDS = (0, 1, 2, 3, 4)


def jobs(quick: bool, outcomes: Outcomes) -> list[Job]:
    found = []
    for variant in VARIANTS:
        for limit in LIMITS[:1] if quick else LIMITS:
            members = [{"seed": recipe.SEARCH_SEED, "lr": rate} for rate in RATES]
            found.append(_job(variant, limit, members, quick, f"{key(variant, limit)}-search", "dev"))
            rate = recipe.best_rate(outcomes.get(found[-1].key))
            if rate is not None:
                found.append(_job(variant, limit, [{"seed": seed, "lr": rate} for seed in SEEDS], quick, key(variant, limit), "valid"))
    return found


def _job(variant: str, limit: int, members: list[dict[str, float]], quick: bool, name: str, score: str) -> Job:
    job = longdocs._job(variant, limit, members, quick, name, score)
    return replace(job, worth=20.0 + (score == "valid"), seconds=estimate.of(job))


def tables(content: Results) -> str:
    outcomes = results.outcomes(content)
    rows = []
    for limit in LIMITS:
        for variant, one in VARIANTS.items():
            tried = {run["lr"]: run["score"] for run in page.runs(outcomes.get(f"{key(variant, limit)}-search"))}
            rate = recipe.best_rate(outcomes.get(f"{key(variant, limit)}-search"))
            border = " \\*" if rate is not None and rate in (min(tried), max(tried)) else ""
            runs = page.runs(outcomes.get(key(variant, limit)))
            rows.append([limit, one.title, None if rate is None else f"{rate:g}{border}", page.cell(runs, 2, 100)])
    return "\n\n".join([
        f"Accuracy on the 25,000 test reviews, mean (standard deviation) of {len(SEEDS)} seeds. The rate is the best of {len(RATES)} at "
        "that length, on 5 % of train, held out. \\* at the border of those tried.",
        page.table(["tokens at most", "mixer", "rate", "accuracy, %"], rows),
        page.claims_table([
            Claim(f"at {limit} tokens HyperMixing is as good as attention or less than a point behind",
                  page.runs(outcomes.get(key("hypermixing", limit))), page.runs(outcomes.get(key("attention", limit))), margin=0.01)
            for limit in LIMITS
        ], scale=100),
    ])  # fmt: skip


ITEM = Item("fair", "imdb", "IMDB at three lengths, the rate searched at each, five seeds (give --workers 1)", jobs, tables)
