"""The base of every synthetic task: settings, rows made from (seed, index), and targets."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from tokmix.core import checks
from tokmix.core.optional import np
from tokmix.data.batches.mask import IGNORE
from tokmix.data.synthetic.draws import Draws

BLOCK = 1024  # rows made at a time: bounds memory, does not change results
EXAMPLES, FEWER = 12_800, (6400, 3200, 1600, 800)
Learns = Literal["next", "targets", "rebuild"]


@dataclass(frozen=True)
class Examples:
    inputs: Tensor  # [n, T] int64
    targets: Tensor  # [n, T] int64, IGNORE where nothing is asked; asked of a model that has read inputs up to and with this position

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, which: slice | Tensor) -> Examples:
        return Examples(self.inputs[which], self.targets[which])

    def to(self, device: torch.device | str) -> Examples:
        return Examples(self.inputs.to(device), self.targets.to(device))


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """vocab     ids that a model has to know, special ones included
    length    tokens of a row
    examples  rows of the training set;  tests  rows of the test set
    """

    vocab: int
    length: int
    examples: int = EXAMPLES
    tests: int = 1280

    # next: train to predict every next token, score the targets. targets: train on what is scored.
    # rebuild: all tokens from the state at the last position alone (run.AutoEncoder); any other model would copy its input.
    learns: ClassVar[Learns] = "targets"
    new_tests: ClassVar[bool] = True  # no test row may be in the training set
    varied: ClassVar[dict[str, Sequence[float]]] = {}  # the axes of difficulty: each is changed alone from the base settings

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in fields(self):
            checks.typed(field.name, getattr(self, field.name), hints[field.name])
        for name in ("vocab", "length", "examples", "tests"):
            checks.at_least(name, getattr(self, name), 1)
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Refuse settings from which no row can be made."""

    @abstractmethod
    def rows(self, draws: Draws, test: bool) -> tuple[np.ndarray, np.ndarray]:
        """inputs and targets, both [n, T], for n rows of draws"""

    @property
    @abstractmethod
    def answers(self) -> range:
        """The set of tokens that contains every target."""

    @abstractmethod
    def spell(self, token: int) -> str:
        """A token as readable text."""

    @property
    def chance(self) -> float:
        """Accuracy of guessing among the answers."""
        return 1 / len(self.answers)

    def make(self, n: int, seed: int, *, start: int = 0, test: bool = False) -> Examples:
        """Rows start ... start + n - 1 of a seed. `test`: rows of the test set, if they differ."""
        checks.at_least("n", n, 1)
        checks.at_least("start", start, 0)
        checks.typed("seed", seed, int)
        blocks = (np.arange(at, min(at + BLOCK, start + n)) for at in range(start, start + n, BLOCK))
        made = [self.rows(Draws(seed, block), test) for block in blocks]
        inputs, targets = (torch.from_numpy(np.concatenate(part)) for part in zip(*made, strict=True))
        return Examples(inputs, targets)

    def split(self, seed: int) -> tuple[Examples, Examples]:
        """Training and test set, from different seeds; test rows that are in the training set are replaced by the next ones."""
        train = self.make(self.examples, 2 * seed)
        known = {row.tobytes() for row in train.inputs.numpy()} if self.new_tests else set()
        parts: list[Examples] = []
        for at in range(50):
            part = self.make(self.tests, 2 * seed + 1, start=at * self.tests, test=True)
            part = part.take(torch.tensor([row.tobytes() not in known for row in part.inputs.numpy()]))
            parts.append(part)
            if sum(map(len, parts)) >= self.tests:
                whole = Examples(torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts]))
                return train, whole.take(slice(self.tests))
        raise ValueError(f"vocab={self.vocab}, length={self.length}: too few different rows for {self.tests} that are not in training")

    def learned(self, data: Examples) -> Tensor:
        """The targets of training, [n, T]: every next token if the task `learns` that, else the targets."""
        if self.learns != "next":
            return data.targets
        return torch.cat([data.inputs[:, 1:], torch.full_like(data.inputs[:, :1], IGNORE)], dim=1)

    def variations(self) -> list[Task]:
        """These settings, then those with one factor changed; the score of a task is the mean accuracy over all of them."""
        changes = [{name: value} for name, values in self.varied.items() for value in values]
        return [self, *(replace(self, **change) for change in changes)]  # type: ignore[arg-type]  # a field's name and its value

    def show(self, data: Examples, row: int = 0) -> str:
        """Two lines: the inputs of a row, and below them the targets."""
        pairs = zip(data.inputs[row].tolist(), data.targets[row].tolist(), strict=True)
        columns = [(self.spell(token), "." if target == IGNORE else self.spell(target)) for token, target in pairs]
        wide = [max(map(len, column)) for column in columns]
        lines = zip(("reads", "asked"), zip(*columns, strict=True), strict=True)
        return "\n".join(
            " ".join([name, *(cell.ljust(width) for cell, width in zip(cells, wide, strict=True))]).rstrip() for name, cells in lines
        )


def even(what: str, given: int, least: int) -> None:
    if given < least or given % 2:
        raise ValueError(f"{what}={given} should be an even number of at least {least}")


def ask_next(inputs: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Targets [n, T]: each token marked in `asked` [n, T] bool, at the position before it."""
    targets = np.full_like(inputs, IGNORE)
    targets[:, :-1] = np.where(asked[:, 1:], inputs[:, 1:], IGNORE)
    return targets
