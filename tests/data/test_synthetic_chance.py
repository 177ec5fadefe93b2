"""What is drawn in a synthetic row: from where, how often, and as a function of seed and index."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from tests.synthetic_cases import ALL, SMALL, rows
from tokmix.data import synthetic
from tokmix.data.synthetic.draws import Draws, repeated
from tokmix.data.synthetic.task import Task


def test_recall_repeats_a_key_at_the_end_and_draws_pairs_evenly():
    task = synthetic.create("in_context_recall", vocab=64, length=32)
    first = []
    for inputs, targets in rows(task, 2000):
        assert inputs[-2] in inputs[:-2:2] and targets[-2] == inputs[-1] and targets[-1] == -100
        first.append(inputs[:-2:2].index(inputs[-2]))
    places = Counter(first)
    assert all(places[at] > 60 for at in range(15)), "the key asked last comes from anywhere: 2000 / 15 a place, less repetitions"
    keys = Counter(key for inputs, _ in rows(task, 2000) for key in inputs[::2])
    assert sorted(keys) == list(range(32)) and max(keys.values()) < 1.25 * min(keys.values())


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.8, 1.0])
def test_the_share_of_noise_is_what_was_asked_and_a_real_pair_is_sure(noise):
    task = synthetic.create("noisy_recall", noise=noise)
    noisy = total = 0
    for inputs, targets in rows(task, 300):
        kinds = [(a >= 16, b >= 16) for a, b in zip(inputs[::2], inputs[1::2], strict=True)]
        assert all(a == b for a, b in kinds), "noise comes in pairs"
        assert kinds[-1] == (False, False) and (False, False) in kinds[:-1] and targets[-2] == inputs[-1]
        noisy, total = noisy + sum(a for a, _ in kinds[:-1]), total + len(kinds) - 1
    sure = 1 / 63 if noise == 1 else 0
    assert noisy / total == pytest.approx(noise - sure, abs=0.015)
    seen = {token for inputs, _ in rows(task, 300) for token in inputs if token >= 16}
    assert seen == (set() if noise == 0 else set(range(16, 32)))


def fuzzy_motifs(task: Task, inputs: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for token in inputs:
        if token == task.vocab - 1:
            continue
        if found and (found[-1][-1] < 7) == (token < 7):
            found[-1].append(token)
        else:
            found.append([token])
    return found


@pytest.mark.parametrize("test", [False, True])
def test_fuzzy_rows_are_motifs_with_a_probe_at_the_end(test):
    task = synthetic.create("fuzzy_recall")
    sizes: Counter[tuple[str, int]] = Counter()
    for inputs, targets in rows(task, 400, test=test):
        motifs = fuzzy_motifs(task, inputs)
        keys, values = motifs[::2], motifs[1::2]
        assert all(len(set(motif)) == len(motif) <= 3 for motif in motifs), "without repetition"
        assert keys[-1] in keys[:-1] and values[-1] == values[keys.index(keys[-1])]
        asked = [target for target in targets if target != -100]
        assert asked == [token for at, key in enumerate(keys) if key in keys[:at] for token in values[at]]
        sizes.update(("key", len(key)) for key in keys)
        sizes.update(("value", len(value)) for value in values)
        assert inputs.count(15) < 6, "the next pair would not have fitted"
    for kind, lengths in (("key", (3,) if test else (1, 2, 3)), ("value", (1, 2, 3))):
        total = sum(count for (what, _), count in sizes.items() if what == kind)
        assert all(sizes[kind, length] / total == pytest.approx(1 / len(lengths), abs=0.04) for length in lengths)


def test_the_probe_of_a_fuzzy_row_stands_anywhere():
    task = synthetic.create("fuzzy_recall", vocab=2001, length=64)  # so many keys that none comes again by chance
    quarters: Counter[int] = Counter()
    for inputs, _ in rows(task, 1600):
        motifs = [token for at, token in enumerate(inputs) if token < 1000 and not (at and inputs[at - 1] < 1000)]  # first tokens of keys
        quarters[4 * motifs.index(motifs[-1]) // (len(motifs) - 1)] += 1
    assert sorted(quarters) == [0, 1, 2, 3] and all(count == pytest.approx(400, abs=100) for count in quarters.values())


def test_copied_tokens_are_scattered_over_the_whole_row():
    task = synthetic.create("selective_copying", length=40, copies=4)
    places: Counter[int] = Counter()
    for inputs, _ in rows(task, 3000):
        there = [at for at, token in enumerate(inputs[:35]) if token != 14]
        assert len(there) == 4
        places.update(there)
    assert sorted(places) == list(range(35))
    assert all(count == pytest.approx(3000 * 4 / 35, abs=5 * math.sqrt(3000 * 4 / 35)) for count in places.values())


def test_queries_of_mqar_come_at_even_offsets_by_a_power_law():
    task = synthetic.create("mqar", vocab=64, length=40, pairs=2, power=0.5)
    first: Counter[int] = Counter()
    n = 4000
    for inputs, targets in rows(task, n):
        keys, values = inputs[0:4:2], inputs[1:4:2]
        assert len(set(keys)) == len(set(values)) == 2 and set(keys) <= set(range(1, 32)) and set(values) <= set(range(32, 64))
        asked = {at: target for at, target in enumerate(targets) if target != -100}
        assert len(asked) == 2 and all(at >= 4 and (at - 4) % 2 == 0 for at in asked)
        assert {inputs[at]: target for at, target in asked.items()} == dict(zip(keys, values, strict=True))
        first[next(at for at in asked if inputs[at] == keys[0]) // 2 - 1] += 1  # gap of the key drawn first
    weights = {g: g**-0.5 for g in range(1, 19)}
    assert set(first) == set(weights)
    for g, weight in weights.items():
        share = weight / sum(weights.values())
        assert first[g] / n == pytest.approx(share, abs=5 * math.sqrt(share / n))


@pytest.mark.parametrize(("name", "given"), ALL)
def test_a_row_is_a_function_of_seed_and_index(name, given):
    task = synthetic.create(name, **given)
    whole, part, other = task.make(1100, 7), task.make(90, 7, start=1000), task.make(90, 8, start=1000)
    for field in ("inputs", "targets"):
        assert torch.equal(getattr(whole, field)[1000:1090], getattr(part, field)), "across the blocks in which rows are made"
    assert not torch.equal(part.inputs, other.inputs)
    assert len({tuple(row) for row in whole.inputs[:40].tolist()}) > 20, "rows differ"


def test_rows_of_a_seed_do_not_change_between_versions():
    """Results name seeds: a changed generator has to be noticed."""
    made = {name: synthetic.create(name, **given).make(1, 0).inputs[0].tolist() for name, given in SMALL.items()}
    assert made["in_context_recall"] == [3, 6, 1, 7, 3, 6, 2, 6, 2, 6, 1, 7, 1, 7, 2, 6]
    assert made["mqar"] == [2, 10, 4, 13, 5, 12, 7, 8, 7, 8, 1, 7, 5, 3, 4, 12, 12, 0, 2, 9, 7]


@pytest.mark.parametrize("name", [name for name in SMALL if name != "memorisation"])
def test_no_test_row_stands_in_the_training_set(name):
    # Small enough for the same row to be drawn twice.
    tight = {"in_context_recall": {"vocab": 4, "length": 8}, "selective_copying": {"vocab": 5, "length": 7, "copies": 3},
             "compression": {"vocab": 4, "length": 6}}.get(name, SMALL[name])  # fmt: skip
    task = synthetic.create(name, examples=40, tests=30, **tight)
    train, test = task.split(1)
    assert (len(train), len(test)) == (40, 30)
    assert not {tuple(row) for row in train.inputs.tolist()} & {tuple(row) for row in test.inputs.tolist()}
    assert torch.equal(train.inputs, task.split(1)[0].inputs) and not torch.equal(train.inputs, task.split(2)[0].inputs)


def test_draws_without_repetition_are_fair():
    drawn = Draws(0, torch.arange(6000).numpy()).distinct(2, 4)
    counts = Counter(map(tuple, drawn.tolist()))
    assert len(counts) == 12 and all(count == pytest.approx(500, abs=5 * math.sqrt(500)) for count in counts.values())


def test_repeated_finds_what_stood_before():
    codes = torch.randint(6, (50, 12), generator=torch.Generator().manual_seed(0)).numpy()
    assert repeated(codes).tolist() == [[code in row[:at] for at, code in enumerate(row)] for row in codes.tolist()]
