"""The decoding step in place: the numbers of the full pass, whatever the caller allows and knows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tests.cases import CAUSAL, DIM, Case, leaves, tokens
from tokmix import Model, ModelConfig, generate
from tokmix.core import capture, decoding
from tokmix.core.block import LAYOUTS
from tokmix.core.capture import CapturedStep
from tokmix.core.decoding import Decoder
from tokmix.core.mixer import inplace_states
from tokmix.core.one_row import OneRow
from tokmix.core.sampling import Choice
from tokmix.core.segments import Segments
from tokmix.layers import memory

STACKS = ["(hsm*2, attention(heads=2))*2", "hypermixing(heads=2), gmlp", "attention(window=3), hypermlp", "linear_attention, hsm(heads=2)"]


def made(stack: str = STACKS[0], **more: object) -> Model:
    torch.manual_seed(2)
    settings = {"positions": "sinusoidal", "tie": True, **more}
    model = Model(ModelConfig(stack=stack, dim=16, vocab=23, head="lm", causal=True, max_len=96, **settings)).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("case", CAUSAL, ids=str)
@pytest.mark.parametrize("known", [True, False])
def test_steps_in_place_agree_with_the_whole(case: Case, known: bool) -> None:
    """Chunks and single tokens; the host knows the position of all rows, or does not."""
    mixer, x = case.make(), tokens(3, 12, DIM)
    whole, state, done = mixer(x), mixer.init_state(3, x), 0
    with torch.no_grad():
        for size in (4, 1, 1, 3, 1, 1, 1):
            with inplace_states(position=done if known else None, room=8):
                y, state = mixer.step(x[:, done : done + size], state)
            torch.testing.assert_close(y, whole[:, done : done + size])
            done += size
            if done == 6:
                state = tree_map(lambda leaf: leaf.index_select(0, torch.tensor([2, 0, 1])), state)
                x, whole = x[[2, 0, 1]], whole[[2, 0, 1]]


@pytest.mark.parametrize("case", CAUSAL, ids=str)
def test_ragged_rows_in_place_agree_with_the_whole(case: Case) -> None:
    mixer, x = case.make(), tokens(2, 9, DIM)
    whole, state = mixer(x), mixer.init_state(2, x)
    with torch.no_grad(), inplace_states():
        _, state = mixer.step(x[:, :5], state, Segments.from_lengths([5, 2]))
        for t in range(3):
            given = torch.stack([x[0, 5 + t], x[1, 2 + t]])[:, None]
            y, state = mixer.step(given, state)
            torch.testing.assert_close(y[:, 0], torch.stack([whole[0, 5 + t], whole[1, 2 + t]]))


def test_a_cache_grows_in_place_and_a_cropped_one_reuses_its_room() -> None:
    cache, position = torch.zeros(2, 0, 3, 4), torch.zeros(2, dtype=torch.long)
    x = tokens(2, 9, 12).view(2, 9, 3, 4).float()
    with torch.no_grad(), inplace_states(position=0, room=9):
        cache = memory.append(cache, x[:, :5], position)
    where = cache.data_ptr()
    with torch.no_grad(), inplace_states(position=5):
        cache = memory.append(cache, x[:, 5:], position)
    assert cache.data_ptr() == where and torch.equal(cache, x)
    with torch.no_grad(), inplace_states(position=2):
        again = memory.append(cache[:, :2], x[:, 7:8], position)
    assert again.data_ptr() == where and torch.equal(again, torch.cat([x[:, :2], x[:, 7:8]], 1))
    with torch.no_grad(), inplace_states(position=9):
        longer = memory.append(cache, x[:, :1], position)
    assert longer.data_ptr() != where and longer.shape[1] == 10


def test_without_permission_and_with_gradients_states_stay_as_they_are() -> None:
    model, ids = made(), torch.randint(0, 23, (2, 6))
    _, state = model.step(ids, model.init_state(2))
    kept = [leaf.clone() for leaf in leaves(state)]
    model.step(ids[:, :1], state)
    with inplace_states(position=6), torch.enable_grad():
        model.step(ids[:, :1], state)
    assert all(torch.equal(a, b) for a, b in zip(leaves(state), kept, strict=True))


@pytest.mark.parametrize("lengths", [[5, 5], [5, 2]])
def test_the_last_logits_alone(lengths: list[int]) -> None:
    model, ids = made(), torch.randint(0, 23, (2, 5))
    segments = Segments.from_lengths(lengths)
    whole, _ = model.step(ids, model.init_state(2), segments)
    last, _ = model.step(ids, model.init_state(2), segments, last=True)
    assert last.shape == (2, 1, 23)
    torch.testing.assert_close(last[:, 0], torch.stack([whole[row, n - 1] for row, n in enumerate(lengths)]))


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
def test_long_answers_of_one_row_agree_with_whole_passes_and_leave_the_model_as_it_was(tie: bool, positions: str) -> None:
    model = made(tie=tie, positions=positions)
    before = {name: (p.data_ptr(), p.stride(), p.detach().clone()) for name, p in model.named_parameters()}
    expected: list[int] = []
    ids = [3, 1]
    for _ in range(70):
        expected.append(int(model(torch.tensor([ids + expected]))[0, -1].argmax()))
    assert generate(model, [ids], max_new=70) == [expected]
    for name, parameter in model.named_parameters():
        assert (parameter.data_ptr(), parameter.stride()) == before[name][:2] and torch.equal(parameter, before[name][2])


def stepped_both_ways(model: Model, tokens: int) -> None:
    """The prepared step and the plain one, from the same state on: normed x, logits and the states after each token."""
    ids = torch.randint(0, 23, (1, 3 + tokens))
    with torch.inference_mode(), inplace_states(position=0, room=ids.shape[1]):
        _, state = model.advance(ids[:, :3], model.init_state(1))
    mine, row = tree_map(torch.clone, state), OneRow(model)
    assert OneRow.fits(model)
    for at in range(3, 3 + tokens):
        with torch.inference_mode():
            expected, state = model.advance(ids[:, at : at + 1], state)
            with inplace_states(position=at, room=ids.shape[1]):
                x, mine = row.hidden(ids[:, at : at + 1], mine, at)
            torch.testing.assert_close(x, expected[0, 0])
            torch.testing.assert_close(row.logits(x), model.finish(expected)[0])
        for a, b in zip(leaves(mine), leaves(state), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("case", CAUSAL, ids=str)
def test_the_prepared_step_of_every_mixer_agrees_with_the_plain_one(case: Case) -> None:
    options = ", ".join(f"{name}={value!r}" for name, value in case.options.items())
    stepped_both_ways(made(f"{case.name}({options})", layout="serialized"), 5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("more", [{}, {"feed_forward": None}, {"feed_forward_kind": "swiglu", "norm": "rms"}], ids=str)
def test_the_prepared_step_in_every_layout(layout: str, more: dict[str, object]) -> None:
    stepped_both_ways(made("hsm(heads=2), attention(rotary=True, bias=False)", layout=layout, positions="none", **more), 4)


def test_watched_and_training_models_take_the_plain_step() -> None:
    model = made()
    assert OneRow.fits(model)
    handle = model.layers[1].mixer.register_forward_hook(lambda *given: None)
    assert not OneRow.fits(model)
    handle.remove()
    assert not OneRow.fits(model.train()) and not OneRow.fits(made().bfloat16())


def test_the_prepared_step_refuses_ids_and_positions_that_are_not_there() -> None:
    model = made(positions="learned")
    row, state = OneRow(model), model.init_state(1)
    with torch.inference_mode(), pytest.raises(ValueError, match="token id 23 is not in the vocabulary of 23"):
        row.hidden(torch.tensor([[23]]), state, 0)
    with torch.inference_mode(), pytest.raises(ValueError, match="longer than this model takes: max_len=96"):
        row.hidden(torch.tensor([[1]]), state, 95)
        row.hidden(torch.tensor([[1]]), state, 96)


class Replayed:
    """Stands in for a CUDA graph: replays by calling."""

    def __init__(self, body: Callable[[], None]):
        self.replay = body


def recorded(body: Callable[[], None], reset: Callable[[], None]) -> Replayed:
    body()
    reset()
    body()
    return Replayed(body)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("lengths", [[4, 4], [4, 2]])
def test_a_captured_step_with_fixed_buffers_agrees(stack: str, lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "record", recorded)
    model, ids = made(stack), torch.randint(0, 23, (2, 12))
    rows = [ids[row, :n].tolist() for row, n in enumerate(lengths)]
    choice = Choice(2, 13, 0, 0.8, 5, None, (), 3, ids.device)
    decoder = Decoder(model, 30, choice)
    given = torch.zeros(2, 4, dtype=torch.long)
    for row, prompt in enumerate(rows):
        given[row, : len(prompt)] = torch.tensor(prompt)
    logits, state = decoder.read(given, model.init_state(2), Segments.from_lengths(lengths))
    chosen, found = choice(logits[:, -1]), []
    captured = CapturedStep(model, chosen[:, None], state, 30, choice)
    where = [leaf.data_ptr() for leaf in leaves(captured.state)]
    for _ in range(11):
        found.append(chosen)
        state, chosen = captured(chosen[:, None], captured.state), captured.chosen.clone()
    assert torch.stack([*found, chosen], 1).tolist() == generate(model, rows, max_new=12, temperature=0.8, top_k=5, seed=3)
    assert [leaf.data_ptr() for leaf in leaves(state)] == where
    swapped = tree_map(lambda leaf: leaf.flip(0), state)
    follow = torch.tensor([[1], [2]])
    fewer = CapturedStep(model, follow[:1], tree_map(lambda leaf: leaf[:1], swapped), 30)  # a row was dropped
    with torch.inference_mode():
        expected, _ = model.step(follow[:1], tree_map(lambda leaf: leaf[:1], swapped))
    fewer(follow[:1], fewer.state)
    torch.testing.assert_close(model.finish(fewer.x), expected)
    with torch.inference_mode():
        expected, _ = model.step(follow, swapped)
    captured(follow, swapped)
    torch.testing.assert_close(model.finish(captured.x), expected)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("prompts", [[[1, 2, 3], [4], [5, 6]], [[1, 2], [3, 4]]], ids=["uneven", "even"])
def test_generation_with_a_recorded_step_is_generation(stack: str, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded at the first token, and once more where rows are dropped."""
    model, recordings = made(stack), []
    stop = [generate(model, prompts, max_new=8)[0][3]]
    wanted = [generate(model, prompts, max_new=70, stop=given) for given in ([], stop)]

    def watched(body: Callable[[], None], reset: Callable[[], None]) -> Replayed:
        recordings.append(body)
        return recorded(body, reset)

    monkeypatch.setattr(capture, "record", watched)
    monkeypatch.setattr(decoding, "records", lambda ids: True)
    assert [generate(model, prompts, max_new=70, stop=given) for given in ([], stop)] == wanted
    assert len(recordings) >= 2


