"""The Hugging Face models against the core's own calls, for all mixers of the registry, offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import: a name that is no folder must not be looked up

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DynamicCache,
    Trainer,
    TrainingArguments,
    pipeline,
)

import tokmix
from tests.cases import CAUSAL, DEFAULTS, Case, leaves
from tokmix import Model, ModelConfig, Segments
from tokmix.hf import (
    FORMAT_VERSION,
    MODELS,
    TokmixConfig,
    TokmixForCausalLM,
    TokmixForMaskedLM,
    TokmixForSequenceClassification,
    TokmixModel,
    load_model,
    wrap_tokenizer,
)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VOCAB, DIM, MAX_LEN = 23, 16, 40
MIXED = "hsm(variant='gate'), attention(heads=2), hypermixing(heads=2)"
AUTO = {
    TokmixForCausalLM: AutoModelForCausalLM,
    TokmixForMaskedLM: AutoModelForMaskedLM,
    TokmixForSequenceClassification: AutoModelForSequenceClassification,
    TokmixModel: AutoModel,
}


def made(stack: str = MIXED, head: str = "lm", causal: bool = True, dtype: torch.dtype = torch.float64, **more: Any) -> Any:
    """With parameters drawn afresh, so that zero-initialised ones take part."""
    torch.manual_seed(1)
    config = TokmixConfig(**{"stack": stack, "dim": DIM, "vocab": VOCAB, "head": head, "causal": causal, "max_len": MAX_LEN, **more})
    model = MODELS[head](config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def of(case: Case, **more: Any) -> Any:
    given = ", ".join(f"{key}={value!r}" for key, value in case.options.items())
    return made(f"{case.name}({given})*2", causal=case.causal, **more)


def batch(left: bool, lengths: tuple[int, ...] = (4, 7, 1)) -> tuple[Tensor, Tensor, list[list[int]]]:
    """(ids, mask, the prompts as lists); what stands at padding is no known id."""
    prompts = [torch.randint(VOCAB, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in lengths]
    width = max(lengths)
    ids, mask = torch.zeros(len(prompts), width, dtype=torch.long), torch.zeros(len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        place = slice(width - len(prompt), width) if left else slice(0, len(prompt))
        ids[row, place], mask[row, place] = torch.tensor(prompt), 1
    return ids, mask, prompts


def joined(prompts: list[list[int]]) -> list[int]:
    return [token for prompt in prompts for token in prompt]


def test_without_transformers_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None; import tokmix.hf"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.strip().endswith("needs the package transformers: pip install 'tokmix[lab]'")


# Configuration


def test_the_config_has_the_fields_of_the_core_and_a_version() -> None:
    own = {field.name for field in fields(TokmixConfig)} - {field.name for field in fields(transformers.PreTrainedConfig)}
    assert own == {field.name for field in fields(ModelConfig)} | {"format_version"}
    core = ModelConfig(stack="hsm*2,attention( heads = 2 )", dim=16, vocab=9, head="classify", causal=False, max_len=8, classes=3)
    config = TokmixConfig.from_core(core, id2label={0: "a", 1: "b", 2: "c"})
    assert config.core() == core and config.stack == "hsm*2, attention(heads=2)"
    given = asdict(core) | {"feed_forward": "auto"}
    assert TokmixConfig(**given).feed_forward == core.feed_forward, "spelled as the core spells it"
    assert (config.vocab_size, config.hidden_size, config.num_labels, config.num_hidden_layers) == (9, 16, 3, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format_version": 2}, "version 2 is unknown; this tokmix reads version 1"),
        ({"stack": "hsn*2"}, "unknown mixer 'hsn'.*did you mean 'hsm'"),
        ({"stack": "hsm(variants='ab')"}, "did you mean 'variant'"),
        ({"stack": 3}, "stack 3"),
        ({"poolings": "max"}, "no setting 'poolings', did you mean 'pooling'"),
        ({"pooling": "maximum"}, "unknown pooling 'maximum'"),
        ({"dim": "16"}, "dim='16'"),
        ({"head": "lm", "causal": False}, "needs causal=True"),
        ({"classes": 3, "id2label": {0: "a"}}, "contradicting numbers of outputs .classes: 3, names in id2label: 1"),
        ({"head": "regress", "num_labels": 3}, "contradicting numbers of outputs"),
        ({"head": "classify", "problem_type": "regression"}, "problem_type='regression' does not fit head='classify'"),
        ({"problem_type": "multi_label_classification"}, "does not fit"),
    ],
)
def test_bad_settings_are_named_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        TokmixConfig(**{"stack": "hsm*2", "dim": 16, "vocab": 9, "causal": False, "max_len": 8, **changes})
    assert "\n" not in str(caught.value)


def test_the_class_of_a_model_decides_its_head() -> None:
    config = TokmixConfig(stack="hsm", dim=16, vocab=9, causal=True, max_len=8)
    heads = {cls: cls(config).config.head for cls in AUTO}
    assert list(heads.values()) == ["lm", "mlm", "classify", "none"] and config.head == "none", "the given config stays as it was"
    scores = TokmixForSequenceClassification(TokmixConfig(stack="hsm", dim=16, vocab=9, causal=True, max_len=8, num_labels=1))
    assert (scores.config.head, scores.config.problem_type, scores.config.num_labels) == ("regress", "regression", 1)
    with pytest.raises(ValueError, match="needs causal=True"):
        TokmixForCausalLM(TokmixConfig(stack="hsm", dim=16, vocab=9, causal=False, max_len=8))


def test_a_seed_gives_the_weights_that_the_core_draws() -> None:
    for head, cls in MODELS.items():
        core = ModelConfig(stack=MIXED, dim=DIM, vocab=VOCAB, head=head, causal=True, max_len=MAX_LEN)
        torch.manual_seed(5)
        drawn = Model(core).state_dict()
        torch.manual_seed(5)
        ours = cls(TokmixConfig.from_core(core)).core.state_dict()
        assert drawn.keys() == ours.keys() and all(torch.equal(ours[name], drawn[name]) for name in drawn)


# Forward and loss


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_padded_and_packed_equal_the_core_on_each_sequence_alone(case: Case) -> None:
    model = of(case, head="none")
    for left in (False, True):
        ids, mask, prompts = batch(left)
        alone = torch.cat([model.core(torch.tensor([prompt]))[0] for prompt in prompts])
        if case.has("padded"):
            padded = model(ids.masked_fill(mask == 0, 10**6), attention_mask=mask).last_hidden_state
            assert torch.allclose(padded[mask.bool()], alone, atol=1e-10)
    if case.has("packed"):
        row = torch.tensor([joined(prompts)])
        counts = torch.tensor([len(prompt) for prompt in prompts])
        numbers = torch.arange(1, len(prompts) + 1).repeat_interleave(counts)[None]
        positions = torch.cat([torch.arange(n) for n in counts])[None]
        for given in ({"segment_ids": numbers}, {"segments": Segments(numbers)}, {"position_ids": positions}):
            assert torch.allclose(model(row, **given).last_hidden_state[0], alone, atol=1e-10)
        spare = model(F.pad(row, (0, 2)), segment_ids=F.pad(numbers, (0, 2), value=9), attention_mask=F.pad(numbers, (0, 2)) > 0)
        assert torch.allclose(spare.last_hidden_state[0, :-2], alone, atol=1e-10)


def test_sequence_heads_equal_the_core_padded_and_packed() -> None:
    for head, labels in (("classify", torch.tensor([2, -100, 0])), ("regress", torch.tensor([0.5, -100.0, 2.0]))):
        model = made(head=head, causal=False, classes=3)
        ids, mask, prompts = batch(left=True)
        alone = torch.cat([model.core(torch.tensor([prompt])) for prompt in prompts])
        counted = alone[[0, 2]]
        losses = F.cross_entropy(counted, labels[[0, 2]], reduction="none") if head == "classify" else (counted - labels[[0, 2]]) ** 2
        numbers = torch.tensor([[1] * 4 + [2] * 7 + [3]])
        for given in ({"input_ids": ids, "attention_mask": mask}, {"input_ids": torch.tensor([joined(prompts)]), "segment_ids": numbers}):
            found = model(**given, labels=labels)
            assert found.logits.shape == (3, 3 if head == "classify" else 1)
            assert torch.allclose(found.logits.view(alone.shape), alone)
            assert torch.allclose(found.loss, losses.mean())
            assert torch.allclose(model(**given, labels=labels, num_items_in_batch=torch.tensor(10)).loss, losses.sum() / 10)


def test_token_losses_count_next_tokens_within_sequences_alone() -> None:
    model = made()
    ids, mask, prompts = batch(left=True)
    each = [F.cross_entropy(model.core(torch.tensor([p]))[0, :-1], torch.tensor(p[1:]), reduction="sum") for p in prompts if len(p) > 1]
    total, count = torch.stack(each).sum(), sum(len(p) - 1 for p in prompts)
    row, numbers = torch.tensor([joined(prompts)]), torch.tensor([[1] * 4 + [2] * 7 + [3]])
    assert torch.allclose(model(ids, attention_mask=mask, labels=ids).loss, total / count)
    assert torch.allclose(model(row, segment_ids=numbers, labels=row).loss, total / count)
    assert torch.allclose(model(row, segment_ids=numbers, labels=row, num_items_in_batch=50).loss, total / 50)
    shifted = F.pad(row[:, 1:], (0, 1), value=-100).masked_fill(F.pad(numbers[:, 1:], (0, 1)) != numbers, -100)
    assert torch.allclose(model(row, segment_ids=numbers, shift_labels=shifted).loss, total / count)
    assert model(ids, attention_mask=mask, labels=torch.full_like(ids, -100)).loss == 0, "nothing to predict is no NaN"
    masked = made(head="mlm", causal=False)
    labels = ids.masked_fill(torch.arange(7) != 5, -100)
    logits = masked(ids, attention_mask=mask).logits
    expected = F.cross_entropy(logits[:2, 5], ids[:2, 5])  # the third row has padding there
    assert torch.allclose(masked(ids, attention_mask=mask, labels=labels).loss, expected)


def test_outputs_come_as_tuples_too_and_unknown_arguments_are_refused() -> None:
    model = made()
    ids, mask, _ = batch(left=False)
    loss, logits = model(ids, attention_mask=mask, labels=ids, return_dict=False)
    assert loss.dim() == 0 and logits.shape == (3, 7, VOCAB)
    model(ids, inputs_embeds=None, output_attentions=False)
    for given, words in (
        ({"inputs_embeds": torch.zeros(3, 7, DIM)}, "takes no inputs_embeds"),
        ({"attention_masks": mask}, "did you mean 'attention_mask'"),
        ({"output_hidden_states": True}, "takes no output_hidden_states"),
        ({"attention_mask": mask[:, None, None]}, r"attention_mask of shape \[3, 1, 1, 7\]"),
        ({"attention_mask": mask, "segments": Segments.from_mask(mask)}, "give no attention_mask"),
        ({"position_ids": torch.tensor([[0, 1, 1, 2, 3, 4, 5]])}, "count each sequence from 0"),
        ({"use_cache": True, "segment_ids": mask}, "segment_ids cannot be used with a cache"),
    ):
        with pytest.raises(ValueError, match=words):
            model(ids, **given)
    classifier = made(head="classify", causal=False)
    with pytest.raises(ValueError, match="class numbers"):
        classifier(ids, labels=torch.zeros(3))
    with pytest.raises(ValueError, match="do not fit 3 sequences"):
        classifier(ids, labels=torch.zeros(2, dtype=torch.long))


# Generation


def generated(model: Any, ids: Tensor, mask: Tensor, **how: Any) -> Tensor:
    torch.manual_seed(3)
    return model.generate(ids, attention_mask=mask, **{"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, **how})


@pytest.mark.parametrize("case", CAUSAL, ids=str)
def test_generation_with_the_cache_equals_the_uncached_pass(case: Case) -> None:
    model = of(case, tie=False)
    ids, mask, prompts = batch(left=True)
    greedy = generated(model, ids, mask, use_cache=False)
    assert torch.equal(generated(model, ids, mask), greedy)
    assert torch.equal(generated(model, ids, mask, prefill_chunk_size=3), greedy), "a chunk of padding alone is in it"
    assert greedy[:, 7:].tolist() == tokmix.generate(model.core, prompts, max_new=9)
    beams = {"num_beams": 3, "num_return_sequences": 2}
    assert torch.equal(generated(model, ids, mask, **beams), generated(model, ids, mask, use_cache=False, **beams))


@pytest.mark.parametrize("case", [case for case in CAUSAL if not case.options], ids=str)
def test_sampling_and_stops_with_the_cache_equal_the_uncached_pass(case: Case) -> None:
    model = of(case, tie=False)
    ids, mask, prompts = batch(left=True)
    for how in (
        {"do_sample": True, "temperature": 1.3, "top_k": 9, "num_return_sequences": 2},
        {"do_sample": True, "num_beams": 2},
        {"cache_implementation": "static"},
    ):
        plain = {key: value for key, value in how.items() if key != "cache_implementation"}
        assert torch.equal(generated(model, ids, mask, **how), generated(model, ids, mask, use_cache=False, **plain))
    stop = tokmix.generate(model.core, prompts, max_new=9)[0][4]
    ends = generated(model, ids, mask, eos_token_id=stop)[:, 7:]
    expected = tokmix.generate(model.core, prompts, max_new=9, stop=[stop])
    assert [row[: len(whole)] for row, whole in zip(ends.tolist(), expected, strict=True)] == expected


def test_a_cache_goes_on_where_it_stopped_and_fits_its_model_alone() -> None:
    model = made(tie=False)
    ids, mask, _ = batch(left=True)
    whole = model(ids, attention_mask=mask).logits
    for past in (DynamicCache(config=model.config), DynamicCache()):
        first = model(ids[:, :5], attention_mask=mask[:, :5], past_key_values=past)
        assert first.past_key_values is past and past.get_seq_length() == 5
        rest = model(ids[:, 5:], attention_mask=mask, past_key_values=past).logits
        assert torch.allclose(torch.cat([first.logits, rest], 1)[mask.bool()], whole[mask.bool()], atol=1e-10)
        past.reorder_cache(torch.tensor([2, 0, 0]))
        past.batch_repeat_interleave(2)
        assert past.batch_size == 6
        past.batch_select_indices(torch.tensor([0, 2]))  # rows 2 and 0 of the batch
        more = model(ids[[2, 0], :1], past_key_values=past).logits
        both = torch.cat([ids[[2, 0]], ids[[2, 0], :1]], 1), torch.cat([mask[[2, 0]], torch.ones(2, 1, dtype=torch.long)], 1)
        assert torch.allclose(more[:, -1], model(both[0], attention_mask=both[1]).logits[:, -1], atol=1e-10)
        past.reset()
        assert past.get_seq_length() == 0 and not leaves(past.layers[0].state)[1:]
    hidden = made(head="none")
    assert torch.allclose(hidden(ids, use_cache=True).last_hidden_state, hidden(ids).last_hidden_state)
    with pytest.raises(ValueError, match="holds 3 rows, but input_ids 2"):
        model(ids[:2], past_key_values=model(ids, use_cache=True).past_key_values)
    with pytest.raises(ValueError, match="made for another model"):
        model(ids, past_key_values=DynamicCache(config=made("hsm").config))
    with pytest.raises(ValueError, match="rolled back"):
        model(ids, use_cache=True).past_key_values.crop(1)
    with pytest.raises(ValueError, match="assisted generation is not supported"):
        generated(model, ids[:1], mask[:1], assistant_model=made("hsm"))


def test_generation_past_the_longest_sequence_is_an_error() -> None:
    ids, mask, _ = batch(left=True)
    with pytest.raises(ValueError, match="max_len=40"):
        generated(made(positions="learned"), ids, mask, max_new_tokens=40)


# Folders


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


# Pipelines

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "<|endoftext|>",
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "dog",
    "it",
    "was",
    "not",
    "very",
    "good",
]
ROLES = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "eot": 4}


def tokenizer(pairs: bool) -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(WORDS[:5])
    if pairs:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return made


TEXTS = ["the cat sat on a mat", "it was not very good", "dog"]


def test_the_classification_pipeline_gives_the_numbers_of_the_core(tmp_path: Path) -> None:
    wrapped = wrap_tokenizer(tokenizer(pairs=True), ROLES, max_len=MAX_LEN)
    assert wrapped("the [SEP] cat").input_ids.count(3) == 1, "text that spells a special token stays text"
    for head in ("classify", "regress"):
        names = {0: "no", 1: "yes", 2: "perhaps"} if head == "classify" else None
        model = made(head=head, causal=False, vocab=len(WORDS), id2label=names, dtype=torch.float32)
        model.save_pretrained(tmp_path / head)
        wrapped.save_pretrained(tmp_path / head)
        classify = pipeline("text-classification", model=str(tmp_path / head), top_k=None, device="cpu")
        encode = tokenizer(pairs=True).encode
        alone = [model.core(torch.tensor([encode(text).ids]))[0].detach() for text in TEXTS]
        for found in (classify(TEXTS), classify(TEXTS, batch_size=3)):
            for row, logits in zip(found, alone, strict=True):
                scores = {entry["label"]: entry["score"] for entry in row}
                expected = logits.softmax(-1).tolist() if names else [float(logits)]
                assert scores == pytest.approx(dict(zip(names.values() if names else ["LABEL_0"], expected, strict=True)), abs=1e-5)
        first = classify({"text": TEXTS[0], "text_pair": TEXTS[1]})[0]
        logits = model.core(torch.tensor([encode(TEXTS[0], TEXTS[1]).ids]))[0].detach()
        assert first["score"] == pytest.approx(float(logits.softmax(-1).max() if names else logits), abs=1e-5)


def test_the_fill_mask_pipeline_gives_the_numbers_of_the_core(tmp_path: Path) -> None:
    words = tokenizer(pairs=True)
    words.add_special_tokens(["[MASK]"])
    hidden = words.token_to_id("[MASK]")
    model = made(head="mlm", causal=False, vocab=hidden + 1, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    wrap_tokenizer(words, {**ROLES, "mask": hidden}, spelled=True).save_pretrained(tmp_path)
    found = pipeline("fill-mask", model=str(tmp_path), device="cpu")("the [MASK] sat", top_k=1)[0]
    best = model.core(torch.tensor([[2, 5, hidden, 7, 3]]))[0, 2].softmax(-1).detach().max(-1)
    assert (found["token"], found["score"]) == (int(best.indices), pytest.approx(float(best.values), abs=1e-5))


def test_the_generation_pipeline_gives_the_tokens_of_the_core(tmp_path: Path) -> None:
    model = made(vocab=len(WORDS), tie=False, dtype=torch.float32)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = 4
    model.save_pretrained(tmp_path)
    wrap_tokenizer(tokenizer(pairs=False), ROLES, left=True).save_pretrained(tmp_path)
    write = pipeline("text-generation", model=str(tmp_path), device="cpu")
    assert write.model.generation_config.eos_token_id == 4 and AutoTokenizer.from_pretrained(tmp_path).padding_side == "left"
    prompts = [tokenizer(pairs=False).encode(text).ids for text in TEXTS]
    expected = tokmix.generate(model.core, prompts, max_new=6, stop=[4])
    for size in (1, 3):
        found = write(TEXTS, max_new_tokens=6, do_sample=False, return_tensors=True, batch_size=size)
        for row, prompt, new in zip(found, prompts, expected, strict=True):
            padding = max(map(len, prompts)) - len(prompt) if size > 1 else 0
            assert list(row[0]["generated_token_ids"])[padding:][: len(prompt) + len(new)] == prompt + new


# Trainer


class Rows(Dataset[dict[str, Any]]):
    """Sequences that count up by one; the label is how long, how far, or the tokens themselves."""

    def __init__(self, task: str):
        torch.manual_seed(0)
        starts, lengths = torch.randint(1, 8, (48,)).tolist(), torch.randint(4, 10, (48,)).tolist()
        self.rows = [self._row(task, list(range(start, start + n))) for start, n in zip(starts, lengths, strict=True)]

    def _row(self, task: str, ids: list[int]) -> dict[str, Any]:
        if task == "lm":
            return {"input_ids": ids, "labels": ids}
        if task == "mlm":
            return {"input_ids": [ids[0], 0, *ids[2:]], "labels": [-100, ids[1], *[-100] * (len(ids) - 2)]}
        return {"input_ids": ids, "labels": int(len(ids) > 6) if task == "classify" else ids[0] / 8}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    width = max(len(row["input_ids"]) for row in rows)

    def padded(values: list[list[int]], fill: int) -> Tensor:
        return torch.tensor([row + [fill] * (width - len(row)) for row in values])

    ids = [row["input_ids"] for row in rows]
    labels = [row["labels"] for row in rows]
    return {
        "input_ids": padded(ids, 0),
        "attention_mask": padded([[1] * len(row) for row in ids], 0),
        "labels": padded(labels, -100) if isinstance(labels[0], list) else torch.tensor(labels),
    }


def packed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All sequences in one row, and Segments made on the host."""
    labels = [row["labels"] for row in rows]
    return {
        "input_ids": torch.tensor([joined([row["input_ids"] for row in rows])]),
        "segments": Segments.from_lengths([[len(row["input_ids"]) for row in rows]]),
        "labels": torch.tensor([joined([[-100, *row[1:]] for row in labels])]) if isinstance(labels[0], list) else torch.tensor(labels),
    }


