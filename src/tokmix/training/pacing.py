"""How the time of a run is divided: number and size of evaluations, and how many steps fit into --minutes.

Without --minutes the plan depends on numbers of tokens and not on a clock. So a resumed run, and a run on another machine, evaluate
at the same steps on the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokmix.training.distributed import World
from tokmix.training.progress import Progress
from tokmix.training.schedule import Growth
from tokmix.training.task import TrainingTask

SHARE = 0.1  # largest share of the time for evaluations
FORWARD = 0.4  # cost of a token of an evaluation, relative to training
FINISH = 8.0  # most seconds of --minutes that are reserved for the model folder and the plots
AGREE = 5  # steps between two exchanges of several processes about stopping or saving
USUAL, FEWEST, SAMPLE = 20, 5, 256  # evaluations of a run; evaluations before a sample is taken; rows of the smallest sample


@dataclass(frozen=True)
class EvaluationPlan:
    count: int  # evaluations of the whole run, the last one after the last step
    share: float  # share of the held-out rows that each of them reads


def evaluation_plan(requested: int | None, train_tokens: float, held_tokens: float, held_rows: int) -> EvaluationPlan:
    """Reduce first the number of evaluations, then their rows. A number that the user gives is kept, and only the sample shrinks."""
    wanted = requested or USUAL
    whole = SHARE * train_tokens / max(FORWARD * held_tokens, 1e-9)  # evaluations on all rows within the budget
    if wanted <= whole or held_rows == 0:
        return EvaluationPlan(wanted, 1.0)
    count = wanted if requested else max(min(wanted, FEWEST), int(whole))
    least = min(1.0, SAMPLE / held_rows)
    share = min(1.0, max(whole / count, least))
    if not requested:
        count = max(1, min(count, int(whole / share)))
    return EvaluationPlan(count, share)


def steps_that_fit(step: int, seconds_left: float, seconds_a_step: float, most: int) -> int:
    """Steps of the whole run, at least one more than already done."""
    return max(step + 1, min(most, step + int(max(seconds_left, 0.0) / max(seconds_a_step, 1e-9))))


class Pacing:
    """The plan of one run."""

    def __init__(self, work: TrainingTask, world: World, batches: int, most: int, growth: Growth):
        """batches: of an epoch; most: steps of the run without --minutes; growth: batches of a step."""
        self.work, self.world, self.most, self.growth, self.minutes = work, world, most, growth, work.train.minutes
        self.step_tokens = work.tokens_of("train") * growth.mean() / max(batches, 1)
        self.pace: float | None = None  # seconds of a step, from a trial
        self.fitted = 0.0  # last time that --minutes was compared with the clock

    def plan(self, progress: Progress) -> None:
        """Plan the evaluations, if not yet done."""
        work = self.work
        if work.held is None or progress.evaluations:
            return
        tokens = self.step_tokens * progress.total
        plan = evaluation_plan(work.train.evaluations, tokens, work.tokens_of("held"), len(work.held))
        progress.evaluations, progress.held_share = plan.count, plan.share

    def evaluation_due(self, progress: Progress) -> bool:
        done, total, often = progress.step, progress.total, progress.evaluations
        if not (done * often // total > (done - 1) * often // total or done == total):
            return False
        if self.minutes is None or done == total:
            return True
        within = progress.evaluation_seconds + self._evaluation_seconds(progress) <= SHARE * 60 * self.minutes
        return bool(self.world.agree(within))

    def begin(self, progress: Progress) -> None:
        """With --minutes: as many steps as fit, by the pace of the trial."""
        progress.total = steps_that_fit(0, self._seconds_left(progress, 0.0), self.pace or 0.0, self.most)

    def fit(self, progress: Progress, saving: float) -> None:
        """With --minutes: as many steps as fit, by the pace of the steps so far."""
        if progress.step >= progress.total:  # a finished run stays finished
            return
        alone = self.world.size == 1 and progress.seconds - self.fitted > 1
        if progress.step % AGREE and not alone:
            return
        self.fitted = progress.seconds
        pace = (progress.seconds - progress.evaluation_seconds) / progress.step * self.growth.to_come(progress.step / progress.total)
        progress.total = self.world.agree(steps_that_fit(progress.step, self._seconds_left(progress, saving), pace, self.most))

    def _seconds_left(self, progress: Progress, saving: float) -> float:
        """Seconds of --minutes left for steps: without the time spent, a checkpoint, later evaluations and the final one."""
        assert self.minutes is not None
        finish = self._evaluation_seconds(progress, "final") + saving + min(FINISH, SHARE * 60 * self.minutes)
        left = 60 * self.minutes - progress.spent - progress.seconds - finish
        if self.work.held is None:
            return left
        one = self._evaluation_seconds(progress)
        left -= one / max(progress.held_share, 1e-9)  # the bag of words and the model are compared on all held-out rows
        planned = max((progress.evaluations or 1) - len(progress.history), 1)
        affordable = max(SHARE * 60 * self.minutes - progress.evaluation_seconds, 0.0)
        return left - min(planned * one, max(affordable, one))

    def _evaluation_seconds(self, progress: Progress, part: str = "held") -> float:
        """Seconds of one evaluation: measured, else from the pace of the steps."""
        held = self.work.tokens_of("held") * progress.held_share
        tokens = held if part == "held" else self.work.tokens_of(part)
        if progress.history and held:
            return progress.evaluation_seconds / len(progress.history) * tokens / held
        return FORWARD * (self.pace or 0.0) * tokens / max(self.step_tokens, 1)
