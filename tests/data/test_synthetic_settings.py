"""Settings of the synthetic tasks: the published ones, the smallest that work, and those that are refused."""

from __future__ import annotations

import pytest

from tests.synthetic_cases import ORACLES, SMALL, rows
from tokmix.data import synthetic

BASE = {  # vocabulary, length, examples, and what else is named
    "in_context_recall": {"vocab": 16, "length": 128, "examples": 12800},
    "noisy_recall": {"vocab": 32, "length": 128, "examples": 12800, "noise": 0.2, "noise_vocab": 16},
    "fuzzy_recall": {"vocab": 16, "length": 128, "examples": 12800, "motif": 3},
    "selective_copying": {"vocab": 16, "length": 256, "examples": 12800, "copies": 16},
    "memorisation": {"vocab": 256, "length": 32, "examples": 256},
    "compression": {"vocab": 16, "length": 32, "examples": 12800},
    "mqar": {"vocab": 8192, "length": 64, "pairs": 4, "power": 0.01},
}


def test_a_task_of_too_few_rows_says_so():
    with pytest.raises(ValueError, match="^vocab=3, length=3: too few different rows for 1280 that are not in training$"):
        synthetic.create("compression", vocab=3, length=3).split(0)


@pytest.mark.parametrize("name", SMALL)
def test_base_settings_and_axes_are_the_published_ones(name):
    task = synthetic.create(name)
    assert {field: getattr(task, field) for field in BASE[name]} == BASE[name] and task.tests == 1280
    assert task.variations()[0] == task
    fewer = {"examples": (6400, 3200, 1600, 800)}
    recall = {"vocab": (32, 64, 128), "length": (256, 512, 1024), **fewer}
    axes = {
        "in_context_recall": recall,
        "noisy_recall": {**recall, "vocab": (48, 80, 144), "noise": (0.4, 0.6, 0.8)},
        "fuzzy_recall": recall,
        "selective_copying": {"vocab": (32, 64, 128), "length": (512, 1024), **fewer, "copies": (32, 64, 96)},
        "memorisation": {"vocab": (512, 1024, 2048, 4096, 8192)},
        "compression": {"vocab": (32, 64, 128), "length": (64, 128, 256), **fewer},
    }
    if name == "mqar":
        assert [(one.length, one.pairs) for one in task.variations()] == [(64, 4), (128, 8), (256, 16), (512, 64)]
    else:
        changed = [{f: v for f, v in vars(one).items() if v != vars(task)[f]} for one in task.variations()[1:]]
        assert changed == [{axis: value} for axis, values in axes[name].items() for value in values]
    for one in task.variations():
        assert one.make(2, 0).inputs.shape == (2, one.length)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("in_context_recal", {}, "unknown task 'in_context_recal'; known: .*, did you mean 'in_context_recall'"),
        ("mqar", {"pair": 3}, "task 'mqar' has no setting 'pair'; its settings: .*, did you mean 'pairs'"),
        ("in_context_recall", {"vocab": 15}, "vocab=15 should be an even number of at least 4"),
        ("in_context_recall", {"length": 2}, "length=2 should be an even number of at least 4"),
        ("in_context_recall", {"vocab": "16"}, "vocab='16' should be of type int"),
        ("in_context_recall", {"examples": 0}, "examples=0 is not a whole number of at least 1"),
        ("noisy_recall", {"noise": 1.5}, "noise=1.5 is outside 0 to 1"),
        ("noisy_recall", {"noise_vocab": 0}, "noise_vocab=0 is not a whole number of at least 1"),
        ("noisy_recall", {"vocab": 16}, "vocab=16 with noise_vocab=16 leaves 0 tokens for pairs, which should be even and at least 4"),
        ("fuzzy_recall", {"vocab": 6}, "vocab=6 is too small for motifs of 3 tokens without repetition: at least 7"),
        ("fuzzy_recall", {"length": 11}, "length=11 is too short for a pair of motifs of 3, twice: at least 12"),
        ("fuzzy_recall", {"motif": 0}, "motif=0 is not a whole number of at least 1"),
        ("fuzzy_recall", {"vocab": 200, "motif": 20, "length": 100}, "vocab=200, motif=20: there are more than 2\\^63 motifs"),
        ("selective_copying", {"copies": 128}, "length=256 is too short for copies=128: at least 257"),
        ("selective_copying", {"vocab": 3}, "vocab=3 is not a whole number of at least 4"),
        ("memorisation", {"vocab": 4}, "vocab=4 should be at least 5"),
        ("memorisation", {"length": 31}, "length=31 should be an even number"),
        ("compression", {"length": 1}, "length=1 should be at least 2"),
        ("mqar", {"vocab": 8}, "vocab=8 has too few keys for pairs=4: at least 10"),
        ("mqar", {"length": 15}, "length=15 is too short for pairs=4 and their queries: at least 16"),
        ("mqar", {"power": 0.0}, "power=0.0 should be above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_line(name, given, message):
    with pytest.raises(ValueError, match=message) as error:
        synthetic.create(name, **given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("in_context_recall", {"vocab": 4, "length": 4}),
        ("noisy_recall", {"vocab": 5, "noise_vocab": 1, "length": 4, "noise": 1.0}),
        ("fuzzy_recall", {"vocab": 7, "length": 12}),
        ("fuzzy_recall", {"vocab": 5, "length": 4, "motif": 1}),
        ("selective_copying", {"vocab": 4, "length": 9, "copies": 4}),
        ("compression", {"vocab": 3, "length": 2}),
        ("mqar", {"vocab": 10, "length": 16, "pairs": 4}),
    ],
)
def test_the_smallest_settings_that_are_taken_work(name, given):
    task = synthetic.create(name, **given)
    for test in (False, True):
        for inputs, targets in rows(task, 40, test=test):
            asked = [at for at, target in enumerate(targets) if target != -100]
            assert asked and all(ORACLES[name](task, inputs[: at + 1]) == targets[at] for at in asked)
