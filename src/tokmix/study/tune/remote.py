"""`tokmix tune --on ADDRESS`: this process claims the trials and keeps their scores, the workers of a cluster train them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from tokmix.runs.cluster import ClusterPool
from tokmix.runs.locks import take
from tokmix.runs.pool import Answer, Task
from tokmix.runs.pool_server import serve
from tokmix.study.tune.trials import Claim, Outcome, Trials
from tokmix.study.tune.worker import Job, title, train_trials
from tokmix.training.imports import import_files

MOST = 256  # trials that are claimed at a time: a claim is an open file


def search(address: str, job: Job, trials: Trials, say: Callable[[str], None]) -> None:
    """Until every trial is finished. ValueError where one cannot be, naming it, when those that were begun have ended."""
    data, out = (str(Path(place).resolve()) for place in (job.data, job.out))
    told = asdict(replace(job, data=data, out=out, imports=[str(Path(file).resolve()) for file in job.imports]))
    claims: dict[int, Claim] = {}
    problems: list[str] = []

    def take() -> list[Task]:
        found: list[Task] = []
        while not problems and len(claims) < MOST and (claim := trials.claim()) is not None:
            claims[claim.index] = claim
            found.append({"job": told, "index": claim.index, "parameters": claim.parameters})
        return found

    def report(task: Task, answer: Answer) -> None:
        claim = claims.pop(task["index"])
        if answer["state"] == "failed":
            problems.append(f"{title(claim)}: {answer['error']}")
            _give_back(trials, claim)
            return
        trials.finish(claim, answer["score"], answer["result"])
        claim.lock.release()

    try:
        ClusterPool(address, None, job.threads, Path(out) / "workers.log", __name__, say).run(take(), report, take)
    finally:
        for claim in claims.values():
            _give_back(trials, claim)
    if problems:
        raise ValueError(problems[0])


def _give_back(trials: Trials, claim: Claim) -> None:
    trials.give_back(claim)
    claim.lock.release()


def do(task: Task) -> Answer:
    """A trial, in a process of a worker. A second one of the same trial waits for the first, and then goes on with its run."""
    job = Job(**task["job"])
    outcome: tuple[float, Outcome] | Exception
    lock = take(Path(job.out) / "locks" / f"{task['index']:04d}.run", wait=True)
    assert lock is not None
    try:
        import_files(job.imports)
        torch.set_num_threads(job.threads)
        outcome = train_trials(job, [Claim(task["index"], task["parameters"], 0, lock)])[0]
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        outcome = error
    finally:
        lock.release()
    if isinstance(outcome, Exception):
        return {"state": "failed", "error": " ".join(str(outcome).split())}
    score, result = outcome
    return {"state": result["state"], "score": score, "result": result}


if __name__ == "__main__":
    try:
        serve(do)
    except KeyboardInterrupt:  # after a clean checkpoint
        raise SystemExit(130) from None
