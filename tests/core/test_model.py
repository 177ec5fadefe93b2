from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tokmix
from tests.cases import leaves
from tokmix import Model, ModelConfig, Segments
from tokmix.core.block import LAYOUTS
from tokmix.core.budget import parameter_count
from tokmix.core.mixer import mixer_class

VOCAB, MAX_LEN = 31, 24


def config(stack: str = "hypermixing(heads=2)*2", head: str = "classify", causal: bool = False, **more: Any) -> ModelConfig:
    return ModelConfig(stack=stack, dim=16, vocab=VOCAB, head=head, causal=causal, max_len=MAX_LEN, **more)


def made(given: ModelConfig) -> Model:
    torch.manual_seed(0)
    model = Model(given).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def ids_of(*lengths: int) -> list[torch.Tensor]:
    return [torch.randint(0, VOCAB, (1, n), generator=torch.Generator().manual_seed(n)) for n in lengths]


def names(mode: str) -> list[str]:
    return [name for name in tokmix.mixers() if mode in mixer_class(name).modes]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", names("bidirectional"))
def test_any_layout_takes_any_mixer_and_batching_changes_nothing(layout: str, name: str) -> None:
    for pooling in ("mean", "max", "first"):
        model = made(config(f"{name}*2", layout=layout, pooling=pooling, classes=3))
        sequences = ids_of(5, 9, 2)
        alone = torch.cat([model(ids) for ids in sequences])
        padded = torch.full((3, 11), -7)  # no known id at padding
        packed = torch.full((1, 18), -7)
        packed[0, :16] = torch.cat(sequences, dim=1)
        for row, ids in enumerate(sequences):
            padded[row, : ids.shape[1]] = ids
        close(model(padded, Segments.from_lengths([5, 9, 2], 11)), alone)
        close(model(packed, Segments.from_lengths([[5, 9, 2]], 18)), alone)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", names("step"))
def test_decoding_equals_the_full_pass(layout: str, name: str) -> None:
    model = made(config(f"{name}, hsm", head="lm", causal=True, layout=layout, positions="learned", norm="rms", feed_forward_kind="swiglu"))
    ids = torch.randint(0, VOCAB, (2, 10))
    whole = model(ids)
    first, state = model.step(ids[:, :4], model.init_state(2))
    close(first, whole[:, :4])
    second, state = model.step(torch.cat([ids[:, 4:7], torch.full((2, 1), -1)], dim=1), state, Segments.from_lengths([3, 1], 4))
    close(second[0, :3], whole[0, 4:7])
    close(second[1, :1], whole[1, 4:5])
    third, state = model.step(ids[1:, 5:].repeat(2, 1), state, Segments.from_lengths([0, 5]))
    close(third[1], whole[1, 5:])
    assert state["position"].tolist() == [7, 10]


def manual(layout: str, model: Model, x: torch.Tensor) -> torch.Tensor:
    """The layouts of the HyperMixer paper's appendix, written out."""
    layer = model.layers[0]
    mix, feed, norm = layer.mixer, layer.feed_forward or (lambda z: 0), layer.norm
    fed = layer.feed_forward is not None
    if layout == "serialized":
        first = x + mix(norm[0](x))
        return x + feed(norm[1](first)) if fed else first
    if layout == "post":
        first = norm[0](x + mix(x))
        return norm[1](first + feed(first)) if fed else first
    if layout == "pre":
        first = x + mix(norm[0](x))
        return first + feed(norm[1](first)) if fed else first
    if layout == "rezero":
        first = x + layer.alpha * mix(x)
        return first + layer.alpha * feed(first)
    return x + mix(norm[0](x)) + feed(norm[0](x))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [24, 0])
def test_layouts_are_the_papers(layout: str, width: int) -> None:
    model = made(config("hypermixing", layout=layout, feed_forward=width))
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    close(model.layers[0](x), manual(layout, model, x))


def test_rezero_starts_as_the_identity() -> None:
    model = Model(config("attention", layout="rezero"))
    x = torch.randn(1, 4, 16)
    assert torch.equal(model.layers[0](x), x)


def test_dropout_acts_on_a_layers_input_in_training_alone() -> None:
    model = Model(config("identity", dropout=0.5, feed_forward=None))
    layer, x = model.layers[0], torch.ones(1, 50, 16)
    layer.norm[0] = nn.Identity()
    assert torch.equal(layer.eval()(x), 2 * x)
    assert set(layer.train()(x).unique().tolist()) == {0.0, 4.0}


