"""How a run's time is divided: how often and on how much it is evaluated, and how many steps fit into --minutes.

Without --minutes the plan follows from numbers of tokens and not from a clock: a run that is killed and resumed, and a run on another
machine, evaluate at the same steps on the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.1  # of the time, at most, goes to evaluations
FORWARD = 0.4  # what a token of an evaluation costs, beside one of training
USUAL, FEWEST, SAMPLE = 20, 5, 256  # evaluations of a run; evaluations before a sample is taken; rows of the smallest sample


@dataclass(frozen=True)
class EvaluationPlan:
    count: int  # evaluations of the whole run, the last one after the last step
    share: float  # of the held-out rows that each of them reads


def evaluation_plan(requested: int | None, train_tokens: float, held_tokens: float, held_rows: int) -> EvaluationPlan:
    """First fewer evaluations, then each on a sample, then one only. A number that the user gives is kept; the sample still shrinks."""
    wanted = requested or USUAL
    whole = SHARE * train_tokens / max(FORWARD * held_tokens, 1e-9)  # evaluations on all rows that the budget allows
    if wanted <= whole or held_rows == 0:
        return EvaluationPlan(wanted, 1.0)
    count = wanted if requested else max(min(wanted, FEWEST), int(whole))
    least = min(1.0, SAMPLE / held_rows)
    share = min(1.0, max(whole / count, least))
    if not requested:
        count = max(1, min(count, int(whole / share)))
    return EvaluationPlan(count, share)


def steps_that_fit(step: int, seconds_left: float, seconds_a_step: float, most: int) -> int:
    """Steps of the whole run, at least one more than are done."""
    return max(step + 1, min(most, step + int(max(seconds_left, 0.0) / max(seconds_a_step, 1e-9))))
