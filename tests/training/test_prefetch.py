from __future__ import annotations

import pytest

pytest.importorskip("numpy")

from tokmix.training.prefetch import Prefetch


class Numbers:
    """Epochs of 3, 1, 0 and then 4 steps; a batch is its place."""

    def __init__(self) -> None:
        self.built: list[tuple[int, int]] = []

    def steps(self, epoch: int) -> int:
        return [3, 1, 0, 4][min(epoch, 3)]

    def batch(self, epoch: int, step: int) -> tuple[int, int]:
        assert 0 <= step < self.steps(epoch)
        self.built.append((epoch, step))
        return epoch, step


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_same_batches_in_the_same_order(depth: int) -> None:
    numbers = Numbers()
    prefetch = Prefetch(numbers, depth)  # type: ignore[arg-type]

    def follow(epoch: int, step: int, count: int) -> list[tuple[int, int]]:
        taken = []
        for _ in range(count):
            (epoch, step), batch = prefetch.take(epoch, step)
            assert batch == (epoch, step)
            taken.append(batch)
            step += 1
        return taken

    order = [(0, 0), (0, 1), (0, 2), (1, 0), (3, 0), (3, 1), (3, 2), (3, 3), (4, 0)]
    assert follow(0, 0, 9) == order
    assert follow(0, 2, 3) == [(0, 2), (1, 0), (3, 0)], "after a resume"
    if prefetch.reader is not None:
        prefetch.reader.shutdown()
        assert len(numbers.built) > 12, "some were built ahead"


def test_an_error_while_building_reaches_the_one_who_asked() -> None:
    class Broken(Numbers):
        def batch(self, epoch: int, step: int) -> tuple[int, int]:
            if (epoch, step) == (1, 0):
                raise OSError("the disk is gone")
            return super().batch(epoch, step)

    prefetch = Prefetch(Broken(), 2)  # type: ignore[arg-type]
    for step in range(3):
        prefetch.take(0, step)
    with pytest.raises(OSError, match="the disk is gone"):
        prefetch.take(0, 3)
