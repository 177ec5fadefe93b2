"""Results as Markdown: cells, tables, claims. What an item's `tables` is made of."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reproduce.claims import Claim, Run, Verdict, by_seed, judge
from reproduce.item import Item

NOT_RUN = "not run"
WORDS = ("holds", "does not hold", "unclear", NOT_RUN)  # of a verdict


def runs(outcome: Mapping[str, Any] | None) -> list[Run]:
    """Of one job; none where it is not done, or failed."""
    return list((outcome or {}).get("runs") or [])


def scores(of: Iterable[Run], name: str = "score") -> list[float]:
    """By seed, of the runs that have one."""
    found = by_seed(list(of), name)
    return [float(found[seed][name]) for seed in sorted(found)]


def spread(values: Sequence[float], digits: int = 1, scale: float = 1.0) -> str:
    """'82.1 (0.3)', the mean and the standard deviation over seeds; '82.1' of one value; 'not run' of none. scale=100 for percents."""
    if not values:
        return NOT_RUN
    mean = f"{scale * statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ({scale * statistics.stdev(values):.{digits}f})"


def cell(of: Iterable[Run], digits: int = 1, scale: float = 1.0, name: str = "score") -> str:
    """`spread` of some runs' scores; says so where runs diverged (they count) or have no score (they cannot)."""
    known = list(of)
    values = scores(known, name)
    if not values:
        return "failed" if known else NOT_RUN
    diverged = sum(run.get("state") == "diverged" for run in known)
    notes = [f"{len(values)} of {len(known)}"] * (len(values) < len(known)) + [f"{diverged} diverged"] * (diverged > 0)
    return ", ".join([spread(values, digits, scale), *notes])


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown; None reads 'not run', and a '|' in a cell does not end it."""
    lines = [list(map(_escape, head)), ["---"] * len(head)]
    for row in rows:
        assert len(row) == len(head), (head, row)
        lines.append([_escape(NOT_RUN if value is None else str(value)) for value in row])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").strip()


def listed(intro: str, items: Iterable[str]) -> str:
    """A sentence and what it is about, one thing a line: sentences that list numbers are hard to read."""
    return "\n".join([f"{intro}\n", *(f"- {item}" for item in items)])


def claims_table(claims: Sequence[Claim], scale: float = 1.0, digits: int = 1) -> str:
    """Each claim with its verdict; scale and digits are those of the difference."""
    return verdict_table(judge(claims), scale, digits)


def verdict_table(verdicts: Sequence[Verdict], scale: float = 1.0, digits: int = 1) -> str:
    rows = []
    for one in verdicts:
        rows.append([
            one.says, f"**{one.word}**", effect(one, scale, digits), str(one.seeds) if one.seeds else "", p(one.t), p(one.examples)
        ])  # fmt: skip
    heads = ["claim", "verdict", "ahead by [95 %]", "seeds", "p over seeds", "p over examples"]
    if all(one.examples is None for one in verdicts):  # what no run recorded needs no column
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return table(heads, rows)


def effect(one: Verdict, scale: float = 1.0, digits: int = 1) -> str:
    """'+0.6 [-0.2, +1.4]', the difference and its 95 % interval."""
    if one.difference is None:
        return ""
    bounds = "" if one.interval is None else " [{}, {}]".format(*(f"{scale * value:+.{digits}f}" for value in one.interval))
    return f"{scale * one.difference:+.{digits}f}{bounds}"


def tally(counts: Mapping[str, int]) -> str:
    """'17 hold, 3 do not, 10 are unclear'"""
    verbs = {"holds": ("holds", "hold"), "does not hold": ("does not", "do not"), "unclear": ("is unclear", "are unclear")}
    verbs[NOT_RUN] = ("is not run", "are not run")
    return ", ".join(f"{counts[word]} {verbs[word][counts[word] != 1]}" for word in WORDS if counts.get(word))


def count_verdicts(text: str) -> Counter[str]:
    """How often each verdict is given in a text: they stand there in bold."""
    return Counter(word for word in re.findall(r"\*\*([a-z ]+)\*\*", text) if word in WORDS)


def p(value: float | None) -> str:
    return "" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def command(item: Item) -> str:
    return f"tokmix papers {item.paper} {item.name}"
