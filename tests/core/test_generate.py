from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tokmix import Model, ModelConfig, generate

PROMPTS = [[5, 8, 2], [7], [1, 2, 3, 4, 5, 6]]


def made(
    stack: str = "hsm(variant='gate')*2, attention(heads=2), hypermixing(heads=2)", vocab: int = 23, max_len: int = 32, **more: Any
) -> Model:
    torch.manual_seed(1)
    model = Model(ModelConfig(stack=stack, dim=16, vocab=vocab, head="lm", causal=True, max_len=max_len, tie=False, **more)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def by_full_passes(model: Model, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def test_greedy_equals_full_passes_for_prompts_of_unequal_length() -> None:
    model = made().eval()
    assert generate(model, PROMPTS, max_new=12) == [by_full_passes(model, prompt, 12) for prompt in PROMPTS]


def test_sampling_is_seeded_and_a_row_does_not_depend_on_the_others() -> None:
    model = made()
    first = generate(model, PROMPTS, max_new=15, temperature=0.9, seed=3)
    assert first == generate(model, PROMPTS, max_new=15, temperature=0.9, seed=3)
    assert first != generate(model, PROMPTS, max_new=15, temperature=0.9, seed=4)
    assert generate(model, PROMPTS[:1], max_new=15, temperature=0.9, seed=3) == first[:1]
    assert generate(model, PROMPTS, max_new=9, temperature=0.9) is not None


def test_sampled_frequencies_follow_the_softmax() -> None:
    model = made(vocab=6)
    rows = generate(model, [[1]] * 4000, max_new=1, temperature=1.5, seed=0)
    found = torch.bincount(torch.tensor([row[0] for row in rows]), minlength=6) / 4000
    expected = (model(torch.tensor([[1]]))[0, -1] / 1.5).softmax(-1)
    assert (found - expected).abs().max() < 0.03


@pytest.mark.parametrize("temperature", [1e-39, 1e-300, 5e-324])
def test_the_smallest_temperatures_take_the_likeliest(temperature: float) -> None:
    for model in (made(), made().float()):
        ways: list[dict[str, Any]] = [{}, {"top_k": 5}, {"top_p": 0.9}, {"stop": [4], "min_new": 3}]
        for how in ways:
            assert generate(model, PROMPTS, 5, temperature=temperature, seed=0, **how) == generate(model, PROMPTS, 5, **how)
    held = generate(made(), [[1]] * 50, 1, 1, temperature=1e300, seed=0, stop=[4])
    assert [4] not in held and len({row[0] for row in held}) > 10, "a hot one takes any token but a masked one"


def test_top_k_and_top_p_keep_the_likeliest() -> None:
    model = made(vocab=6)
    probabilities = model(torch.tensor([[1]]))[0, -1].softmax(-1).detach()
    order = probabilities.argsort(descending=True).tolist()
    picked = {row[0] for row in generate(model, [[1]] * 500, max_new=1, temperature=1.0, top_k=2, seed=0)}
    assert picked == set(order[:2])
    nucleus, total = set(), 0.0
    for token in order:
        nucleus.add(token)
        total += float(probabilities[token])
        if total >= 0.7:
            break
    assert {row[0] for row in generate(model, [[1]] * 500, max_new=1, temperature=1.0, top_p=0.7, seed=0)} == nucleus
    assert {row[0] for row in generate(model, [[1]] * 50, max_new=1, temperature=1.0, top_p=1e-9, seed=0)} == {order[0]}
    assert generate(model, [[1]], max_new=8, temperature=2.0, top_k=1, seed=5) == generate(model, [[1]], max_new=8)


def test_a_stop_token_ends_its_row_and_min_new_holds_it_back() -> None:
    model = made()
    free = generate(model, PROMPTS, max_new=10)
    stop = free[0][3]
    cut = generate(model, PROMPTS, max_new=10, stop=[stop])
    for row, whole in zip(cut, free, strict=True):
        end = whole.index(stop) + 1 if stop in whole else 10
        assert row == whole[:end]
    held = generate(model, PROMPTS, max_new=10, min_new=6, stop=[stop])
    assert all(stop not in row[:6] and len(row) >= 6 for row in held)


def test_streaming_gives_the_same_tokens_as_they_come() -> None:
    model = made()
    stream = generate(model, PROMPTS, max_new=5, temperature=0.7, seed=2, stream=True)
    assert isinstance(stream, Iterator)
    rows: list[list[int]] = [[], [], []]
    first = next(stream)
    assert first[0] == 0
    for row, token in [first, *stream]:
        rows[row].append(token)
    assert rows == generate(model, PROMPTS, max_new=5, temperature=0.7, seed=2)


def test_training_mode_comes_back_and_dropout_is_off() -> None:
    model = made(dropout=0.5)
    assert model.training
    assert generate(model, PROMPTS, max_new=6) == generate(model, PROMPTS, max_new=6)
    assert model.training


def test_nothing_to_do() -> None:
    assert generate(made(), [], max_new=3) == []
    assert generate(made(), PROMPTS, max_new=0) == [[], [], []]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": [[1], []]}, "prompt 1 is empty"),
        ({"prompts": [[99]]}, "token id 99"),
        ({"prompts": [[1.5]]}, "lists of whole numbers"),
        ({"prompts": [1, 2]}, "lists of whole numbers"),
        ({"max_new": -1}, "max_new=-1"),
        ({"min_new": 9, "max_new": 3}, "min_new=9"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf"), "stop": [2], "min_new": 2}, "temperature=inf should be 0"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"seed": "a"}, "seed='a' should be a whole number"),
        ({"seed": 1.5}, "seed=1.5 should be a whole number"),
        ({"stop": range(23), "min_new": 1}, "all 23 tokens"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"stop": [40]}, "token id 40"),
        ({"stop": 3}, "stop=3 should be a list of whole numbers"),
        ({"stop": ["end"]}, r"stop=\['end'\] should be a list"),
    ],
)
def test_bad_requests_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        generate(**{"model": made(), "prompts": PROMPTS, "max_new": 3, **changes})


