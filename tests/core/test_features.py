from __future__ import annotations

from typing import Any

import pytest
import torch

from tokmix import Model, ModelConfig, Segments
from tokmix.core.features import compare, ngram_hash

VOCAB, SEPARATOR = 31, 3


def made(**more: Any) -> Model:
    torch.manual_seed(0)
    given = {"stack": "hypermixing*2", "dim": 16, "vocab": VOCAB, "head": "classify", "causal": False, "max_len": 24}
    model = Model(ModelConfig(**{**given, **more})).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def pair(first: int, second: int, seed: int) -> torch.Tensor:
    """cls, so many tokens, separator, so many more, separator"""
    drawn = torch.randint(5, 12, (first + second,), generator=torch.Generator().manual_seed(seed))
    end = torch.tensor([SEPARATOR])
    return torch.cat([torch.tensor([2]), drawn[:first], end, drawn[first:], end])[None]


@pytest.mark.parametrize("more", [{"ngrams": 3, "buckets": 50}, {"separator": SEPARATOR}, {"ngrams": 2, "separator": SEPARATOR}])
def test_batching_changes_nothing(more: dict[str, Any]) -> None:
    model = made(**more)
    sequences = [pair(3, 2, 0), pair(6, 1, 1), pair(0, 4, 2)]
    lengths = [ids.shape[1] for ids in sequences]
    alone = torch.cat([model(ids) for ids in sequences])
    padded, left = torch.full((3, 13), -7), torch.full((3, 13), 10**6)
    for row, ids in enumerate(sequences):
        padded[row, : lengths[row]], left[row, -lengths[row] :] = ids, ids
    packed = torch.cat(sequences, dim=1)
    for given, segments in (
        (padded, Segments.from_lengths(lengths, 13)),
        (left, Segments.from_mask(left != 10**6)),
        (packed, Segments.from_lengths([lengths])),
    ):
        torch.testing.assert_close(model(given, segments), alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("more", [{"ngrams": 3, "buckets": 50}, {"separator": SEPARATOR}])
def test_ids_of_fewer_bits_are_the_same_words_and_a_batch_may_be_empty(more: dict[str, Any]) -> None:
    model, ids = made(vocab=50_000, **more), pair(6, 5, 0) * 2_000
    for segments in (None, Segments.from_lengths([10], ids.shape[1])):
        assert torch.equal(model(ids.int(), segments), model(ids, segments))
    for shape in ((0, 4), (2, 0)):
        empty = torch.zeros(shape, dtype=torch.long)
        assert model(empty, Segments(torch.ones(shape, dtype=torch.long))).shape == (shape[0], 2)


def test_ngrams_are_told_apart_and_found_again() -> None:
    ids = torch.tensor([[7, 8, 9, 8, 7, 8, 9]])
    two, three = ngram_hash(ids, 2)[0].tolist(), ngram_hash(ids, 3)[0].tolist()
    assert two[1] == two[5] and two[2] == two[6] and three[2] == three[6]  # 7 8, 8 9 and 7 8 9 come twice
    assert two[1] != two[4], "7 8 is not 8 7"
    assert len(set(two[1:5])) == 4 and min(two + three) >= 0
    assert ngram_hash(torch.tensor([[5, 7, 8]]), 2)[0, 2] == two[1], "wherever it stands"
    every = torch.cartesian_prod(torch.arange(200), torch.arange(200))
    hashed = ngram_hash(every, 2)[:, 1] % 32768
    counts = torch.bincount(hashed, minlength=32768)
    assert counts.max() < 12 and (counts == 0).float().mean() < 0.35  # spread as by chance: exp(-40000/32768) = 0.295 empty


def test_an_unseen_ngram_says_nothing_and_a_row_too_short_has_none() -> None:
    given = ModelConfig("hypermixing", 16, VOCAB, "classify", False, 24)
    torch.manual_seed(0)
    plain = Model(given)
    torch.manual_seed(0)
    more = Model(ModelConfig("hypermixing", 16, VOCAB, "classify", False, 24, ngrams=3))
    more.load_state_dict(plain.state_dict(), strict=False)
    ids = pair(3, 2, 0)
    assert torch.equal(plain(ids), more(ids))
    assert more.features is not None
    with torch.no_grad():
        more.features.phrases.weight.normal_()  # a constant would be lost in the norm
    assert not torch.equal(plain(ids), more(ids))
    assert torch.equal(plain(ids[:, :1]), more(ids[:, :1]))


def test_comparison_by_the_book() -> None:
    rows = [pair(4, 3, seed)[0] for seed in range(20)] + [torch.tensor([2, 5, 6, SEPARATOR, 6, 2, SEPARATOR, 5])]
    for ids in rows:
        listed = ids.tolist()
        cut = listed.index(SEPARATOR)
        first, second = listed[: cut + 1], listed[cut + 1 :]
        part, match = compare(ids[None], SEPARATOR, None)
        assert part[0].tolist() == [0] * len(first) + [1] * len(second)
        wanted = [one != SEPARATOR and one in other for text, other in ((first, second), (second, first)) for one in text]
        assert match[0].tolist() == wanted


def test_settings_are_checked() -> None:
    for more, message in (
        ({"ngrams": 0}, "ngrams=0"),
        ({"ngrams": 9}, "at most 4"),
        ({"buckets": 0}, "buckets=0"),
        ({"separator": VOCAB}, f"separator={VOCAB} is not an id of the vocabulary"),
        ({"separator": True}, "separator=True"),
        ({"ngrams": 2, "causal": True}, "both directions"),
        ({"separator": 1, "causal": True}, "both directions"),
    ):
        with pytest.raises(ValueError, match=message):
            made(**more)
