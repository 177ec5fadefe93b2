"""The audit is clean for all mixers and for healthy models, and finds planted faults where they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import masking_utils

from tests.cases import DEFAULTS, Case
from tests.hf.test_hf_swap import CONFIGS, made
from tests.hf_models import made as tokmix_made
from tests.hf_models import of
from tokmix.cli.main import main
from tokmix.hf import audit, swap


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_every_mixer_is_clean(case: Case) -> None:
    report = audit(of(case, head="lm" if case.causal else "none"))
    assert report.ok, report
    verdicts = {finding.check: finding.verdict for finding in report.findings}
    for check, mode in (("right padding", "padded"), ("left padding", "padded"), ("packed rows", "packed")):
        assert verdicts[check] == ("clean" if case.has(mode) else "n/a")
    if case.causal:
        assert verdicts["gradient of the future"] == "clean"
        assert verdicts["cache"] == verdicts["chunked prefill"] == ("clean" if case.has("step") else "n/a")


TINY: dict[str, Any] = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
MORE: dict[str, Callable[[], Any]] = {  # healthy models that swap does not have to know
    "gemma": lambda: transformers.GemmaForCausalLM(transformers.GemmaConfig(**TINY, num_key_value_heads=1, head_dim=8)),
    "gpt_neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**TINY)),
    "electra": lambda: transformers.ElectraModel(transformers.ElectraConfig(**TINY, embedding_size=16)),
    "mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**TINY, num_key_value_heads=1, num_local_experts=2, num_experts_per_tok=1)
    ),
    "llama without a head": lambda: transformers.LlamaModel(transformers.LlamaConfig(**TINY)),
    "a classifier on gpt2": lambda: transformers.GPT2ForSequenceClassification(
        transformers.GPT2Config(vocab_size=31, n_embd=16, n_layer=2, n_head=2, n_positions=40, pad_token_id=0)
    ),
}


@pytest.mark.parametrize("kind", [*CONFIGS, *MORE])
def test_healthy_models_raise_no_alarm(kind: str) -> None:
    torch.manual_seed(0)
    report = audit(made(kind) if kind in CONFIGS else MORE[kind]().eval())
    assert report.ok, report
    assert sum(finding.verdict == "clean" for finding in report.findings) >= 4


def test_a_model_of_images_and_the_core_are_audited_too() -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    vit = transformers.ViTModel(transformers.ViTConfig(**small, image_size=8, patch_size=2))
    assert audit(vit).ok and audit(vit).findings[2].verdict == "clean"
    core = tokmix_made("hypermixing(heads=2)*2").core
    assert audit(core).ok
    for head in ("classify", "tag", "span", "mlm"):
        assert audit(tokmix_made("hypermixing(heads=2)*2", head=head, causal=False)).ok
    assert audit(swap(made("llama"), "hypermixing(heads=2)", layers="every second")).ok
    with pytest.raises(ValueError, match="not a Linear"):
        audit(nn.Linear(2, 2))
    small = {"vocab_size": 31, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    assert audit(transformers.T5EncoderModel(transformers.T5Config(**small))).ok
    with pytest.raises(ValueError, match="encoder-decoders such as T5Model"):
        audit(transformers.T5Model(transformers.T5Config(**small)))
    nothing = audit(vit, only=["cache"])
    assert not nothing.ok and "nothing could be checked" in str(nothing)
    with pytest.raises(ValueError, match="did you mean 'right padding'"):
        audit(vit, only=["right paddin"])


def _changed(layer: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    layer.register_forward_hook(lambda module, given, out: (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out))


def _unmasked(module: nn.Module) -> None:
    """As if the layer ignored its mask."""

    def drop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {**kwargs, "attention_mask": None}

    module.register_forward_pre_hook(drop, with_kwargs=True)


def _found(model: nn.Module, **more: Any) -> dict[str, str]:
    return {f.check: f.where for f in audit(model, **more).findings if f.verdict in ("LEAK", "WRONG")}  # type: ignore[misc]


def test_padding_that_is_read_is_found_in_its_layer() -> None:
    model = made("bert")
    _unmasked(model.encoder.layer[2].attention.self)
    assert _found(model) == {"right padding": "layer 3", "one row with a mask": "layer 3"}


def test_documents_that_leak_are_found_in_their_layer() -> None:
    model = made("llama")
    _unmasked(model.model.layers[1].self_attn)
    found = _found(model)
    assert found["packed rows"] == "layer 2" and found["left padding"] == "layer 2"


def test_positions_that_count_padding_are_found() -> None:
    model = made("gpt2")
    model.transformer.register_forward_pre_hook(lambda module, args, kwargs: (args, {**kwargs, "position_ids": None}), with_kwargs=True)
    assert _found(model, only=["left padding", "right padding"]) == {"left padding": "embedding"}


def test_neighbours_in_a_batch_that_are_read_are_found() -> None:
    model = made("distilbert")
    _changed(model.transformer.layer[1], lambda x: x - 0.1 * x.mean(0, keepdim=True))
    assert _found(model, only=["batch composition"]) == {"batch composition": "layer 2"}


def test_the_future_is_found() -> None:
    model = made("llama")
    _changed(model.model.layers[2], lambda x: x + 0.01 * torch.roll(x, -1, dims=1))
    assert _found(model, only=["gradient of the future"]) == {"gradient of the future": "layer 3"}


@pytest.mark.parametrize("kind", ["llama without a head", "a classifier on gpt2"])
def test_the_future_is_found_in_decoders_without_a_head_for_words(kind: str) -> None:
    model = MORE[kind]().eval()
    _changed(model.layers[1] if "llama" in kind else model.transformer.h[1], lambda x: x + 0.01 * torch.roll(x, -1, dims=1))
    assert _found(model, only=["gradient of the future"]) == {"gradient of the future": "layer 2"}


def test_a_model_that_fails_on_the_way_is_a_finding() -> None:
    """Positions in a cache that begin at -1: the table of positions has no such row."""
    model = made("gpt2")

    def one_less(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        positions, cache = kwargs.get("position_ids"), kwargs.get("past_key_values")
        return args, kwargs if cache is None or positions is None else {**kwargs, "position_ids": positions - 1}

    model.transformer.register_forward_pre_hook(one_less, with_kwargs=True)
    report = audit(model, only=["right padding", "cache with padding"])
    assert [finding.verdict for finding in report.findings] == ["clean", "WRONG"] and not report.ok
    assert "raises IndexError" in str(report)


@pytest.mark.parametrize(("check", "harmless"), [("cache", "chunked prefill"), ("chunked prefill", "cache")])
def test_a_wrong_cache_is_found(check: str, harmless: str) -> None:
    """A state that is not read for single tokens, or not for chunks."""
    model = tokmix_made("linear_attention(heads=2)*3")
    mixer = model.core.layers[1].mixer
    step = type(mixer).step

    def forgetful(x: Tensor, state: Any, segments: Any = None) -> Any:
        started = bool(state["total"].abs().sum() > 0)
        lost = started and (x.shape[1] == 1) == (check == "cache")
        return step(mixer, x, mixer.init_state(x.shape[0], x) if lost else state, segments)

    class Forgetful(type(mixer)):  # type: ignore[misc]
        step = staticmethod(forgetful)

    mixer.__class__ = Forgetful
    assert _found(model, only=[check, harmless]) == {check: "layer 2"}


def test_numbers_that_half_precision_cannot_hold_are_found() -> None:
    model = made("gpt2")
    _changed(model.transformer.h[3], lambda x: (x + 1e4) - 1e4)
    assert _found(model) == {"half precision": "layer 4"}


def recurrent() -> Any:
    """Qwen3-Next: a gated delta rule with a short convolution below attention, in transformers' own code."""
    torch.manual_seed(0)
    config = transformers.Qwen3NextConfig(
        **TINY, num_key_value_heads=1, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        layer_types=["linear_attention", "full_attention"], mlp_only_layers=[0, 1], pad_token_id=0,
    )  # fmt: skip
    model = transformers.Qwen3NextForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "A_log" not in name:
                parameter.add_(0.15 * torch.randn_like(parameter))
    return model


