"""The curves of a page in the form that its script draws: a chart has views, a view has axes and series.

{"dims": ["figure", "against"], "views": [{"keys": ["loss", "steps"], "x": axis, "y": axis, "series": [...]}]}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokmix.pages.report.read import Found, Group, Run, number, part, product, rows, thin
from tokmix.runs.files import JsonObject
from tokmix.show import pareto

Chart = dict[str, object]
CURVES = 40  # of a chart
BEST_TRIALS = 10  # whose learning curves are shown
AGAINST = (("step", "steps"), ("tokens", "tokens"), ("seconds", "seconds"))
COSTS = {
    "FLOPs of training": lambda cost: product(cost.get("flops_training"), cost.get("examples"), cost.get("trials", 1)),
    "seconds": lambda cost: number(cost.get("seconds")),
    "joules": lambda cost: number(cost.get("energy_joules")),
    "FLOPs of an example": lambda cost: number(cost.get("flops_forward")),
    "parameters": lambda cost: number(cost.get("parameters")),
}


class Colours:
    """One colour per name, the same in every chart."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known))


def view(keys: Sequence[str], x: str, y: str, series: list[JsonObject], log_x: bool = False) -> JsonObject:
    return {"keys": list(keys), "x": {"label": x, "log": log_x}, "y": {"label": y, "log": False}, "series": series}


def chart(dims: Sequence[str], views: Iterable[JsonObject]) -> Chart | None:
    """None if no view has a point."""
    filled = [one for one in views if any(series["x"] for series in one["series"])]
    return {"dims": list(dims), "views": filled} if filled else None


# --- learning curves ---------------------------------------------------------------------------------------------------------


def chosen_runs(found: Found) -> tuple[list[tuple[str, str, Run]], list[str]]:
    """(label, name for the colour, run) of the learning curves shown, and notes on those left out."""
    shown = [(run.name, run.name, run) for run in found.runs if run.log]
    notes = []
    for group in found.compares:
        most = max((number(run.get("fraction")) or 0 for run in rows(group.record, "runs")), default=0)
        inner = []
        for run in rows(group.record, "runs"):
            known = group.runs.get(str(run.get("folder")))
            if known is not None and known.log and number(run.get("fraction")) == most:
                inner.append((f"{run.get('entry')}, seed {run.get('seed')}", str(run.get("entry")), known))
        shown += inner
        if inner and len(inner) < len(group.runs):
            notes.append(f"{group.name}: only runs on {most * 100:g} % of the training data are drawn.")
    for group in found.tunes:
        best = _best(group)[:BEST_TRIALS]
        for trial in best:
            own, label = group.runs.get(f"trials/{trial['number']:04d}"), f"{group.name}, trial {trial['number']}"
            shown += [(label, label, own)] if own is not None and own.log else []
        if len(rows(group.record, "trials")) > BEST_TRIALS:
            notes.append(f"{group.name}: only the {BEST_TRIALS} best trials are drawn.")
    if len(shown) > CURVES:
        notes.append(f"{len(shown) - CURVES} more runs are left out of this chart.")
    return shown[:CURVES], notes


def _best(group: Group) -> list[JsonObject]:
    """Trials, best first; diverged ones last, because their score is only the chance level."""
    sign = -1 if group.record.get("higher_is_better", True) else 1
    known = [
        trial for trial in rows(group.record, "trials") if number(trial.get("score")) is not None and isinstance(trial.get("number"), int)
    ]
    return sorted(known, key=lambda trial: (trial.get("state") == "diverged", sign * trial["score"]))


def learning(shown: list[tuple[str, str, Run]], colours: Colours) -> Chart | None:
    held = [name for _, _, run in shown for entry in run.log for name in part(entry, "held")]
    known = [name for name in dict.fromkeys(held) if name not in ("rows", "tokens", "majority")]
    first = [f"{name}, held out" for name in ("accuracy", "micro_f1", "pearson", "bits_per_byte", "loss") if name in known]
    order = list(dict.fromkeys([*first, "loss, training", *(f"{name}, held out" for name in known)]))
    views = []
    for figure in order:
        for key, against in AGAINST:
            series = [{"name": owner, "title": label, "colour": colours(owner), **_curve(run, figure, key)} for label, owner, run in shown]
            views.append(view((figure, against), against, figure, [one for one in series if one["x"]]))
    return chart(("figure", "against"), views)


