"""One class a head. `forward` of each takes what inputs.py describes; `core` is the tokmix.Model inside.

All take inputs_embeds, output_hidden_states and output_attentions too (unnamed below: Trainer takes every argument named in a
signature for a column that a batch may have).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Never, Unpack

import torch
from torch import Tensor
from transformers import AutoConfig, Cache, GenerationMixin
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from tokmix.core.segments import Segments
from tokmix.hf import inputs, loss
from tokmix.hf.base import Others, TokmixPreTrainedModel
from tokmix.hf.config import TokmixConfig
from tokmix.hf.swapped import refuse_continuous_batching


class TokmixModel(TokmixPreTrainedModel):
    """Hidden states [B, T, D]; with a cache where the model is causal."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        segment_ids: Tensor | None = None,
        segments: Segments | None = None,
        token_type_ids: Tensor | None = None,  # unused: separators say where a text ends
        **others: Unpack[Others],
    ) -> BaseModelOutputWithPast:
        done = self._encode(input_ids, attention_mask, position_ids, segment_ids, segments, others, past_key_values, use_cache)
        x: Any = self.core.finish(done.x, done.segments)
        return BaseModelOutputWithPast(
            last_hidden_state=x, past_key_values=done.past, hidden_states=done.hidden_states, attentions=done.attentions
        )


class TokmixForCausalLM(TokmixPreTrainedModel, GenerationMixin):
    """Logits of the next token [B, T, vocab], or of the last `logits_to_keep` columns (of those numbered, where it is a tensor).
    labels [B, T] are the tokens themselves; who has the next ones already gives shift_labels instead."""

    heads = ("lm",)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        segment_ids: Tensor | None = None,
        segments: Segments | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **others: Unpack[Others],
    ) -> CausalLMOutputWithPast:
        shift_labels = others.pop("shift_labels", None)
        done = self._encode(input_ids, attention_mask, position_ids, segment_ids, segments, others, past_key_values, use_cache)
        kept: slice | Tensor = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else slice(None)
        kept = logits_to_keep if isinstance(logits_to_keep, Tensor) else kept
        logits: Any = self.core.finish(done.x[:, kept])
        cost: Any = None
        if shift_labels is not None:
            cost = loss.cross_entropy(logits, loss.at_tokens(shift_labels, done.segments)[:, kept], num_items_in_batch)
        elif labels is not None:
            cost = loss.cross_entropy(logits, loss.next_tokens(labels, done.segments)[:, kept], num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=cost, logits=logits, past_key_values=done.past, hidden_states=done.hidden_states, attentions=done.attentions
        )

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, which goes on from the last column: a prompt has to end there."""
        inputs.check_ends(kwargs.get("attention_mask"))
        return super().generate(*args, **kwargs)  # type: ignore[misc]

    def init_continuous_batching(self, *args: object, **kwargs: object) -> Never:
        refuse_continuous_batching()

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        """As the parent's, without what is for the stopping criteria alone."""
        return super().prepare_inputs_for_generation(  # type: ignore[misc]
            *args, **{name: value for name, value in kwargs.items() if name not in ("tokenizer", "assistant_tokenizer")}
        )


class _EachToken:
    """Logits of each token, and labels [B, T] that are -100 where there is none."""

    output: ClassVar[type[MaskedLMOutput | TokenClassifierOutput]]

    @can_return_tuple
    def forward(
        self: Any,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        segments: Segments | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Tensor | None = None,
        **others: Unpack[Others],
    ) -> MaskedLMOutput | TokenClassifierOutput:
        done = self._encode(input_ids, attention_mask, position_ids, segment_ids, segments, others)
        logits = self.core.finish(done.x)
        cost: Any = None if labels is None else loss.cross_entropy(logits, loss.at_tokens(labels, done.segments), num_items_in_batch)
        return self.output(loss=cost, logits=logits, hidden_states=done.hidden_states, attentions=done.attentions)


class TokmixForMaskedLM(_EachToken, TokmixPreTrainedModel):
    """Logits of each token [B, T, vocab]; labels [B, T] are the hidden tokens."""

    heads, output = ("mlm",), MaskedLMOutput


class TokmixForTokenClassification(_EachToken, TokmixPreTrainedModel):
    """Logits of each token [B, T, classes]; labels [B, T] are class numbers."""

    heads, output = ("tag",), TokenClassifierOutput


class TokmixForQuestionAnswering(TokmixPreTrainedModel):
    """Scores [B, T] of each token as the first and as the last of the answer; start_positions and end_positions [B] say where it
    stands. Padding scores lowest."""

    heads = ("span",)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        segments: Segments | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **others: Unpack[Others],
    ) -> QuestionAnsweringModelOutput:
        done = self._encode(input_ids, attention_mask, position_ids, segment_ids, segments, others)
        scores = self.core.finish(done.x)  # [B, T, 2]
        if done.segments is not None:
            scores = torch.where(done.segments.mask[..., None], scores, torch.finfo(scores.dtype).min)
        starts, ends = (part.contiguous() for part in scores.unbind(-1))
        cost: Any = None
        if start_positions is not None and end_positions is not None:
            cost = loss.answer_span(starts, ends, start_positions, end_positions)
        found: dict[str, Any] = {"start_logits": starts, "end_logits": ends}
        return QuestionAnsweringModelOutput(loss=cost, **found, hidden_states=done.hidden_states, attentions=done.attentions)


class TokmixForSequenceClassification(TokmixPreTrainedModel):
    """Logits [S, classes], one row a sequence, for labels [S] of class numbers; or for labels [S, classes] of zeros and ones, where
    problem_type is 'multi_label_classification'; or scores [S, 1] for labels [S] of scores, where the head is 'regress'. In a packed
    batch the sequences count in reading order."""

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
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        segments: Segments | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Tensor | None = None,
        **others: Unpack[Others],
    ) -> SequenceClassifierOutput:
        done = self._encode(input_ids, attention_mask, position_ids, segment_ids, segments, others)
        outputs = self.core.finish(done.x, done.segments)
        scores = self.core.config.head == "regress"
        cost: Any = None if labels is None else self._loss(outputs, labels, scores, num_items_in_batch)
        logits: Any = outputs[:, None] if scores else outputs
        return SequenceClassifierOutput(loss=cost, logits=logits, hidden_states=done.hidden_states, attentions=done.attentions)

    def _loss(self, outputs: Tensor, labels: Tensor, scores: bool, total: Tensor | int | None) -> Tensor:
        if self.config.problem_type == "multi_label_classification":
            if labels.shape != outputs.shape:
                raise ValueError(f"labels of shape {list(labels.shape)} should be {list(outputs.shape)}, a 0 or 1 for each class")
            return loss.each_label(outputs, labels, total)
        if labels.numel() != outputs.shape[0]:
            raise ValueError(f"labels of shape {list(labels.shape)} do not fit {outputs.shape[0]} sequences")
        if not scores and labels.dtype.is_floating_point:
            raise ValueError(f"labels should be class numbers, not {labels.dtype}; scores are for head='regress'")
        return (loss.squared_error if scores else loss.cross_entropy)(outputs, labels.flatten(), total)


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
