"""`tokmix tune`: data -> a folder of trials.

    study.json      the settings; a second command compares them
    journal.log     the trials, in Optuna's journal (or they are in PostgreSQL)
    data/           token files, made once for all trials, where the data was not prepared already
    trials/0007/    the run of trial 7
    tune.json       the trials, their scores and costs, expected validation performance;  evp.png draws it

The same command, run again here or on another machine, joins the search.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tokmix.core.checks import at_least, one_of
from tokmix.data.tokens import TokenFiles, is_prepared
from tokmix.runs.cluster import ClusterPool
from tokmix.runs.files import JsonObject, read_json, write_json
from tokmix.runs.locks import holding
from tokmix.runs.pool import AnyPool, InProcess, Pool
from tokmix.study.tune import report, worker
from tokmix.study.tune.chance import Figure, figure_of
from tokmix.study.tune.dispatch import Dispatch
from tokmix.study.tune.space import Space
from tokmix.study.tune.store import Store, optuna
from tokmix.study.tune.trials import StudySettings, Trials, check_same
from tokmix.study.tune.watch import Watch
from tokmix.study.tune.worker import Study, trial_settings
from tokmix.training.distributed import check_alone, device_of
from tokmix.training.imports import import_files
from tokmix.training.preflight import card_hash, check_not_late, nothing_left_of, prepared_in
from tokmix.training.settings import Settings
from tokmix.training.side_by_side import CHOICES, runs_at_once
from tokmix.training.task import TrainingTask

MARK = "study.json"
PATIENCE = 60  # seconds
MOST = 8  # most workers by default: each is a process with torch loaded
CLAIMED = 256  # trials that are claimed at a time for a cluster: a claim is an open file


def run(
    data: str | Path,
    out: str | Path,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    *,
    trials: int = 20,
    space: Space | None = None,
    workers: int | None = None,
    threads: int | None = None,
    storage: str | None = None,
    study: str | None = None,
    patience: int | None = None,
    side_by_side: str = "auto",
    on: str | None = None,
    resume: bool = False,
    imports: Sequence[str | Path] = (),
    quiet: bool = False,
) -> JsonObject:
    """Search until this many trials are finished -> the content of tune.json. ValueError for wrong input; KeyboardInterrupt after
    Ctrl-C, with every trial saved."""
    optuna()  # fail before anything is written if a package is missing
    space = space or Space.read(None)
    at_least("--trials", trials, 1)
    threads = settings.train.threads or 1 if threads is None else threads
    at_least("--threads", threads, 1)
    if workers is not None:
        at_least("--workers", workers, 1)
    one_of("side_by_side", side_by_side, CHOICES)
    _check(settings, space)
    for option, given in (("--study", study), ("--patience", patience)):
        if given is not None and storage is None:
            raise ValueError(f"{option} {given} is about a study in a database: give --storage too, or leave it out")
    for option, given in (("--workers", workers), ("--storage", storage)):
        if on is not None and given is not None:
            raise ValueError(f"{option} is for workers of tune's own, and --on {on} names a cluster: leave one of them out")
    store = Store(Path(out), study or Path(out).resolve().name, storage, PATIENCE if patience is None else patience)
    store.check()
    import_files(imports)
    say: Callable[[str], None] = (lambda line: None) if quiet else print
    folder, asked, figure = _open(Path(data), store, settings, space, trials, threads, resume)
    say(f"{trials} trials over {', '.join(space.ranges)}, compared by {figure.name} ({figure.split}; chance is {figure.chance:.4f})")
    there = Trials.begin(store, trials, asked, figure.higher, resume and store.shared)  # in a folder study.json says that it was begun
    left = trials - len(there.finished())
    if left:
        gpu = on is None and device_of(settings.train.device).type == "cuda"
        at_once, why_not = runs_at_once(side_by_side, gpu, settings)
        if why_not is not None:
            say(why_not)
        crew = 1 if on else min(workers or _default_workers(), left)
        at_once = min(at_once, -(-left // crew))
        files = [str(Path(file).resolve()) for file in imports]
        common = Study(str(store.out.resolve()), str(folder.resolve()), asked["settings"], vars(figure), threads, files)
        dispatch = Dispatch(there, common, at_once, CLAIMED if on else crew * at_once)
        _search(dispatch, lambda: _pool(common, crew, on, quiet, say), figure, quiet)
    return _finish(str(data), store, settings, imports, asked, figure, there, say)


def _check(settings: Settings, space: Space) -> None:
    check_alone("tune trains trials side by side with --workers")
    if settings.train.final == "test":
        raise ValueError("train.final='test': tune compares trials by valid; the best of many on test is no fair figure of it")
    space.check(settings)


def _default_workers() -> int:
    """One per GPU, else one per core."""
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, MOST)


def _open(
    data: Path, store: Store, settings: Settings, space: Space, trials: int, threads: int, resume: bool
) -> tuple[Path, StudySettings, Figure]:
    """Make the folder or check that it is ours, prepare the data, build every shape of model once.
    -> (folder of token files, what is asked, figure)"""
    out = store.out
    if resume and not (out / MARK).is_file() and not store.shared:
        raise ValueError(f"--resume: there is no study in {out}")
    check_not_late(data, settings.prepare, "prepare.")
    asked = json.loads(json.dumps({"settings": settings.record(), "space": space.record(), "threads": threads}))
    asked["source"] = "prepared" if is_prepared(data) else f"{data.name}, {data.stat().st_size:,} bytes" if data.is_file() else data.name
    _check_ours(out)
    out.mkdir(parents=True, exist_ok=True)
    with holding(out / ".lock"), nothing_left_of(out, new=_mark(out, asked)):
        folder = prepared_in(data, out, settings)
        asked["data"] = card_hash(folder)
        files = TokenFiles(folder)
        _try_shapes(files, settings, space, trials)
        figure = figure_of(TrainingTask(files, trial_settings(settings, space.draw(settings.train.seed, 0), None)))
    return folder, asked, figure


def _check_ours(out: Path) -> None:
    """Runs before a lock is written, so that a foreign folder stays unchanged."""
    if not out.exists() or (out / MARK).is_file():
        return
    if not out.is_dir() or any(one.name != ".lock" and not one.name.startswith(f".{MARK}") for one in out.iterdir()):
        raise ValueError(f"{out} exists and is not a study of tokmix tune: nothing is overwritten; name another folder")


def _mark(out: Path, asked: StudySettings) -> bool:
    """Write study.json -> whether the study is new in this folder."""
    path = out / MARK
    if path.is_file():
        check_same(str(out), read_json(path), asked)
        return False
    _check_ours(out)
    write_json(path, asked)
    return True


def _try_shapes(files: TokenFiles, settings: Settings, space: Space, trials: int) -> None:
    """Build every shape once, so that a wrong one is reported before the first trial."""
    tried = set()
    probes = [space.draw(settings.train.seed, index) for index in range(trials)]
    probes += [{name: value} for name, one in space.ranges.items() for value in one.ends()]
    for probe in probes:
        shape = json.dumps({name: value for name, value in probe.items() if name not in ("train.lr", "model.dropout") or len(probe) == 1})
        if shape in tried:
            continue
        tried.add(shape)
        try:
            TrainingTask(files, trial_settings(settings, probe, None))
        except ValueError as error:
            values = ", ".join(f"{name}={value!r}" for name, value in probe.items())
            raise ValueError(f"no trial can have {values}: {error}") from None


def _pool(study: Study, crew: int, on: str | None, quiet: bool, say: Callable[[str], None]) -> AnyPool:
    """A single worker is this process. Workers get GPUs in turn; on a cluster each takes the first GPU that it sees."""
    log = Path(study.out) / "workers.log"
    if on is not None:
        return ClusterPool(on, None, study.threads, log, worker.__name__, say)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [f"cuda:{i % gpus}" if gpus else None for i in range(crew)]
    if crew == 1:
        return InProcess(worker.do, devices[0])
    return Pool(devices, study.threads, log, worker.__name__, (lambda line: None) if quiet else _note)


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _search(dispatch: Dispatch, pool: Callable[[], AnyPool], figure: Figure, quiet: bool) -> None:
    trials = dispatch.trials
    watch = None if quiet else Watch(Trials(trials.store, trials.count, trials.asked), figure)
    try:
        if watch is not None:
            watch.__enter__()
        dispatch.run(pool)
    except KeyboardInterrupt:
        done = f"{len(trials.finished())} of {trials.count} trials are finished"
        raise KeyboardInterrupt(f"stopped: {done}; the same command with --resume goes on") from None
    finally:
        if watch is not None:
            watch.__exit__()


def _finish(
    data: str, store: Store, settings: Settings, imports: Sequence[str | Path], asked: StudySettings, figure: Figure, trials: Trials,
    say: Callable[[str], None],
) -> JsonObject:  # fmt: skip
    finished = trials.finished()
    found = report.record(data, asked, figure, finished)
    first = report.best(finished, figure)
    found["best"] = None
    if first is not None:
        command = report.command(data, settings, first.parameters, [str(file) for file in imports])
        found["best"] = {"number": first.index, "command": command}
    report.write(store.out, found)
    picture = report.draw(store.out / report.PICTURE, found, say)
    report.print_results(found, finished, figure, say)
    say(f"\nwritten to {store.out / report.NAME}" + (f", drawn in {picture}" if picture else ""))
    if first is None:
        say("best: none, as every trial diverged; search smaller learning rates with --space")
    else:
        say(f"best: trial {first.index}, {figure.name} {first.score:.4f}\n{found['best']['command']}")
    return found
