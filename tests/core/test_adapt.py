from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import tokmix
from tokmix import swap_attention


def encoder(batch_first: bool = True, norm_first: bool = False, layers: int = 2) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=batch_first, norm_first=norm_first)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=batch_first and not norm_first).double()


def copy_weights(attention: nn.MultiheadAttention, mixer: nn.Module) -> None:
    with torch.no_grad():
        for linear, weight, bias in zip(
            (mixer.q, mixer.k, mixer.v), attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True
        ):
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        mixer.out.load_state_dict(attention.out_proj.state_dict())


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_our_attention_in_its_place_gives_torchs_numbers(batch_first: bool, norm_first: bool, training: bool) -> None:
    theirs = encoder(batch_first, norm_first).train(training)
    ours = swap_attention(copy.deepcopy(theirs), "attention(heads=4)", causal=False, max_len=16).train(training)
    for a, b in zip(theirs.layers, ours.layers, strict=True):
        copy_weights(a.self_attn, b.self_attn.mixer)
    x = torch.randn(3, 7, 16, dtype=torch.float64)
    ignore = torch.zeros(3, 7, dtype=torch.bool)
    ignore[0, 5:] = ignore[1, 0] = ignore[2, 3] = True  # at the end, at the start, in the middle
    given = x if batch_first else x.transpose(0, 1)
    with torch.set_grad_enabled(training):
        for mask in (None, ignore, torch.zeros_like(ignore)):
            a, b = (model(given, src_key_padding_mask=mask) for model in (theirs, ours))
            real = torch.ones_like(ignore) if mask is None else ~mask
            real = real if batch_first else real.T
            torch.testing.assert_close(a[real], b[real], rtol=0, atol=1e-10)


@pytest.mark.parametrize("batch_first", [True, False])
def test_train_and_eval_agree_and_padding_is_honoured(batch_first: bool) -> None:
    model = swap_attention(encoder(batch_first), "hypermixing(heads=4)", causal=False, max_len=16)
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    ignore = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    given = x if batch_first else x.transpose(0, 1)
    with torch.no_grad():
        trained = model.train()(given, src_key_padding_mask=ignore)
        evaluated = model.eval()(given, src_key_padding_mask=ignore)
        short = x[1:, :4] if batch_first else x[1:, :4].transpose(0, 1)
        alone = model(short)
    torch.testing.assert_close(trained, evaluated, rtol=0, atol=1e-12)
    pick = evaluated[1, :4] if batch_first else evaluated[:4, 1]
    torch.testing.assert_close(pick, alone[0] if batch_first else alone[:, 0], rtol=0, atol=1e-10)


def test_a_changed_mask_is_read_again() -> None:
    model = swap_attention(encoder(), "hypermixing", causal=False, max_len=16).eval()
    x, ignore = torch.randn(1, 6, 16, dtype=torch.float64), torch.tensor([[False] * 5 + [True]])
    before = model(x, src_key_padding_mask=ignore)
    ignore[0, 4] = True
    after = model(x, src_key_padding_mask=ignore)
    assert not torch.allclose(before[0, :4], after[0, :4])
    torch.testing.assert_close(after[0, :4], model(x[:, :4])[0], rtol=0, atol=1e-10)


def test_masks_are_read_in_inference_mode_too() -> None:
    model = swap_attention(encoder(), "hypermixing", causal=False, max_len=16).eval()
    x, ignore = torch.randn(1, 6, 16, dtype=torch.float64), torch.tensor([[False] * 4 + [True] * 2])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=ignore)
    with torch.inference_mode():
        assert torch.equal(model(x, src_key_padding_mask=ignore), expected)
        changing = ignore.clone()
        model(x, src_key_padding_mask=changing)
        changing[0, 3] = True
        torch.testing.assert_close(model(x, src_key_padding_mask=changing)[0, :3], model(x[:, :3])[0], rtol=0, atol=1e-10)


def test_copies_and_pickles_after_a_padded_batch_give_the_same_numbers() -> None:
    model = swap_attention(encoder(), "hypermixing", causal=False, max_len=16).eval()
    x, ignore = torch.randn(1, 6, 16, dtype=torch.float64), torch.tensor([[False] * 4 + [True] * 2])
    expected = model(x, src_key_padding_mask=ignore)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(x, src_key_padding_mask=ignore), expected)


def test_attention_that_two_places_share_stays_shared() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.ModuleDict(), nn.ModuleDict()
            self.first["attention"] = self.second["attention"] = nn.MultiheadAttention(16, 4)

    model = swap_attention(Twice(), "hypermixing", causal=False, max_len=16)
    assert model.first["attention"] is model.second["attention"]


def test_a_single_layer_a_bare_module_and_one_sequence_without_batch() -> None:
    x = torch.randn(5, 16, dtype=torch.float64)
    layer = swap_attention(encoder().layers[0], "fnet", causal=False, max_len=16)
    torch.testing.assert_close(layer(x), layer(x[None])[0])
    alone = swap_attention(nn.MultiheadAttention(16, 4, batch_first=True).double(), "linear_attention(heads=2)", causal=False, max_len=16)
    batch = x[None]
    y, weights = alone(batch, batch, batch)
    assert y.shape == (1, 5, 16) and weights is None