def trained(task: str, out: Path, resume: str | None = None, dropout: float = 0.1, collator: Any = collate, **changes: Any) -> Trainer:
    model = made(head=task, causal=task == "lm", dropout=dropout, dtype=torch.float32)
    settings = {
        "use_cpu": True, "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False, "seed": 3, "learning_rate": 5e-3,
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_steps": 6, "logging_steps": 1, "save_steps": 3,
    }  # fmt: skip
    arguments = TrainingArguments(output_dir=str(out), **{**settings, **changes})
    trainer = Trainer(model, arguments, train_dataset=Rows(task), eval_dataset=Rows(task), data_collator=collator)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("task", ["classify", "regress", "lm", "mlm"])
def test_a_plain_trainer_script_learns_and_resumes_to_the_same_weights(task: str, tmp_path: Path) -> None:
    whole = trained(task, tmp_path)
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    assert len(losses) == 6 and sum(losses[3:]) < sum(losses[:3])
    again = trained(task, tmp_path, resume=str(tmp_path / "checkpoint-3"))
    assert again.state.global_step == 6
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
    with torch.no_grad():
        all_at_once = whole.model.eval()(**collate(Rows(task).rows)).loss
    assert whole.evaluate()["eval_loss"] == pytest.approx(float(all_at_once), rel=1e-4 if task in ("classify", "regress") else 0.1)


