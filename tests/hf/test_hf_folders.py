"""Saved models: they come back bit by bit, take another head, and are refused where damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.cases import DEFAULTS, Case
from tests.hf_models import AUTO, DIM, VOCAB, batch, made, of
from tokmix import Segments
from tokmix.hf import FORMAT_VERSION, TokmixForCausalLM, load_model


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_a_saved_model_comes_back_bit_by_bit(case: Case, tmp_path: Path) -> None:
    for head in ("lm", "mlm") if case.causal else ("mlm",):
        model = of(case, head=head, positions="learned", dtype=torch.float32)
        model.save_pretrained(tmp_path / head)
        assert {path.name for path in (tmp_path / head).iterdir()} - {"generation_config.json"} == {"config.json", "model.safetensors"}
        back = AUTO[type(model)].from_pretrained(tmp_path / head)
        assert type(back) is type(load_model(tmp_path / head)) is type(model) and back.config.core() == model.config.core()
        saved, loaded = model.state_dict(), back.state_dict()
        assert saved.keys() == loaded.keys() and all(torch.equal(saved[name], loaded[name]) for name in saved)
        ids, mask, _ = batch(left=False)
        if case.has("padded"):
            assert torch.equal(back(ids, attention_mask=mask).logits, model(ids, attention_mask=mask).logits)
    known = json.loads((tmp_path / "mlm" / "config.json").read_text())
    assert known["format_version"] == FORMAT_VERSION and known["stack"] == f"{case.name}*2" and known["model_type"] == "tokmix"


def test_another_head_on_saved_weights_keeps_the_hidden_states(tmp_path: Path) -> None:
    ids, mask, _ = batch(left=True)
    model = made(dtype=torch.float32)
    model.save_pretrained(tmp_path / "lm")
    hidden = AutoModel.from_pretrained(tmp_path / "lm")
    states = hidden(ids, attention_mask=mask).last_hidden_state
    logits = F.linear(states, model.core.embedding.weight)
    assert torch.equal(logits[mask.bool()], model(ids, attention_mask=mask).logits[mask.bool()])
    hidden.save_pretrained(tmp_path / "none")
    other = AutoModel.from_pretrained(tmp_path / "lm", embedding_std=0.5)
    assert torch.allclose(other(ids, attention_mask=mask).last_hidden_state, states, atol=1e-4)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "none")
    assert torch.allclose(again(ids, attention_mask=mask).logits, model(ids, attention_mask=mask).logits, atol=1e-4)
    torch.manual_seed(0)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "lm", id2label=dict(enumerate("abcde")))
    assert classifier.config.label2id is None or len(classifier.config.label2id) == 5
    pooled = classifier.core.pool(states, Segments.from_mask(mask))
    assert torch.allclose(classifier.core.head(pooled), classifier(ids, attention_mask=mask).logits, atol=1e-5)
    assert 0 < classifier.core.head.weight.abs().max() <= DIM**-0.5, "drawn as the core draws it"
    scores = AutoModelForSequenceClassification.from_pretrained(tmp_path / "lm", num_labels=1)
    assert scores.config.head == "regress"
    classifier.save_pretrained(tmp_path / "five")
    assert AutoConfig.from_pretrained(tmp_path / "five").id2label == dict(enumerate("abcde"))
    assert AutoConfig.from_pretrained(tmp_path / "five", num_labels=5).id2label == dict(enumerate("abcde"))
    assert AutoConfig.from_pretrained(tmp_path / "five", problem_type="regression").head == "regress"
    two = AutoModelForSequenceClassification.from_pretrained(tmp_path / "five", num_labels=2, ignore_mismatched_sizes=True, dropout=0.2)
    assert two(ids).logits.shape == (3, 2) and two.core.config.dropout == 0.2
    assert torch.equal(two.core.embedding.weight, classifier.core.embedding.weight)


def damage(folder: Path, how: str) -> None:
    weights, config = folder / "model.safetensors", folder / "config.json"
    tensors, known = load_file(weights), json.loads(config.read_text())
    name = "core.layers.0.mixer.weight"
    if how == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "garbage":
        weights.write_bytes(b"not a model" * 50)
    elif how == "no weights":
        weights.unlink()
    elif how == "pickle":
        weights.unlink()
        torch.save(tensors, folder / "pytorch_model.bin")
    elif how == "missing":
        save_file({key: value for key, value in tensors.items() if key != name}, weights, {"format": "pt"})
    elif how == "no head":
        save_file({key: value for key, value in tensors.items() if key != "core.head.weight"}, weights, {"format": "pt"})
    elif how == "extra":
        save_file({**tensors, "core.more": torch.zeros(1)}, weights, {"format": "pt"})
    elif how == "shape":
        save_file({**tensors, name: torch.zeros(1)}, weights, {"format": "pt"})
    elif how == "no json":
        config.write_text(config.read_text()[:40])
    elif how == "no config":
        config.unlink()
    elif how == "of others":
        config.write_text(json.dumps({"model_type": "bert"}))
    else:
        changes = {"version": {"format_version": 99}, "mixer": {"stack": "hsn*2"}, "no version": {"format_version": None}}
        known |= changes.get(how, {})
        config.write_text(
            json.dumps({key: value for key, value in known.items() if value is not None and (how != "no dim" or key != "dim")})
        )


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", "cannot be loaded"),
        ("garbage", "cannot be loaded"),
        ("no weights", "cannot be loaded.*no file named model.safetensors"),
        ("pickle", "cannot be loaded.*no file named model.safetensors"),
        ("missing", "lacks weights: core.layers.0.mixer.weight$"),
        ("no head", "lacks weights: core.head.weight$"),
        ("extra", "holds weights of another model: core.more"),
        ("shape", r"weights of another shape: core.layers.0.mixer.weight of shape \[1\] for \[1, 16, 16\]$"),
        ("no config", "no config.json"),
        ("of others", "model of type 'bert', not 'tokmix'"),
        ("no json", "not a valid JSON"),
        ("version", "version 99 is unknown"),
        ("no version", "no 'format_version'"),
        ("no dim", "no 'dim'"),
        ("mixer", "unknown mixer 'hsn'"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(how: str, words: str, tmp_path: Path) -> None:
    made("hsm(variant='gate')", tie=False).save_pretrained(tmp_path)
    damage(tmp_path, how)
    loads = [load_model, AutoModelForCausalLM.from_pretrained, TokmixForCausalLM.from_pretrained]
    for load in loads[:1] if how in ("no config", "of others") else loads:
        with pytest.raises((ValueError, OSError), match=words) as caught:
            load(tmp_path)
        assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize("how", ["missing", "extra"])
def test_who_asks_which_weights_do_not_fit_is_told(how: str, tmp_path: Path) -> None:
    old = made("hsm(variant='gate')", tie=False, dtype=torch.float32)
    old.save_pretrained(tmp_path)
    damage(tmp_path, how)
    model, info = TokmixForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] == ({"core.layers.0.mixer.weight"} if how == "missing" else set())
    assert len(info["unexpected_keys"]) == (how == "extra")
    new, found = (one.core.layers[0].mixer.weight for one in (TokmixForCausalLM(model.config), model))
    if how == "missing":  # drawn, where transformers leaves uninitialised memory
        assert 0.5 * new.std() < found.std() < 2 * new.std()
    assert torch.equal(model.core.embedding.weight, old.core.embedding.weight)


@pytest.mark.parametrize("tie", [True, False])
def test_a_larger_vocabulary_reaches_the_core(tie: bool, tmp_path: Path) -> None:
    model = made(tie=tie, dtype=torch.float32)
    ids, mask, _ = batch(left=True)
    before = model(ids, attention_mask=mask).logits
    model.resize_token_embeddings(VOCAB + 4)
    assert torch.allclose(model(ids, attention_mask=mask).logits[..., :VOCAB], before, atol=1e-5)
    assert model.core.config.vocab == model.config.vocab == VOCAB + 4
    model.save_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).core(ids).shape[-1] == VOCAB + 4
