"""Swapped layers where a model is unlike its usual shape: windows, flash masks, offloaded weights, checkpoints, tables of positions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.hf.test_hf_swap import LONG, SMALL, made, outputs, padded
from tokmix.hf import swap

WINDOWS: dict[str, Callable[[], Any]] = {
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SMALL, **LONG, num_key_value_heads=1, sliding_window=4)
    ),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**SMALL, **LONG, num_key_value_heads=1, sliding_window=4, head_dim=8)
    ),
    "modernbert": lambda: transformers.ModernBertModel(
        transformers.ModernBertConfig(
            **SMALL, **LONG, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2, local_attention=4, global_attn_every_n_layers=3
        )
    ),
}


def shaken(model: Any) -> Any:
    """In eval mode, with weights so large that all ways to read differ."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def states(model: Any, ids: Tensor, mask: Tensor, **more: Any) -> Tensor:
    if model.can_generate():
        more["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        return model(ids, attention_mask=mask, **more)[0][mask.bool()]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("layers", ["all", "every second"])
@pytest.mark.parametrize("kind", WINDOWS)
def test_layers_beside_small_windows_see_no_padding_and_generate(kind: str, layers: str, implementation: str) -> None:
    model = swap(shaken(WINDOWS[kind]()), "hypermixing(heads=2)", layers=layers)
    model.set_attn_implementation(implementation)
    left = model.can_generate()
    ids, mask = padded(left)
    places = [slice(9 - n, 9) if left else slice(0, n) for n in (9, 5, 2)]
    alone = torch.cat([states(model, ids[row : row + 1, at], mask[row : row + 1, at]) for row, at in enumerate(places)])
    assert torch.allclose(states(model, ids, mask), alone, atol=2e-5)
    if left:
        how: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        assert torch.equal(model.generate(ids, **how), model.generate(ids, use_cache=False, **how))
        assert torch.equal(model.generate(ids, num_beams=3, **how), model.generate(ids, num_beams=3, use_cache=False, **how))


@pytest.mark.parametrize("given", ["position_ids", "cu_seq_lens_q"])
def test_packed_rows_under_flash_attention(given: str) -> None:
    """Flash attention has no mask for packed rows: it looks at the positions, or is given where documents end."""
    model = swap(made("llama"), "hypermixing(heads=2)")
    model.config._attn_implementation_internal = "flash_attention_2"  # its kernels are not called: every layer is swapped
    ids, positions = padded(left=False)[0][:1], torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    more: dict[str, Tensor] = {} if given == "position_ids" else {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
    with torch.no_grad():
        packed = model(ids, position_ids=positions, use_cache=False, **more).logits
        alone = torch.cat([model(part, use_cache=False).logits for part in (ids[:, :4], ids[:, 4:])], 1)
    assert torch.allclose(packed, alone, atol=1e-5)
    kept = swap(made("llama"), "attention", init="attention")
    kept.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match=r"masks of sdpa or eager, not of flash_attention_2"):
        kept(ids, position_ids=positions, use_cache=False)


@pytest.mark.parametrize("kind", ["bert", "llama", "gpt2"])
def test_our_readings_as_an_attention_implementation_have_masks(kind: str) -> None:
    model = made(kind)
    ids, mask = padded(left=kind != "bert")
    expected = outputs(model, ids, mask)
    model.set_attn_implementation("tokmix_attention")
    assert torch.allclose(outputs(model, ids, mask), expected, atol=1e-5)
    model.set_attn_implementation("tokmix_linear_attention")
    found, places = outputs(model, ids, mask), [slice(0, n) if kind == "bert" else slice(9 - n, 9) for n in (9, 5, 2)]
    alone = torch.cat([outputs(model, ids[row : row + 1, at], mask[row : row + 1, at]) for row, at in enumerate(places)])
    assert torch.allclose(found, alone, atol=1e-5) and not torch.allclose(found, expected, atol=1e-2)


@pytest.mark.parametrize("mixer", ["hypermixing(heads=2)", "hsm(variant='fusion')", "gmlp", "mlp_mixer", "hypermlp(heads=2, rank=4)"])
def test_offloaded_weights_are_loaded_where_a_step_reads_them(mixer: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = swap(made("llama"), mixer, layers="every second", init="values")
    ids, mask = padded(left=False)
    expected = outputs(model, ids, mask)
    model.save_pretrained(tmp_path / "model")
    for name in ("device_map", "cpu", "disk"):
        again = type(model).from_pretrained(tmp_path / "model", **({"device_map": "cpu"} if name == "device_map" else {})).eval()
        if name == "cpu":
            accelerate.cpu_offload(again, execution_device=torch.device("cpu"))
        if name == "disk":
            accelerate.disk_offload(again, str(tmp_path / "weights"), execution_device=torch.device("cpu"))
        assert torch.allclose(outputs(again, ids, mask), expected, atol=1e-6), name


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", ["bert", "llama", "modernbert"])
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
def test_checkpointed_layers_have_the_same_gradients(kind: str, reentrant: bool) -> None:
    model, (ids, mask) = swap(made(kind), "hypermixing(heads=2)", layers="every second"), padded(left=False)
    more = {"use_cache": False} if kind == "llama" else {}
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    model.train()
    grads = []
    for on in (False, True):
        if on:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        model.zero_grad()
        model(ids, attention_mask=mask, **more)[0].square().mean().backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert any("mixer" in name for name in grads[0]) and grads[0].keys() == grads[1].keys()
    assert all(torch.allclose(grads[0][name], grads[1][name], atol=1e-5) for name in grads[0])


@pytest.mark.parametrize("mixer", ["hypermixing(heads=2)", "hsm(variant='gate')", "linear_attention(heads=2)", "hypermlp(heads=2, rank=4)"])
def test_gradients_through_a_cache_are_those_without(mixer: str) -> None:
    """Llama makes a cache in training too."""
    model, (ids, mask) = swap(made("llama"), mixer, layers="every second").train(), padded(left=False)
    grads = []
    for cached in (True, False):
        model.zero_grad()
        model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100), use_cache=cached).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize(("name", "tokens"), [("DeiT", 18), ("Dinov2WithRegisters", 21)])
