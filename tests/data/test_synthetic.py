"""The synthetic tasks ask what their definitions say: against oracles that read a row token by token."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from tests.synthetic_cases import ALL, ORACLES, SMALL, rows
from tokmix.data import synthetic
from tokmix.data.synthetic.task import Examples


@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize(("name", "given"), [case for case in ALL if "memorisation" not in str(case.id)])
def test_an_oracle_that_reads_the_row_so_far_gives_every_target(name, given, test):
    task = synthetic.create(name, **given)
    for inputs, targets in rows(task, 25, test=test):
        asked = [at for at, target in enumerate(targets) if target != -100]
        assert asked
        for at in asked:
            assert ORACLES[name](task, inputs[: at + 1]) == targets[at], (at, inputs)


@pytest.mark.parametrize("name", ["in_context_recall", "noisy_recall", "selective_copying", "compression"])
def test_everything_that_follows_is_asked(name):
    task = synthetic.create(name, **SMALL[name])
    for inputs, targets in rows(task):
        follows = [ORACLES[name](task, inputs[: at + 1]) for at in range(task.length)]
        assert targets == [-100 if answer is None else answer for answer in follows]


@pytest.mark.parametrize("given", [{}, SMALL["memorisation"]])
def test_memorisation_asks_one_map_that_is_never_shown(given):
    task = synthetic.create("memorisation", **given)
    train, test = task.split(0)
    known: dict[int, int] = {}
    both = Examples(torch.cat([train.inputs, test.inputs]), torch.cat([train.targets, test.targets]))
    for inputs, targets in zip(both.inputs.tolist(), both.targets.tolist(), strict=True):
        assert set(inputs[1::2]) == {task.vocab - 1} and set(targets[::2]) == {-100}
        assert not set(inputs) & set(task.answers)
        for key, value in zip(inputs[::2], targets[1::2], strict=True):
            assert known.setdefault(key, value) == value
    assert sorted(known) == list(range(len(task.answers))), "every key is used"
    assert sorted(known.values()) == list(task.answers), "one-to-one"
    other = synthetic.create("memorisation", map_seed=1, **given).make(20, 0)
    again = task.make(20, 0)
    assert torch.equal(other.inputs, again.inputs) and not torch.equal(other.targets, again.targets)


def test_the_ceiling_of_memorisation_is_the_share_of_keys_seen():
    for vocab, about in ((256, 1.0), (8192, 0.632)):
        task = synthetic.create("memorisation", vocab=vocab)
        train, test = task.split(3)
        seen = set(train.inputs[:, ::2].flatten().tolist())
        share = sum(key in seen for key in test.inputs[:, ::2].flatten().tolist()) / (1280 * 16)
        assert share == pytest.approx(task.ceiling, abs=0.02) and task.ceiling == pytest.approx(about, abs=1e-3)


@pytest.mark.parametrize(("name", "given"), ALL)
def test_rows_have_the_shape_and_the_ids_that_are_promised(name, given):
    task = synthetic.create(name, **given)
    data = task.make(30, 1)
    assert data.inputs.shape == data.targets.shape == (30, task.length)
    assert data.inputs.dtype == data.targets.dtype == torch.int64
    assert int(data.inputs.min()) >= 0 and int(data.inputs.max()) < task.vocab
    asked = data.targets[data.targets != -100]
    assert set(asked.tolist()) <= set(task.answers)
    assert len(task.show(data, 2).splitlines()) == 2


@pytest.mark.parametrize("name", SMALL)
def test_answers_are_spread_evenly_so_that_no_guess_beats_chance(name):
    task = synthetic.create(name, **SMALL[name])
    data = task.make(4000, 2)
    asked = data.targets[data.targets != -100]
    counts = Counter(asked.tolist())
    # Targets of a row hang together (one key asked many times), so the spread is that of rows, at least.
    slack = 5 * math.sqrt(task.chance / 4000)
    assert len(counts) == len(task.answers)
    assert all(count / len(asked) == pytest.approx(task.chance, abs=slack) for count in counts.values())
    guess = torch.randint(task.answers.start, task.answers.stop, asked.shape, generator=torch.Generator().manual_seed(0))
    assert float((guess == asked).float().mean()) == pytest.approx(task.chance, abs=5 * math.sqrt(task.chance / len(asked)))


@pytest.mark.parametrize("name", ["in_context_recall", "noisy_recall", "fuzzy_recall", "mqar"])
def test_the_token_at_the_question_tells_nothing_about_the_answer_by_itself(name):
    """Across rows the value of a key is any value: a model has to read the row."""
    task = synthetic.create(name, **SMALL[name])
    data = task.make(6000, 4)
    here = data.targets != -100
    keys = data.inputs < task.answers.start  # a value token within a value does tell: it cannot come again
    pairs = Counter(zip(data.inputs[here & keys].tolist(), data.targets[here & keys].tolist(), strict=True))
    of_key = Counter(key for key, _ in pairs.elements())
    for (key, _), count in pairs.items():
        assert count / of_key[key] == pytest.approx(task.chance, abs=6 * math.sqrt(task.chance / (6000 / len(of_key))))


def test_no_answer_stands_where_it_is_asked_or_behind():
    """Where a row is not trained to predict its next token, that token is not the answer."""
    for inputs, targets in rows(synthetic.create("selective_copying")):
        assert inputs[-17:] == [15] + [14] * 16 and targets[:-16] == [-100] * 240
    asked = [
        (inputs[at + 1], target)
        for inputs, targets in rows(synthetic.create("mqar"), 500)
        for at, target in enumerate(targets[:-1])
        if target != -100
    ]
    assert len(asked) > 1900 and sum(behind == target for behind, target in asked) <= 3, "random tokens: one in 8192"
