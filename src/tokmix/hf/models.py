"""One class a head. `forward` of each takes what inputs.py describes; `core` is the tokmix.Model inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoConfig, Cache, GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast, MaskedLMOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from tokmix.core.segments import Segments
from tokmix.hf import inputs, loss
from tokmix.hf.base import TokmixPreTrainedModel
from tokmix.hf.config import TokmixConfig


class TokmixModel(TokmixPreTrainedModel):
    """Hidden states [B, T, D]; with a cache where the model is causal."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        segment_ids: Tensor | None = None,
        segments: Segments | None = None,
        token_type_ids: Tensor | None = None,  # unused: separators say where a text ends
        **others: Any,
    ) -> BaseModelOutputWithPast:
        inputs.refuse(self.forward, others)
        x, _, past = self._run(input_ids, attention_mask, position_ids, segment_ids, segments, past_key_values, use_cache)
        return BaseModelOutputWithPast(last_hidden_state=x, past_key_values=past)


class TokmixForCausalLM(TokmixPreTrainedModel, GenerationMixin):
    """Logits of the next token [B, T, vocab]. labels [B, T] are the tokens themselves; who has the next ones already
    gives shift_labels instead (unnamed below: Trainer takes every argument named so for one that a batch must have)."""

    heads = ("lm",)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        segment_ids: Tensor | None = None,
        segments: Segments | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Tensor | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        shift_labels = others.pop("shift_labels", None)
        inputs.refuse(self.forward, others)
        logits, read, past = self._run(input_ids, attention_mask, position_ids, segment_ids, segments, past_key_values, use_cache)
        cost: Any = None
        if shift_labels is not None:
            cost = loss.cross_entropy(logits, loss.at_tokens(shift_labels, read), num_items_in_batch)
        elif labels is not None:
            cost = loss.cross_entropy(logits, loss.next_tokens(labels, read), num_items_in_batch)
        return CausalLMOutputWithPast(loss=cost, logits=logits, past_key_values=past)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, which goes on from the last column: a prompt has to end there."""
        inputs.check_ends(kwargs.get("attention_mask"))
        return super().generate(*args, **kwargs)  # type: ignore[misc]


class TokmixForMaskedLM(TokmixPreTrainedModel):
    """Logits of each token [B, T, vocab]; labels [B, T] are the hidden tokens, -100 elsewhere."""

    heads = ("mlm",)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        segments: Segments | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Tensor | None = None,
        **others: Any,
    ) -> MaskedLMOutput:
        inputs.refuse(self.forward, others)
        logits, read, _ = self._run(input_ids, attention_mask, position_ids, segment_ids, segments)
        cost: Any = None if labels is None else loss.cross_entropy(logits, loss.at_tokens(labels, read), num_items_in_batch)
        return MaskedLMOutput(loss=cost, logits=logits)


class TokmixForSequenceClassification(TokmixPreTrainedModel):
    """Logits [S, classes], one row a sequence, for labels [S] of class numbers; or scores [S, 1] for labels [S] of
    scores, where the head is 'regress'. In a packed batch the sequences count in reading order."""

    heads = ("classify", "regress")

    @classmethod
    def head_for(cls, config: TokmixConfig) -> str:
        """A config of another head leaves it open: one output, as scripts of Hugging Face have it, is a regression."""
        if config.head in cls.heads:
            return config.head
        return "regress" if config.problem_type == "regression" or config.classes == 1 else "classify"

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        segments: Segments | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Tensor | None = None,
        **others: Any,
    ) -> SequenceClassifierOutput:
        inputs.refuse(self.forward, others)
        outputs, _, _ = self._run(input_ids, attention_mask, position_ids, segment_ids, segments)
        scores = self.core.config.head == "regress"
        cost: Any = None
        if labels is not None:
            labels = self._labels(labels, outputs.shape[0], scores)
            cost = (loss.squared_error if scores else loss.cross_entropy)(outputs, labels, num_items_in_batch)
        return SequenceClassifierOutput(loss=cost, logits=outputs[:, None] if scores else outputs)

    @staticmethod
    def _labels(labels: Tensor, sequences: int, scores: bool) -> Tensor:
        if labels.numel() != sequences:
            raise ValueError(f"labels of shape {list(labels.shape)} do not fit {sequences} sequences")
        if not scores and labels.dtype.is_floating_point:
            raise ValueError(f"labels should be class numbers, not {labels.dtype}; scores are for head='regress'")
        return labels.flatten()


MODELS: dict[str, type[TokmixPreTrainedModel]] = {head: cls for cls in TokmixPreTrainedModel.__subclasses__() for head in cls.heads}


def load_model(folder: str | Path, **kwargs: Any) -> Any:
    """The model of a folder, of the class that its head asks for."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ValueError(f"no folder {str(folder)!r}" if not folder.is_dir() else f"{folder} is not a model folder: it has no config.json")
    config = AutoConfig.from_pretrained(folder)
    if not isinstance(config, TokmixConfig):
        raise ValueError(f"{folder} holds a model of type {config.model_type!r}, not 'tokmix'")
    return MODELS[config.head].from_pretrained(folder, **kwargs)
