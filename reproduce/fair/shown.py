"""Tables of searched language models: equal parameters, equal seconds, speed at two lengths, rates and their borders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reproduce import page, results
from reproduce.fair import search
from reproduce.fair.search import Plan
from reproduce.item import Outcomes, Results
from reproduce.lm_plan import Entry
from reproduce.lm_table import Found, difference, number

BORDER = "\\*"
ENOUGH = 5  # seeds of a claim


def tried(outcomes: Outcomes, entry: Entry) -> dict[float, float]:
    """Loss by rate of the search, as far as it has run."""
    names = [key for key in outcomes if key == f"{entry.key}-rates" or key.startswith(f"{entry.key}-rate-")]
    runs = [run for key in names for run in page.runs(outcomes[key])]
    return {run["lr"]: math.inf if run["score"] is None else run["score"] for run in sorted(runs, key=lambda run: run["lr"])}


def lowest(found: Found, entry: Entry) -> float | None:
    return min((loss for loss in tried(found.outcomes, entry).values() if loss < math.inf), default=None)


def chosen(outcomes: Outcomes, entry: Entry) -> str | None:
    known = tried(outcomes, entry)
    rate = search.best(known)
    return None if rate is None else f"{rate:g}" + (BORDER if search.at_border(known) else "")


def speeds(outcomes: Outcomes, entry: Entry, length: int) -> Mapping[str, Any]:
    return outcomes.get(f"{entry.key}-speed", {}).get("speeds", {}).get(str(length), {})


def seconds(content: Results, found: Found, entry: Entry) -> float | None:
    """That one run takes alone on the device."""
    rate = speeds(found.outcomes, entry, _length(found, entry)).get("tokens_per_s")
    tokens = found.fact(entry, "tokens")
    return None if rate is None or tokens is None else tokens / rate


def _length(found: Found, entry: Entry) -> int:
    return int(found.records[found.key(entry)]["spec"]["model"]["max_len"]) if found.key(entry) in found.records else 0


def language_table(content: Results, entries: Sequence[Entry], yardstick: Entry, plan: Plan, timed: bool = True) -> str:
    """In the given order. timed: with the columns of equal seconds."""
    equal, within = Found(content, "-seeds"), Found(content, "-seconds")
    short = plan.setting.context
    heads = ["system", "parameters", "rate", "bits per byte", "seeds", f"to `{yardstick.name}`"]
    heads += ["at equal seconds", "to it at equal seconds"] if timed else []
    heads += [f"training tokens/s, {length}" for length in (short, plan.long)]
    heads += [f"decode, µs a token, {length}" for length in (short, plan.long)] + [f"state, {length}" for length in (short, plan.long)]
    rows = []
    for entry in entries:
        runs, base = equal.runs(entry), equal.runs(yardstick)
        outcome = equal.outcome(entry)
        row: list[object] = [entry.title, number(equal.fact(entry, "parameters"), "{:,}"), chosen(equal.outcomes, entry)]
        row += ["failed" if "error" in outcome else bits(runs), str(len(page.scores(runs))), ahead(runs, base)]
        if timed:
            of = runs if entry == yardstick else within.runs(entry)
            row += [bits(of), ahead(of, base)]
        known = [speeds(equal.outcomes, entry, length) for length in (short, plan.long)]
        row += [number(one.get("tokens_per_s"), "{:,.0f}") for one in known]
        row += [number(one.get("decode_us"), "{:.0f}") for one in known] + [number(one.get("state_numbers"), "{:,}") for one in known]
        rows.append(row)
    return page.table(heads, rows)


def bits(runs: Sequence[Mapping[str, Any]]) -> str:
    return page.cell(runs, 4, name="bits_per_byte")


def ahead(runs: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> str:
    ours, theirs = ([{**run, "score": run.get("bits_per_byte")} for run in side] for side in (runs, base))
    return difference(ours, theirs)


def rates_table(content: Results, entries: Sequence[Entry], plan: Plan) -> str:
    outcomes = results.outcomes(content)
    known = {entry: tried(outcomes, entry) for entry in entries}
    rates = sorted({rate for found in known.values() for rate in found} | set(plan.rates))
    rows = [[entry.title, *(_loss(found.get(rate)) for rate in rates)] for entry, found in known.items()]
    summary = f"<summary>The search: nats a token by learning rate, seed {search.SEARCH_SEED}, which no claim uses</summary>"
    return f"<details>{summary}\n\n{page.table(['system', *(f'{rate:g}' for rate in rates)], rows)}\n\n</details>"


def _loss(loss: float | None) -> str:
    return "" if loss is None else "diverged" if loss == math.inf else f"{loss:.4f}"


def caveats(content: Results, entries: Sequence[Entry], plan: Plan, phase: str = "-seeds") -> str:
    """What a row must say of itself: a rate at the border of what was tried, fewer than five seeds, text read more than twice."""
    found, told = Found(content, phase), []
    for entry in entries:
        known = tried(found.outcomes, entry)
        if not found.runs(entry):
            continue
        if search.at_border(known):
            told.append(f"{entry.title}: the best rate tried is the {'highest' if search.best(known) == max(known) else 'lowest'}")
        if (seeds := len(page.scores(found.runs(entry)))) < min(ENOUGH, plan.setting.seeds):
            told.append(f"{entry.title}: {seeds} seeds")
        outcome = found.outcome(entry)
        if (read := outcome["tokens"] / outcome["split_tokens"]["train"]) > 2:
            told.append(f"{entry.title}: the text was read {read:.1f} times")
    return "What to keep in mind:\n\n" + "\n".join(f"- {one}" for one in told) if told else ""


def what_was_done(found: Found, entries: Sequence[Entry], plan: Plan) -> str:
    done = next((found.records[found.key(one)] for one in entries if found.runs(one)), None)
    if done is None:
        return ""
    spec, outcome = done["spec"], done["outcome"]
    model, sizes = spec["model"], outcome["split_tokens"]
    told = [
        f"{spec['text']} ({outcome['tokenizer']}; {sizes['train']:,} tokens to train on, {sizes['valid']:,} to validate)",
        f"context {model['max_len']}, width {model['dim']}, {outcome['steps']:,} steps of {spec['batch']} windows: "
        f"{outcome['tokens'] / sizes['train']:.2f} times the text",
        f"AdamW after {spec['warmup']} steps of warm-up, then a cosine to 0; no weight decay, no dropout",
        (done.get("machine") or {}).get("gpu") or "a CPU",
    ]
    return (
        f"{'; '.join(told)}. Bits per byte: of all held-out documents of valid after the last step, mean (standard deviation) over seeds; "
        f"a seed has the same order of windows in every row. {BORDER} a rate at the border of those tried. Equal seconds: as many steps as "
        "the system makes while the system that others are compared with makes its own, alone on the device."
    )
