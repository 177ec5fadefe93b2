"""Which rows make a batch: rows of similar length together, so that few columns are padding, in few distinct widths.

An epoch gives every row once. In each bucket (rows of up to so many tokens) a member's rows are shuffled and cut into batches; what is
left over goes up to the next wider bucket, and the last batch of all is topped up with other rows. How many batches each width has
depends on the lengths alone, so members with rows in different orders share one sequence of widths, as a CUDA graph needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokmix.core.optional import np

STEP = 8  # widths are multiples of it


def widths(lengths: np.ndarray, count: int) -> list[int]:
    """At most `count` widths, ascending, that leave the fewest columns empty; the last holds the longest row."""
    levels = np.unique(-(-lengths // STEP) * STEP)  # the widths that would fit some row best
    held = np.searchsorted(np.sort(lengths), levels, side="right")  # how many rows fit each
    # best[i]: the fewest columns for the rows up to level i whose widest bucket is level i, and the widths used
    best = {i: (int(held[i] * levels[i]), [int(level)]) for i, level in enumerate(levels)}
    for _ in range(count - 1):
        best = {
            i: min(
                [best[i], *((best[j][0] + int((held[i] - held[j]) * levels[i]), [*best[j][1], int(levels[i])]) for j in range(i))],
                key=lambda found: found[0],
            )
            for i in range(len(levels))
        }
    return best[len(levels) - 1][1]


def fitting(wide: Sequence[int], lengths: np.ndarray) -> list[int]:
    """Of given widths, as many as the rows need; the last holds the longest row and no more columns than that."""
    longest = -(-int(lengths.max()) // STEP) * STEP
    return [*(width for width in wide if width < longest), longest]


def batch_counts(lengths: np.ndarray, wide: Sequence[int], batch: int) -> list[int]:
    """How many batches of each width an epoch has."""
    counts, carried = [], 0
    for rows in np.bincount(np.searchsorted(wide, lengths), minlength=len(wide)):
        full, carried = divmod(int(rows) + carried, batch)
        counts.append(full)
    counts[-1] += carried > 0
    return counts


def epoch(
    lengths: np.ndarray, wide: Sequence[int], batch: int, seeds: Sequence[int], number: int, seed: int = 0
) -> Iterator[tuple[int, np.ndarray]]:
    """(width, rows [members, batch]) of one epoch. seeds: of the members; seed: of the sequence of widths, which they share."""
    counts = batch_counts(lengths, wide, batch)
    bucket = np.searchsorted(wide, lengths)
    members = [_member(bucket, counts, batch, np.random.default_rng((one, number))) for one in seeds]
    sequence = np.repeat(np.arange(len(wide)), counts)
    taken = [0] * len(wide)
    for place in np.random.default_rng((seed, number, 1)).permutation(sequence):
        yield wide[place], np.stack([rows[place][taken[place]] for rows in members])
        taken[place] += 1


def _member(bucket: np.ndarray, counts: Sequence[int], batch: int, chance: np.random.Generator) -> list[np.ndarray]:
    """For each width [batches, batch]."""
    order, found = chance.permutation(len(bucket)), []
    carried = order[:0]
    for place, count in enumerate(counts):
        rows = np.concatenate([carried, order[bucket[order] == place]])
        short = count * batch - len(rows)
        if short > 0:  # the last batch of all
            others = np.setdiff1d(order, rows[-(batch - short) :], assume_unique=True)
            rows = np.concatenate([rows, chance.choice(others if len(others) else order, short, replace=len(others) < short)])
        found.append(rows[: count * batch].reshape(count, batch))
        carried = rows[count * batch :]
    return found