def _curve(run: Run, figure: str, key: str) -> JsonObject:
    name, _, where = figure.rpartition(", ")
    points, last = [], 0.0
    for entry in run.log:
        last = number(entry.get(key)) or last  # an evaluation is logged without tokens and seconds: those of the step before it
        value = number(entry.get("loss")) if where == "training" else number(part(entry, "held").get(name))
        if value is not None:
            points.append((last, value))
    points = thin(points)
    return {"x": [x for x, _ in points], "y": [y for _, y in points]}


# --- tuning ------------------------------------------------------------------------------------------------------------------


def evp(tunes: Sequence[Group], colours: Colours) -> Chart | None:
    """Expected best score of n trials with its deviation, against n and against the cost of n trials."""
    views = []
    for how in ("without_replacement", "with_replacement"):
        for against in ("trials", "FLOPs of training", "seconds"):
            series = [one for group in tunes if (one := _expected(group, how, against, colours))]
            metric = ", ".join(dict.fromkeys(str(group.record.get("metric", "score")) for group in tunes))
            views.append(view((how.replace("_", " "), against), against, f"expected best {metric}", series, log_x=against != "trials"))
    return chart(("drawn", "against"), views)


def _expected(group: Group, how: str, against: str, colours: Colours) -> JsonObject | None:
    known = part(part(group.record, "evp"), how)
    means, spreads = known.get("mean") or [], known.get("deviation") or []
    unit: float | None = 1.0
    if against != "trials":
        costs = [cost for trial in rows(group.record, "trials") if (cost := _trial_cost(trial, against)) is not None]
        unit = sum(costs) / len(costs) if costs else None
    if unit is None:
        return None
    points = thin(
        [
            (unit * n, mean, number(dev) or 0.0)
            for n, (mean, dev) in enumerate(zip(means, spreads, strict=False), 1)
            if number(mean) is not None
        ]
    )
    return {
        "name": group.name, "colour": colours(group.name), "x": [p[0] for p in points], "y": [p[1] for p in points],
        "low": [p[1] - p[2] for p in points], "high": [p[1] + p[2] for p in points],
    }  # fmt: skip


def _trial_cost(trial: JsonObject, against: str) -> float | None:
    cost = {"seconds": trial.get("seconds"), **part(trial, "cost"), "trials": 1}
    return COSTS[against](cost)


def trials(group: Group, colours: Colours) -> Chart | None:
    """Score against each parameter that was searched; a diverged trial is one of them."""
    known = rows(group.record, "trials")
    names = list(dict.fromkeys(name for trial in known for name in part(trial, "parameters")))
    metric = str(group.record.get("metric", "score"))
    views = []
    for name in names:
        series = []
        for state in ("finished", "diverged"):
            points = [
                (x, y, f"trial {trial.get('number')}")
                for trial in known
                if trial.get("state") == state
                and (x := number(part(trial, "parameters").get(name))) is not None
                and (y := number(trial.get("score"))) is not None
            ]
            if points:
                series.append(scatter(state, colours(group.name) if state == "finished" else colours("diverged"), points))
        values = [x for one in series for x in one["x"]]
        wide = bool(values) and min(values) > 0 and max(values) / min(values) > 50
        views.append(view((name,), name, metric, series, log_x=wide))
    return chart(("parameter",), views)


def scatter(name: str, colour: int, points: Sequence[tuple[float, float, str]], **more: object) -> JsonObject:
    x, y, labels = ([point[i] for point in points] for i in range(3))
    return {"name": name, "colour": colour, "style": "points", "x": x, "y": y, "labels": labels, **more}


# --- comparisons -------------------------------------------------------------------------------------------------------------


