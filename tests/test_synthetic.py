"""The synthetic tasks against oracles written from their definitions: plain Python, one row and one token at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

from tokmix.data import synthetic
from tokmix.data.synthetic import run
from tokmix.data.synthetic.draws import Draws, repeated
from tokmix.data.synthetic.task import Examples, Task

# Small vocabularies and short rows, where a mistake shows soon; the base settings are tried beside them.
SMALL = {
    "in_context_recall": {"vocab": 8, "length": 16},
    "noisy_recall": {"vocab": 12, "noise_vocab": 4, "length": 20, "noise": 0.4},
    "fuzzy_recall": {"vocab": 11, "length": 40},
    "selective_copying": {"vocab": 6, "length": 12, "copies": 4},
    "memorisation": {"vocab": 12, "length": 8},
    "compression": {"vocab": 5, "length": 7},
    "mqar": {"vocab": 16, "length": 21, "pairs": 4},
}
ALL = [pytest.param(name, given, id=f"{name}-{size}") for name in SMALL for size, given in (("base", {}), ("small", SMALL[name]))]
BASE = {  # vocabulary, length, examples, and what else is named
    "in_context_recall": {"vocab": 16, "length": 128, "examples": 12800},
    "noisy_recall": {"vocab": 32, "length": 128, "examples": 12800, "noise": 0.2, "noise_vocab": 16},
    "fuzzy_recall": {"vocab": 16, "length": 128, "examples": 12800, "motif": 3},
    "selective_copying": {"vocab": 16, "length": 256, "examples": 12800, "copies": 16},
    "memorisation": {"vocab": 256, "length": 32, "examples": 256},
    "compression": {"vocab": 16, "length": 32, "examples": 12800},
    "mqar": {"vocab": 8192, "length": 64, "pairs": 4, "power": 0.01},
}


def rows(task: Task, n: int = 60, seed: int = 5, test: bool = False) -> Iterator[tuple[list[int], list[int]]]:
    data = task.make(n, seed, test=test)
    return zip(data.inputs.tolist(), data.targets.tolist(), strict=True)


# What a row should ask, from what stands at and before each position. None: nothing.
Oracle = Callable[[Task, list[int]], int | None]


def recall_oracle(task: Task, prefix: list[int]) -> int | None:
    half = (task.vocab - getattr(task, "noise_vocab", 0)) // 2
    *before, key = prefix
    if len(before) % 2 or key >= half:
        return None
    known = dict(zip(before[::2], before[1::2], strict=True))
    return known.get(key)


def fuzzy_oracle(task: Task, prefix: list[int]) -> int | None:
    """The value that followed the same run of key tokens before; of what has been said of it already, the next token."""
    keys, pad = range((task.vocab - 1) // 2), task.vocab - 1
    runs: list[tuple[bool, list[int]]] = []
    for token in prefix:
        kind = token in keys
        if token == pad:
            assert not runs, "padding is on the left"
        elif runs and runs[-1][0] == kind:
            runs[-1][1].append(token)
        else:
            runs.append((kind, [token]))
    motifs = [tuple(motif) for _, motif in runs]
    said: tuple[int, ...] = ()
    if len(motifs) % 2 == 0:
        said = motifs.pop() if motifs else ()
    if not motifs:
        return None
    *before, key = motifs
    value = dict(zip(before[::2], before[1::2], strict=True)).get(key, ())
    return value[len(said)] if len(said) < len(value) else None


def copying_oracle(task: Task, prefix: list[int]) -> int | None:
    blank, copy = task.vocab - 2, task.vocab - 1
    if copy not in prefix or prefix[-1] == copy:
        return None
    at = prefix.index(copy)
    return [token for token in prefix[:at] if token != blank][len(prefix) - at - 2]


def compression_oracle(task: Task, prefix: list[int]) -> int | None:
    return None if prefix[-1] == task.vocab - 1 else prefix[-1]


def mqar_oracle(task: Task, prefix: list[int]) -> int | None:
    first = 2 * task.pairs  # type: ignore[attr-defined]
    known = dict(zip(prefix[:first:2], prefix[1:first:2], strict=False))
    return known.get(prefix[-1]) if len(prefix) > first and len(prefix) % 2 else None


ORACLES: dict[str, Oracle] = {
    "in_context_recall": recall_oracle,
    "noisy_recall": recall_oracle,
    "fuzzy_recall": fuzzy_oracle,
    "selective_copying": copying_oracle,
    "compression": compression_oracle,
    "mqar": mqar_oracle,
}


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


def test_what_training_predicts():
    task = synthetic.create("in_context_recall", **SMALL["in_context_recall"])
    data = task.make(5, 0)
    assert torch.equal(task.learned(data)[:, :-1], data.inputs[:, 1:]) and set(task.learned(data)[:, -1].tolist()) == {-100}
    fuzzy = synthetic.create("fuzzy_recall")
    data = fuzzy.make(50, 0)
    following = fuzzy.learned(data)
    assert 15 not in following and int((following == -100).sum()) == int((data.inputs[:, 1:] == 15).sum()) + 50
    copying = synthetic.create("selective_copying")
    data = copying.make(5, 0)
    assert torch.equal(copying.learned(data), data.targets)


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


def test_draws_without_repetition_are_fair():
    drawn = Draws(0, torch.arange(6000).numpy()).distinct(2, 4)
    counts = Counter(map(tuple, drawn.tolist()))
    assert len(counts) == 12 and all(count == pytest.approx(500, abs=5 * math.sqrt(500)) for count in counts.values())


def test_repeated_finds_what_stood_before():
    codes = torch.randint(6, (50, 12), generator=torch.Generator().manual_seed(0)).numpy()
    assert repeated(codes).tolist() == [[code in row[:at] for at, code in enumerate(row)] for row in codes.tolist()]


def test_an_accuracy_counts_targets_alone():
    targets = torch.tensor([[-100, 2, -100], [1, 0, -100]])
    logits = torch.nn.functional.one_hot(torch.tensor([[0, 2, 1], [1, 1, 1]]), 3).float()

    class Fixed(torch.nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return logits

    assert run.accuracy(Fixed(), Examples(torch.zeros(2, 3, dtype=torch.long), targets)) == pytest.approx(2 / 3)


def test_the_learning_rate_ends_where_it_should():
    assert [run.cosine(1e-3, share) for share in (0, 0.5, 1)] == pytest.approx([1e-3, (1e-3 + 1e-6) / 2, 1e-6])


def test_an_auto_encoder_sees_the_last_state_alone():
    task = synthetic.create("compression", vocab=5, length=6)
    ids = task.make(2, 0).inputs
    blind, seeing = run.build(task, "identity", 8).eval(), run.build(task, "attention(heads=2)", 8).eval()
    assert blind(ids).shape == (2, 6, 5)
    assert torch.allclose(*blind(ids)), "nothing but the compression token reaches the end"
    assert not torch.allclose(*seeing(ids))


def test_attention_learns_to_recall_and_a_stack_that_cannot_look_back_does_not():
    task = synthetic.create("in_context_recall", vocab=8, length=16, examples=1280, tests=200)
    settings = {"epochs": 3, "batch": 32, "lr": 1e-2}
    assert task.chance == 0.25
    assert run.train(task, "attention*2", 32, **settings).accuracy > 0.4
    assert run.train(task, "identity*2", 32, **settings).accuracy < 0.32
