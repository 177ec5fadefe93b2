"""The maps of a page: the same text read by each model, so that their mixers can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokmix.data.tokens import TokenFiles, is_prepared
from tokmix.pages.report.read import Found, number, rows
from tokmix.study.explain import run as explain
from tokmix.training import model_folder
from tokmix.training.model_folder import Trained

MODELS = 8  # whose maps a page shows
TOKENS = 48  # of the text
NICE = (6, 28)  # tokens of a text that is taken from the data


def models(found: Found) -> dict[str, Path]:
    """Name -> folder of the models that are mapped: every run, each entry of a comparison as trained on the most data, the best trial."""
    chosen = {run.name: run.folder for run in found.runs if run.record is not None}
    for group in found.compares:
        done = [run for run in rows(group.record, "runs") if run.get("state") == "finished" and str(run.get("folder")) in group.runs]
        for run in sorted(done, key=lambda run: (-(number(run.get("fraction")) or 0), str(run.get("seed")))):
            chosen.setdefault(str(run.get("entry")), group.folder / str(run["folder"]))
    for group in found.tunes:
        sign = -1 if group.record.get("higher_is_better", True) else 1
        trained = [trial for trial in rows(group.record, "trials") if trial.get("state") != "diverged"]  # which left no model
        known = [t for t in trained if number(t.get("score")) is not None and isinstance(t.get("number"), int)]
        for trial in sorted(known, key=lambda trial: sign * trial["score"])[:1]:
            chosen[f"{group.name}, trial {trial['number']}"] = group.folder / "trials" / f"{trial['number']:04d}"
    return chosen


def of_models(chosen: dict[str, Path], text: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    """-> (a record each, what could not be drawn and why)"""
    made, notes, lost = [], [], dict[str, list[str]]()
    if len(chosen) > MODELS:
        notes.append(f"Maps of the first {MODELS} of {len(chosen)} models are drawn.")
    for name, folder in list(chosen.items())[:MODELS]:
        try:
            made.append({"name": name, **_maps(folder, text)})
        except (ValueError, OSError, ImportError) as error:
            lost.setdefault(str(error).replace(str(folder), "the folder"), []).append(name)
    return made, notes + [f"No map of {', '.join(names)}: {why}" for why, names in lost.items()]


def _maps(folder: Path, text: str | None) -> dict[str, Any]:
    trained = model_folder.load(folder)
    if text is not None:
        texts = text.split("\t", 1) if trained.pair else [text]
        found = explain.of_text(trained, texts, limit=TOKENS)
    else:
        found = explain.of_ids(trained, _from_data(trained, folder), limit=TOKENS)
    return {"stack": trained.model.config.stack, **found.record(heads=False)}


def _from_data(trained: Trained, folder: Path) -> list[int]:
    """A text of the data's last split, of a length that can be read on a page."""
    files = next((files for place in (folder, folder.parent, folder.parent.parent) if (files := _data(trained, place / "data"))), None)
    if files is None:
        raise ValueError("the data it was trained on is not beside it: give a text with --text")
    split = files[files.splits[-1]]
    texts = [split.row(i).tolist() for i in range(min(len(split), 200))]
    if not texts:
        raise ValueError("its data has no text to show: give one with --text")
    if trained.record["stream"]:
        return [trained.roles["eot"], *texts[0]][: NICE[1]]
    nice = [text for text in texts if NICE[0] <= len(text) <= NICE[1]]
    return (nice or [min(texts, key=len)])[0][:TOKENS]


def _data(trained: Trained, place: Path) -> TokenFiles | None:
    """The data in a folder, if it was tokenized as the model reads."""
    if not is_prepared(place):
        return None
    files = TokenFiles(place)
    return files if files.card.tokenizer["sha256"] == trained.record["tokenizer"].get("sha256") else None
