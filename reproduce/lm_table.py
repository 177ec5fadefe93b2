"""Results files of language models as tables: a row for each stack, and sentences that say what the rows decide."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce import draw, page, results
from reproduce.claims import Claim, Run, Verdict
from reproduce.item import Results
from reproduce.lm_plan import ARMS, Arm, Entry
from tokmix.core import stack
from tokmix.show import pareto


class Found:
    """A results file by entry. phase: what the keys of its jobs end with."""

    def __init__(self, content: Results, phase: str = ""):
        self.phase, self.outcomes = phase, results.outcomes(content)
        self.records: dict[str, Mapping[str, Any]] = {job["key"]: job for job in content["jobs"]}
        self.speeds = self.speeds_of("speed")

    def speeds_of(self, job: str) -> dict[tuple[str, ...], Mapping[str, Any]]:
        """By layers in any order: what stands where does not change what is computed."""
        models = self.records.get(job, {}).get("spec", {}).get("models", {})
        known = self.outcomes.get(job, {}).get("speeds", {})
        return {layers_of(model): known[key] for key, model in models.items() if key in known}

    def key(self, entry: Entry) -> str:
        return entry.key + self.phase

    def outcome(self, entry: Entry) -> Mapping[str, Any]:
        return self.outcomes.get(self.key(entry), {})

    def runs(self, entry: Entry, key: str | None = None) -> list[Run]:
        return page.runs(self.outcomes.get(key or self.key(entry)))

    def mean(self, entry: Entry, name: str = "score") -> float | None:
        known = page.scores(self.runs(entry), name)
        return statistics.fmean(known) if known else None

    def fact(self, entry: Entry, name: str) -> float | None:
        return self.outcome(entry).get(name)

    def speed(self, entry: Entry, name: str) -> float | None:
        """us_per_token: of training; the rest as it was measured."""
        model = self.records.get(self.key(entry), {}).get("spec", {}).get("model")
        known: Mapping[str, Any] = {} if model is None else self.speeds.get(layers_of(model), {})
        if name == "us_per_token":
            return 1e6 / known["tokens_per_s"] if "tokens_per_s" in known else None
        return known.get(name)


def layers_of(model: Mapping[str, Any]) -> tuple[str, ...]:
    return (str(model["feed_forward"]), *sorted(map(str, stack.parse(model["stack"]))))


def table(found: Found, entries: Iterable[Entry], yardstick: Entry, speed: bool = True) -> str:
    """Rows in the given order. speed: whether the item measures it."""
    rows = list(entries)
    columns = _columns(found, yardstick, speed, any(_tests(found.runs(one)) for one in rows))
    return page.table(["stack", "feed-forward", *columns], [_row(found, one, columns) for one in rows])


Columns = dict[str, Callable[[Entry], str]]


def _columns(found: Found, yardstick: Entry, speed: bool, tested: bool) -> Columns:
    """FLOPs and state also as a share of the yardstick's."""
    runs, fact = found.runs, found.fact
    columns: Columns = {
        "parameters": lambda one: number(fact(one, "parameters"), "{:,}"),
        "loss": lambda one: page.cell(runs(one), 4),
        "seeds": lambda one: str(len(page.scores(runs(one)))),
        f"to {yardstick.label or f'`{yardstick.name}`'}": lambda one: difference(runs(one), runs(yardstick)),
        "bits per byte": lambda one: page.spread(page.scores(runs(one), "bits_per_byte"), 4),
    }
    if tested:
        columns["test, bits per byte"] = lambda one: page.spread(_tests(runs(one)), 4)
    columns["accuracy, %"] = lambda one: page.spread(page.scores(runs(one), "accuracy"), 2, 100.0)
    columns["training FLOPs"] = lambda one: share(fact(one, "flops"), fact(yardstick, "flops"), "{:.2e}")
    if speed:
        columns["training tokens/s"] = lambda one: number(found.speed(one, "tokens_per_s"), "{:,.0f}")
        columns["decode, µs a token"] = lambda one: number(found.speed(one, "decode_us"), "{:.0f}")
    columns["state"] = lambda one: share(fact(one, "state_numbers"), fact(yardstick, "state_numbers"), "{:,.0f}")
    return columns