def test_models_of_images_tell_their_length_by_their_table(name: str, tokens: int, tmp_path: Path) -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 8}
    kind = getattr(transformers, f"{name}Model")
    model = kind(getattr(transformers, f"{name}Config")(**small, patch_size=2, num_channels=1)).eval()
    pixels = torch.randn(2, 1, 8, 8)
    swap(model, "mlp_mixer", layers="last 1")
    assert model.config.tokmix_swap[0]["max_len"] == tokens
    expected = model(pixels)[0]
    model.save_pretrained(tmp_path)
    assert torch.equal(kind.from_pretrained(tmp_path).eval()(pixels)[0], expected)


@pytest.mark.parametrize("kind", ["roberta", "bert", "modernbert"])
def test_a_row_of_the_full_length_fits(kind: str) -> None:
    model, width = swap(made(kind), "mlp_mixer", layers="every second"), 38 if kind == "roberta" else 40  # RoBERTa counts from 2
    ids = torch.randint(3, 31, (2, width), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    ids[1, 20:], mask[1, 20:] = 0, 0
    alone = torch.cat([outputs(model, ids[:1], mask[:1]), outputs(model, ids[1:, :20], mask[1:, :20])])
    assert torch.allclose(outputs(model, ids, mask), alone, atol=2e-5)


GPT: dict[str, Any] = {"vocab_size": 31, "bos_token_id": 1, "eos_token_id": 2}
FOLLOWING: dict[str, Callable[[], Any]] = {  # of other names, and with q, k and v in one matrix: by heads, or one after another
    "phi": lambda: transformers.PhiConfig(**SMALL, **LONG),
    "phi3": lambda: transformers.Phi3Config(**SMALL, **LONG, num_key_value_heads=1),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**SMALL, **LONG),
    "persimmon": lambda: transformers.PersimmonConfig(**SMALL, **LONG),
    "opt": lambda: transformers.OPTConfig(
        **SMALL, bos_token_id=1, eos_token_id=2, ffn_dim=24, max_position_embeddings=40, word_embed_proj_dim=16
    ),
    "gptj": lambda: transformers.GPTJConfig(**GPT, n_embd=16, n_layer=4, n_head=2, rotary_dim=4, n_positions=40),
    "bart": lambda: transformers.BartConfig(
        **GPT, d_model=16, decoder_layers=4, decoder_attention_heads=2, decoder_ffn_dim=24, pad_token_id=0
    ),
    "gpt_bigcode": lambda: transformers.GPTBigCodeConfig(**GPT, n_embd=16, n_layer=4, n_head=2, n_positions=40),
    "gpt_bigcode by heads": lambda: transformers.GPTBigCodeConfig(**GPT, n_embd=16, n_layer=4, n_head=2, n_positions=40, multi_query=False),
}


