"""What every registered mixer must hold, in every mode it offers and with every option it declares: the rules of tokmix.contract."""

from __future__ import annotations

import pytest
import torch

from tests.cases import ALL, CAUSAL, DEFAULTS, Case
from tokmix.contract import layout as layouts
from tokmix.contract import numbers, run, stepping
from tokmix.contract.rules import RULES


def by_name(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


def test_every_rule_is_tested_here() -> None:
    tested = {name for name in globals() if name.startswith("test_")}
    assert len(RULES) == 26 and len(tested) >= len(RULES)
    assert all(case.has("padded") and case.has("packed") for case in ALL), "every rule applies to every built-in mixer"
    assert not any(run.declared(case.name).failures for case in DEFAULTS)


@by_name(DEFAULTS)
def test_the_output_fits_and_repeats(case: Case) -> None:
    layouts.output_fits_and_repeats(case)


@by_name(ALL)
@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_padded_packed_and_alone_agree(case: Case, layout: str) -> None:
    layouts.agrees_in(case, layout)


@by_name(ALL)
def test_holes_in_a_mask_are_skipped(case: Case) -> None:
    layouts.skips_holes(case)


@by_name(ALL)
def test_padding_gets_no_gradient_and_gives_none(case: Case) -> None:
    layouts.padding_has_no_gradient(case)


@by_name(CAUSAL)
def test_ragged_chunks_by_step_agree_with_the_whole(case: Case) -> None:
    stepping.chunks_agree(case)


@by_name(CAUSAL)
def test_token_by_token_agrees_and_states_can_be_reordered(case: Case) -> None:
    stepping.tokens_agree(case)


@by_name(CAUSAL)
def test_padding_leaves_a_state_as_it_was(case: Case) -> None:
    stepping.padding_keeps_the_state(case)


@by_name(CAUSAL)
def test_a_row_may_end_at_max_len_while_others_go_on(case: Case) -> None:
    stepping.rows_end_apart(case)


@by_name([case for case in DEFAULTS if case in CAUSAL])
def test_a_state_of_other_rows_is_refused(case: Case) -> None:
    stepping.refuses_other_states(case)


@by_name(DEFAULTS)
def test_forward_mode_and_batched_gradients_agree_with_plain_ones(case: Case) -> None:
    numbers.gradients_agree(case)


@by_name([case for case in ALL if case.causal])
def test_the_future_has_exactly_zero_gradient(case: Case) -> None:
    numbers.future_has_no_gradient(case)


@by_name(ALL)
def test_reach_is_how_far_a_layer_sees(case: Case) -> None:
    numbers.reach_is_right(case)


@by_name(ALL)
@pytest.mark.parametrize("length", [1, 2, 17, 32, 39])
def test_cost_equals_the_operation_counter(case: Case, length: int) -> None:
    numbers.cost_at(case, length)


@by_name(ALL)
def test_cost_states_the_size_of_the_state(case: Case) -> None:
    assert case.steps or not case.causal, "every built-in causal mixer has a step"
    stepping.state_has_its_size(case)


@by_name(ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_near_float64(case: Case, dtype: torch.dtype) -> None:
    numbers.near_in(case, dtype)


@by_name(ALL)
def test_compiles_as_one_graph(case: Case) -> None:
    numbers.compiles(case)


@by_name([case for case in ALL if not case.options])
def test_exports_with_any_length(case: Case) -> None:
    """One graph from torch.export for all lengths. The causal scan of HyperMixing is a loop over its tokens, and has one."""
    if case.name == "hypermixing" and case.causal:
        with pytest.raises(torch._dynamo.exc.UserError, match="specialized it to be a constant"):
            numbers.exports(case)
        return
    numbers.exports(case)


@by_name(ALL)
def test_state_dict_round_trip(case: Case) -> None:
    numbers.state_dict_round_trip(case)


@by_name(ALL)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (2, 1)], ids=str)
def test_small_shapes(case: Case, shape: tuple[int, int]) -> None:
    layouts.takes_shape(case, shape)


@by_name(ALL)
def test_a_batch_of_padding_alone_is_zero(case: Case) -> None:
    layouts.padding_alone_is_zero(case)


@by_name(ALL)
def test_gradcheck(case: Case) -> None:
    numbers.gradcheck(case)


@by_name([case for case in DEFAULTS if layouts.crosses(case)])
def test_cross_mixing_pads_and_packs(case: Case) -> None:
    layouts.cross_pads_and_packs(case)


@by_name(DEFAULTS)
def test_what_is_not_offered_is_refused_by_name(case: Case) -> None:
    layouts.refuses_other_modes(case)


@by_name(ALL)
def test_a_sequence_beyond_the_limit_is_refused(case: Case) -> None:
    layouts.refuses_long_sequences(case)


@by_name(ALL)
def test_autocast_stays_near_float32(case: Case) -> None:
    numbers.autocast_is_near(case)
