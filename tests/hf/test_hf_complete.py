"""What scripts of Hugging Face expect of any model: hidden states, attention maps, vectors as inputs, heads, caches that roll back."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForQuestionAnswering, AutoModelForTokenClassification, DynamicCache

from tests.cases import DEFAULTS, Case
from tests.hf_models import DIM, MIXED, VOCAB, batch, generated, made, of
from tokmix.hf import TokmixConfig, TokmixForQuestionAnswering, TokmixForTokenClassification

STEPPING = [case for case in DEFAULTS if case.causal and case.has("step")]


def test_a_config_has_defaults() -> None:
    config = TokmixConfig()
    assert config.core().max_len == 512 and config.num_hidden_layers == 4
    assert TokmixConfig.from_dict(config.to_dict()).core() == config.core()


def test_hidden_states_are_those_of_the_layers_with_and_without_a_cache() -> None:
    model = made()
    ids, mask, _ = batch(left=True)
    seen: list[torch.Tensor] = []
    hooks = [layer.register_forward_hook(lambda module, given, out: seen.append(out)) for layer in model.core.layers]
    done = model(ids, attention_mask=mask, output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    assert len(done.hidden_states) == 4
    for found, expected in zip(done.hidden_states[1:3], seen[:2], strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(done.hidden_states[-1], model.core.norm(seen[-1]))
    stepped = model(ids, attention_mask=mask, output_hidden_states=True, use_cache=True)
    for found, expected in zip(stepped.hidden_states, done.hidden_states, strict=True):
        assert torch.allclose(found[mask.bool()], expected[mask.bool()])
    assert len(made(output_hidden_states=True)(ids, attention_mask=mask).hidden_states) == 4, "as the config says"
    assert model(ids, attention_mask=mask).hidden_states is None


@pytest.mark.parametrize("kind", ["attention(heads=2)", "relu_attention(heads=2)"])
def test_attention_maps_are_the_weights_that_were_used(kind: str) -> None:
    model = made(f"{kind}*2")
    ids, mask, prompts = batch(left=True)
    done = model(ids, attention_mask=mask, output_attentions=True)
    assert torch.allclose(done.logits, model(ids, attention_mask=mask).logits)
    for row, prompt in enumerate(prompts):
        alone = model(torch.tensor([prompt]), output_attentions=True).attentions
        for maps, expected in zip(done.attentions, alone, strict=True):
            n = len(prompt)
            assert maps.shape == (3, 2, 7, 7) and torch.allclose(maps[row, :, -n:, -n:], expected[0])
            assert (maps[row, :, : 7 - n] == 0).all() and (maps[row, ..., : 7 - n] == 0).all()
            assert expected.triu(1).abs().max() == 0
            if kind.startswith("attention"):
                assert torch.allclose(expected.sum(-1), torch.ones(()).double())
    first = model(ids[:, :5], attention_mask=mask[:, :5], use_cache=True)
    rest = model(ids[:, 5:], attention_mask=mask, past_key_values=first.past_key_values, output_attentions=True)
    for maps, expected in zip(rest.attentions, done.attentions, strict=True):
        assert torch.allclose(maps, expected[:, :, 5:])


@pytest.mark.parametrize("use_cache", [False, True])
def test_vectors_stand_for_tokens(use_cache: bool) -> None:
    model = made()
    ids, mask, _ = batch(left=True)
    vectors = model.get_input_embeddings()(ids).masked_fill(mask[..., None] == 0, float("nan"))
    found = model(inputs_embeds=vectors, attention_mask=mask, use_cache=use_cache).logits
    assert torch.allclose(found[mask.bool()], model(ids, attention_mask=mask).logits[mask.bool()])
    with pytest.raises(ValueError, match=rf"should be \[B, T, {DIM}\]"):
        model(inputs_embeds=torch.zeros(1, 2, DIM + 1).double())


def test_gradient_checkpointing_changes_no_gradient() -> None:
    model = made(head="classify", causal=False, stack="hypermixing(heads=2), attention(heads=2)").train()
    ids, mask, _ = batch(left=False)

    def gradients(of_model: torch.nn.Module) -> list[torch.Tensor]:
        of_model.zero_grad()
        of_model(ids, attention_mask=mask, labels=torch.tensor([0, 1, 1])).loss.backward()
        return [parameter.grad.clone() for parameter in of_model.parameters() if parameter.grad is not None]

    plain = gradients(model)
    runs = []
    for layer in model.core.layers:
        layer.mixer.register_forward_hook(lambda module, given, out: runs.append(1))
    model.activation_checkpointing_enable()
    again = gradients(model)
    assert len(runs) == 4, "each layer ran twice"
    assert all(torch.allclose(a, b) for a, b in zip(plain, again, strict=True))


def test_logits_are_kept_for_the_last_columns_alone() -> None:
    model = made()
    ids, mask, _ = batch(left=True)
    whole = model(ids, attention_mask=mask)
    for kept, columns in ((2, [5, 6]), (torch.tensor([1, 4]), [1, 4])):
        found = model(ids, attention_mask=mask, logits_to_keep=kept)
        assert found.logits.shape == (3, 2, VOCAB) and torch.allclose(found.logits, whole.logits[:, columns])


def test_the_config_says_whether_a_forward_pass_makes_a_cache() -> None:
    ids, _, _ = batch(left=True)
    assert made()(ids).past_key_values is None and made(use_cache=False)(ids).past_key_values is None
    model = made(use_cache=True)
    assert isinstance(model(ids).past_key_values, DynamicCache) and model(ids, use_cache=False).past_key_values is None
    assert model.train()(ids).past_key_values is None, "training goes on from nothing"
    assert made(head="none", causal=False, stack="attention(heads=2)", use_cache=True)(ids).past_key_values is None


def test_tokens_are_classified_and_answers_found(tmp_path: Path) -> None:
    ids, mask, _ = batch(left=False)
    tagger = made(head="tag", causal=False, classes=3, stack="hypermixing(heads=2)*2")
    assert isinstance(tagger, TokmixForTokenClassification)
    labels = torch.randint(3, ids.shape)
    found = tagger(ids, attention_mask=mask, labels=labels)
    assert torch.allclose(found.loss, F.cross_entropy(found.logits[mask.bool()], labels[mask.bool()]))
    reader = made(head="span", causal=False, stack="hypermixing(heads=2)*2")
    assert isinstance(reader, TokmixForQuestionAnswering)
    starts, ends = torch.tensor([1, 3, 0]), torch.tensor([2, 9, 0])  # one place lies behind the text
    spans = reader(ids, attention_mask=mask, start_positions=starts, end_positions=ends)
    expected = F.cross_entropy(spans.start_logits, starts) + F.cross_entropy(spans.end_logits[[0, 2]], ends[[0, 2]])
    assert torch.allclose(spans.loss, expected / 2)
    assert spans.start_logits[0, 4:].max() < -1e30, "no answer stands at padding"
    for model, auto in ((tagger, AutoModelForTokenClassification), (reader, AutoModelForQuestionAnswering)):
        model.save_pretrained(tmp_path)
        again = auto.from_pretrained(tmp_path, dtype=torch.float64)
        assert torch.equal(again(ids, attention_mask=mask)[0], model(ids, attention_mask=mask)[0])


def test_several_classes_may_apply() -> None:
    model = made(head="classify", causal=False, classes=3, problem_type="multi_label_classification", stack="hypermixing*2")
    ids, mask, _ = batch(left=False)
    labels = torch.tensor([[0.0, 1, 1], [0, 0, 0], [1, 0, 1]])
    found = model(ids, attention_mask=mask, labels=labels)
    assert torch.allclose(found.loss, F.binary_cross_entropy_with_logits(found.logits, labels.double()))
    assert torch.allclose(model(ids, attention_mask=mask, labels=labels, num_items_in_batch=18).loss, found.loss / 2)
    with pytest.raises(ValueError, match=r"should be \[3, 3\]"):
        model(ids, attention_mask=mask, labels=labels[:, 0])
    assert TokmixConfig.from_dict(model.config.to_dict()).problem_type == "multi_label_classification"


@pytest.mark.parametrize("case", STEPPING, ids=str)
def test_a_recorded_cache_can_be_cropped(case: Case) -> None:
    model = of(case)
    ids, mask, _ = batch(left=True)
    cache = model(ids[:, :3], attention_mask=mask[:, :3], use_cache=True).past_key_values
    cache.activate_past_recording()
    whole = model(ids, attention_mask=mask).logits
    for _ in range(2):  # wrong guesses are taken back; the second time from where the first ended
        model(ids[:, 3:4], attention_mask=mask[:, :4], past_key_values=cache)
        model(torch.ones(3, 3, dtype=torch.long), past_key_values=cache)
        cache.crop(-4)
        assert cache.get_seq_length() == 3
    model(ids[:, 3:6], attention_mask=mask[:, :6], past_key_values=cache)
    cache.crop(-2)
    rest = model(ids[:, 4:], attention_mask=mask, past_key_values=cache).logits
    assert torch.allclose(rest[mask[:, 4:].bool()], whole[:, 4:][mask[:, 4:].bool()], atol=1e-10)
    cache.crop(0)
    with pytest.raises(ValueError, match="behind column"):
        cache.crop(-7)


@pytest.mark.parametrize("stack", [MIXED, "hypermlp(heads=2, rank=4)", "linear_attention(heads=2)", "hypermixing(heads=2, block=4)"])
def test_assisted_generation_gives_the_same_tokens(stack: str) -> None:
    model = made(stack)
    helper = copy.deepcopy(model)
    with torch.no_grad():  # right often, not always
        for parameter in helper.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    ids, mask, _ = batch(left=True, lengths=(5,))
    plain = generated(model, ids, mask, max_new_tokens=20)
    assert torch.equal(generated(model, ids, mask, max_new_tokens=20, assistant_model=helper), plain)
    assert torch.equal(generated(model, ids, mask, max_new_tokens=20, prompt_lookup_num_tokens=3), plain)


def test_generation_stops_at_a_string() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from tokmix.hf import wrap_tokenizer

    letters = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvw")}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(letters, []))
    inner.decoder = tokenizers.decoders.Fuse()
    tokenizer = wrap_tokenizer(inner, {})
    model = made()
    ids, mask, _ = batch(left=True, lengths=(5,))
    plain = generated(model, ids, mask, max_new_tokens=12)[0, 5:].tolist()
    stop = plain[4]
    stopped = generated(model, ids, mask, max_new_tokens=12, stop_strings=["abcdefghijklmnopqrstuvw"[stop]], tokenizer=tokenizer)
    assert stopped[0, 5:].tolist() == plain[: plain.index(stop) + 1]


@pytest.mark.parametrize("head", ["none", "classify", "lm"])
def test_a_model_is_exported_with_its_mask(head: str) -> None:
    causal = head == "lm"
    model = made("hypermixing(heads=2), attention(heads=2)", head=head, causal=causal, dtype=torch.float32)
    ids, mask, _ = batch(left=True)
    program = torch.export.export(model, (), {"input_ids": ids, "attention_mask": mask})
    for side in (True, False):
        ids, mask, _ = batch(left=side)
        given = {"input_ids": ids, "attention_mask": mask}
        found, expected = program.module()(**given)[0], model(**given)[0]
        if head != "classify":
            found, expected = found[mask.bool()], expected[mask.bool()]
        assert torch.allclose(found, expected, atol=1e-5)
