"""Papers on a page: the tables and figures of each item, the verdicts in them, and behind a click every run and how it was made."""

from __future__ import annotations

import base64
from typing import Any

from reproduce import markdown
from reproduce.item import PAPERS, Item, items
from reproduce.page import NOT_RUN, WORDS, command, count_verdicts
from reproduce.readme import draw
from tokmix.pages.report import html, series
from tokmix.pages.report.html import Cell
from tokmix.pages.report.read import Found, Paper, number, part, rows

SETTINGS = ("model", "seed", "lr", "dropout", "weight_decay")  # of a run, where it has them


def sections(found: Found, charts: dict[str, Any]) -> list[str]:
    return [_paper(paper, f"paper-{place}", charts) for place, paper in enumerate(found.papers)]


def _paper(paper: Paper, name: str, charts: dict[str, Any]) -> str:
    if paper.name not in PAPERS:
        raise ValueError(f"{paper.folder} holds results of a paper {paper.name!r} that is not known; known: {', '.join(PAPERS)}")
    known = items(paper.name)
    told = {item.name: item.tables(content) for item in known.values() if (content := paper.results.get(item.name)) is not None}
    parts = [_overview(paper, known, told, name)]
    for item in known.values():  # in the order of the paper, whatever the files are called
        parts.append(f'<h3 id="{name}-{html.text(item.name)}">{html.text(item.name)}: {html.text(item.about)}</h3>')
        if item.name in told:
            parts.append(_item(item, paper.results[item.name], told[item.name], f"{name}-{item.name}", charts))
        else:
            parts.append(html.paragraph(f"Not run: {command(item)}", "note"))
    strange = [one for one in paper.results if one not in known]
    parts += [html.paragraph(f"Results of {one}, which this tokmix does not know.", "warning") for one in strange]
    return html.section(name, f"Paper: {paper.name}", *parts)


def _overview(paper: Paper, known: dict[str, Item], told: dict[str, str], name: str) -> str:
    """Each item, what there is of it, and how its claims fared."""
    lines = []
    for item in known.values():
        jobs = rows(paper.results.get(item.name, {}), "jobs")
        done = sum(job.get("outcome") is not None for job in jobs)
        counts = count_verdicts(told.get(item.name, ""))
        link = f'<a href="#{name}-{html.text(item.name)}">{html.text(item.name)}</a> {html.text(item.about)}'
        shown = f"{done} of {len(jobs)}" if jobs else NOT_RUN
        lines.append([Cell(item.name, markup=link), Cell(shown, done), *(counts.get(word) for word in WORDS[:3])])
    return html.table(["item", "jobs done", *WORDS[:3]], lines)


def _item(item: Item, content: dict[str, Any], told: str, name: str, charts: dict[str, Any]) -> str:
    jobs = rows(content, "jobs")
    left = sum(job.get("outcome") is None for job in jobs)
    made = _runs_chart(jobs)
    if made is not None:
        charts[name] = made
    every = _every_run(jobs) + (html.chart(name, "score against learning rate") if made is not None else "")
    quick = "A quick version: it shows that the item works, and its numbers mean nothing."
    parts = [
        html.paragraph(quick, "warning") if content.get("quick") else "",
        html.paragraph(f"{left} of {len(jobs)} jobs are not run.", "note") if left else "",
        markdown.render(told),
        _pictures(item, content),
        html.details("every run", every),
        html.details("how it was run", _calls(content)),
    ]
    return "\n".join(one for one in parts if one)


def _pictures(item: Item, content: dict[str, Any]) -> str:
    try:
        drawn = draw(item, content)
    except ImportError as error:
        return html.paragraph(f"no figures: {error}", "note")
    pictures = []
    for name, data in drawn.items():
        kind = "svg+xml" if name.endswith(".svg") else "png"
        source = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
        pictures.append(f'<div class="wide"><img class="picture" src="{source}" alt="{html.text(item.about)}"></div>')
    return "\n".join(pictures)


def _every_run(jobs: list[dict[str, Any]]) -> str:
    """Those that failed and those that are not run among them."""
    told = [run for job in jobs for run in rows(part(job, "outcome"), "runs")]
    settings = [name for name in SETTINGS if any(name in run for run in told)]
    lines = []
    for job in jobs:
        outcome = part(job, "outcome")
        made, seconds = rows(outcome, "runs"), number(part(job, "measured").get("seconds"))
        if not made:
            made = [{"error": outcome.get("error") or (NOT_RUN if not outcome else "no runs")}]
        for run in made:
            state = run.get("error") or run.get("state")
            size = run.get("parameters", outcome.get("parameters"))
            size = size.get(str(run.get("model"))) if isinstance(size, dict) else size  # where a job has several models
            lines.append([job.get("key"), *(run.get(name) for name in settings), state, run.get("score"), size, seconds])
    return html.table(["job", *settings, "state", "score", "parameters", "seconds of the job"], lines)


def _runs_chart(jobs: list[dict[str, Any]]) -> series.Chart | None:
    """Scores against the learning rate, a view for each data set, a colour for each job or, where a job has several, each model."""
    colours, points = series.Colours(), dict[str, dict[str, list[tuple[float, float, str]]]]()
    for job in jobs:
        spec = part(job, "spec")
        data = str(spec.get("data") or spec.get("text") or spec.get("task") or "all")
        for run in rows(part(job, "outcome"), "runs"):
            rate, score = number(run.get("lr")), number(run.get("score"))
            if rate is not None and score is not None:
                name = str(run.get("model") or job.get("key"))
                points.setdefault(data, {}).setdefault(name, []).append((rate, score, f"{name}, seed {run.get('seed')}"))
    views = []
    for data, known in points.items():
        drawn = [series.scatter(name, colours(name), these) for name, these in known.items()]
        views.append(series.view((data,), "learning rate", "score", drawn, log_x=True))
    return series.chart(("data",), views)


def _calls(content: dict[str, Any]) -> str:
    """Each call with its command, time, energy and machine."""
    parts = []
    for call in rows(content, "calls"):
        machine, versions, code = (part(call, name) for name in ("machine", "versions", "code"))
        seconds, joules = number(call.get("seconds")), number(call.get("energy_joules"))
        told = {
            "seconds": None if seconds is None else f"{seconds:.1f}",
            "energy": "not measured" if joules is None else f"{html.short(joules)} J",
            "workers": call.get("workers"),
        }
        parts.append(f"<pre><code>{html.text(call.get('command'))}</code></pre>" + html.pairs({**told, **machine, **versions, **code}))
    return "\n".join(parts)
