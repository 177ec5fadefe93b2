"""Other people's tools on our models, by their own entry points: PEFT, sentence-transformers, lm-eval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hf_models import VOCAB, batch, made
from tokmix.hf import lora_config, wrap_tokenizer

LETTERS = "abcdefghijklmnopqrstuvw"
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


def letters(**more: Any) -> Any:
    """A tokenizer of one token a letter."""
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({letter: number for number, letter in enumerate(LETTERS)}, []))
    inner.decoder = tokenizers.decoders.Fuse()
    return wrap_tokenizer(inner, {"pad": 0, "eot": 1}, max_len=40, **more)


@pytest.mark.parametrize(
    ("stack", "head", "reached"),
    [
        ("hypermixing(heads=2)*2", "classify", "net_in"),
        ("hypermixing(heads=2, tied=False)*2", "lm", "net_out"),
        ("hypermlp(heads=2, rank=4)*2", "lm", "r1"),
        ("attention(heads=2)*2", "tag", "mixer.q"),
    ],
)
def test_lora_reaches_the_mixers_and_trains_the_head(stack: str, head: str, reached: str) -> None:
    peft = pytest.importorskip("peft")
    model = made(stack, head=head, causal=head == "lm", dtype=torch.float32)
    ids, mask, _ = batch(left=True)
    plain = model(ids, attention_mask=mask).logits.detach().clone()
    tuned = peft.get_peft_model(model, lora_config(model, r=2, init_lora_weights=False)).eval()
    found = tuned(input_ids=ids, attention_mask=mask).logits
    assert (found - plain).abs().max() > 1e-3
    found.square().sum().backward()
    trained = {name for name, parameter in tuned.named_parameters() if parameter.grad is not None and parameter.grad.abs().max() > 0}
    assert any(reached in name and "lora_A" in name for name in trained)
    assert (head == "lm") != any("core.head" in name for name in trained), "the head of a classifier is trained whole"
    assert all("lora_" in name or "core.head" in name for name in trained)
    assert torch.allclose(tuned.merge_and_unload()(ids, attention_mask=mask).logits, found, atol=1e-4)


def test_int8_weights_reach_every_linear_layer() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = made("hypermlp(heads=2, rank=4), attention(heads=2)", dtype=torch.float32)
    ids, _, _ = batch(left=False)
    plain = model(ids).logits
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    assert type(model.core.layers[1].mixer.q.weight) is not torch.nn.Parameter
    gap = (model(ids).logits - plain).abs().max() / plain.abs().max()
    assert 0 < gap < 0.1


def test_a_folder_is_a_sentence_transformer(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = made("hypermixing(heads=2)*2", head="none", causal=False, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    letters().save_pretrained(tmp_path)
    encoder = library.SentenceTransformer(str(tmp_path), device="cpu")  # mean pooling, where a folder does not say more
    found = torch.as_tensor(encoder.encode(["bcd", "efghij"]))
    alone = [model(torch.tensor([[LETTERS.index(letter) for letter in text]])).last_hidden_state[0].mean(0) for text in ("bcd", "efghij")]
    assert torch.allclose(found, torch.stack(alone), atol=1e-5)


def test_lm_eval_scores_what_the_model_says() -> None:
    harness = pytest.importorskip("lm_eval.models.huggingface")
    instance = pytest.importorskip("lm_eval.api.instance").Instance
    model = made("hypermixing(heads=2), attention(heads=2)", dtype=torch.float32)
    scorer = harness.HFLM(pretrained=model, tokenizer=letters(left=True), backend="causal", batch_size=2, max_length=40, device="cpu")
    pairs = [("bcd", "ef"), ("g", "hijk"), ("bq", "r")]
    asked = [instance(request_type="loglikelihood", doc={}, arguments=pair, idx=0) for pair in pairs]
    found = scorer.loglikelihood(asked, disable_tqdm=True)
    for (start, rest), (score, _) in zip(pairs, found, strict=True):
        ids = torch.tensor([[LETTERS.index(letter) for letter in start + rest]])
        logs = model(ids).logits[0].log_softmax(-1)
        expected = sum(logs[at - 1, ids[0, at]] for at in range(len(start), ids.shape[1]))
        assert abs(float(expected) - score) < 1e-3
    assert len(LETTERS) == VOCAB
