"""Forward passes and losses of the Hugging Face models against the core's own calls, for all mixers of the registry."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.cases import DEFAULTS, Case
from tests.hf_models import DIM, VOCAB, batch, joined, made, of
from tokmix import Segments


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


def test_positions_beside_a_mask_pack_or_count_its_tokens() -> None:
    model = made()
    ids, mask, prompts = batch(left=True)
    counted = (mask.cumsum(1) - 1).masked_fill(mask == 0, 0)  # as generate() does
    padded = model(ids, attention_mask=mask).logits
    assert torch.equal(model(ids, attention_mask=mask, position_ids=counted).logits, padded)
    assert torch.equal(
        model(ids, attention_mask=mask, position_ids=counted, use_cache=True).logits, model(ids, mask, use_cache=True).logits
    )
    row, positions = torch.tensor([joined(prompts)]), torch.cat([torch.arange(len(prompt)) for prompt in prompts])[None]
    packed = model(row, position_ids=positions).logits
    assert torch.equal(model(row, position_ids=positions, attention_mask=torch.ones_like(row)).logits, packed)
    spare = model(F.pad(row, (2, 1)), position_ids=F.pad(positions, (2, 1), value=7), attention_mask=F.pad(torch.ones_like(row), (2, 1)))
    assert torch.allclose(spare.logits[:, 2:-1], packed, atol=1e-10)


def test_sequence_heads_equal_the_core_padded_and_packed() -> None:
    for head, labels in (("classify", torch.tensor([2, -100, 0])), ("regress", torch.tensor([0.5, -100.0, 2.0]))):
        model = made(head=head, causal=False, classes=3)
        ids, mask, prompts = batch(left=True)
        alone = torch.cat([model.core(torch.tensor([prompt])) for prompt in prompts])
        if head == "classify":
            losses = F.cross_entropy(alone[[0, 2]], labels[[0, 2]], reduction="none")
        else:  # a score of -100 is one like any other
            losses = (alone - labels) ** 2
        numbers = torch.tensor([[1] * 4 + [2] * 7 + [3]])
        for given in ({"input_ids": ids, "attention_mask": mask}, {"input_ids": torch.tensor([joined(prompts)]), "segment_ids": numbers}):
            found = model(**given, labels=labels)
            assert found.logits.shape == (3, 3 if head == "classify" else 1)
            assert torch.allclose(found.logits.view(alone.shape), alone)
            assert torch.allclose(found.loss, losses.mean())
            assert torch.allclose(model(**given, labels=labels, num_items_in_batch=torch.tensor(10)).loss, losses.sum() / 10)
            if head == "regress":
                assert torch.allclose(model(**given, labels=labels, num_items_in_batch=2).loss, losses.mean()), "as Trainer counts"


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
        ({"inputs_embeds": torch.zeros(3, 7, DIM)}, "either input_ids or inputs_embeds"),
        ({"attention_masks": mask}, "did you mean 'attention_mask'"),
        ({"output_attentions": True}, r"layer 0 \(hsm\) has no attention map"),
        ({"attention_mask": mask[:, None, None]}, r"attention_mask of shape \[3, 1, 1, 7\]"),
        ({"attention_mask": mask, "segments": Segments.from_mask(mask)}, "give no attention_mask"),
        ({"position_ids": torch.tensor([[0, 1, 1, 2, 3, 4, 5]])}, "count each sequence from 0"),
        ({"position_ids": torch.full((3, 7), 17), "attention_mask": mask}, "count each sequence from 0"),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]]), "segment_ids": torch.ones(3, 7, dtype=torch.long)}, "count each sequence"),
        ({"position_ids": torch.arange(6)[None]}, r"position_ids of shape \[1, 6\] does not fit"),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]]), "use_cache": True}, "one sequence a row"),
        ({"use_cache": True, "segment_ids": mask}, "segment_ids cannot be used with a cache"),
    ):
        with pytest.raises(ValueError, match=words):
            model(ids, **given)
    classifier = made(head="classify", causal=False)
    with pytest.raises(ValueError, match="class numbers"):
        classifier(ids, labels=torch.zeros(3))
    with pytest.raises(ValueError, match="do not fit 3 sequences"):
        classifier(ids, labels=torch.zeros(2, dtype=torch.long))