def test_a_step_that_cannot_be_captured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "record", recorded)
    model = made()
    _, state = model.step(torch.tensor([[1, 2]]), model.init_state(1))
    with pytest.raises(capture.CaptureError, match=r"becomes one of \[1, 3, 2, 8\]"):
        CapturedStep(model, torch.tensor([[1]]), state, 1)

    def fails(body: Callable[[], None], reset: Callable[[], None]) -> Replayed:
        body()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(capture, "record", fails)
    choice = Choice(1, 4, 0, 0.8, None, None, (), 3, torch.device("cpu"))
    with pytest.raises(capture.CaptureError, match="not permitted"):
        CapturedStep(model, torch.tensor([[1]]), state, 8, choice)
    assert int(choice.done) == 0, "the eager steps that follow draw the same numbers"


def test_rows_that_are_finished_are_dropped_and_the_rest_goes_on_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = made(), [[1, 2], [3], [4, 5, 6], [7, 8], [9]]
    free = generate(model, prompts, max_new=14, temperature=0.9, seed=5)
    sizes: list[int] = []
    plain = Decoder.next

    def watched(self: Decoder, ids: Tensor, state: object, *, position: int | None = None) -> object:
        sizes.append(ids.shape[0])
        return plain(self, ids, state, position=position)

    monkeypatch.setattr(Decoder, "next", watched)
    stop = [free[0][1], free[1][2], free[3][3]]
    found = generate(model, prompts, max_new=14, temperature=0.9, seed=5, stop=stop)
    for row, whole in zip(found, free, strict=True):
        ends = [at for at, token in enumerate(whole) if token in stop]
        assert row == whole[: ends[0] + 1 if ends else 14]
    assert sizes[-1] < 5, "finished rows are no longer computed"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_on_a_gpu_the_captured_step_gives_what_eager_steps_give(stack: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = made(stack).cuda(), [[1, 2, 3], [4], [5, 6]]
    recordings: list[object] = []
    plain = capture.record

    def watched(body: Callable[[], None], reset: Callable[[], None]) -> capture.Graph:
        recordings.append(body)
        return plain(body, reset)

    monkeypatch.setattr(capture, "record", watched)
    found = generate(model, prompts, max_new=70, temperature=temperature, seed=1)
    assert recordings, "a long answer is captured"
    monkeypatch.setattr(decoding, "records", lambda ids: False)
    assert found == generate(model, prompts, max_new=70, temperature=temperature, seed=1)
