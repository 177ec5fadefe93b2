"""The task of shapes against every clause of its definition, and the small model that learns it."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch

from reproduce.toy import data as shapes
from reproduce.toy import demo
from reproduce.toy import model as toy

KINDS = ("triangle", "triangle", "box", "box")


@pytest.fixture(scope="module")
def data() -> shapes.Shapes:
    return shapes.make(1000, torch.Generator().manual_seed(3))


def height_at(kind: str, t: int, c: float, h: float, w: float) -> float:
    """The definition, one number at a time."""
    if kind == "box":
        return h if abs(t - c) < w / 2 else 0.0
    return max(0.0, h - max(0.0, abs(t - c) - 0.5) * 2 * h / w)


def by_hand(data: shapes.Shapes, row: int, heights: list[float]) -> list[list[float]]:
    """Four lines of 100 numbers."""
    places = zip(KINDS, data.centres[row].tolist(), heights, data.widths[row].tolist(), strict=True)
    return [[height_at(kind, t, c, h, w) for t in range(100)] for kind, c, h, w in places]


def noises(data: shapes.Shapes) -> tuple[torch.Tensor, torch.Tensor]:
    means = torch.stack([data.heights[:, :2].mean(1)] * 2 + [data.heights[:, 2:].mean(1)] * 2, dim=1)
    clean = (shapes.draw(data.centres, h, data.widths).amax(1) for h in (data.heights, means))
    return tuple(noisy - picture for noisy, picture in zip((data.inputs, data.targets), clean, strict=True))  # type: ignore[return-value]


def test_pictures_are_the_defined_ones_with_the_targets_at_mean_heights(data):
    for row in range(40):
        t1, t2, b1, b2 = heights = data.heights[row].tolist()
        means = [(t1 + t2) / 2] * 2 + [(b1 + b2) / 2] * 2
        for signal, used in ((data.inputs[row], heights), (data.targets[row], means)):
            clean = torch.tensor([max(at) for at in zip(*by_hand(data, row, used), strict=True)])
            assert (signal - clean).abs().max() <= 0.15 + 1e-4


def test_sizes_and_places_fill_their_ranges(data):
    ranges = {"centres": (5.5, 94.5), "heights": (1, 25), "widths": (5, 11)}
    for name, (low, high) in ranges.items():
        values = getattr(data, name)
        assert values.shape == (1000, 4)
        assert low <= values.min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < values.max() <= high
    assert data.inputs.shape == data.targets.shape == (1000, 100)


def test_no_two_shapes_within_two_positions(data):
    for row in range(200):
        lines = by_hand(data, row, data.heights[row].tolist())
        owner = [[s for s in range(4) if lines[s][t] > 0] for t in range(100)]
        assert all(len(set(owner[t] + owner[min(t + 1, 99)])) <= 1 for t in range(100))


def test_a_window_of_two_is_what_touches():
    drawn = torch.zeros(4, 4, 100)
    drawn[:, 0, 10:15] = 3.0
    drawn[0, 2, 14:20] = 5.0  # on top of each other
    drawn[1, 2, 15:20] = 5.0  # side by side
    drawn[2, 2, 16:20] = 5.0  # one empty position between
    drawn[3, 1, 5:10] = 5.0  # side by side, from the left, two of a kind
    assert shapes.touching(drawn).tolist() == [True, True, False, True]
    edge = torch.zeros(1, 4, 100)
    edge[0, 1, 99] = edge[0, 3, 99] = 1.0
    assert shapes.touching(edge).tolist() == [True]


def test_shapes_do_come_as_near_as_allowed(data):
    gaps = []
    for row in data.covered():
        spans = sorted((int(line.nonzero().min()), int(line.nonzero().max())) for line in row)
        gaps += [later[0] - earlier[1] for earlier, later in itertools.pairwise(spans)]
    assert min(gaps) == 2


def test_triangles_differ_in_height_and_boxes_need_not(data):
    t1, t2, b1, b2 = data.heights.unbind(1)
    assert (t1 - t2).abs().min() > 4
    assert (t1 - t2).abs().min() < 4.2
    assert (b1 - b2).abs().min() < 1


def test_noise_is_uniform_and_drawn_apart_for_input_and_target(data):
    for noise in noises(data):
        assert noise.abs().max() <= 0.15 + 1e-5
        assert abs(float(noise.mean())) < 1e-3
        assert 100 * float(noise.square().mean()) == pytest.approx(0.75, rel=0.02)  # the floor of the error
    left, right = noises(data)
    assert abs(float(torch.corrcoef(torch.stack([left.flatten(), right.flatten()]))[0, 1])) < 0.02


def test_input_and_target_have_their_shapes_at_the_same_places(data):
    assert torch.equal(data.inputs > 0.5, data.inputs.where(data.covered().any(1), 0) > 0.5)
    assert torch.equal(data.targets > 0.5, data.targets.where(data.covered().any(1), 0) > 0.5)


def test_a_seed_gives_the_same_set_and_a_smaller_set_is_its_beginning(data):
    again = shapes.make(1000, torch.Generator().manual_seed(3))
    other = shapes.make(1000, torch.Generator().manual_seed(4))
    small = shapes.make(10, torch.Generator().manual_seed(3))
    assert torch.equal(again.inputs, data.inputs) and torch.equal(again.targets, data.targets)
    assert not torch.equal(other.inputs, data.inputs)
    assert torch.equal(small.targets, data.targets[:10])
    train, test = shapes.split(20, 1000, seed=0)
    assert (len(train), len(test)) == (20, 1000)
    assert not torch.equal(train.inputs, test.inputs[:20])
    assert torch.equal(test.inputs, shapes.split(50, 1000, seed=0)[1].inputs)
    with pytest.raises(ValueError, match="n=0"):
        shapes.make(0, torch.Generator())


@pytest.mark.parametrize("item", toy.ITEMS.values())
def test_every_model_trains(item):
    train, test = shapes.split(100, 50, seed=0)
    model = toy.build(item, train, seed=0)
    before, seen = toy.error(model, test), []
    done = toy.train(model, train, epochs=4, batch=20, report=seen.append)
    assert [progress.epoch for progress in seen] == [1, 2, 3, 4] and done == seen[-1]
    assert toy.error(model, test) < 0.9 * before
    assert toy.predict(model, test.inputs).shape == (50, 100)


def test_a_seed_gives_the_same_model():
    train, _ = shapes.split(40, 1, seed=0)
    runs = []
    for seed in (1, 1, 2):
        model = toy.build("hypermixing(hidden=64)", train, seed)
        toy.train(model, train, epochs=1, batch=20, seed=seed)
        runs.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_time_ends_training():
    train, _ = shapes.split(40, 1, seed=0)
    done = toy.train(toy.build("none", train, 0), train, epochs=10_000, seconds=0.05, batch=20)
    assert 1 <= done.epoch < 10_000


def test_input_is_standardised_by_the_training_set(data):
    model = toy.build("none", data, seed=0)
    x = data.inputs[:3]
    plain = torch.nn.functional.conv1d(
        ((x - data.inputs.mean()) / data.inputs.std())[:, None], model.front[0].weight, model.front[0].bias, padding=2
    )
    torch.testing.assert_close(model.front[0](((x - model.mean) / model.std)[..., None]).mT, plain, rtol=1e-4, atol=1e-5)


def test_what_stands_in_the_middle():
    counts = {name: toy.ShapesModel(item) for name, item in toy.ITEMS.items()}
    ends = 64 * 5 + 64 + 2 * (64 * 64 * 5 + 64) + 64 * 5 + 1
    assert counts["none"].parameter_count() == ends + 64 * 64 * 5 + 64
    assert counts["attention"].parameter_count() == ends + 4 * 64 * 64
    assert counts["hypermixing"].parameter_count() == ends + 2 * (64 * 64 + 64) + 2 * 64
    assert counts["hypermixing"].cost() == counts["hypermixing"].middle.cost(100)
    assert counts["none"].cost().matmul == 100 * 2 * 64 * 64 * 5
    with pytest.raises(ValueError, match="takes one mixer"):
        toy.ShapesModel("attention, attention")
    with pytest.raises(ValueError, match="did you mean 'attention'"):
        toy.ShapesModel("atention")


def test_affinity_tells_partners_from_strangers(data):
    few = data.take(slice(5))
    covered = few.covered().float()  # [n, 4, T]
    kinds = covered.unflatten(1, (2, 2)).sum(2)  # [n, 2, T]
    alone = covered.mT @ covered  # 1 where a shape reads itself
    assert toy.affinity(3 * kinds.mT @ kinds, few) == toy.Pairs(pytest.approx(3.0), 0.0)
    assert toy.affinity(alone, few) == toy.Pairs(0.0, 0.0)
    assert toy.affinity(torch.ones(5, 100, 100), few) == toy.Pairs(pytest.approx(1.0), pytest.approx(1.0))


class Levelling(toy.ShapesModel):
    """Knows the shapes' places and the right answer, and adds `leak` times the other kind's mean height."""

    def __init__(self, data: shapes.Shapes, leak: float):
        super().__init__("none")
        self.data, self.leak = data, leak

    def forward(self, x):
        copies = len(x) // len(self.data)
        c, w = (field.repeat_interleave(copies, 0) for field in (self.data.centres, self.data.widths))
        ones = shapes.draw(c, torch.ones_like(c), w)
        heights = (x[:, None] * ones).sum(-1) / ones.square().sum(-1)
        level = shapes.levelled(heights)
        return ((level + self.leak * level.flip(1))[..., None] * ones).sum(1)


def test_response_of_a_model_that_levels_and_of_one_that_leaks(data):
    few = data.take(slice(10))
    assert toy.response(Levelling(few, 0.0), few) == toy.Pairs(pytest.approx(0.5, abs=1e-4), pytest.approx(0.0, abs=1e-4))
    assert toy.response(Levelling(few, -0.2), few) == toy.Pairs(pytest.approx(0.5, abs=1e-4), pytest.approx(0.1, abs=1e-4))


def test_demo_prints_a_table_and_draws_a_picture(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    for name, small in (("TRAIN", 50), ("TEST", 20), ("MEASURED", 1)):
        monkeypatch.setattr(demo, name, small)
    threads = torch.get_num_threads()
    path = demo.main(str(tmp_path / "made"), seconds=0.5, seed=1)
    assert path == tmp_path / "made" / "shapes.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines() if line.startswith(tuple(toy.ITEMS))] == ["none", "attention", "hypermixing"]
    assert str(path) in printed
    assert torch.get_num_threads() == threads
    with pytest.raises(ValueError, match="seconds=0"):
        demo.main(str(tmp_path), seconds=0, seed=1)


def test_without_matplotlib_the_demo_says_so_before_it_trains(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(toy, "train", lambda *given, **named: pytest.fail("trained"))
    with pytest.raises(ImportError, match=r"tokmix\[lab\]"):
        demo.main(str(tmp_path), seconds=60, seed=0)
