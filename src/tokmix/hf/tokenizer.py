"""A tokenizer.json as pipelines, generate() and Trainer want it: with its special tokens named and padding on the right side."""

from __future__ import annotations

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tokmix.core.checks import one_of

# The roles of data/tokenize.py, and what Hugging Face calls them.
NAMES = {"pad": "pad_token", "unk": "unk_token", "cls": "cls_token", "sep": "sep_token", "mask": "mask_token", "eot": "eos_token"}


def wrap_tokenizer(
    tokenizer: Tokenizer,
    roles: dict[str, int],
    *,
    max_len: int | None = None,
    left: bool = False,
    spelled: bool = False,
    bos: int | None = None,
) -> PreTrainedTokenizerFast:
    """tokenizer   ready for its task
    roles       ids of pad, unk, cls, sep, mask, eot, as far as there are
    max_len     where truncation=True cuts
    left        pad on the left, as generate() needs it
    spelled     a special token that a text spells out is one (the fill-mask pipeline needs it); else it stays text
    bos         id of the token that texts begin with, where the tokenizer puts one there
    """
    for role in roles:
        one_of("role", role, NAMES)
    named: dict[str, str | int | None] = {NAMES[role]: tokenizer.id_to_token(number) for role, number in roles.items()}
    if max_len is not None:
        named["model_max_length"] = max_len
    if bos is not None:
        named["bos_token"] = tokenizer.id_to_token(bos)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="left" if left else "right",
        clean_up_tokenization_spaces=False,
        split_special_tokens=not spelled,
        **named,
    )