def _row(found: Found, entry: Entry, columns: Columns) -> list[object]:
    width = found.records.get(found.key(entry), {}).get("spec", {}).get("model", {}).get("feed_forward")
    if not found.runs(entry):
        return [entry.title, width, *["failed" if "error" in found.outcome(entry) else page.NOT_RUN] * len(columns)]
    return [entry.title, width, *(column(entry) for column in columns.values())]


def _tests(runs: Iterable[Run]) -> list[float]:
    """Bits per byte on test, of the runs of texts that have one."""
    found = [(run.get("test") or {}).get("bits_per_byte") for run in runs]
    return [value for value in found if value is not None]


def difference(known: Sequence[Run], other: Sequence[Run]) -> str:
    """Of the means over the seeds that both have."""
    ours, theirs = ({run["seed"]: run["score"] for run in side if run.get("score") is not None} for side in (known, other))
    common = sorted(set(ours) & set(theirs))
    return f"{statistics.fmean(ours[seed] - theirs[seed] for seed in common):+.4f}" if common else page.NOT_RUN


def number(value: float | None, shape: str) -> str:
    return page.NOT_RUN if value is None else shape.format(value)


def share(value: float | None, whole: float | None, shape: str) -> str:
    return number(value, shape) + (f" ({value / whole:.2f})" if value is not None and whole else "")


def arms(found: Found, entries: Sequence[Entry], yardstick: Entry, speed: bool = True) -> str:
    """A table for each arm; the yardstick leads both."""
    parts = []
    for arm in ARMS:
        rows = [one for one in entries if one.arm == arm and one != yardstick]
        if rows:
            parts.append(f"**{_title(arm, yardstick)}**\n\n{table(found, [yardstick, *rows], yardstick, speed)}")
    return "\n\n".join(parts)


def _title(arm: Arm, yardstick: Entry) -> str:
    if arm == "parameters":
        return f"Equal parameters: the feed-forward width makes up for what a mixer has less than `{yardstick.name}`"
    return f"Equal feed-forward: the width of `{yardstick.name}`, whatever parameters that saves"


READING = (
    "loss: nats a token on all of valid after the last step, mean (standard deviation) over seeds",
    "a seed has the same order of windows in every row",
    "training FLOPs: matrix products, forward and backward, without masked scores",
    "decode: one sequence, near the end of the context",
    "state: how many numbers are kept to decode there",
    "in brackets: the share of `{}`'s",
)


def legend(found: Found, entries: Sequence[Entry]) -> str:
    """What was done, from the first job that has been. The first entry is the yardstick."""
    done = next((found.records[found.key(one)] for one in entries if found.runs(one)), None)
    if done is None:
        return ""
    spec, outcome = done["spec"], done["outcome"]
    model, sizes = spec["model"], outcome["split_tokens"]
    read = outcome["tokens"] / sizes["train"]
    rows = [
        ["text", f"{spec['text']} ({outcome['tokenizer']})"],
        ["tokens", f"{sizes['train']:,} to train on, {sizes['valid']:,} to validate"],
        ["model", f"context {model['max_len']}, width {model['dim']}"],
        ["training", f"{outcome['steps']:,} steps of {spec['batch']} windows, {read:.1f} times the text"],
        ["optimizer", f"AdamW at {spec['members'][0]['lr']:g} after {spec['warmup']} steps, then a cosine to 0"],
        ["regularisation", "no weight decay, no dropout"],
        ["machine", (done.get("machine") or {}).get("gpu") or "a CPU"],
    ]
    beside = (found.records.get("speed", {}).get("measured") or {}).get("workers", 1)
    alone = [] if beside == 1 else [f"speeds were measured beside {beside - 1} other jobs"]
    reading = [line.format(entries[0].name) for line in READING]
    return f"{page.table(['setting', 'value'], rows)}\n\n{page.listed('How to read the tables:', [*reading, *alone])}"