def test_causal_masks_are_honoured_or_refused() -> None:
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    causal = swap_attention(encoder(), "hsm", causal=True, max_len=16)
    torch.testing.assert_close(causal(x, mask=mask), causal(x, mask=mask, is_causal=True))
    torch.testing.assert_close(causal(x, mask=mask.isinf()), causal(x))
    with pytest.raises(ValueError, match="can honour only the plain causal mask"):
        causal(x, mask=torch.zeros(6, 6, dtype=torch.bool))
    both = swap_attention(encoder(), "hypermixing", causal=False, max_len=16)
    with pytest.raises(ValueError, match="cannot honour an attention mask"):
        both(x, mask=mask)
    with pytest.raises(ValueError, match="other than 0 and -inf"):
        both(x, src_key_padding_mask=torch.full((2, 6), -3.0, dtype=torch.float64))


def test_cross_attention_modules_read_keys() -> None:
    mha = nn.MultiheadAttention(16, 4, batch_first=True).double()
    ours = swap_attention(mha, "hypermixing(heads=2)", causal=False, max_len=16)
    q, k = torch.randn(2, 3, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
    ignore = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    y, _ = ours(q, k, k, key_padding_mask=ignore)
    torch.testing.assert_close(y[1], ours(q[1:], k[1:, :3], k[1:, :3])[0][0], rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="no 'cross' mode"):
        swap_attention(nn.MultiheadAttention(16, 4).double(), "fnet", causal=False, max_len=16)(q, k, k)


def test_device_dtype_and_training_are_kept_and_shifts_climb() -> None:
    model = swap_attention(encoder(layers=3).eval(), "hsm", causal=False, max_len=16)
    assert all(p.dtype == torch.float64 for p in model.parameters()) and not any(m.training for m in model.modules())
    assert [layer.self_attn.mixer.shifts for layer in model.layers] == [(1,), (2,), (4,)]
    again = copy.deepcopy(model)
    assert torch.equal(again(torch.ones(1, 4, 16, dtype=torch.float64)), model(torch.ones(1, 4, 16, dtype=torch.float64)))
    assert again.state_dict().keys() == model.state_dict().keys()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch's own, of batch_first=False
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_whole_transformer_keeps_its_cross_attention(batch_first: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=batch_first).double()
    ours = swap_attention(copy.deepcopy(theirs), "attention(heads=4)", causal=False, max_len=16)
    layers = [(a, b) for part in ("encoder", "decoder") for a, b in zip(*(getattr(m, part).layers for m in (theirs, ours)), strict=True)]
    for a, b in layers:
        copy_weights(a.self_attn, b.self_attn.mixer)
    assert [b.self_attn.mixer.causal for _, b in layers] == [False, False, True, True]
    assert [type(b.multihead_attn) for _, b in layers[2:]] == [nn.MultiheadAttention] * 2
    source, target = torch.randn(3, 7, 16, dtype=torch.float64), torch.randn(3, 5, 16, dtype=torch.float64)
    ignore = torch.zeros(3, 7, dtype=torch.bool)
    ignore[0, 5:] = ignore[2, 3] = True
    later = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    given = [x if batch_first else x.transpose(0, 1) for x in (source, target)]
    masks = {"tgt_mask": later, "src_key_padding_mask": ignore, "memory_key_padding_mask": ignore}
    assert torch.allclose(ours(*given, **masks), theirs(*given, **masks), atol=1e-12)


def test_what_cannot_be_swapped_is_named() -> None:
    with pytest.raises(ValueError, match="Linear has no nn.MultiheadAttention"):
        swap_attention(nn.Linear(3, 3), "fnet", causal=False, max_len=4)
    with pytest.raises(ValueError, match="one mixer for all layers"):
        swap_attention(encoder(), "fnet*2", causal=False, max_len=4)
    with pytest.raises(ValueError, match="decoder"):
        swap_attention(nn.TransformerDecoderLayer(16, 4), "fnet", causal=False, max_len=4)
    with pytest.raises(ValueError, match="kdim=8"):
        swap_attention(nn.MultiheadAttention(16, 4, kdim=8), "fnet", causal=False, max_len=4)
    for name in ("add_bias_kv", "add_zero_attn"):
        with pytest.raises(ValueError, match=f"attention with {name}=True cannot be swapped"):
            swap_attention(nn.MultiheadAttention(16, 4, **{name: True}), "fnet", causal=False, max_len=4)
    model = encoder()
    with pytest.raises(ValueError, match="did you mean 'hypermixing'"):
        tokmix.swap_attention(model, "hypermixng", causal=False, max_len=4)
    assert isinstance(model.layers[0].self_attn, nn.MultiheadAttention), "a failed swap changes nothing"