@pytest.mark.parametrize("head", ["classify", "regress", "lm", "mlm", "none"])
@pytest.mark.parametrize("tie", [True, False])
def test_heads(head: str, tie: bool) -> None:
    given = config("attention", head=head, causal=head == "lm", classes=5, tie=tie)
    shape = {"classify": (2, 5), "regress": (2,), "none": (2, 6, 16)}.get(head, (2, 6, VOCAB))
    assert Model(given)(torch.randint(0, VOCAB, (2, 6))).shape == shape
    tied = tie and head in ("lm", "mlm")
    assert parameter_count(given) == parameter_count(replace(given, tie=True)) or not tied


@pytest.mark.parametrize("head", ["classify", "lm"])
@pytest.mark.parametrize("std", [0.02, 0.5, 1.0])
def test_words_begin_at_scale_one_however_small_their_weights(head: str, std: float) -> None:
    model = Model(replace(config(head=head, causal=head == "lm", positions="none"), vocab=500, embedding_std=std))
    words = model._embed(torch.arange(500)[None], None, torch.arange(500))
    found = [float(one.detach().std()) for one in (model.embedding.weight, words)]
    assert found == pytest.approx([std, 1.0], rel=0.1)


@pytest.mark.parametrize("std", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_words_cannot_have_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match=r"embedding_std=.* should be a finite number above 0"):
        config(embedding_std=std)


def test_weights_that_are_moved_by_adam_in_few_steps() -> None:
    """What the small weights are for."""
    moved = []
    for std in (0.02, 1.0):
        torch.manual_seed(0)
        model = Model(config(embedding_std=std))
        before = model.embedding.weight.detach().clone()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.0)
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.arange(VOCAB)[None, :MAX_LEN]).square().sum().backward()
            optimizer.step()
        moved.append(float((model.embedding.weight.detach() - before).norm() / before.norm()))
    assert moved[0] > 10 * moved[1]


def test_tying_saves_the_output_matrix() -> None:
    given = config("attention", head="lm", causal=True)
    assert parameter_count(replace(given, tie=False)) - parameter_count(given) == VOCAB * 16


@pytest.mark.parametrize(
    ("stack", "max_len", "millions"),
    [
        ("identity*6", 250, 9.39),
        ("fnet*6", 250, 9.39),
        ("hypermixing*6", 250, 10.57),
        ("hypermixing(tied=False)*6", 250, 11.75),
        ("attention(heads=4)*6", 250, 10.97),
        ("mlp_mixer*6", 250, 10.93),
        ("gmlp*6", 100, 10.63),
        ("shared_vector*6", 250, 9.40),
    ],
)
def test_the_papers_models_have_the_papers_parameters(stack: str, max_len: int, millions: float) -> None:
    given = ModelConfig(stack=stack, dim=256, vocab=30522, head="classify", causal=False, max_len=max_len, feed_forward=512)
    assert parameter_count(given) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("head", ["classify", "regress", "lm", "mlm"])