def low_resource(group: Group, colours: Colours) -> Chart | None:
    """Score against the share of the training data; None if there is only one share."""
    table = rows(group.record, "table")
    if len({row.get("fraction") for row in table}) < 2:
        return None
    series = []
    for entry in dict.fromkeys(str(row.get("entry")) for row in table):
        points = sorted(
            (fraction, mean, number(row.get("deviation")) or 0.0)
            for row in table
            if str(row.get("entry")) == entry
            and (fraction := number(row.get("fraction"))) is not None
            and (mean := number(row.get("mean"))) is not None
        )
        x, y, spread = ([point[i] for point in points] for i in range(3))
        band = {
            "low": [mean - one for mean, one in zip(y, spread, strict=True)],
            "high": [mean + one for mean, one in zip(y, spread, strict=True)],
        }
        series.append({"name": entry, "colour": colours(entry), "marks": True, "x": x, "y": y, **band})
    return chart((), [view((), "share of the training data", str(group.record.get("metric", "score")), series, log_x=True)])


def frontier(group: Group, colours: Colours) -> Chart | None:
    """Mean score against mean cost of every entry and fraction."""
    points: list[tuple[str, str, float, JsonObject]] = []
    sizes = {str(entry.get("name")): entry.get("parameters") for entry in rows(group.record, "entries")}
    for row in rows(group.record, "table"):
        entry, fraction, mean = str(row.get("entry")), row.get("fraction"), number(row.get("mean"))
        if mean is None:
            continue
        own = [
            part(run, "cost") for run in rows(group.record, "runs") if str(run.get("entry")) == entry and run.get("fraction") == fraction
        ]
        label = f"{entry}, {(number(fraction) or 0) * 100:g} % of train"
        points.append(
            (entry, label, mean, _mean_cost(own) or {"parameters": sizes.get(entry), "seconds": part(row, "cost").get("seconds")})
        )
    return frontier_of(points, str(group.record.get("metric", "score")), bool(group.record.get("higher_is_better", True)), colours)


def _mean_cost(costs: Sequence[JsonObject]) -> JsonObject:
    costs = [cost for cost in costs if cost]
    found: JsonObject = {}
    for name in ("flops_training", "examples", "seconds", "energy_joules", "flops_forward", "parameters"):
        known = [value for cost in costs if (value := number(cost.get(name))) is not None]
        if known and len(known) == len(costs):
            found[name] = sum(known) / len(known)
    return found


def frontier_of(points: Sequence[tuple[str, str, float, JsonObject]], metric: str, higher: bool, colours: Colours) -> Chart | None:
    """points: (name for the colour, label, score, cost). Each view has the Pareto front of what has that cost."""
    views = []
    for against, cost_of in COSTS.items():
        known = [(x, score, label, owner) for owner, label, score, cost in points if (x := cost_of(cost)) is not None and x > 0]
        if not known:
            continue
        series = [
            scatter(owner, colours(owner), [(x, y, label) for x, y, label, whose in known if whose == owner])
            for owner in dict.fromkeys(owner for _, _, _, owner in known)
        ]
        best = front([(x, y) for x, y, _, _ in known], higher)
        series.append({"name": "Pareto front", "style": "front", "x": [x for x, _ in best], "y": [y for _, y in best]})
        lost = [label for owner, label, _, cost in points if cost_of(cost) is None]
        views.append(view((against,), against, metric, series, log_x=True) | {"note": _without(lost)})
    return chart(("cost",), views)


def _without(labels: Sequence[str]) -> str:
    """A note on points without this cost, which are not drawn."""
    if not labels:
        return ""
    more = f" and {len(labels) - 6} more" if len(labels) > 6 else ""
    return f"Not drawn, because not measured: {'; '.join(labels[:6])}{more}."


def front(points: Iterable[tuple[float, float]], higher: bool) -> list[tuple[float, float]]:
    """The Pareto front of (cost, score), by cost."""
    return pareto.front(((x, y, (x, y)) for x, y in points), higher)