PADDING = ["left padding", "one row with a mask", "cache with padding", "padding inside"]


def test_padding_that_stays_in_the_denominator_is_found() -> None:
    """flash-linear-attention #1263: linear attention masks the values of padding, and leaves its keys in the sum it divides by."""

    def read(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **more: Any) -> tuple[Tensor, None]:
        q, k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (q, k, v))
        q, k = q.relu() + 0.1, k.relu() + 0.1
        if mask is not None:
            real = mask[:, :, -1:, : k.shape[2]].transpose(-1, -2)
            v, k = torch.where(real, v, 0), k if faulty else torch.where(real, k, 0)
        weights = (q @ k.transpose(-1, -2)).tril(k.shape[2] - q.shape[2])
        return (weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-9)).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("linear_in_a_test", read)
    transformers.AttentionMaskInterface.register("linear_in_a_test", masking_utils.sdpa_mask)
    model = made("llama")
    model.set_attn_implementation("linear_in_a_test")
    checks = ["right padding", "left padding", "one row with a mask", "cache", "cache with padding"]
    for faulty in (False, True):
        found = _found(model, only=checks)
        assert found == (dict.fromkeys(["left padding", "one row with a mask", "cache with padding"], "layer 1") if faulty else {})


def test_a_mask_left_out_for_one_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers #46773: before it a batch of one row was never masked, so padding on the left ran through the recurrence. The line is
    put back into today's model: releases with it (up to 5.14) want other packages than this tokmix."""
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    assert set(_found(recurrent(), only=PADDING)) == {"padding inside"}
    fixed = theirs.apply_mask_to_padding_states

    def before(x: Tensor, mask: Tensor | None) -> Tensor:
        return fixed(x, mask) if mask is not None and mask.shape[0] > 1 and mask.shape[1] > 1 else x

    monkeypatch.setattr(theirs, "apply_mask_to_padding_states", before)
    assert set(_found(recurrent(), only=PADDING)) == {"one row with a mask", "padding inside"}


