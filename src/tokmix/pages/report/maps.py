"""Answers of models to one text: the words that decided them, and maps of which token reads which."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokmix.data.prepare.targets import LABELLED
from tokmix.pages.report.read import Found, number, rows
from tokmix.runs.files import JsonObject
from tokmix.study.explain import run as explain
from tokmix.study.explain.words import Attribution, attribute
from tokmix.training import model_folder
from tokmix.training.baseline import bag_texts
from tokmix.training.eval_data import data_beside
from tokmix.training.model_folder import Trained

MODELS = 8  # most models whose maps a page shows
TOKENS = 48  # most tokens of the text
NICE = (6, 28)  # fewest and most tokens of a text from the data


def models(found: Found) -> dict[str, Path]:
    """Name -> folder of the models with maps: every run, each entry of a comparison with the most data, the best trial."""
    chosen = {run.name: run.folder for run in found.runs if run.record is not None}
    for group in found.compares:
        done = [run for run in rows(group.record, "runs") if run.get("state") == "finished" and str(run.get("folder")) in group.runs]
        for run in sorted(done, key=lambda run: (-(number(run.get("fraction")) or 0), str(run.get("seed")))):
            chosen.setdefault(str(run.get("entry")), group.folder / str(run["folder"]))
    for group in found.tunes:
        sign = -1 if group.record.get("higher_is_better", True) else 1
        trained = [trial for trial in rows(group.record, "trials") if trial.get("state") != "diverged"]  # a diverged trial left no model
        known = [t for t in trained if number(t.get("score")) is not None and isinstance(t.get("number"), int)]
        for trial in sorted(known, key=lambda trial: sign * trial["score"])[:1]:
            chosen[f"{group.name}, trial {trial['number']}"] = group.folder / "trials" / f"{trial['number']:04d}"
    return chosen


@dataclass(frozen=True)
class Shown:
    """A model's answer to the text."""

    name: str
    maps: JsonObject  # for the page's script
    texts: list[str]  # one, or the two of a pair
    words: Attribution | None  # None: the model gives no label and no score


def of_models(chosen: dict[str, Path], text: str | None) -> tuple[list[Shown], list[str]]:
    """-> (what can be shown of each model, notes on what could not be drawn)"""
    made, notes, lost = list[Shown](), [], dict[str, list[str]]()
    if len(chosen) > MODELS:
        notes.append(f"Maps of the first {MODELS} of {len(chosen)} models are drawn.")
    for name, folder in list(chosen.items())[:MODELS]:
        try:
            made.append(_shown(name, folder, text))
        except (ValueError, OSError, ImportError) as error:
            lost.setdefault(str(error).replace(str(folder), "the folder"), []).append(name)
    return made, notes + [f"No map of {', '.join(names)}: {why}" for why, names in lost.items()]


def _shown(name: str, folder: Path, text: str | None) -> Shown:
    trained = model_folder.load(folder)
    if text is not None:
        texts = text.split("\t", 1) if trained.pair else [text]
        found = explain.of_text(trained, texts, limit=TOKENS)
    else:
        ids = _from_data(trained)
        found = explain.of_ids(trained, ids, limit=TOKENS)
        row = bag_texts(trained.tokenizer, trained.roles, trained.pair, [ids])[0] if trained.task in LABELLED else ""
        texts = [row] if isinstance(row, str) else list(row)
    words = attribute(trained, texts) if trained.task in LABELLED else None
    return Shown(name, {"name": name, "stack": trained.model.config.stack, **found.record(heads=False)}, texts, words)


def _from_data(trained: Trained) -> list[int]:
    """A text of the last split of the data, short enough for a page."""
    files = data_beside(trained)
    if files is None:
        raise ValueError("the data it was trained on is not beside it: give a text with --text")
    split = files[files.splits[-1]]
    texts = [split.row(i).tolist() for i in range(min(len(split), 200))]
    if not texts:
        raise ValueError("its data has no text to show: give one with --text")
    if trained.about.stream:
        return [trained.roles["eot"], *texts[0]][: NICE[1]]
    nice = [text for text in texts if NICE[0] <= len(text) <= NICE[1]]
    return (nice or [min(texts, key=len)])[0][:TOKENS]