@pytest.mark.parametrize("kind", FOLLOWING)
def test_decoders_of_other_names_are_swapped_too(kind: str) -> None:
    torch.manual_seed(0)
    plain = shaken(transformers.AutoModelForCausalLM.from_config(FOLLOWING[kind]()))
    ids, mask = padded(left=True)
    how: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    same = copy.deepcopy(plain)
    if kind != "gptj":  # it reads its q, k and v itself
        swap(same, "attention", init="attention")
        assert torch.allclose(states(same, ids, mask), states(plain, ids, mask), atol=1e-5)
        assert torch.equal(same.generate(ids, **how), plain.generate(ids, **how))
    model = swap(copy.deepcopy(plain), "hypermixing(heads=2)", layers="every second")
    assert model.config.tokmix_swap[0]["layers"] == [1, 3], "the cross-attention of a decoder is no layer"
    alone = torch.cat([states(model, ids[row : row + 1, -n:], mask[row : row + 1, -n:]) for row, n in enumerate((9, 5, 2))])
    assert kind == "bart" or torch.allclose(states(model, ids, mask), alone, atol=2e-5), "BART counts positions from the first column"
    assert torch.equal(model.generate(ids, **how), model.generate(ids, use_cache=False, **how))
    old, new, one = plain.double(), swap(copy.deepcopy(plain).double(), "identity", init="values"), torch.tensor([[7], [9]])
    assert torch.allclose(new(one, use_cache=False)[0], old(one, use_cache=False)[0], atol=1e-10), "a token that reads itself alone"


def test_attention_that_does_more_is_refused() -> None:
    """What stands in ALBERT's place of attention also adds and normalises; Longformer's is given a global mask; GPT-J reads by itself."""
    albert = transformers.AlbertModel(transformers.AlbertConfig(**SMALL, **LONG, embedding_size=16))
    with pytest.raises(ValueError, match="does more than mix tokens"):
        swap(copy.deepcopy(albert), "hypermixing")
    with pytest.raises(ValueError, match="one attention module; use 'all'"):
        swap(albert, "linear_attention", init="attention", layers="every second")
    swap(albert, "linear_attention", init="attention")
    longformer = transformers.LongformerModel(transformers.LongformerConfig(**SMALL, **LONG, attention_window=4))
    with pytest.raises(ValueError, match="is given is_global_attn, is_index_global_attn"):
        swap(longformer, "hypermixing")
    gptj = transformers.GPTJModel(transformers.GPTJConfig(vocab_size=31, n_embd=16, n_layer=2, n_head=2, rotary_dim=4, n_positions=40))
    with pytest.raises(ValueError, match="reads its q, k and v itself"):
        swap(gptj, "linear_attention", init="attention")
    chunks = transformers.Llama4TextConfig(**SMALL, **LONG, num_key_value_heads=1, num_local_experts=2, attention_chunk_size=8)
    with pytest.raises(ValueError, match="reads in chunks"):
        swap(transformers.Llama4ForCausalLM(chunks), "hypermixing")
    capped = transformers.Gemma2Model(transformers.Gemma2Config(**SMALL, **LONG, num_key_value_heads=1, head_dim=8))
    with pytest.raises(ValueError, match=r"changes its scores \(softcap\)"):
        swap(capped, "attention", init="attention")(torch.ones(1, 4, dtype=torch.long))
