"""A user's own mixer: one file with @tokmix.register."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tokmix
from tokmix.core import mixer as registry

pytestmark = pytest.mark.usefixtures("clean_registry")


def test_a_mixer_written_with_rows_works_everywhere() -> None:
    @tokmix.register("running_mean")
    class RunningMean(tokmix.RowMixer):
        modes = frozenset({"causal", "padded", "packed", "step"})
        order = "T"

        def __init__(self, dim: int, *, causal: bool, max_len: int, layer: int = 0, gain: float = 1.0):
            super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
            self.gain = nn.Parameter(torch.full((dim,), gain))

        def mix(self, x: Tensor, rows: tokmix.Rows | None) -> Tensor:
            return self.advance(x, self.empty_state(x.shape[0], x), rows)[0]

        def empty_state(self, batch: int, like: Tensor) -> dict[str, Tensor]:
            return {"total": like.new_zeros(batch, self.dim), "count": like.new_zeros(batch)}

        def advance(self, x: Tensor, state: dict[str, Tensor], rows: tokmix.Rows | None) -> tuple[Tensor, dict[str, Tensor]]:
            counts = torch.arange(1, x.shape[1] + 1) + state["count"][:, None]
            total = x.cumsum(1) + state["total"][:, None]
            lengths = torch.full_like(state["count"], x.shape[1]) if rows is None else rows.lengths
            return self.gain * total / counts[..., None], {"total": state["total"] + x.sum(1), "count": state["count"] + lengths}

        def cost(self, length: int) -> tokmix.Cost:
            return tokmix.Cost(0, 3 * length * self.dim, self.dim + 1)

    assert "running_mean" in tokmix.mixers()
    config = tokmix.ModelConfig(stack="running_mean(gain=2.0)*2, attention", dim=16, vocab=9, head="lm", causal=True, max_len=32)
    model = tokmix.Model(config).double()
    ids = torch.randint(0, 9, (2, 7))
    whole = model(ids)
    first, state = model.step(ids[:, :3], model.init_state(2))
    second, _ = model.step(ids[:, 3:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=0, atol=1e-10)
    padded = model(torch.cat([ids, ids[:, :2]], dim=1), tokmix.Segments.from_lengths([7, 4], 9))
    torch.testing.assert_close(padded[0, :7], whole[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(padded[1, :4], whole[1, :4], rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="'running_mean' has no option 'gian'.*did you mean 'gain'"):
        tokmix.create("running_mean", 8, causal=True, max_len=8, gian=1.0)
    with pytest.raises(ValueError, match="no 'bidirectional' mode"):
        tokmix.create("running_mean", 8, causal=False, max_len=8)


def test_a_bare_decorator_names_the_mixer_after_its_class() -> None:
    @tokmix.register
    class PlainCopy(tokmix.Mixer):
        modes = frozenset({"bidirectional", "padded"})
        order = "T"

        def __init__(self, dim: int, *, causal: bool, max_len: int, layer: int):
            super().__init__()

        def forward(self, x: Tensor, segments: tokmix.Segments | None = None, *, keys=None, values=None, key_segments=None) -> Tensor:  # type: ignore[no-untyped-def]
            return x if segments is None else torch.where(segments.mask[..., None], x, 0)

        def cost(self, length: int) -> tokmix.Cost:
            return tokmix.Cost()

    made = tokmix.create("plain_copy", 4, causal=False, max_len=8, layer=2)
    assert (made.kind, made.dim, made.causal, made.layer) == ("plain_copy", 4, False, 2)
    with pytest.raises(ValueError, match="'plain_copy' has no 'step' mode"):
        made.step(torch.zeros(1, 1, 4), {})


def test_a_taken_name_and_a_class_that_is_no_mixer_are_refused() -> None:
    with pytest.raises(ValueError, match="'hsm' is taken"):

        @tokmix.register("hsm")
        class Again(tokmix.RowMixer):
            modes = frozenset({"causal"})
            order = "T"

    with pytest.raises(ValueError, match="derived from tokmix.Mixer"):
        tokmix.register("linear")(nn.Linear)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="identifier"):
        tokmix.register("two words")(registry.mixer_class("hsm"))
    with pytest.raises(ValueError, match="unknown mode.*'casual'.*did you mean 'causal'"):

        @tokmix.register("typo")
        class Typo(tokmix.RowMixer):
            modes = frozenset({"casual"})
            order = "T"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "atention"}, "unknown mixer 'atention'; known: attention, .*did you mean 'attention'"),
        ({"dim": 0}, "dim=0"),
        ({"dim": 2.5}, "dim=2.5"),
        ({"max_len": -1}, "max_len=-1"),
        ({"layer": -1}, "layer=-1"),
        ({"causal": None}, "causal=None"),
        ({"heads": 0}, "heads=0"),
        ({"window": 0}, "window=0"),
        ({"conv": 4}, "conv=4 works with causal=True only"),
        ({"scale": float("nan")}, "scale=nan should be a finite number"),
        ({"name": "hypermixing", "power": float("inf")}, "power=inf should be a finite number"),
        ({"name": "hypermixing", "hidden": 0}, "hidden=0 is not a whole number of at least 1"),
        ({"name": "hypermixing", "inner": -2}, "inner=-2"),
        ({"name": "hsm", "variant": "fusion", "hidden": 0}, "hidden=0"),
        ({"name": "hypermlp", "causal": True, "qk": 0}, "qk=0"),
        ({"name": "hypermlp", "causal": True, "vo": -2}, "vo=-2"),
    ],
)
def test_bad_sizes_are_named(given: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tokmix.create(**{"name": "attention", "dim": 16, "causal": False, "max_len": 8, **given})


def test_inputs_of_the_wrong_shape_are_named() -> None:
    mixer = tokmix.create("attention", 16, causal=False, max_len=8)
    with pytest.raises(ValueError, match=r"dim=16 was given a tensor of shape \[2, 5, 8\]"):
        mixer(torch.zeros(2, 5, 8))
    with pytest.raises(ValueError, match=r"segments of shape \[2, 4\]"):
        mixer(torch.zeros(2, 5, 16), tokmix.Segments.from_lengths([4, 4]))
    with pytest.raises(ValueError, match="without keys"):
        mixer(torch.zeros(2, 5, 16), values=torch.zeros(2, 5, 16))
    with pytest.raises(ValueError, match="each sequence needs its own keys"):
        mixer(torch.zeros(1, 5, 16), tokmix.Segments.from_lengths([[2, 3]]), keys=torch.zeros(1, 4, 16))
    causal = tokmix.create("attention", 16, causal=True, max_len=8)
    with pytest.raises(ValueError, match="one sequence a row"):
        causal.step(torch.zeros(1, 5, 16), causal.init_state(1, torch.zeros(())), tokmix.Segments.from_lengths([[2, 3]]))
