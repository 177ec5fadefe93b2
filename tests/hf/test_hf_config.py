"""What a Hugging Face config of ours holds, refuses and decides."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, fields
from typing import Any

import pytest
import torch
import transformers

from tests.hf_models import AUTO, DIM, MAX_LEN, MIXED, VOCAB
from tokmix import Model, ModelConfig
from tokmix.hf import MODELS, TokmixConfig, TokmixForCausalLM, TokmixForSequenceClassification


def test_without_transformers_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['transformers'] = None; import tokmix.hf"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.strip().endswith("needs the package transformers: pip install 'tokmix[lab]'")


def test_the_config_has_the_fields_of_the_core_and_a_version() -> None:
    own = {field.name for field in fields(TokmixConfig)} - {field.name for field in fields(transformers.PreTrainedConfig)}
    assert own == {field.name for field in fields(ModelConfig)} | {"format_version", "use_cache"}
    core = ModelConfig(stack="hsm*2,attention( heads = 2 )", dim=16, vocab=9, head="classify", causal=False, max_len=8, classes=3)
    config = TokmixConfig.from_core(core, id2label={0: "a", 1: "b", 2: "c"})
    assert config.core() == core and config.stack == "hsm*2, attention(heads=2)"
    given = asdict(core) | {"feed_forward": "auto"}
    assert TokmixConfig(**given).feed_forward == core.feed_forward, "spelled as the core spells it"
    assert (config.vocab_size, config.hidden_size, config.num_labels, config.num_hidden_layers) == (9, 16, 3, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format_version": 1}, "version 1 is unknown; this tokmix reads version 2"),
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
        ({"head": "regress", "problem_type": "multi_label_classification"}, "does not fit"),
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