@pytest.mark.parametrize("kind", ["gelu", "swiglu"])
def test_cost_of_a_model_equals_the_operation_counter(head: str, kind: str) -> None:
    model = Model(config("attention, hypermixing, hsm(variant='gate')", head=head, causal=head == "lm", feed_forward_kind=kind)).to("meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 13, dtype=torch.long, device="meta"))
    assert model.cost(13).matmul == counter.get_total_flops()


def test_cost_of_a_model_states_the_size_of_its_state() -> None:
    model = Model(config("attention, hsm*3, gmlp", head="lm", causal=True))
    _, state = model.step(torch.randint(0, VOCAB, (1, 9)), model.init_state(1))
    assert sum(leaf.numel() for leaf in leaves(state)) == model.cost(9).state


def test_places_count_their_own_kind_or_the_whole_stack() -> None:
    given = config("hsm, attention, hsm(variant='ab'), hsm", head="lm", causal=True)
    shifts = lambda c: [layer.mixer.shifts for layer in Model(c).layers if layer.mixer.kind == "hsm"]
    assert shifts(given) == [(1,), (2,), (4,)]
    assert shifts(replace(given, ladder="stack")) == [(1,), (4,), (8,)]
    assert Model(replace(given, stack="hsm*4")).reach() == 15
    assert Model(given).reach() is None


def test_an_empty_batch_and_a_row_of_padding() -> None:
    model = made(config())
    assert model(torch.zeros(0, 4, dtype=torch.long)).shape == (0, 2)
    ids = ids_of(4)[0]
    both = model(torch.cat([ids, ids]), Segments.from_lengths([4, 0]))
    close(both[:1], model(ids))
    assert both.isfinite().all()


def test_a_model_compiles_as_one_graph() -> None:
    torch._dynamo.reset()
    model = made(config("attention, hypermixing, fnet"))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    ids, segments = torch.randint(0, VOCAB, (2, 6)), Segments.from_lengths([6, 3])
    close(compiled(ids, segments), model(ids, segments))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stack": "hypermixin"}, "unknown mixer 'hypermixin'.*known.*did you mean 'hypermixing'"),
        ({"stack": "attention(head=2)"}, "no option 'head'.*its options: heads.*did you mean 'heads'"),
        ({"stack": "hypermixing(norm='layr')"}, "norm='layr' is unknown.*'layer'.*did you mean 'layer'"),
        ({"stack": "attention(heads='4')"}, "heads='4' should be of type int"),
        ({"stack": "attention(bias=1)"}, "bias=1 should be of type bool"),
        ({"head": "classifier"}, "unknown head 'classifier'.*did you mean 'classify'"),
        ({"layout": "prenorm"}, "unknown layout 'prenorm'.*known: pre"),
        ({"norm": "batch"}, "unknown norm 'batch'"),
        ({"pooling": "sum"}, "unknown pooling 'sum'"),
        ({"positions": "rotary"}, "unknown positions 'rotary'"),
        ({"dim": 0}, "dim=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"feed_forward": -3}, "feed_forward=-3"),
        ({"causal": 1}, "causal=1 should be of type bool"),
        ({"head": "lm"}, "head='lm'.*causal=True"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(config(), **changes)


@pytest.mark.parametrize(
    ("stack", "causal", "words"),
    [
        ("attention(heads=3)", False, "heads=3 does not divide dim=16; the nearest that does is 2"),
        ("fnet", True, "'fnet' has no 'causal' mode; its modes: bidirectional"),
        ("hyperglu", False, "'hyperglu' has no 'bidirectional' mode"),
        ("hypermixing(decay='gate')", False, "causal=True only"),
        ("hsm(shift=0)", True, "shift=0"),
        ("hsm(shift=2, schedule='cyclic')", True, "exclude each other"),
    ],
)
def test_mixers_that_do_not_fit_are_named(stack: str, causal: bool, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Model(config(stack, head="none", causal=causal))


def test_too_long_a_sequence_is_refused() -> None:
    for given in (config("gmlp"), config("attention", positions="learned")):
        with pytest.raises(ValueError, match="25 tokens.*max_len=24"):
            Model(given)(torch.zeros(1, 25, dtype=torch.long))
    assert Model(config("attention"))(torch.zeros(1, 99, dtype=torch.long)).shape == (1, 2)
    model = Model(config("attention", head="lm", causal=True, positions="learned"))
    _, state = model.step(torch.zeros(1, 24, dtype=torch.long), model.init_state(1))
    with pytest.raises(ValueError, match="25 tokens.*max_len=24"):
        model.step(torch.zeros(1, 1, dtype=torch.long), state)


def test_wrong_inputs_are_named() -> None:
    model = Model(config())
    with pytest.raises(ValueError, match="whole numbers"):
        model(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="whole numbers"):
        model(torch.zeros(1, 4, dtype=torch.bool))
    for wrong in (-1, model.config.vocab):
        with pytest.raises(ValueError, match=f"token id {wrong} is not in the vocabulary of {model.config.vocab}"):
            model(torch.tensor([[0, wrong]]))
    decoder = Model(config("hsm", head="lm", causal=True))
    with pytest.raises(ValueError, match=r"a state of 2 rows does not fit ids of shape \[3, 1\]"):
        decoder.step(torch.zeros(3, 1, dtype=torch.long), decoder.init_state(2))
    for module, given in ((model, torch.zeros(1, 4, dtype=torch.long)), (model.layers[0].mixer, torch.zeros(1, 4, model.config.dim))):
        with pytest.raises(ValueError, match=r"segments should be a tokmix.Segments.*not a Tensor"):
            module(given, torch.ones(1, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"segments of shape \[1, 5\]"):
        model(torch.zeros(1, 4, dtype=torch.long), Segments.from_lengths([5]))
    with pytest.raises(ValueError, match="step needs a causal model"):
        model.step(torch.zeros(1, 4, dtype=torch.long), {})


def test_no_parameter_is_a_bare_scalar() -> None:
    for name in tokmix.mixers():
        for causal in (True, False):
            if ("causal" if causal else "bidirectional") in mixer_class(name).modes:
                model = Model(config(name, head="none", causal=causal, layout="rezero"))
                assert all(parameter.dim() >= 1 for parameter in model.parameters()), name
