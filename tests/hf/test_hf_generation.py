"""generate() with the mixers' states as its cache against the uncached pass and the core's own generate."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache

import tokmix
from tests.cases import CAUSAL, Case, leaves
from tests.hf_models import batch, generated, made, of


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


def test_prompts_padded_on_the_right_are_refused() -> None:
    model = made(tie=False)
    ids, mask, _ = batch(left=False)
    for cached in (True, False):
        with pytest.raises(ValueError, match="prompt 0 ends in padding.*pad on the left"):
            generated(model, ids, mask, use_cache=cached)


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
    with pytest.raises(ValueError, match="activate_past_recording"):
        model(ids, use_cache=True).past_key_values.crop(-1)


def test_generation_past_the_longest_sequence_is_an_error() -> None:
    ids, mask, _ = batch(left=True)
    with pytest.raises(ValueError, match="max_len=40"):
        generated(made(positions="learned"), ids, mask, max_new_tokens=40)


def test_a_prompt_gives_the_logits_of_its_last_tokens_alone() -> None:
    """generate() asks for them: the whole prompt's logits would be the largest tensor of all."""
    model = made(tie=False)
    for left in (True, False):
        ids, mask, _ = batch(left=left)
        whole = model(ids, attention_mask=mask).logits
        for kept in (1, 3):
            with torch.no_grad():
                found = model(ids, attention_mask=mask, past_key_values=DynamicCache(config=model.config), logits_to_keep=kept).logits
            assert found.shape[1] == kept
            assert torch.allclose(found[mask[:, -kept:].bool()], whole[:, -kept:][mask[:, -kept:].bool()], atol=1e-10)


def test_generation_changes_its_cache_in_place_and_a_copy_of_it_goes_on_alone() -> None:
    model = made("attention(heads=2), hsm", tie=False)
    ids = torch.tensor([[3, 1, 4], [2, 7, 1]])
    past = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, past_key_values=past)
        where = past.layers[0].state["mixer"]["k"].data_ptr()
        other = copy.deepcopy(past)
        first = model(ids[:, :1], past_key_values=past).logits
        assert past.layers[0].state["mixer"]["k"].data_ptr() == where
        model(ids[:, 1:2], past_key_values=other)
        rest = model(ids[:, 1:2], past_key_values=past).logits
    whole = model(torch.cat([ids, ids[:, :2]], 1)).logits
    assert torch.allclose(torch.cat([first, rest], 1), whole[:, 3:], atol=1e-10)
