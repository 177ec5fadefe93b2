"""This process claims trials and stores their scores; the workers of a pool train them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokmix.runs.pool import Answer, AnyPool, Task
from tokmix.study.tune.trials import Claim, T, Trials, patiently
from tokmix.study.tune.worker import Study

LOOK = 1.0  # seconds between checks for trials that another command gave back or lost


class Dispatch:
    def __init__(self, trials: Trials, study: Study, at_once: int, most: int):
        """at_once: trials that a worker trains side by side; most: trials that are claimed at a time."""
        self.trials, self.study, self.at_once, self.most = trials, study, at_once, most
        self.claims: dict[int, Claim] = {}  # by index
        self.lost: set[int] = set()  # claimed and given up, so that no other worker of ours meets the same problem
        self.problem: str | None = None
        self.error: str | None = None

    def run(self, pool: Callable[[], AnyPool]) -> None:
        """Run until every trial is finished. ValueError names a trial that cannot be finished: after an error, the trials that were begun
        are finished first; after the loss of a trial's workers, all others are."""
        try:
            with self._signs_of_life():
                while self._open():
                    if tasks := self.take():
                        pool().run(tasks, self.report, self.take)
                    elif self.error is None:
                        self._check_others()
                        time.sleep(LOOK)
        finally:
            for claim in self.claims.values():
                self._store(lambda claim=claim: self.trials.give_back(claim))  # type: ignore[misc]
                claim.lock.release()
        if problem := self.error or self.problem:
            raise ValueError(problem)

    def _open(self) -> bool:
        """Whether this command still has a trial to train or to wait for."""
        return self.error is None and len(self._store(self.trials.finished)) + len(self.lost) < self.trials.count

    def _check_others(self) -> None:
        """Check whether other commands are running the remaining trials."""
        stuck = self.trials.left_alone()
        if stuck and set(self.trials.running()) <= self.lost:
            folder = self.trials.store.out / "trials" / f"{stuck[0]:04d}"
            raise ValueError(f"trial {stuck[0]} ended its worker several times ({folder}); the same command tries it again")

    def take(self) -> list[Task]:
        """Claim trials for the workers that have none."""
        tasks: list[Task] = []
        while self.error is None and len(self.claims) - len(self.lost) < self.most:
            claims: list[Claim] = []
            while len(claims) < self.at_once and (claim := self._store(self.trials.claim)) is not None:
                self.claims[claim.index] = claim
                claims.append(claim)
            if not claims:
                break
            tasks.append({
                "study": self.study.record(),
                "trials": [{"index": claim.index, "parameters": claim.parameters} for claim in claims],
            })  # fmt: skip
        return tasks

    def report(self, task: Task, answer: Answer) -> None:
        for place, trial in enumerate(task["trials"]):
            claim = self.claims[trial["index"]]
            outcome: Answer = answer["outcomes"][place] if "outcomes" in answer else answer
            if outcome.get("lost"):
                self.lost.add(claim.index)
                self.problem = self.problem or f"{title(claim)}: {outcome['error']}; the same command tries it again"
            elif "score" not in outcome:
                self.error = self.error or f"{title(claim)}: {outcome['error']}"
            else:
                self._store(lambda claim=claim, result=outcome: self.trials.finish(claim, result["score"], result["result"]))  # type: ignore[misc]
                self.claims.pop(claim.index).lock.release()

    def _store(self, call: Callable[[], T]) -> T:
        return patiently(self.trials.store, call)

    @contextmanager
    def _signs_of_life(self) -> Iterator[None]:
        """Send heartbeats for commands on other machines that share the database."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(self.trials.store.interval):
                try:
                    for claim in list(self.claims.values()):
                        self.trials.sign_of_life(claim)
                except Exception:  # the database is unreachable: try again; after too long, another machine takes over the trial
                    continue

        thread = threading.Thread(target=beat, daemon=True)
        if self.trials.store.shared:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if thread.is_alive():
                thread.join()


def title(claim: Claim) -> str:
    return f"trial {claim.index} ({', '.join(f'{name}={value!r}' for name, value in claim.parameters.items())})"
