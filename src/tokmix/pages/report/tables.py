"""The tables of a page: results, costs, tests and commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tokmix.data.prepare.settings import PrepareSettings
from tokmix.pages.report import html
from tokmix.pages.report.html import Cell
from tokmix.pages.report.read import Found, Group, Run, made_of, number, part, product, rows
from tokmix.runs.files import JsonObject
from tokmix.study.tune.store import hide_password
from tokmix.training.evaluate import mistakes
from tokmix.training.mixture import BAG, BOTH
from tokmix.training.settings import Settings
from tokmix.training.task import main_figure

TRIALS = 20  # shown directly; the rest in a folded part
SURE = 0.05


def result(run: Run) -> tuple[str, float | None, bool]:
    """(name, value, higher is better) of a run's main figure."""
    figures = part(run.record, "figures")
    name, sign = main_figure(str((run.record or {}).get("task")), figures)
    return name, number(figures.get(name)), sign > 0


def verdict(runs: Sequence[Run]) -> str:
    """The first sentence of the page: the best run, and whether it beats the simplest model on the same rows."""
    known = [(run, *result(run)) for run in runs if run.record is not None]
    scored = [(run, name, value, higher) for run, name, value, higher in known if value is not None]
    if not scored:
        return ""
    _, name, _, higher = scored[0]
    alike = [one for one in scored if one[1] == name]
    run, _, value, _ = max(alike, key=lambda one: one[2] if higher else -one[2])
    of = f"the best of {len(alike)} runs, " if len(alike) > 1 else ""
    stack, split = part(run.record, "model").get("stack"), (run.record or {}).get("split")
    by = part(run.record, "answers").get("by")
    who = f"the bag of words beside {stack}" if by == BAG else f"{stack} and a bag of words" if by == BOTH else stack
    opening = f"{run.name} ({of}{who}) reaches {name} {figure(value)} on {split}"
    simple = baseline(run)
    if simple is None:
        return f"{opening}."
    better = value > simple if higher else value < simple
    close = "ahead of" if better else "level with" if value == simple else "behind"
    return f"{opening}, {close} the simplest model on the same rows, which reaches {figure(simple)}."


def baseline(run: Run) -> float | None:
    """The same figure for the bag of words or n-gram model that was fitted on the same rows."""
    return number(part(run.record, "baseline").get(result(run)[0]))


def results(runs: Sequence[Run]) -> str:
    lines: list[list[object]] = []
    for run in runs:
        if run.record is None:
            lines.append([run.name, Cell(run.note), None, None])
            continue
        name, value, _ = result(run)
        simple = baseline(run)
        shown = (
            Cell(f"{name} {figure(value)}{interval(run, name)}", value, strong=True) if value is not None else Cell("nothing to report on")
        )
        lines.append([run.name, shown, None if simple is None else Cell(figure(simple), simple), seconds(run.cost)])
    return html.table(["run", "score", "baseline", "time"], lines)


def interval(run: Run, name: str) -> str:
    """The 95 % interval of a figure, where the record has one."""
    ends = part(part(run.record, "figures"), "intervals").get(name)
    return f" [{figure(ends[0])}, {figure(ends[1])}]" if isinstance(ends, list) and len(ends) == 2 else ""


def classes(runs: Sequence[Run]) -> str:
    """Of each run its commonest mistakes, and in a folded part every class."""
    parts = []
    for run in runs:
        figures = part(run.record, "figures")
        names, counts, lines = figures.get("labels"), figures.get("confusion"), list[list[object]]()
        for label in part(figures, "classes"):
            values = [number(part(figures["classes"], label).get(name)) for name in ("precision", "recall", "f1", "rows")]
            lines.append([label, *(None if one is None else Cell(figure(one), one) for one in values[:3]), values[3]])
        if not lines:
            continue
        wrong = mistakes(names, counts) if isinstance(names, list) and isinstance(counts, list) else []
        parts += [html.paragraph(run.name)] if len(runs) > 1 else []
        parts.append(html.table(["true class", "taken for", "rows"], [[true, said, count] for count, true, said in wrong]))
        parts.append(html.details(f"All {len(lines):,} classes", html.table(["class", "precision", "recall", "F1", "rows"], lines)))
    return "".join(parts)


def settings(runs: Sequence[Run]) -> str:
    """Models, data and settings."""
    lines = []
    for run in runs:
        if run.record is not None:
            read = part(part(part(run.record, "data"), "splits"), "train").get("rows")
            of = part(run.record, "model").get("stack")
            by = part(run.record, "answers").get("by")
            lines.append([run.name, of, run.record.get("task"), read, run.record.get("split"), run.cost.get("parameters"), by])
    return html.table(["run", "stack", "task", "rows of train", "scored on", "parameters", "answers by"], lines)


