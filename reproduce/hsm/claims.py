"""What the rows say about the paper's three claims. Each is judged by itself: paired t over seeds, Holm-corrected within the claim."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

from reproduce import page
from reproduce.claims import Claim, Run, common_means, judge
from reproduce.hsm.stacks import SIMPLE, VARIANTS, Ladder
from reproduce.lm_plan import Entry, rates_key
from reproduce.lm_table import Found, beats, claim, every, names, some

CLOSE, AMONG_BEST = 0.05, 0.01  # shares of a loss
GIVEN = "equal parameters"  # what a mixer saves is given to the feed-forward


def losses(found: Found, entry: Entry) -> list[float]:
    return page.scores(found.runs(entry))


def all_claims(found: Found, ladder: Ladder, keys: Collection[str]) -> str:
    parts = [_simple(found, ladder), _among_best(found, ladder, keys), _hybrids(found, ladder, keys)]
    return "\n\n".join(part for part in parts if part)


def _simple(found: Found, ladder: Ladder) -> str:
    """Close: within 5 % of attention's loss. Beside it, how much of what attention gains over no mixing is reached."""
    rows = [ladder.pure[name] for name in SIMPLE]
    told = f"is at most {CLOSE:.0%} behind `{ladder.attention.name}`"
    verdicts = judge([beats(found, one, ladder.attention, CLOSE, f"`{one.name}` {told}") for one in rows])
    top, bottom = found.mean(ladder.attention), found.mean(ladder.none)
    reached = []
    for one in rows:
        mean = found.mean(one)
        if mean is not None and top is not None and bottom is not None and bottom > top:
            reached.append(f"`{one.name}` {(bottom - mean) / (bottom - top):.0%}")
    told = f"Of what `{ladder.attention.name}` gains over no token mixing they reach: {', '.join(reached)}." if reached else ""
    return claim("Simple variants come close to attention", every(verdicts), told, verdicts)


def _among_best(found: Found, ladder: Ladder, keys: Collection[str]) -> str:
    """(a,b) against the best pure variant: with the saved parameters in the feed-forward, and without."""
    parts: list[list[object]] = []
    asked: dict[str, Claim] = {}
    for where, rows in ((GIVEN, ladder.pure), ("equal feed-forward", ladder.narrow)):
        known = {name: found.runs(rows[name]) for name in VARIANTS if rows[name].key in keys}
        means = common_means({name: runs for name, runs in known.items() if page.scores(runs)})
        if len(means) < 2 or "ab" not in means:
            continue
        order = sorted(means, key=lambda name: means[name])
        best = next(name for name in order if name != "ab")
        parts.append([where, f"{order.index('ab') + 1} of {len(order)}", ", ".join(order)])
        says = f"with {where}, `{rows['ab'].name}` is at most {AMONG_BEST:.0%} behind the best other variant, `{rows[best].name}`"
        asked[where] = beats(found, rows["ab"], rows[best], AMONG_BEST, says)
    verdicts = judge(list(asked.values()))
    sentence = f"By loss:\n\n{page.table(['with', 'place of (a,b)', 'from the best to the worst'], parts)}" if parts else ""
    # The claim is about the first alone: where that is not run, the other arm does not stand for it.
    word = some([one for where, one in zip(asked, verdicts, strict=True) if where == GIVEN])
    return claim("(a,b) is among the best when the feed-forward gets the parameters", word, sentence, verdicts)


def _hybrids(found: Found, ladder: Ladder, keys: Collection[str]) -> str:
    """Lower cost: fewer training FLOPs and a smaller state."""
    rows = [ladder.places[ladder.middle], ladder.ends, *ladder.alternating.values(), *ladder.narrow_hybrids]
    pairs = [(one, ladder.attention) for one in rows if one.key in keys]
    pairs += [(ladder.alternating_rotary, ladder.rotary)] if ladder.alternating_rotary.key in keys else []
    verdicts = judge([beats(found, one, other) for one, other in pairs])
    won = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict.word == "holds" and _cheaper(found, *pair)]
    better = page.table(["stack", "yardstick", "training FLOPs", "state"], [_how_much(found, one, other) for one, other in won])
    word = some(verdicts)
    if word == "Yes" and not won:
        word = "Unclear"  # better, but not at lower cost
    cheaper = f"Better and cheaper than the yardstick, by these shares of its cost:\n\n{better}" if won else ""
    said = "\n\n".join(part for part in (_best_place(found, ladder), cheaper) if part)
    return claim("Hybrids beat all attention at lower cost", word, said, verdicts)


