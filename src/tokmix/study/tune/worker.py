"""A worker: claims a trial, trains it, tells the score, until all trials are finished. Some run in this process, some are started."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from tokmix.runs.files import JsonObject
from tokmix.study.tune.chance import Figure
from tokmix.study.tune.space import Parameters, apply
from tokmix.study.tune.store import Store
from tokmix.study.tune.trials import Asked, Claim, Outcome, Trials, patiently
from tokmix.training import train
from tokmix.training.imports import import_files
from tokmix.training.progress import Diverged
from tokmix.training.settings import ModelSettings, Settings, TrainSettings
from tokmix.training.side_by_side import train_all

LOOK = 1.0  # seconds between looks for a trial whose worker died


@dataclass(frozen=True)
class Job:
    """All that a worker has to know, as JSON between processes."""

    out: str
    name: str
    url: str | None
    patience: int
    count: int
    base: int
    asked: Asked
    data: str
    figure: JsonObject
    threads: int
    device: str | None
    imports: list[str]
    side_by_side: int = 1  # trials that it trains at a time
    parent: int | None = None  # the process that started it; without that one it ends

    def store(self) -> Store:
        return Store(Path(self.out), self.name, self.url, self.patience)

    def settings(self) -> Settings:
        told = self.asked["settings"]
        return Settings(ModelSettings(**told["model"]), TrainSettings(**told["train"]))  # the data is prepared already


def work(job: Job) -> None:
    """Until every trial is finished. ValueError where one cannot be, naming it; after KeyboardInterrupt its trial is given back."""
    store, before = job.store(), torch.get_num_threads()
    trials = patiently(store, lambda: Trials(store, job.count, job.asked, job.base))
    torch.set_num_threads(job.threads)  # not by the number of workers: sums in another order are other numbers
    try:
        while len(patiently(store, trials.finished)) < job.count:
            claims = _claims(job, trials)
            if claims:
                _run(job, trials, claims)
                continue
            if job.parent is not None and os.getppid() != job.parent:
                return
            stuck = trials.left_alone()
            if stuck and not trials.running():
                folder = store.out / "trials" / f"{stuck[0]:04d}"
                raise ValueError(f"trial {stuck[0]} ended its worker several times ({folder}); the same command tries it again")
            time.sleep(LOOK)
    finally:
        torch.set_num_threads(before)


def _claims(job: Job, trials: Trials) -> list[Claim]:
    claims: list[Claim] = []
    while len(claims) < job.side_by_side and (claim := patiently(trials.store, trials.claim)) is not None:
        claims.append(claim)
    return claims


def _run(job: Job, trials: Trials, claims: list[Claim]) -> None:
    """What ends one of them leaves the others as they are."""
    open_claims, problem = list(claims), None
    try:
        with _pulse(job, trials, claims):
            outcomes = train_trials(job, claims)
        for claim, outcome in zip(claims, outcomes, strict=True):
            if isinstance(outcome, Exception):
                problem = problem or (claim, outcome)
                continue
            patiently(trials.store, lambda claim=claim, told=outcome: trials.finish(claim, *told))  # type: ignore[misc]
            open_claims.remove(claim)
    finally:
        for claim in open_claims:
            patiently(trials.store, lambda claim=claim: trials.give_back(claim))  # type: ignore[misc]
        for claim in claims:
            claim.lock.release()
    if problem is not None:
        claim, error = problem
        if not isinstance(error, (ValueError, OSError, RuntimeError)):
            raise error
        raise ValueError(f"{title(claim)}: {' '.join(str(error).split())}") from error


def title(claim: Claim) -> str:
    return f"trial {claim.index} ({', '.join(f'{name}={value!r}' for name, value in claim.parameters.items())})"


def train_trials(job: Job, claims: list[Claim]) -> list[tuple[float, Outcome] | Exception]:
    """Of each (score, what to remember of it), or why there is none. A run that was begun by a worker that died goes on from its last
    checkpoint."""
    began = time.monotonic()
    sessions = [
        train.session(job.data, folder_of(job, claim), _settings(job, claim), resume=True, imports=job.imports, quiet=True,
                      side_by_side=len(claims))
        for claim in claims
    ]  # fmt: skip
    return [_outcome(Figure(**job.figure), record, began) for record in train_all(sessions)]


def folder_of(job: Job, claim: Claim) -> Path:
    return Path(job.out) / "trials" / f"{claim.index:04d}"


def _settings(job: Job, claim: Claim) -> Settings:
    settings = trial_settings(job.settings(), claim.parameters, job.device)
    settings = replace(settings, train=replace(settings.train, threads=job.threads))
    if Figure(**job.figure).split == "valid":  # a run by itself would report on test
        settings = replace(settings, train=replace(settings.train, final="valid"))
    return settings


def _outcome(figure: Figure, record: JsonObject | Exception, began: float) -> tuple[float, Outcome] | Exception:
    if isinstance(record, dict):
        score, cost = figure.of(record), record["cost"]
        if math.isfinite(score):
            return score, {"state": "finished", "seconds": cost["seconds"], "cost": cost, "error": None}
        record = Diverged(f"{figure.name} is {score}")
    if isinstance(record, Diverged):
        cost = record.cost or {}
        seconds = cost.get("seconds", time.monotonic() - began)
        return figure.chance, {"state": "diverged", "seconds": seconds, "cost": cost, "error": str(record)}
    return record


def trial_settings(settings: Settings, parameters: Parameters, device: str | None) -> Settings:
    chosen = apply(settings, parameters)
    return replace(
        chosen, train=replace(chosen.train, baseline=False, refit=False, fit_time=False, device=chosen.train.device or device), prepare={}
    )


def last_entry(log: Path) -> JsonObject:
    """The newest whole line of a run's log; {} where there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            lines = file.read().split(b"\n")[:-1]
        return next((entry for entry in map(json.loads, reversed(lines)) if "loss" in entry), {})
    except (OSError, ValueError):
        return {}


@contextmanager
def _pulse(job: Job, trials: Trials, claims: list[Claim]) -> Iterator[None]:
    """Signs of life while a trial is trained; and an end of it when the process that started us is gone."""
    done = threading.Event()

    def beat() -> None:
        last = time.monotonic()
        while not done.wait(min(LOOK, trials.store.interval)):
            if time.monotonic() - last >= trials.store.interval:
                last = time.monotonic()
                try:
                    for claim in claims:
                        trials.sign_of_life(claim)
                except Exception:  # the database is away: it is tried again; if that takes too long, another worker takes over
                    continue
            if job.parent is not None and os.getppid() != job.parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def main() -> int:
    """A started worker: its job as one line on standard input; what did not work as one line on standard output."""
    job = Job(**json.loads(sys.stdin.readline()))
    try:
        import_files(job.imports)
        work(job)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ImportError) as error:
        print(str(error), flush=True)
        return 1
    return 0


def job_line(job: Job) -> str:
    return json.dumps(asdict(job)) + "\n"


if __name__ == "__main__":
    sys.exit(main())