def costs(runs: Sequence[Run]) -> str:
    """Cost(R) = E x D x H, and in a folded part the measured values."""
    lines, measured = [], []
    for run in runs:
        cost = run.cost
        if not cost:
            continue
        each, examples, trials = cost.get("flops_training"), cost.get("examples"), cost.get("trials", 1)
        lines.append([run.name, each, examples, trials, product(each, examples, trials)])
        forward = cost.get("flops_forward", cost.get("flops"))
        measured.append([run.name, forward, cost.get("tokens"), memory(cost), energy(cost)])
    shown = html.table(
        ["run", "E: FLOPs training", "D: examples", "H: trials", "Cost(R) = E·D·H"],
        lines,
        "E is of one example, on average; a multiply-add is two FLOPs.",
    )
    return shown + html.details("Memory and energy", html.table(["run", "FLOPs forward", "tokens", "peak memory", "energy"], measured))


def seconds(cost: JsonObject) -> Cell | None:
    value = number(cost.get("seconds"))
    return None if value is None else Cell(f"{value:,.1f} s", value)


def memory(cost: JsonObject) -> Cell | None:
    value = number(cost.get("peak_memory_bytes"))
    return None if value is None else Cell(f"{value / 2**20:,.0f} MiB ({cost.get('peak_memory_of', 'process')})", value)


def energy(cost: JsonObject) -> Cell | str:
    value = number(cost.get("energy_joules"))
    return "not measured" if value is None else Cell(f"{html.short(value)} J ({cost.get('energy_source', 'unknown')})", value)


# --- comparisons -------------------------------------------------------------------------------------------------------------


def comparison(group: Group) -> list[str]:
    """Means and deviations, tests, and failed runs."""
    record = group.record
    metric, seeds = str(record.get("metric", "score")), record.get("seeds") or []
    better = "higher" if record.get("higher_is_better", True) else "lower"
    about = f"{record.get('data')}: {metric}, {better} is better; seeds {', '.join(map(str, seeds))}."
    failed = [run for run in rows(record, "runs") if run.get("state") == "failed"]
    lost = [
        f"{run.get('entry')}, seed {run.get('seed')}, {(number(run.get('fraction')) or 0) * 100:g} % of train: {run.get('error')}"
        for run in failed
    ]
    notes = [
        *map(str, record.get("notes") or []),
        *dict.fromkeys(f"{row.get('entry')}: {row['note']}" for row in rows(record, "table") if row.get("note")),
    ]
    return [
        html.paragraph(about),
        _table(group),
        *(html.paragraph(note, "note") for note in notes),
        html.paragraph("Failed runs, left out of the means: " + "; ".join(lost), "warning") if lost else "",
        html.details("Tests of the differences", _tests(group)),
    ]


def _table(group: Group) -> str:
    record = group.record
    higher = bool(record.get("higher_is_better", True))
    known = rows(record, "table")
    fractions = sorted({fraction for row in known if (fraction := number(row.get("fraction"))) is not None})
    sizes = {str(entry.get("name")): entry.get("parameters") for entry in rows(record, "entries")}
    cells = {(str(row.get("entry")), number(row.get("fraction"))): row for row in known}
    best = {
        fraction: _best([number(row.get("mean")) for (_, at), row in cells.items() if at == fraction], higher) for fraction in fractions
    }
    lines = []
    for entry in dict.fromkeys(str(row.get("entry")) for row in known):
        line: list[object] = [entry, sizes.get(entry)]
        for fraction in fractions:
            line.append(_mean(cells.get((entry, fraction)), best[fraction]))
        cost = part(cells.get((entry, fractions[-1])), "cost") if fractions else {}
        line += [cost.get("flops_training"), cost.get("flops"), seconds(cost), energy(cost)]
        lines.append(line)
    shares = [f"{fraction * 100:g} % of train" for fraction in fractions]
    note = "Mean ± deviation over seeds; the best of a column is bold. Costs are those of the largest share."
    return html.table(["entry", "parameters", *shares, "E: FLOPs training", "E·D", "seconds", "energy"], lines, note)


def _best(values: Sequence[float | None], higher: bool) -> float | None:
    known = [value for value in values if value is not None]
    return (max(known) if higher else min(known)) if known else None


