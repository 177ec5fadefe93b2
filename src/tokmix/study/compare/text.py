"""compare.json as lines for a terminal."""

from __future__ import annotations

from tokmix.show.text import aligned
from tokmix.study.compare.records import P_VALUES, Comparison, CostPart, MeanCost, Row

SPOKEN: dict[CostPart, str] = {"flops": "FLOPs", "seconds": "time", "energy_joules": "joules"}


def lines(found: Comparison) -> list[str]:
    return ["", *_scores(found), *_failures(found), "", *_tests(found), "", *_fronts(found)]


def _scores(found: Comparison) -> list[str]:
    better = "higher" if found["higher_is_better"] else "lower"
    seeds = len(found["seeds"])
    head = [
        "",
        "parameters",
        *(_percent(fraction) for fraction in found["fractions"]),
        "FLOPs/example",
        "FLOPs in all",
        "seconds",
        "joules",
    ]
    rows = [head]
    digits = 4 if all(abs(row["mean"] or 0) < 10 for row in found["table"]) else 2
    for entry in found["entries"]:
        cells = {row["fraction"]: row for row in found["table"] if row["entry"] == entry["name"]}
        last = cells[found["fractions"][-1]]
        parameters = f"{entry['parameters']:,}" if entry["parameters"] is not None else "-"
        rows.append(
            [entry["name"], parameters, *(_score(cells[fraction], digits) for fraction in found["fractions"]), *_costs(last["cost"])]
        )
    over = f"mean and deviation of {seeds} seed{'s' * (seeds != 1)}"
    title = f"{found['metric']} on {found['split']} ({better} is better), {over}, by the share of train"
    notes = {row["note"] for row in found["table"] if row["note"] and row["note"].startswith("not available")}
    costs = f"costs: of one run on {_percent(found['fractions'][-1])} of train"
    return [
        title,
        *aligned(rows, left=(0,)),
        costs,
        *(f"{note}" for note in found["notes"]),
        *(f"bag of words {note}" for note in sorted(notes)),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _score(row: Row, digits: int) -> str:
    if row["mean"] is None:
        return "not available" if (row["note"] or "").startswith("not available") else "failed"
    shown = f"{row['mean']:.{digits}f}"
    if row["deviation"] is not None:
        shown += f" ± {row['deviation']:.{digits}f}"
    return shown + (f" (of {row['n']})" if row["failed"] else "")


def _costs(cost: MeanCost) -> list[str]:
    each, whole, seconds, joules = cost["flops_training"], cost["flops"], cost["seconds"], cost["energy_joules"]
    return [
        "not counted" if each is None else f"{each:.3g}",
        "not counted" if whole is None else f"{whole:.3g}",
        "-" if seconds is None else f"{seconds:.1f}",
        "not measured" if joules is None else f"{joules:.0f}",
    ]


def _failures(found: Comparison) -> list[str]:
    failed = [run for run in found["runs"] if run["state"] == "failed"]
    return [f"failed: {run['entry']}, {_percent(run['fraction'])}, seed {run['seed']}: {run['error']}" for run in failed]


def _tests(found: Comparison) -> list[str]:
    if not found["tests"]:
        return ["no pair to test"]
    rows = [["pair", "share", "difference", "t over seeds", "Holm", "bootstrap", "Holm", "with seeds", "Holm"]]
    for test in found["tests"]:
        values = [_p(test[name]) for pair in P_VALUES for name in pair]
        rows.append([f"{test['a']} - {test['b']}", _percent(test["fraction"]), f"{test['difference']:+.4g}", *values])
    examples = f"{found['tests'][0]['n_examples']:,} examples"
    shown = f"p-values, paired: t-test over seeds; bootstrap over {examples}, and over seeds and examples; Holm's correction by column"
    return [shown, *aligned(rows, left=(0,))]


def _p(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}" if value >= 0.001 else f"{value:.0e}"


def _fronts(found: Comparison) -> list[str]:
    shown = []
    for part, points in found["front"].items():
        named = [f"{point['entry']} ({_percent(point['fraction'])})" if len(found["fractions"]) > 1 else point["entry"] for point in points]
        shown.append(f"not beaten at its {SPOKEN[part]}: {', '.join(named) if named else 'not measured'}")
    return shown