@pytest.mark.parametrize("task", ["classify", "regress", "lm", "mlm"])
def test_trainers_loss_is_divided_by_all_targets_of_a_step(task: str, tmp_path: Path) -> None:
    """Two accumulated batches, of unequal numbers of targets, weigh like one batch of both; padded or packed."""
    with torch.no_grad():
        expected = made(head=task, causal=task == "lm", dtype=torch.float32)(**collate(Rows(task).rows)).loss
    for collator in (collate, packed) if task != "mlm" else (collate,):
        trainer = trained(task, tmp_path, dropout=0.0, collator=collator, per_device_train_batch_size=40, max_steps=1)
        assert trainer.state.log_history[0]["loss"] == pytest.approx(float(expected), rel=1e-4)


def test_label_smoothing_shifts_the_labels_of_a_language_model(tmp_path: Path) -> None:
    model = made(dtype=torch.float32)
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], label_smoothing_factor=0.1)
    part = collate(Rows("lm").rows[:8])
    found = Trainer(model, arguments).compute_loss(model, dict(part))
    logits, targets = model(part["input_ids"], attention_mask=part["attention_mask"]).logits[:, :-1], part["labels"][:, 1:]
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, label_smoothing=0.1)
    assert torch.allclose(found, expected, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")
def test_generation_and_training_on_a_gpu(tmp_path: Path) -> None:
    model = made(tie=False).cuda()
    ids, mask, prompts = batch(left=True)
    greedy = generated(model, ids.cuda(), mask.cuda())
    assert torch.equal(greedy, generated(model, ids.cuda(), mask.cuda(), use_cache=False))
    assert greedy[:, 7:].tolist() == tokmix.generate(made(tie=False).core, prompts, max_new=9)
    for collator in (collate, packed):
        run = trained("lm", tmp_path, collator=collator, use_cpu=False, bf16=True)
        losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
        assert run.model.device.type == "cuda" and sum(losses[3:]) < sum(losses[:3])