# --- claims --------------------------------------------------------------------------------------------------------------------


def beats(found: Found, better: Entry, worse: Entry, margin: float = 0.0, says: str | None = None) -> Claim:
    """margin: a share of the other's loss that it may stay behind."""
    allowed = margin * (found.mean(worse) or 0.0)
    where = "" if better.arm == "parameters" else ", equal feed-forward"
    told = says or f"{better.label or f'`{better.name}`'}{where} has a lower loss than {worse.label or f'`{worse.name}`'}"
    return Claim(told, found.runs(better), found.runs(worse), higher=False, margin=allowed)


def some(verdicts: Sequence[Verdict]) -> str:
    """Of a claim that something can be: one case is enough."""
    words = [one.word for one in verdicts if one.word != "not run"]
    if not words:
        return "Not run"
    return "Yes" if "holds" in words else "No" if set(words) == {"does not hold"} else "Unclear"


def every(verdicts: Sequence[Verdict]) -> str:
    """Of a claim about all of these."""
    words = {one.word for one in verdicts if one.word != "not run"}
    if not words:
        return "Not run"
    if len(words) == 1:
        return {"holds": "Yes", "does not hold": "No"}.get(min(words), "Unclear")
    return "In part" if "holds" in words else "Unclear"


def claim(title: str, word: str, sentence: str, verdicts: Sequence[Verdict]) -> str:
    shown = "" if word == "Not run" else "\n\n" + page.verdict_table(verdicts, digits=4)
    return f"**{title}: {word.lower()}.** {sentence}".rstrip() + shown


def names(entries: Iterable[Entry]) -> str:
    return ", ".join(f"`{one.name}`" for one in entries)


def front(found: Found, entries: Iterable[Entry], name: str, measured: bool) -> list[Entry]:
    """From cheap to dear, those that nothing cheaper beats. measured: a speed and not a count."""
    cost = found.speed if measured else found.fact
    points = [(x, y, one) for one in entries if (x := cost(one, name)) is not None and (y := found.mean(one)) is not None]
    return pareto.front(points, higher=False)


# --- figures -------------------------------------------------------------------------------------------------------------------


def against(path: Path, found: Found, groups: Mapping[str, Sequence[Entry]], title: str) -> Path | None:
    """Loss against training FLOPs, training time, decoding time and state; None where nothing has been run. A stack that mixes no tokens
    is left to the table: beside it all others would look the same."""
    axes = {
        "training FLOPs": ("flops", False), "training, µs a token": ("us_per_token", True),
        "decoding, µs a token": ("decode_us", True), "state, numbers": ("state_numbers", False),
    }  # fmt: skip
    mixing = {group: [one for one in entries if "identity" not in one.stack] for group, entries in groups.items()}
    panels = [panel for name, (cost, measured) in axes.items() if (panel := _panel(name, found, mixing, cost, measured)).curves]
    return draw.panels(path, panels, title, columns=2, colours=list(groups)) if panels else None


def _panel(name: str, found: Found, groups: Mapping[str, Sequence[Entry]], cost: str, measured: bool) -> draw.Panel:
    """Those that nothing cheaper beats are called by name, where the legend does not already name every point."""
    read = found.speed if measured else found.fact
    curves = []
    for group, entries in groups.items():
        there = [(x, y) for one in entries if (x := read(one, cost)) and (y := found.mean(one)) is not None]
        if there:
            curves.append(draw.Curve(group, [x for x, _ in there], [y for _, y in there], line=False))
    told = all(len(entries) < 2 for entries in groups.values())
    kept = [] if told else front(found, [one for entries in groups.values() for one in entries], cost, measured)
    called = [(read(one, cost), found.mean(one), one.name if one.arm == "parameters" else f"{one.name}, {ARMS[one.arm]}") for one in kept]
    return draw.Panel(curves, name, "validation loss, nats a token", log_x=True, called=called)  # type: ignore[arg-type]
