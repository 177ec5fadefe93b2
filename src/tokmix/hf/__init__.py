"""Hugging Face models for all mixers: importing this file makes them known to the Auto classes, pipelines and Trainer.

import tokmix.hf
config = tokmix.hf.TokmixConfig(stack="hypermixing*4", dim=128, vocab=8000, causal=False, max_len=256)
model = tokmix.hf.TokmixForSequenceClassification(config)      # model.core is the tokmix.Model inside
model.save_pretrained("folder")
AutoModelForSequenceClassification.from_pretrained("folder")    # no trust_remote_code

config.py     TokmixConfig: the fields of ModelConfig and a format version
models.py     one class a head; base.py: what they share, and loading; inputs.py, loss.py: what goes in, what comes out
cache.py      the cache of generate(): the mixers' own states; attentions.py: attention maps
tokenizer.py  a `tokenizers` object as pipelines want it
lora.py       what LoRA should reach
audits.py     what leaks in a model (audit_checks.py: each check; audit_subject.py: how a model is called)
swaps.py      mixers in place of attention in models of transformers; swapped.py: what stands there; masks.py: their masks
"""

from __future__ import annotations

try:
    import transformers
except ImportError as error:
    raise ImportError("tokmix.hf needs the package transformers: pip install 'tokmix[lab]'") from error

from transformers.models.auto import modeling_auto

from tokmix.hf.audits import Report, audit
from tokmix.hf.config import FORMAT_VERSION, TokmixConfig
from tokmix.hf.lora import lora_config
from tokmix.hf.models import (
    MODELS,
    TokmixForCausalLM,
    TokmixForMaskedLM,
    TokmixForQuestionAnswering,
    TokmixForSequenceClassification,
    TokmixForTokenClassification,
    TokmixModel,
    load_model,
)
from tokmix.hf.swaps import swap
from tokmix.hf.tokenizer import wrap_tokenizer

__all__ = [
    "FORMAT_VERSION",
    "MODELS",
    "Report",
    "TokmixConfig",
    "TokmixForCausalLM",
    "TokmixForMaskedLM",
    "TokmixForQuestionAnswering",
    "TokmixForSequenceClassification",
    "TokmixForTokenClassification",
    "TokmixModel",
    "audit",
    "load_model",
    "lora_config",
    "swap",
    "wrap_tokenizer",
]

transformers.AutoConfig.register(TokmixConfig.model_type, TokmixConfig, exist_ok=True)
transformers.AutoModel.register(TokmixConfig, TokmixModel, exist_ok=True)
transformers.AutoModelForSequenceClassification.register(TokmixConfig, TokmixForSequenceClassification, exist_ok=True)
transformers.AutoModelForCausalLM.register(TokmixConfig, TokmixForCausalLM, exist_ok=True)
transformers.AutoModelForMaskedLM.register(TokmixConfig, TokmixForMaskedLM, exist_ok=True)
transformers.AutoModelForTokenClassification.register(TokmixConfig, TokmixForTokenClassification, exist_ok=True)
transformers.AutoModelForQuestionAnswering.register(TokmixConfig, TokmixForQuestionAnswering, exist_ok=True)
transformers.AutoTokenizer.register(TokmixConfig, fast_tokenizer_class=transformers.PreTrainedTokenizerFast, exist_ok=True)
# Trainer's label smoothing and some pipelines look up class names in these lists, and not in the Auto classes.
modeling_auto.MODEL_MAPPING_NAMES[TokmixConfig.model_type] = TokmixModel.__name__
modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[TokmixConfig.model_type] = TokmixForCausalLM.__name__
modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES[TokmixConfig.model_type] = TokmixForMaskedLM.__name__
modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[TokmixConfig.model_type] = TokmixForSequenceClassification.__name__
modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES[TokmixConfig.model_type] = TokmixForTokenClassification.__name__
modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES[TokmixConfig.model_type] = TokmixForQuestionAnswering.__name__
