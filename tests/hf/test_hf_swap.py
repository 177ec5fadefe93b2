"""Mixers in place of attention in models of transformers: masks, packed rows, caches, folders."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM

from tokmix.hf import swap
from tokmix.hf.swapped import SwappedAttention

transformers.logging.set_verbosity_error()

VOCAB, SMALL = 31, {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "pad_token_id": 0}
LONG = {"max_position_embeddings": 40, "intermediate_size": 24}
CONFIGS: dict[str, Any] = {
    "bert": lambda: transformers.BertConfig(**SMALL, **LONG),
    "roberta": lambda: transformers.RobertaConfig(**SMALL, **LONG),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=31, dim=16, n_layers=4, n_heads=2, hidden_dim=24, max_position_embeddings=40
    ),
    "modernbert": lambda: transformers.ModernBertConfig(**SMALL, **LONG, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=31, n_embd=16, n_layer=4, n_head=2, n_positions=40, bos_token_id=1, eos_token_id=2),
    "llama": lambda: transformers.LlamaConfig(**SMALL, **LONG, num_key_value_heads=1),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL, **LONG, num_key_value_heads=1),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, **LONG, num_key_value_heads=1, head_dim=8),
    "mistral": lambda: transformers.MistralConfig(**SMALL, **LONG, num_key_value_heads=1),
}
CAUSAL = ["gpt2", "llama", "qwen2", "qwen3", "mistral"]
BOTH_WAYS = ["bert", "roberta", "distilbert", "modernbert"]


def made(kind: str) -> Any:
    torch.manual_seed(0)
    auto = AutoModelForCausalLM if kind in CAUSAL else AutoModel
    model = auto.from_config(CONFIGS[kind]()).eval()
    with torch.no_grad():  # fresh weights are so small that all ways to read give about the same
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def padded(left: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids, mask = torch.randint(3, VOCAB, (3, 9), generator=generator), torch.ones(3, 9, dtype=torch.long)
    for row, length in enumerate((9, 5, 2)):
        empty = slice(0, 9 - length) if left else slice(length, 9)
        ids[row, empty], mask[row, empty] = 0, 0
    return ids, mask


def outputs(model: Any, ids: Tensor, mask: Tensor, **more: Any) -> Tensor:
    if model.config.model_type in CAUSAL:  # or padding on the left would count
        more["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        return model(ids, attention_mask=mask, **more)[0][mask.bool()]


@pytest.mark.parametrize("kind", CONFIGS)
def test_attention_with_the_old_weights_changes_nothing(kind: str, tmp_path: Path) -> None:
    plain = made(kind)
    model = swap(copy.deepcopy(plain), "attention", layers="every second", init="attention")
    for left in (False, True):
        ids, mask = padded(left)
        assert torch.allclose(outputs(model, ids, mask), outputs(plain, ids, mask), atol=1e-5)
    if kind in CAUSAL:
        how: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
        assert torch.equal(model.generate(ids, **how), plain.generate(ids, **how))
    model.save_pretrained(tmp_path)
    assert model.config.tokmix_swap[0]["layers"] == [1, 3]
    again = type(plain).from_pretrained(tmp_path).eval()
    assert torch.equal(outputs(again, ids, mask), outputs(model, ids, mask))


@pytest.mark.parametrize("kind", BOTH_WAYS)
@pytest.mark.parametrize("mixer", ["hypermixing(heads=2)", "hsm", "linear_attention(heads=2)"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_an_encoder_sees_no_padding(kind: str, mixer: str, implementation: str) -> None:
    model = swap(made(kind), mixer, layers="last 3")
    model.set_attn_implementation(implementation)
    ids, mask = padded(left=False)
    found = outputs(model, ids, mask)
    alone = torch.cat([outputs(model, ids[row : row + 1, :n], mask[row : row + 1, :n]) for row, n in enumerate((9, 5, 2))])
    assert torch.allclose(found, alone, atol=1e-5)
    assert torch.allclose(outputs(model, ids[1:2], mask[1:2]), found[9:14], atol=1e-5), "alone with its mask"


@pytest.mark.parametrize("kind", CAUSAL)
@pytest.mark.parametrize("mixer", ["hypermixing(heads=2)", "hsm(variant='gate')", "attention(heads=2, rotary=True)"])
def test_a_decoder_generates_with_its_cache_as_without(kind: str, mixer: str, tmp_path: Path) -> None:
    model = swap(made(kind), mixer, layers=[0, 2])
    ids, mask = padded(left=True)
    how: dict[str, Any] = {"max_new_tokens": 7, "do_sample": False, "pad_token_id": 0}
    batch = model.generate(ids, attention_mask=mask, **how)
    assert torch.equal(batch, model.generate(ids, attention_mask=mask, use_cache=False, **how))
    for row, n in enumerate((9, 5, 2)):
        assert torch.equal(model.generate(ids[row : row + 1, -n:], **how)[0, n:], batch[row, 9:]), "each prompt alone"
    beams = model.generate(ids, attention_mask=mask, num_beams=3, **how)
    assert torch.equal(beams, model.generate(ids, attention_mask=mask, num_beams=3, use_cache=False, **how))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(again.generate(ids, attention_mask=mask, **how), batch)
    with pytest.raises(ValueError, match="roll its cache back"):
        model.generate(ids[:1], attention_mask=mask[:1], prompt_lookup_num_tokens=2, **how)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_packed_rows_and_chunks_equal_each_sequence_alone(kind: str) -> None:
    model = swap(made(kind), "hypermixing(heads=2)", layers="every second")
    ids = padded(left=False)[0][:1]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    with torch.no_grad():
        packed = model(ids, position_ids=positions, use_cache=False).logits
        alone = torch.cat([model(ids[:, :4]).logits, model(ids[:, 4:]).logits], 1)
        whole = model(ids, use_cache=False).logits
        first = model(ids[:, :4], use_cache=True)
        rest = model(ids[:, 4:], past_key_values=first.past_key_values).logits
    assert torch.allclose(packed, alone, atol=1e-5)
    assert torch.allclose(torch.cat([first.logits, rest], 1), whole, atol=1e-5)


@pytest.mark.parametrize("mixer", ["relu_attention", "linear_attention"])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_old_queries_keys_and_values_are_read_in_another_way(mixer: str, kind: str) -> None:
    plain = made(kind)
    model = swap(copy.deepcopy(plain), mixer, init="attention")
    ids, mask = padded(left=kind == "llama")
    found = outputs(model, ids, mask)
    assert not torch.allclose(found, outputs(plain, ids, mask), atol=1e-3)
    places = [slice(9 - n, 9) if kind == "llama" else slice(0, n) for n in (9, 5, 2)]
    alone = torch.cat([outputs(model, ids[row : row + 1, at], mask[row : row + 1, at]) for row, at in enumerate(places)])
    assert torch.allclose(found, alone, atol=1e-5)
    if kind == "llama":
        how: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
        assert torch.equal(model.generate(ids, **how), model.generate(ids, use_cache=False, **how))
    sum(parameter.sum() for parameter in model.parameters()).backward()


def test_vit_is_swapped_and_saved(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=2, num_channels=1
    )
    torch.manual_seed(0)
    plain, pixels = transformers.ViTModel(config).eval(), torch.randn(2, 1, 8, 8)
    same = swap(copy.deepcopy(plain), "attention", init="attention")
    assert torch.allclose(same(pixels)[0], plain(pixels)[0], atol=1e-5)
    model = swap(plain, "mlp_mixer", layers="last 1")
    assert [type(layer.attention) is SwappedAttention for layer in model.layers] == [False, True]
    assert model.layers[1].attention.mixer.max_len == 17
    model.save_pretrained(tmp_path)
    assert torch.equal(transformers.ViTModel.from_pretrained(tmp_path).eval()(pixels)[0], model(pixels)[0])


def test_a_swapped_model_trains_and_its_state_can_be_copied() -> None:
    model = swap(made("llama"), "hypermixing(heads=2)", layers="every second").train()
    ids, mask = padded(left=False)
    model(ids, attention_mask=mask, labels=ids).loss.backward()
    assert all(parameter.grad is not None for parameter in model.model.layers[1].self_attn.parameters())
    copy.deepcopy(model)(ids, attention_mask=mask)


def test_what_cannot_be_swapped_is_told() -> None:
    for given, words in (
        ({"layers": "every third"}, "'every second'"),
        ({"layers": [4]}, "numbers from 0 to 3"),
        ({"layers": "last 9"}, "9 of 4 layers"),
        ({"init": "attention"}, "which hypermixing cannot read; it works for attention, relu_attention, linear_attention"),
        ({"causal": True}, "says itself"),
    ):
        with pytest.raises(ValueError, match=words):
            swap(made("llama"), "hypermixing", **given)
    with pytest.raises(ValueError, match="not the stack"):
        swap(made("bert"), "hsm, hsm")
    with pytest.raises(ValueError, match="no 'causal' mode"):
        swap(made("gpt2"), "fnet")
    with pytest.raises(ValueError, match="no 'bidirectional' mode"):
        swap(made("bert"), "hypermlp")
    with pytest.raises(ValueError, match="holds a mixer already"):
        swap(swap(made("bert"), "hsm", layers=[1]), "hsm")
    small = transformers.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="cross-attention"):
        swap(transformers.T5Model(small), "hsm")
    model = swap(made("llama"), "hypermixing", layers=[0])
    odd = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    odd[..., 3, 1] = False
    with pytest.raises(ValueError, match="not this attention mask"):
        model(torch.ones(1, 4, dtype=torch.long), attention_mask=odd, use_cache=False)


def test_torch_encoders_go_the_same_way() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2, enable_nested_tensor=False)
    swap(encoder, "hypermixing(heads=2)", causal=False, max_len=16)
    assert encoder(torch.randn(2, 5, 16)).shape == (2, 5, 16)
    with pytest.raises(ValueError, match="give both"):
        swap(encoder, "hsm")
    whole = swap(nn.Transformer(16, 2, 2, 2, 24, batch_first=True).eval(), "hypermixing(heads=2)", causal=False, max_len=16)
    later, x = nn.Transformer.generate_square_subsequent_mask(4), torch.randn(2, 4, 16)
    found, other = (whole(torch.ones(2, 5, 16), y, tgt_mask=later) for y in (x, torch.cat([x[:, :3], -x[:, 3:]], 1)))
    assert torch.allclose(found[:, :3], other[:, :3], atol=1e-6) and not torch.allclose(found[:, 3], other[:, 3], atol=1e-3)
