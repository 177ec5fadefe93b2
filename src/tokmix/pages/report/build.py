"""`tokmix report RUN... --out report.html`: folders -> one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokmix.core.checks import check_text
from tokmix.pages.report import html, maps, series, tables
from tokmix.pages.report.page import MARK, page
from tokmix.pages.report.read import Found, Run, part, read
from tokmix.runs.files import write_text
from tokmix.study import checkout
from tokmix.study.explain.words import pieces
from tokmix.training.imports import import_files

Charts = dict[str, series.Chart]


def write(
    folders: Sequence[str | Path],
    out: str | Path,
    *,
    text: str | None = None,
    title: str | None = None,
    imports: Sequence[str | Path] = (),
) -> Path:
    """folders of train, tune, compare and papers, or model folders -> the page's path. An older report is replaced, nothing else is.
    text: for the maps; None: a text of each model's own data."""
    path = Path(out)
    check_out(path)
    _check_words(text, title)
    import_files(imports)
    made = build(read(folders), text, title)
    write_text(path, made)
    return path


def check_out(path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"--out {str(path)!r} is a folder: name a file in it")
    if path.exists():
        with open(path, encoding="utf-8", errors="replace") as file:
            if MARK not in file.read(200):
                raise ValueError(f"{path} exists and is no report of tokmix: nothing is overwritten; name another file")


def _check_words(text: str | None, title: str | None) -> None:
    for given in (text, title):
        check_text(given or "")
    if text is not None and not text.strip():
        raise ValueError(f"--text {text!r} is empty: give a text to draw the maps of, or leave it out for one of the data")


def build(found: Found, text: str | None, title: str | None) -> str:
    colours, charts = series.Colours(), Charts()
    sections = [
        *(checkout.load("report_section").sections(found, charts) if found.papers else []),
        _runs(found, charts, colours),
        *_compares(found, charts, colours),
        *_tunes(found, charts, colours),
    ]
    sections += [html.section("classes", "Commonest mistakes", tables.classes(found.runs)), _learning(found, charts, colours)]
    shown, notes = maps.of_models(maps.models(found), text)
    sections += [_words(shown), _maps(shown, notes, charts)]
    sections.append(html.section("origin", "Commands and versions", tables.commands(found)))
    names = [one.name for one in found.papers] + [group.name for group in [*found.compares, *found.tunes]]
    names += [run.name for run in found.runs]
    return page(title or "tokmix: " + ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""), sections, charts)


def _chart(charts: Charts, name: str, made: series.Chart | None, label: str) -> str:
    """The chart's place on the page; empty if there is nothing to draw."""
    if made is None:
        return ""
    charts[name] = made
    return html.chart(name, label)


def _runs(found: Found, charts: Charts, colours: series.Colours) -> str:
    ended = [run for run in found.runs if run.record is not None]
    parts = [
        html.paragraph(tables.verdict(found.runs), "verdict"),
        tables.results(found.runs),
        tables.settings(found.runs),
        tables.costs(found.runs),
    ]
    alike: dict[tuple[str, str, bool], list[Run]] = {}
    for run in ended:
        name, value, higher = tables.result(run)
        sources = part(run.record, "data").get("source")
        if value is not None:
            alike.setdefault((name, str(sources), higher), []).append(run)
    for place, ((name, _, higher), runs) in enumerate(alike.items()):
        if len(runs) > 1:  # only results on the same data can be compared
            points = [(run.name, run.name, tables.result(run)[1] or 0.0, run.cost) for run in runs]
            bag = part(runs[0].record, "baseline")
            if name == "accuracy" and "accuracy" in bag:
                points.append(("bag of words", "bag of words", bag["accuracy"], {"seconds": bag.get("seconds")}))
            made = series.frontier_of(points, name, higher, colours)
            parts.append(_chart(charts, f"frontier-runs-{place}", made, f"{name} against cost"))
    return html.section("results", "Results", *parts)


def _compares(found: Found, charts: Charts, colours: series.Colours) -> list[str]:
    sections = []
    for place, group in enumerate(found.compares):
        low = _chart(charts, f"low-{place}", series.low_resource(group, colours), "score against the share of the training data")
        front = _chart(charts, f"frontier-{place}", series.frontier(group, colours), "score against cost")
        sections.append(
            html.section(
                f"compare-{place}",
                f"Comparison: {group.name}",
                *tables.comparison(group),
                "<h3>With less data</h3>" + low if low else "",
                "<h3>Score against cost</h3>" + front if front else "",
            )
        )
    return sections


def _tunes(found: Found, charts: Charts, colours: series.Colours) -> list[str]:
    sections = []
    if found.tunes:
        expected = _chart(charts, "evp", series.evp(found.tunes, colours), "expected best score against trials")
        words = "Expected score of the best of n random trials, with its standard deviation. The number of trials is H in Cost(R) = E·D·H."
        sections.append(html.section("evp", "Expected validation performance", expected and html.paragraph(words), expected))
    for place, group in enumerate(found.tunes):
        scatter = _chart(charts, f"trials-{place}", series.trials(group, colours), "score against a parameter")
        sections.append(html.section(f"tune-{place}", f"Tuning: {group.name}", *tables.tuning(group), scatter))
    return sections


def _learning(found: Found, charts: Charts, colours: series.Colours) -> str:
    """One chart per task, because losses of different tasks have different scales."""
    shown, notes = series.chosen_runs(found)
    tasks = list(dict.fromkeys(str((run.record or {}).get("task", "not ended")) for _, _, run in shown))
    parts = []
    for place, task in enumerate(tasks):
        own = [one for one in shown if str((one[2].record or {}).get("task", "not ended")) == task]
        drawn = _chart(charts, f"learning-{place}", series.learning(own, colours), f"learning curves, {task}")
        parts.append((f"<h3>{html.text(task)}</h3>" if len(tasks) > 1 else "") + drawn if drawn else "")
    return html.section("learning", "Learning curves", *parts, *(html.paragraph(note, "note") for note in notes))


def _words(shown: Sequence[maps.Shown]) -> str:
    """The text of each model's answer, with words shaded by their effect."""
    parts = [html.words(one.name, one.words.answer, pieces(one.texts, one.words), one.words.lines()[1:]) for one in shown if one.words]
    effect = (
        "A word's effect is what the log-odds of the label (or the score) lose if the word is left out."
        " Blue words support the answer, red ones oppose it."
    )
    return html.section("words", "Which words made the answer", html.paragraph(effect, "note"), *parts) if parts else ""


def _maps(shown: Sequence[maps.Shown], notes: Sequence[str], charts: Charts) -> str:
    made = [one.maps for one in shown]
    if made:
        charts["maps"] = {"maps": made}
    words = (
        "Row: the token that reads; column: the token it reads. Pseudo-attention is the norm of the Jacobian of an output token"
        " with respect to an input token; touch or point at a cell for its number."
    )
    drawn = html.chart("maps", "who reads whom") if made else ""
    return html.section(
        "maps", "Who reads whom", html.paragraph(words) if made else "", drawn, *(html.paragraph(note, "note") for note in notes)
    )