def _cheaper(found: Found, entry: Entry, other: Entry) -> bool:
    costs = [(found.fact(entry, name), found.fact(other, name)) for name in ("flops", "state_numbers")]
    return all(ours is not None and theirs is not None and ours < theirs for ours, theirs in costs)


def _how_much(found: Found, entry: Entry, other: Entry) -> list[object]:
    flops, state = ((found.fact(entry, name) or 0) / (found.fact(other, name) or 1) for name in ("flops", "state_numbers"))
    narrow = "" if entry.arm == "parameters" else ", equal feed-forward"
    return [f"`{entry.name}`{narrow}", f"`{other.name}`", f"{flops:.0%}", f"{state:.0%}"]


def _best_place(found: Found, ladder: Ladder) -> str:
    means = common_means({place: found.runs(one) for place, one in enumerate(ladder.places)})
    if not means:  # a place has no runs yet
        return ""
    best, worst = min(means, key=lambda place: means[place]), max(means, key=lambda place: means[place])
    told = (
        f"One attention layer is best as layer {best + 1} ({means[best]:.4f}).",
        f"It is worst as layer {worst + 1} ({means[worst]:.4f}).",
    )
    return page.listed("The place matters:", told)


def rated(ladder: Ladder) -> list[Entry]:
    """What is run at other rates, too: both sides of the claims below."""
    return list(dict.fromkeys(one for pair in [*_lower(ladder), *_close(ladder)] for one in pair))


def _lower(ladder: Ladder) -> list[tuple[Entry, Entry]]:
    """Hybrids, each with the attention that it should beat."""
    hybrids = (ladder.alternating["ab"], ladder.places[ladder.middle])
    return [*((one, ladder.attention) for one in hybrids), (ladder.alternating_rotary, ladder.rotary)]


def _close(ladder: Ladder) -> list[tuple[Entry, Entry]]:
    """Shift mixing alone, with what it should come close to."""
    return [(ladder.pure[name], ladder.attention) for name in ("ab", "gate")]


def rates_table(found: Found, ladder: Ladder, lr: float, others: Sequence[float]) -> str:
    """Whether the shared learning rate decides: the same rows at other rates, and what the claims say where each has its best one."""
    rates = sorted([lr, *others])
    at = {entry: _by_rate(found, entry, rates) for entry in rated(ladder)}
    rows = [[f"`{entry.name}`", *(page.cell(at[entry][rate], 4) for rate in rates)] for entry in at]
    shown = page.table(["stack", *(f"lr {rate:g}" for rate in rates)], rows)
    best = {entry: rate for entry in at if (rate := _best_rate(at[entry])) is not None}
    if len(best) < len(at):
        return f"**Other learning rates**\n\n{shown}"
    runs = {entry: at[entry][rate] for entry, rate in best.items()}
    border = [entry for entry in best if best[entry] in (rates[0], rates[-1])]
    more = f" For {names(border)} it lies at the border of those tried: a better one may lie beyond." if border else ""
    chosen = "each stack at the rate with its lowest loss, which is the loss that is compared"
    verdicts = page.verdict_table(judge(_at_best(ladder, runs)), digits=4)
    return f"**Other learning rates.** The claims again, {chosen}.{more}\n\n{shown}\n\n{verdicts}"


def _by_rate(found: Found, entry: Entry, rates: Sequence[float]) -> dict[float, list[Run]]:
    runs = [*found.runs(entry), *found.runs(entry, rates_key(entry))]
    return {rate: [run for run in runs if run["lr"] == rate] for rate in rates}


def _best_rate(runs: Mapping[float, Sequence[Run]]) -> float | None:
    """None where a rate is not run yet."""
    means = common_means(runs)
    return min(means, key=lambda rate: means[rate]) if means else None


def _at_best(ladder: Ladder, runs: Mapping[Entry, Sequence[Run]]) -> list[Claim]:
    found = [
        Claim(f"`{one.name}` has a lower loss than `{other.name}`", runs[one], runs[other], higher=False) for one, other in _lower(ladder)
    ]
    for one, other in _close(ladder):
        told, allowed = f"`{one.name}` is at most {CLOSE:.0%} behind `{other.name}`", CLOSE * statistics.fmean(page.scores(runs[other]))
        found.append(Claim(told, runs[one], runs[other], higher=False, margin=allowed))
    return found