def figure(value: float) -> str:
    """Four decimals for accuracies and similar figures, so that a column is aligned; four digits for large ones."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


def _mean(row: JsonObject | None, best: float | None) -> Cell | None:
    mean = number(row.get("mean")) if row else None
    if row is None or mean is None:
        return None
    spread = number(row.get("deviation"))
    shown = figure(mean) + (f" ± {figure(spread)}" if spread is not None else "") + (f" (n={row['n']})" if "n" in row else "")
    return Cell(shown, mean, strong=mean == best)


def _tests(group: Group) -> str:
    lines = []
    for test in rows(group.record, "tests"):
        fraction = number(test.get("fraction"))
        lines.append([
            test.get("a"), test.get("b"), None if fraction is None else Cell(f"{fraction * 100:g} %", fraction), test.get("difference"),
            test.get("t_p"), _sure(test.get("t_p_holm")), test.get("bootstrap_p"), _sure(test.get("bootstrap_p_holm")),
            test.get("bootstrap_both_p"), _sure(test.get("bootstrap_both_p_holm")), test.get("n_seeds"), test.get("n_examples"),
        ])  # fmt: skip
    heads = ["a", "b", "of train", "a − b", "t-test p", "Holm", "bootstrap p", "Holm", "bootstrap of both p", "Holm", "seeds", "examples"]
    words = f"Paired: t-test over seeds, bootstrap over examples, and over examples and seeds; each Holm-corrected; bold: below {SURE}."
    return html.table(heads, lines, words)


def _sure(value: object) -> Cell | None:
    known = number(value)
    return None if known is None else Cell(html.short(known), known, strong=known < SURE)


# --- tuning ------------------------------------------------------------------------------------------------------------------


def tuning(group: Group) -> list[str]:
    record = group.record
    known = rows(record, "trials")
    higher = bool(record.get("higher_is_better", True))
    diverged = sum(trial.get("state") == "diverged" for trial in known)
    about = f"{record.get('data')}: {len(known)} trials by random search, seed {record.get('seed')}"
    about += f"; {diverged} of them diverged and count as chance ({html.short(number(record.get('chance')) or 0.0)})." if diverged else "."
    ranked = sorted(
        known, key=lambda trial: (number(trial.get("score")) is None, (-1 if higher else 1) * (number(trial.get("score")) or 0.0))
    )
    names = list(dict.fromkeys(name for trial in known for name in part(trial, "parameters")))
    heads = ["trial", *names, "state", str(record.get("metric", "score")), "seconds"]
    lines = [
        [
            trial.get("number"),
            *(part(trial, "parameters").get(name) for name in names),
            trial.get("state"),
            trial.get("score"),
            seconds(trial),
        ]
        for trial in ranked
    ]
    costs = [part(trial, "cost") for trial in known]
    spent = [each for cost in costs if (each := product(cost.get("flops_training"), cost.get("examples"))) is not None]
    if spent:
        mean = [html.short(sum(cost[name] for cost in costs if name in cost) / len(spent)) for name in ("flops_training", "examples")]
        about += f" Cost(R) = E · D · H = {mean[0]} FLOPs · {mean[1]} examples · {len(known)} trials"
        about += f"; all in all {html.short(sum(spent))} FLOPs" + (
            f", of {len(spent)} trials that know theirs." if len(spent) < len(known) else "."
        )
    rest = html.details(f"{len(lines) - TRIALS} more trials", html.table(heads, lines[TRIALS:])) if len(lines) > TRIALS else ""
    return [html.paragraph(about), html.table(heads, lines[:TRIALS]), rest]


# --- where it came from ------------------------------------------------------------------------------------------------------


def commands(found: Found) -> str:
    """The exact command of each folder; for a run without one, a command with its settings."""
    parts = []
    for name, record, made in _recorded(found):
        parts.append(f"<h3>{html.text(name)}</h3><pre><code>{html.text(made)}</code></pre>")
        if not record.get("command") and record:
            parts.append(html.paragraph("Made from the settings that the run recorded.", "note"))
        machine, versions = (part(record, key) or part(part(record, "cost"), key) for key in ("machine", "versions"))
        if not versions and record.get("tokmix"):
            versions = {"tokmix": record["tokmix"]}
        if versions or machine:
            parts.append(html.details("versions and machine", html.pairs({**versions, **machine})))
    return "\n".join(parts)


def _recorded(found: Found) -> list[tuple[str, JsonObject, str]]:
    groups = []
    for group in [*found.compares, *found.tunes]:
        typed = str(group.record.get("command") or "not recorded")
        groups.append((group.name, group.record, " ".join(map(hide_password, typed.split(" ")))))
    return groups + [(run.name, run.record or {}, command(run)) for run in found.runs]


def command(run: Run) -> str:
    """The recorded command; else a `tokmix train` with the same settings, after a `tokmix prepare` if the data was prepared before."""
    record = run.record or {}
    if record.get("command"):
        return str(record["command"])
    words, usual = ["tokmix", "train", run.source, "--out", run.name], Settings().record()
    imports = record.get("imports")
    for file in imports if isinstance(imports, list) else ():
        words += ["--import", str(file)]
    for group, values in part(record, "settings").items():
        for name, value in values.items() if isinstance(values, dict) else ():
            if value is not None and usual.get(group, {}).get(name) != value:
                words += _option(f"{group}.{name}", value)
    return _prepare(run) + shlex.join(words)


def _prepare(run: Run) -> str:
    """The command that makes the data, if `train` was given a folder of token files."""
    prepared = part(part(run.record, "data"), "prepared")
    if not prepared:
        return ""
    words, usual = ["tokmix", "prepare", made_of(run.record or {}), "--out", run.source], vars(PrepareSettings())
    for name, value in part(prepared, "settings").items():
        if value is not None and usual.get(name) != value:
            words += _option(name.replace("_", "-"), value)
    return shlex.join(words) + "\n"


def _option(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)]