def test_a_mask_left_out_where_a_cache_goes_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers #47086: padding in a later piece was not masked."""
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    fixed = theirs.apply_mask_to_padding_states
    seen: list[int] = []

    def before(x: Tensor, mask: Tensor | None) -> Tensor:
        seen.append(x.shape[1])
        return fixed(x, mask) if mask is None or x.shape[1] >= max(seen) else x

    monkeypatch.setattr(theirs, "apply_mask_to_padding_states", before)
    assert "cache with padding" in _found(recurrent(), only=["cache with padding"])


def test_a_decay_that_padding_still_applies_is_found() -> None:
    """flash-linear-attention #1272: values are masked, the decay of the state is not, so padding between tokens makes it forget."""
    assert _found(recurrent(), only=["padding inside"]) == {"padding inside": "layer 1"}


@pytest.mark.slow
def test_what_a_compiler_changes_is_found() -> None:
    model = made("bert")
    assert audit(model, only=["compile"]).findings[0].verdict == "clean"
    _changed(model.encoder.layer[0], lambda x: x * 1.01 if torch.compiler.is_compiling() else x)
    assert _found(model, only=["compile"]) == {"compile": "layer 1"}


def test_the_command_exits_with_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made("bert").save_pretrained(tmp_path / "bert")
    tokmix_made("hsm*2", dtype=torch.float32).save_pretrained(tmp_path / "own")
    shutil.copytree(tmp_path / "own", tmp_path / "run" / "model")  # as `train` writes it
    for folder in ("bert", "own", "run"):
        assert main(["audit", str(tmp_path / folder)]) == 0
        assert ": clean" in capsys.readouterr().out
    from tokmix.hf import audit_checks

    monkeypatch.setitem(audit_checks.CHECKS, "cache", lambda subject: [([torch.ones(2)], [torch.zeros(2)])])
    assert main(["audit", str(tmp_path / "own"), "--only", "cache", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"] and found["findings"][0]["verdict"] == "WRONG"


def test_a_mistyped_folder_asks_no_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    monkeypatch.setattr("tokmix.hf.audits.AutoConfig.from_pretrained", lambda name: asked.append(name) or tokmix_made("hsm").config)
    assert main(["audit", "no/such-model"]) == 1
    assert "no model folder 'no/such-model'" in capsys.readouterr().err and not asked
    assert main(["audit", "hub:no/such-model"]) == 1
    assert asked == ["no/such-model"]
