"""`tokmix compare` on data: prepare it once, train every run, write the results.

data/          token files, where the data was not prepared already
runs/<key>/    a run folder of `tokmix train` each, with examples.npz and result.json
compare.json, table.txt, cost.png, curves.png
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import tokmix
from tokmix.core.checks import at_least, one_of
from tokmix.data.tokens import TokenFiles, is_prepared
from tokmix.runs import pool
from tokmix.runs.cluster import ClusterPool
from tokmix.runs.files import check_free, finite, read_json, write_json, write_text
from tokmix.runs.machine import machine, versions
from tokmix.study.compare import draw, outcomes, plan, result, summary, text, worker
from tokmix.study.compare.records import Comparison, Entry, Facts, Provenance
from tokmix.training import baseline
from tokmix.training.distributed import check_alone, device_of
from tokmix.training.imports import import_files
from tokmix.training.preflight import (
    check_not_late,
    check_source,
    check_stack,
    nothing_left_of,
    prepare_settings,
    prepared_in,
    source_of,
)
from tokmix.training.settings import Settings
from tokmix.training.side_by_side import CHOICES, runs_at_once
from tokmix.training.task import final_split, main_figure, task_of

ASKED = "asked.json"
SIDE_BY_SIDE = "compare trains runs side by side with --jobs"
Say = Callable[[str], None]


def compare(
    stacks: Sequence[str],
    data: str | Path,
    out: str | Path,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    *,
    seeds: int = 5,
    fractions: Sequence[float] = (1.0,),
    match: str | None = "largest",
    jobs: int | None = None,
    side_by_side: str = "auto",
    on: str | None = None,
    resume: bool = False,
    imports: Sequence[str | Path] = (),
    say: Say = print,
) -> dict[str, object]:
    """side_by_side: the seeds of a stack in one process (auto: on a GPU).
    -> the content of compare.json. ValueError for wrong input. A failed run is reported there and stops nothing else."""
    check_alone(SIDE_BY_SIDE)
    at_least("seeds", seeds, 1)
    at_least("jobs", 1 if jobs is None else jobs, 1)
    one_of("side_by_side", side_by_side, CHOICES)
    if on is not None and jobs is not None:
        raise ValueError(f"--jobs {jobs} is for this machine, and --on {on} names a cluster: leave one of them out")
    names, shares, numbers = plan.names_of(stacks), plan.fractions_of(fractions), [settings.train.seed + i for i in range(seeds)]
    if settings.train.fraction != 1:  # from the config file; the command line refuses it earlier
        raise ValueError(f"train.fraction={settings.train.fraction} is what is compared: give fractions (--fractions)")
    if settings.model.stack is not None:
        say(f"model.stack={settings.model.stack!r} of the settings is not used: the stacks are those named")
    folder = Path(out)
    if not resume:
        check_free(folder)
    import_files(imports)
    for name in names:
        check_stack(name)
    with nothing_left_of(folder, new=not folder.exists()):
        files = open_data(Path(data), folder, settings)
        task, split = task_of(files.card, settings.train.task), final_split(files, settings.train.final)
        if split is None:
            raise ValueError(f"{data} has no valid or test split: there is nothing to compare on")
        entries, notes = plan.entries(files, names, settings, match)
    absent = why_no_bag(task)
    runs = plan.runs(entries, numbers, shares, bag=absent is None)
    for line in notes:
        say(line)
    made_by = provenance()
    gpu = on is None and device_of(settings.train.device).type == "cuda"
    at_once, why_not = runs_at_once(side_by_side, gpu, settings)
    if why_not is not None:
        say(why_not)
    results = _Runs(folder, files.folder, split, imports, at_once, say).all(runs, settings.train.device, jobs, on)
    results += [summary.absent_bag(fraction, absent) for fraction in shares] if absent else []
    if not any(one.score is not None for one in results):
        raise ValueError(f"every run failed; the first: {results[0].error}")
    name, sign = main_figure(task, {"bits_per_byte": 0} if files.card.split(split).bytes else {})
    facts: Facts = {
        "data": Path(data).name, "task": task, "split": split, "match": match, "notes": notes, **made_by, "metric": name,
        "higher_is_better": sign > 0,
    }  # fmt: skip
    return dict(finish(folder, [entry.record() for entry in entries], results, numbers, shares, facts, say))


def open_data(data: Path, folder: Path, settings: Settings) -> TokenFiles:
    """Prepare the data once for all runs. Refuse a folder that was begun with other data."""
    check_not_late(data, settings.prepare, "prepare.")
    asked = json.loads(json.dumps({"source": source_of(data), "prepare": {} if is_prepared(data) else prepare_settings(settings)}))
    path = folder / ASKED
    if path.is_file():
        if read_json(path) != asked:
            raise ValueError(f"{folder} was started on other data, so it cannot be resumed on {data}")
        check_source(data, folder, settings)
    elif folder.exists() and any(not one.name.startswith(f".{ASKED}") for one in folder.iterdir()):
        raise ValueError(f"{folder} exists and is not a comparison: nothing is overwritten; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, asked)  # written first, so that a comparison killed during preparation can continue
    return TokenFiles(prepared_in(data, folder, settings))


def why_no_bag(task: str) -> str | None:
    if task != "classify":
        return f"it is for classify, and this is {task}"
    return None if baseline.available() else "scikit-learn is not installed (pip install 'tokmix[lab]')"


def provenance() -> Provenance:
    return {"command": shlex.join(["tokmix", *sys.argv[1:]]), "tokmix": tokmix.__version__, "machine": machine(), "versions": versions()}


class _Runs:
    def __init__(self, folder: Path, data: Path, split: str, imports: Sequence[str | Path], at_once: int, say: Say):
        self.folder, self.data, self.split, self.at_once, self.say = folder, data.resolve(), split, at_once, say
        self.imports = [str(Path(file).resolve()) for file in imports]

    def all(self, runs: Sequence[plan.Run], device: str | None, jobs: int | None, on: str | None = None) -> list[summary.Result]:
        known = {run.key: answer for run in runs if (answer := self._known(run)) is not None}
        todo = [run for run in runs if run.key not in known]
        if known:
            self.say(f"{len(known)} of {len(runs)} runs are done already")
        if todo:
            groups = self._groups(todo)
            fed, shared = self._pool(groups, device, jobs, on)
            tasks = [{"runs": [self._task(run, shared or len(group) > 1) for run in group]} for group in groups]
            by_key = {run.key: run for run in todo}

            def report(task: pool.Task, answer: pool.Answer) -> None:
                for one in task["runs"]:  # a worker that died gave no results, but the pool knows how it ended
                    self._say_ended(by_key[one["key"]], answer.get("answers", {}).get(one["key"], answer), known, len(runs))

            try:
                fed.run(tasks, report)
            except KeyboardInterrupt:
                done = f"{len(known)} of {len(runs)} runs are done"
                raise KeyboardInterrupt(f"interrupted; {done}; continue with the same command and --resume") from None
        return [self._result(run, known[run.key]) for run in runs]

    def _pool(self, groups: list[list[plan.Run]], device: str | None, jobs: int | None, on: str | None) -> tuple[pool.AnyPool, bool]:
        """(workers, whether several of them share a counter of energy)"""
        log, threads, runs = self.folder / "workers.log", groups[0][0].settings.train.threads, sum(map(len, groups))
        if on is not None:
            self.say(f"{runs} runs with {threads or 1} thread{'s' * (threads not in (None, 1))} each")
            return ClusterPool(on, device, threads or 1, log, worker.__name__, self.say), True
        devices, most = pool.share_out(device, jobs, len(groups))
        threads = threads or most
        each = f"{threads} thread{'s' * (threads > 1)} each"
        many = max(map(len, groups))
        beside = f", up to {many} side by side in each" if many > 1 else ""
        self.say(f"{runs} runs, {len(devices)} at a time with {each}{beside}, on {', '.join(sorted(set(devices)))}")
        return pool.Pool(devices, threads, log, worker.__name__, self.say), len(devices) > len(set(devices))

    def _groups(self, todo: Sequence[plan.Run]) -> list[list[plan.Run]]:
        """Groups of runs that one process trains in turns: seeds of one stack on the same rows."""
        found: dict[Hashable, list[plan.Run]] = {}
        for run in todo:
            found.setdefault(run.key if run.seed is None else (run.entry, run.fraction), []).append(run)
        return [group[first : first + self.at_once] for group in found.values() for first in range(0, len(group), self.at_once)]

    def _say_ended(self, run: plan.Run, answer: pool.Answer, known: dict[str, pool.Answer], runs: int) -> None:
        known[run.key] = answer
        told = f"failed: {answer['error']}" if answer["state"] == "failed" else _told(answer)
        self.say(f"[{len(known)}/{runs}] {run.title}: {told}")

    def _path(self, run: plan.Run) -> Path:
        return self.folder / "runs" / run.key

    def _known(self, run: plan.Run) -> pool.Answer | None:
        """The result on disk of a run that finished or diverged (it would diverge again). Other failures are tried again."""
        path = self._path(run)
        if (path / result.NAME).is_file() and (path / outcomes.FILE).is_file():
            return asdict(result.RunResult.read(path / result.NAME))
        failed = worker.failure_file(path)
        return asdict(result.RunResult.read(failed)) if failed.is_file() else None

    def _task(self, run: plan.Run, shared: bool) -> pool.Task:
        kind, out = "bag" if run.entry == plan.BAG else "train", str(self._path(run).resolve())
        known = {"key": run.key, "kind": kind, "data": str(self.data), "out": out, "split": self.split, "shared": shared}
        return known | {"settings": plan.flat(run.settings), "imports": self.imports}

    def _result(self, run: plan.Run, answer: pool.Answer) -> summary.Result:
        path = self._path(run)
        made = summary.Result(run.entry, run.fraction, run.seed, folder=f"runs/{run.key}")
        if answer["state"] == "failed":
            return replace(made, state="failed", error=answer["error"])
        return replace(made, score=answer["score"], cost=answer["cost"], sums=lambda: outcomes.load(path))


def _told(answer: pool.Answer) -> str:
    return f"{answer['metric']} {answer['score']:.4f} in {answer['cost']['seconds']:.1f} s"


def finish(
    folder: Path,
    entries: list[Entry],
    results: list[summary.Result],
    seeds: list[int],
    fractions: list[float],
    facts: Facts,
    say: Say,
) -> Comparison:
    """Run the tests, write the files and plots, print the table."""
    bag = [one.cost["parameters"] for one in results if one.entry == plan.BAG and one.cost and one.fraction == fractions[-1]]
    entries = [*entries, {"name": plan.BAG, "kind": plan.BAG, "parameters": bag[0] if bag else None}]
    found = summary.summarise(entries, results, seeds, fractions, facts)
    write_json(folder / "compare.json", finite(found), ascii=False)
    told = text.lines(found)
    write_text(folder / "table.txt", "\n".join(told).strip() + "\n")
    for line in told:
        say(line)
    pictures = draw.draw(found, folder, say)
    say(f"written: {', '.join(str(path) for path in (folder / 'compare.json', *pictures))}")
    return found