def test_max_len_binds_models_that_own_length_sized_weights_alone() -> None:
    with pytest.raises(ValueError, match="prompt 2 of 6 tokens and max_new=27.*max_len=32"):
        generate(made("gmlp"), PROMPTS, max_new=27)
    assert len(generate(made("gmlp"), PROMPTS, max_new=26)[2]) == 26
    assert len(generate(made("attention(heads=2)"), PROMPTS, max_new=40)[2]) == 40
    classifier = Model(ModelConfig(stack="attention", dim=16, vocab=9, head="classify", causal=True, max_len=8))
    with pytest.raises(ValueError, match="head='lm'"):
        generate(classifier, [[1]])


DRAFTS = ["hsm*2", "hsm(heads=2, variant='gate'), attention(window=3)", "attention(heads=2)", "hypermixing(heads=2), gmlp"]


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("stack", ["(hsm, attention(heads=2))*2", "hypermixing(heads=2), hsm", "hypermlp, linear_attention"])
def test_a_draft_never_changes_the_result(draft: str, stack: str) -> None:
    model, small = made(stack, max_len=64), made(draft, max_len=64)
    for prompts in (PROMPTS[:1], PROMPTS, [[1, 2], [3, 4]]):
        plain = generate(model, prompts, max_new=24)
        for count in (1, 4):
            assert generate(model, prompts, max_new=24, draft=small, draft_tokens=count) == plain
    stop = [plain[0][5], plain[1][9]]
    for settings in ({"stop": stop}, {"stop": stop, "min_new": 12}):
        found = generate(model, [[1, 2], [3, 4]], 24, draft=small, **settings)  # type: ignore[arg-type]
        assert found == generate(model, [[1, 2], [3, 4]], 24, **settings)  # type: ignore[arg-type]
    stream = list(generate(model, PROMPTS, max_new=9, draft=small, stream=True))
    whole = generate(model, PROMPTS, max_new=9)
    assert all([token for row, token in stream if row == at] == whole[at] for at in range(3)) and len(stream) == 27


def test_a_draft_that_is_the_model_is_always_right_and_saves_passes() -> None:
    from tokmix.core.speculative import Speculation

    model = made("hsm*2, attention(heads=2)", max_len=64).eval()
    run = Speculation(model, model, 31, 0, (), 4)
    found = [token for _, token in run.tokens([[5, 8, 2]])]
    assert [found] == generate(model, [[5, 8, 2]], max_new=31)
    assert run.rounds == 6 and run.accepted == 24  # five tokens a pass


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": 0.5}, "temperature=0.5: a draft model works only with temperature=0"),
        ({"draft_tokens": 0}, "draft_tokens=0"),
        ({"draft": made(vocab=9)}, "vocabulary of 9, and the model one of 23"),
        ({"draft": made("gmlp", max_len=8)}, "the draft model takes 8"),
    ],
)
def test_drafts_that_do_not_fit_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        generate(**{"model": made(), "prompts": PROMPTS, "max_new": 6, "draft": made("hsm"), **changes})
