"""The results of a search: table of trials, best setting as a command, expected validation performance, tune.json, evp.png."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import tokmix
from tokmix.runs.files import JsonObject, finite, replacing, write_json
from tokmix.runs.machine import machine, versions
from tokmix.show.text import aligned
from tokmix.study.expected_performance import Curve, with_replacement, without_replacement
from tokmix.study.tune.chance import Figure
from tokmix.study.tune.space import Parameters, apply
from tokmix.study.tune.store import hide_password
from tokmix.study.tune.trials import Finished, StudySettings
from tokmix.training.report import clock
from tokmix.training.settings import Settings

NAME, PICTURE = "tune.json", "evp.png"


def record(data: str, asked: StudySettings, figure: Figure, finished: Sequence[Finished]) -> JsonObject:
    scores = [trial.score for trial in finished]
    return {
        "format": "tokmix-tune",
        "version": 1,
        "data": data,
        "space": asked["space"],
        "seed": asked["settings"]["train"]["seed"],
        "settings": asked["settings"],
        "metric": figure.name,
        "split": figure.split,
        "higher_is_better": figure.higher,
        "chance": figure.chance,
        "trials": [
            {
                "number": trial.index,
                "parameters": trial.parameters,
                "score": trial.score,
                "folder": f"trials/{trial.index:04d}",
                **trial.result,
            }
            for trial in finished
        ],
        "evp": {
            "with_replacement": asdict(with_replacement(scores, figure.higher)),
            "without_replacement": asdict(without_replacement(scores, figure.higher)),
        },
        "command": shlex.join(["tokmix", *map(hide_password, sys.argv[1:])]),
        "tokmix": tokmix.__version__,
        "machine": machine(),
        "versions": versions(),
    }


def write(out: Path, found: Mapping[str, object]) -> None:
    """Write each file whole or not at all: several commands may write the same file at once."""
    write_json(out / NAME, finite(found))


def best(finished: Sequence[Finished], figure: Figure) -> Finished | None:
    """The first of the best trials that left a model; a diverged one scores chance and leaves none. None: all diverged."""
    sign = 1 if figure.higher else -1
    trained = [trial for trial in finished if trial.result["state"] != "diverged"]
    return max(trained, key=lambda trial: (sign * trial.score, -trial.index), default=None)


def command(data: str, settings: Settings, parameters: Parameters, imports: Sequence[str]) -> str:
    """A `tokmix train` command with every parameter that is not a default, so that it needs no config."""
    chosen, plain = apply(settings, parameters).record(), Settings().record()
    words = ["tokmix", "train", data, "--out", "best"]
    for file in imports:
        words += ["--import", str(file)]
    for group, values in chosen.items():
        for name, value in values.items():
            if group == "prepare" or value != plain[group][name]:
                words += _option(f"{group}.{name}", value)
    return shlex.join(words)


def _option(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", ",".join(value) if isinstance(value, (list, tuple)) else str(value)]


def print_results(found: JsonObject, finished: Sequence[Finished], figure: Figure, say: Callable[[str], None]) -> None:
    """Print trials from best to worst, then the expected best of n."""
    names, sign = list(found["space"]), -1 if figure.higher else 1
    rows = [["trial", *names, figure.name, "time", ""]]
    for trial in sorted(finished, key=lambda trial: (sign * trial.score, trial.index)):
        values = [_short(trial.parameters[name]) for name in names]
        note = "diverged: scored at chance" if trial.result["state"] == "diverged" else ""
        rows.append([str(trial.index), *values, f"{trial.score:.4f}", clock(trial.result["seconds"]), note])
    say("\n".join(aligned(rows)))
    diverged = sum(trial.result["state"] == "diverged" for trial in finished)
    seconds = sum(trial.result["seconds"] for trial in finished)
    say(f"\n{len(finished)} trials, {diverged} of them diverged, {clock(seconds)} of training; {figure.name} on {_split(figure)}")
    say(f"\nexpected {figure.name} of the best of n trials (mean ± standard deviation)")
    curves = [Curve(**found["evp"][name]) for name in ("with_replacement", "without_replacement")]
    shown = [["n", "with replacement", "without replacement"]]
    for n in _steps(len(finished)):
        shown.append([str(n), *(f"{curve.mean[n - 1]:.4f} ± {curve.deviation[n - 1]:.4f}" for curve in curves)])
    say("\n".join(aligned(shown)))


def _split(figure: Figure) -> str:
    return "valid" if figure.split == "valid" else "a part held out of train"


def _steps(count: int) -> list[int]:
    every = [n * 10**power for power in range(7) for n in (1, 2, 3, 4, 5, 6, 8)] if count > 12 else list(range(1, count + 1))
    return sorted({n for n in every if n <= count} | {count})


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def draw(path: Path, found: JsonObject, say: Callable[[str], None]) -> Path | None:
    """Plot the expected best of n with its deviation, by both estimators."""
    try:
        from matplotlib.ticker import MaxNLocator

        from tokmix.show.plots import COLOURS, GREY, INK, figure

        page = figure(7, 4)
    except ImportError as error:
        say(f"no picture: {error}")
        return None
    axes = page.add_subplot()
    for (name, curve), colour in zip(found["evp"].items(), COLOURS, strict=False):
        places = range(1, len(curve["mean"]) + 1)
        low, high = ([m + side * d for m, d in zip(curve["mean"], curve["deviation"], strict=True)] for side in (-1, 1))
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(places, curve["mean"], color=colour, marker="o", markersize=3, linewidth=1.2, label=name.replace("_", " "))
    axes.axhline(found["chance"], color=GREY, linewidth=0.8, linestyle=(0, (3, 2)), label="chance")
    axes.set_xlabel("trials", color=INK)
    axes.set_ylabel(f"expected {found['metric']} of the best", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=GREY)
    axes.legend(framealpha=0.9, edgecolor="none", fontsize=8)
    with replacing(path) as partial:
        page.savefig(partial, format="png")
    return path
