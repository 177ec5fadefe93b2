"""The trials of a study. Each runs to its end exactly once: finished, or diverged, which counts as finished.

A trial is known by its index 0 .. N-1. Optuna's trials are attempts at it:

    waiting -> running -> complete
                       -> failed       its worker died, or gave it back: the next look adds another attempt at the same index

Who runs a trial holds the lock of its index, so in one folder a living worker is told from a dead one at once. In PostgreSQL workers
of other machines give signs of life (Optuna's heartbeat), and a worker of this machine that is only slow is vouched for by its lock.
Every decision is made under the store's one lock, and each step can be repeated: a death in between loses nothing.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict, TypeVar

from tokmix.core.checks import at_least
from tokmix.runs.files import Damaged, JsonObject
from tokmix.runs.locks import Held, is_held, take
from tokmix.study.compare.records import RunCost
from tokmix.study.tune.space import Parameters, Range, Space, Value
from tokmix.study.tune.store import Store, Unreachable, optuna, quiet
from tokmix.training.settings import differences
from tokmix.training.train import FREE

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

DEATHS = 3  # a trial during which this many workers died is not tried again until the next start
AWAY = 600.0  # a database may be unreachable for this many seconds

T = TypeVar("T")


class StudySettings(TypedDict):
    """The settings of a study, as in study.json."""

    settings: dict[str, JsonObject]  # by group and name
    space: dict[str, dict[str, list[Value]]]
    threads: int
    source: NotRequired[str]
    data: NotRequired[str]  # a hash of the card


class Outcome(TypedDict, total=False):
    """What is stored of a trial in addition to its score; empty if the journal is damaged."""

    state: str
    seconds: float
    cost: RunCost
    error: str | None


@dataclass(frozen=True)
class Claim:
    """A trial that only this process runs."""

    index: int
    parameters: Parameters
    id: int  # of Optuna's trial
    lock: Held


@dataclass(frozen=True)
class Finished:
    index: int
    parameters: Parameters
    score: float
    result: Outcome

    @property
    def checksum(self) -> str:
        """Checksum of everything except the cost, which is long and decides nothing."""
        told = [self.index, self.parameters, self.score, {name: value for name, value in self.result.items() if name != "cost"}]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


class Trials:
    def __init__(self, store: Store, count: int, asked: StudySettings, base: int | None = None):
        """`base`: number of the last attempt before the command was started; None: the last one now."""
        self.store, self.count, self.asked = store, count, asked
        self.storage = store.open()
        with quiet():
            self.study = optuna().load_study(study_name=store.name, storage=self.storage, sampler=optuna().samplers.RandomSampler())
        self.states = optuna().trial.TrialState
        self.base = max((trial.number for trial in self.attempts()), default=-1) if base is None else base

    @classmethod
    def begin(cls, store: Store, count: int, asked: StudySettings, higher: bool, resume: bool = False) -> Trials:
        """Make the study, or join it if it exists with the same settings."""
        at_least("--trials", count, 1)
        with store.locked(), quiet():
            storage = store.open()
            if store.name in {study.study_name for study in storage.get_all_studies()}:
                study = optuna().load_study(study_name=store.name, storage=storage)
            elif resume:
                raise ValueError(f"--resume: there is no study {store.name!r} to continue")
            else:
                study = optuna().create_study(study_name=store.name, storage=storage, direction="maximize" if higher else "minimize")
            before = study.user_attrs.get("asked")
            if before is None:
                study.set_user_attr("asked", asked)
            else:
                check_same(f"study {store.name!r}", before, asked)
            trials = cls(store, count, asked)
            there = 1 + max((trial.user_attrs["index"] for trial in trials.attempts()), default=-1)
            if there > count:
                raise ValueError(
                    f"study {store.name!r} has {there} trials already: --trials {count} would drop some; ask for {there} or more"
                )
            trials.fill()
        return trials

    def attempts(self) -> list[FrozenTrial]:
        found = self.storage.get_all_trials(self.study._study_id, deepcopy=False)
        if any(not isinstance(trial.user_attrs.get("index"), int) for trial in found):
            raise Damaged(f"study {self.store.name!r} is damaged: its journal has a trial without an index")
        return found

    # --- what there is -----------------------------------------------------------------------------------------------

    def finished(self) -> list[Finished]:
        """By index."""
        done = {}
        for trial in self.attempts():
            index = trial.user_attrs["index"]
            if trial.state == self.states.COMPLETE and index < self.count:
                done[index] = self._finished(trial)
        return [done[index] for index in sorted(done)]

    def _finished(self, trial: FrozenTrial) -> Finished:
        """One row of the journal, checked. Rows of older versions have no checksum."""
        assert trial.value is not None
        result: Outcome = trial.user_attrs.get("result") or Outcome()
        found = Finished(trial.user_attrs["index"], dict(trial.params), float(trial.value), result)
        if trial.user_attrs.get("checksum", found.checksum) != found.checksum or not found.result:
            raise Damaged(f"trial {found.index} of study {self.store.name!r} is damaged: its journal has changed since it finished")
        return found

    def running(self) -> list[int]:
        return sorted(trial.user_attrs["index"] for trial in self.attempts() if trial.state == self.states.RUNNING)

    def left_alone(self) -> list[int]:
        """Trials during which too many workers died."""
        deaths = self._deaths(self.attempts())
        return sorted(index for index, count in deaths.items() if count >= DEATHS)

    def _deaths(self, attempts: list[FrozenTrial]) -> dict[int, int]:
        deaths: dict[int, int] = {}
        for trial in attempts:
            if trial.state == self.states.FAIL and trial.number > self.base and not trial.user_attrs.get("given_back"):
                deaths[trial.user_attrs["index"]] = deaths.get(trial.user_attrs["index"], 0) + 1
        return deaths

    # --- a worker's day ----------------------------------------------------------------------------------------------

    def claim(self) -> Claim | None:
        """Claim a trial to run; None if all are finished or claimed."""
        with self.store.locked():
            self._fail_dead()
            self.fill()
            waiting = [trial for trial in self.attempts() if trial.state == self.states.WAITING]
            for trial in sorted(waiting, key=lambda trial: trial.user_attrs["index"]):
                claim = self._take(trial) if trial.user_attrs["index"] < self.count else None
                if claim is not None:
                    return claim
        return None

    def _take(self, trial: FrozenTrial) -> Claim | None:
        index = trial.user_attrs["index"]
        lock = take(self.lock_of(index))
        if lock is None:  # a worker on this machine that others counted as dead is still running it
            return None
        if self.store.shared:
            self.storage.record_heartbeat(trial._trial_id)  # before it runs: a trial without any heartbeat never counts as dead
        if self.storage.set_trial_state_values(trial._trial_id, self.states.RUNNING):
            return Claim(index, dict(trial.params), trial._trial_id, lock)
        lock.release()
        return None

    def sign_of_life(self, claim: Claim) -> None:
        if self.store.shared:
            self.storage.record_heartbeat(claim.id)

    def finish(self, claim: Claim, score: float, result: Outcome) -> bool:
        """False if another worker took the trial over meanwhile; it will finish it with the same result."""
        try:
            self.storage.set_trial_user_attr(claim.id, "result", result)
            row = Finished(claim.index, claim.parameters, score, result)
            self.storage.set_trial_user_attr(claim.id, "checksum", row.checksum)
            self.storage.set_trial_state_values(claim.id, self.states.COMPLETE, [score])
        except optuna().exceptions.UpdateFinishedTrialError:
            return False
        return True

    def give_back(self, claim: Claim) -> None:
        """Give back an unfinished trial that did not fail; another worker continues it."""
        with self.store.locked():
            try:
                self.storage.set_trial_user_attr(claim.id, "given_back", True)
                self.storage.set_trial_state_values(claim.id, self.states.FAIL)
            except optuna().exceptions.UpdateFinishedTrialError:
                pass
            self.fill()

    def lock_of(self, index: int) -> Path:
        return self.store.out / "locks" / f"{index:04d}"

    def _fail_dead(self) -> None:
        """Call only under the store's lock."""
        for trial in self.attempts():
            if trial.state != self.states.RUNNING:
                continue
            held = is_held(self.lock_of(trial.user_attrs["index"]))
            if held and self.store.shared:
                self.storage.record_heartbeat(trial._trial_id)  # alive on this machine, however slow
            elif not held and not self.store.shared:
                self.storage.set_trial_state_values(trial._trial_id, self.states.FAIL)
        if self.store.shared:
            with quiet():
                optuna().storages.fail_stale_trials(self.study)

    def fill(self) -> None:
        """Add an attempt for every index without a waiting, running or complete one. Call only under the store's lock."""
        attempts = self.attempts()
        deaths = self._deaths(attempts)
        alive = {trial.user_attrs["index"] for trial in attempts if trial.state != self.states.FAIL}
        space, seed = Space.of(self.asked["space"]), self.asked["settings"]["train"]["seed"]
        distributions = {name: _distribution(one) for name, one in space.ranges.items()}
        for index in range(self.count):
            if index not in alive and deaths.get(index, 0) < DEATHS:
                self.study.add_trial(
                    optuna().trial.create_trial(
                        state=self.states.WAITING,
                        params=space.draw(seed, index),
                        distributions=distributions,
                        user_attrs={"index": index},
                    )
                )


def check_same(what: str, before: JsonObject, asked: StudySettings) -> None:
    """Refuse to continue a study with other settings."""
    changed = differences(before["settings"], asked["settings"], FREE)
    spaces = before["space"], asked["space"]
    changed += [
        f"the space's {name}={spaces[1].get(name)}, was {spaces[0].get(name)}"
        for name in dict.fromkeys([*spaces[0], *spaces[1]])
        if spaces[0].get(name) != spaces[1].get(name)
    ]
    changed += [f"threads={asked['threads']}, was {before['threads']}"] if asked["threads"] != before["threads"] else []
    if changed:
        raise ValueError(f"{what} was begun with other settings: {'; '.join(changed)}")
    if before["source"] != asked["source"]:
        raise ValueError(f"{what} was begun on other data: {before['source']}, not {asked['source']}")
    if before.get("data") != asked.get("data"):
        raise ValueError(f"{what} was begun on data that was prepared otherwise, or has changed since")


def patiently(store: Store, call: Callable[[], T]) -> T:
    """Repeat while the database is unreachable: training continues, and results wait."""
    began, told = time.monotonic(), False
    while True:
        try:
            return call()
        except (Unreachable, optuna().exceptions.StorageInternalError) as error:
            reason = " ".join(str(error.__cause__ or error).split("\n(Background")[0].split())
            if not store.shared or time.monotonic() - began > AWAY:
                raise ValueError(reason) from None
            if not told:
                print(f"tokmix tune: the database is away, trying again for {AWAY:.0f} s: {reason}", file=sys.stderr, flush=True)
            told = True
            time.sleep(store.interval)


def _distribution(one: Range) -> BaseDistribution:
    kinds = optuna().distributions
    if one.kind == "choice":
        return kinds.CategoricalDistribution(one.values)
    if one.kind == "int":
        return kinds.IntDistribution(one.values[0], one.values[1], step=one.values[2])
    return kinds.FloatDistribution(one.values[0], one.values[1], log=one.kind == "loguniform")
