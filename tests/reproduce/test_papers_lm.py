"""Language models of `tokmix papers`: texts, windows, scores, equal parameters."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from reproduce import lm, lm_data, lm_plan, lm_speed
from reproduce.beyond import causal
from reproduce.hsm import items
from reproduce.hypermlp import lm as hyper
from reproduce.job import Context
from tests import needs
from tokmix.core.budget import parameter_count
from tokmix.data.prepare import tokenize

CPU = Context(torch.device("cpu"), None, lambda text: None)
MODEL = {"stack": "hsm, attention", "dim": 16, "vocab": 256, "max_len": 16, "feed_forward": 32}


def spec(**changed: Any) -> dict[str, Any]:
    members = [{"seed": 0, "lr": 1e-2}, {"seed": 1, "lr": 1e-2}]
    small = {"text": "made-up", "model": MODEL, "members": members, "batch": 8, "steps": 12, "warmup": 2, "points": 3, "peek": 4}
    return small | changed


# --- windows -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "length"), [(100, 7), (64, 16), (16, 16)])
def test_an_epoch_predicts_every_token_once_but_for_less_than_a_window(tokens: int, length: int) -> None:
    for epoch in range(3):
        begun = lm.starts(tokens, length, seed=1, epoch=epoch)
        predicted = [(int(start) + column) % tokens for start in begun for column in range(length)]
        assert len(predicted) == len(set(predicted)) == tokens // length * length


def test_windows_begin_elsewhere_in_every_epoch_and_in_the_same_order_for_the_same_seed() -> None:
    first, again, later, other = (lm.starts(1000, 10, *of).tolist() for of in ((3, 0), (3, 0), (3, 1), (4, 0)))
    assert first == again
    assert {start % 10 for start in first} != {start % 10 for start in later}
    assert first != other


def test_batches_go_through_the_epochs_and_leave_no_window_out() -> None:
    tokens, length, batch = 70, 10, 3  # 7 windows: the third batch holds two epochs
    found = lm.batches(tokens, length, batch, seeds=[5, 6])
    read = torch.cat([next(found)[1] for _ in range(14)], 1)  # [2, 42] = six epochs
    for member, seed in zip(read, (5, 6), strict=True):
        expected = torch.cat([lm.starts(tokens, length, seed, epoch) for epoch in range(6)])
        assert member.tolist() == expected.tolist()


def test_a_window_reads_on_at_the_start_of_the_text() -> None:
    ids = np.arange(10, 20)
    text = lm.ring(ids, before=99, length=4, device=torch.device("cpu"))
    windows = [text[start : start + 5].tolist() for start in (0, 5, 8)]
    assert windows == [[99, 10, 11, 12, 13], [14, 15, 16, 17, 18], [17, 18, 19, 10, 11]]
    assert len(text) == max(range(10)) + 4 + 1


def test_steps_come_from_epochs_of_whole_windows() -> None:
    assert lm.steps_of({"epochs": 3, "batch": 4, "model": {"max_len": 10}}, tokens=105) == 7  # 3 * 10 windows / 4
    assert lm.steps_of({"steps": 5, "epochs": 3, "batch": 4, "model": {"max_len": 10}}, tokens=105) == 5


# --- scores --------------------------------------------------------------------------------------------------------------------


def test_a_score_reads_every_token_of_a_split_and_the_short_window_at_its_end() -> None:
    text = lm_data.load(None, "made-up")
    short = lm_data.Text("x", 256, text.before, {"valid": text.splits["valid"][:75]}, {"valid": 150}, {}, "bytes")
    model = lm.build(MODEL, 0)
    nats = right = 0.0
    ids = torch.tensor([text.before, *short.splits["valid"].tolist()])
    for start in range(0, 75, 16):
        piece = ids[start : start + 17]
        logits = model(piece[None, :-1])[0].detach()
        nats += float(F.cross_entropy(logits, piece[1:], reduction="sum"))
        right += float((logits.argmax(-1) == piece[1:]).sum())
    found = lm.Scorer(short, "valid", 16, torch.device("cpu"), "float32")(model)
    assert found["loss"] == pytest.approx(nats / 75)
    assert found["accuracy"] == pytest.approx(right / 75)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / 150)
    part = lm.Scorer(short, "valid", 16, torch.device("cpu"), "float32")(model, most=2)
    assert part["loss"] != found["loss"] and "bits_per_byte" not in part


def test_a_job_learns_and_its_members_do_not_meet() -> None:
    both = lm.run(spec(steps=20), CPU)
    assert all(run["state"] == "finished" and run["score"] < 4.0 < run["curve"][0]["train"] for run in both["runs"])
    assert [point["step"] for point in both["runs"][0]["curve"]] == [7, 14, 20]
    alone = lm.run(spec(steps=20, members=[{"seed": 1, "lr": 1e-2}]), CPU)
    assert alone["runs"][0]["score"] == both["runs"][1]["score"] != both["runs"][0]["score"]
    assert both["tokens"] == 20 * 8 * 16 and both["parameters"] == lm.build(MODEL, 0).parameter_count()
    assert both["data"] and both["flops"] > 6 * both["tokens"] * MODEL["dim"] * MODEL["vocab"]  # the output matrix alone


def test_a_run_that_diverges_says_so_in_plain_json() -> None:
    outcome = lm.run(spec(members=[{"seed": 0, "lr": 1e30}, {"seed": 1, "lr": 1e-2}]), CPU)
    assert [run["state"] for run in outcome["runs"]] == ["diverged", "finished"]
    assert outcome["runs"][0]["score"] is None
    json.dumps(outcome, allow_nan=False)


def test_speeds_of_stacks_and_of_one_that_cannot_be_built() -> None:
    models = {"good": MODEL, "bad": MODEL | {"stack": "attention(heads=3)"}}
    found = lm_speed.run({"models": models, "batch": 2, "steps": 2, "turns": 2, "tokens": 3}, CPU)["speeds"]
    assert found["good"]["tokens_per_s"] > 0 and found["good"]["decode_us"] > 0
    assert found["good"]["state_numbers"] == lm.build(MODEL, 0).cost(16).state
    assert "heads=3" in found["bad"]["error"]


# --- texts ---------------------------------------------------------------------------------------------------------------------


STORIES = ["A cat sat.\nIt was red.", "Two dogs ran.", "Äpfel fall."]


def stories(folder: Path) -> Path:
    place = folder / "tinystories"
    place.mkdir()
    marked = "\n<|endoftext|>\n".join(STORIES)
    (place / "train.txt.gz").write_bytes(gzip.compress(marked.encode()))
    (place / "valid.txt").write_bytes(b"One cat ran.")
    return folder


def test_a_compact_file_is_the_raw_text_and_needs_no_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs.package("tokenizers")
    raw = lm_data.load(stories(tmp_path), "tinystories")
    assert lm_data.prepare(tmp_path, tmp_path / "compact", ["tinystories"]) == [tmp_path / "compact" / "tinystories.npz"]
    monkeypatch.setattr(tokenize, "_tokenizers", lambda: pytest.fail("the compact file was not used"))
    compact = lm_data.load(tmp_path / "compact", "tinystories")
    assert {name: ids.tolist() for name, ids in raw.splits.items()} == {name: ids.tolist() for name, ids in compact.splits.items()}
    for name in ("vocab", "before", "bytes", "sources", "tokenizer"):
        assert getattr(raw, name) == getattr(compact, name)
    assert raw.bytes["train"] == sum(len(story.encode()) for story in STORIES)
    assert (raw.splits["train"] == raw.before).sum() == len(STORIES) and raw.splits["train"][-1] == raw.before
    assert lm_data.there(tmp_path) == lm_data.there(tmp_path / "compact") == ["tinystories"]


def test_enwik8_is_cut_into_90_5_5_bytes_and_train_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(200)) * 5
    (tmp_path / "enwik8.gz").write_bytes(gzip.compress(content))
    found = lm_data.load(tmp_path, "enwik8")
    assert b"".join(found.splits[name].astype(np.uint8).tobytes() for name in ("train", "valid", "test")) == content
    assert found.bytes == {"train": 900, "valid": 50, "test": 50}
    [compact] = lm_data.prepare(tmp_path, tmp_path / "compact", ["enwik8"])
    assert all((ids == found.splits[name]).all() and ids.dtype == np.uint16 for name, ids in lm_data.read(compact).splits.items())
    monkeypatch.setattr(lm_data, "ENWIK8_TRAIN", 300)
    lm_data._raw.cache_clear()
    assert lm_data.load(tmp_path, "enwik8").bytes == {"train": 300, "valid": 50, "test": 50}


def test_a_text_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'tinystories'"):
        lm_data.load(tmp_path, "tinystory")
    with pytest.raises(ValueError, match=r"neither wikitext2\.npz nor wikitext2/train"):
        lm_data.load(tmp_path, "wikitext2")
    with pytest.raises(ValueError, match="--data"):
        lm_data.load(None, "enwik8")
    (tmp_path / "enwik8.npz").write_bytes(b"no such thing")
    with pytest.raises(ValueError, match="no compact text file"):
        lm_data.load(tmp_path, "enwik8")


# --- equal parameters ----------------------------------------------------------------------------------------------------------

LADDER = items.TINY_STORIES, items.Ladder(items.LAYERS).all()
PLANS = {
    "hsm": LADDER,
    "enwik8": (items.ENWIK8, items.Ladder(items.LAYERS).few()),
    "hypermlp": (hyper.SETTING, list(hyper.entries(False).values())),
    "beyond": (causal.SETTING, causal.entries(False)),
}


@pytest.mark.parametrize("name", PLANS)
def test_all_models_of_an_item_are_within_half_a_percent_or_share_the_width(name: str) -> None:
    setting, entries = PLANS[name]
    goal = parameter_count(lm.config_of(setting.model(setting.yardstick, "parameters")))
    for entry in entries:
        model = setting.model(entry.stack, entry.arm)
        if entry.arm == "parameters":
            assert abs(parameter_count(lm.config_of(model)) / goal - 1) <= 0.005, entry
            assert model["feed_forward"] % 8 == 0, "tensor cores want multiples of 8"
        else:
            assert model["feed_forward"] == setting.feed_forward


def test_a_width_that_cannot_be_reached_is_an_error() -> None:
    tiny = lm_plan.Setting("made-up", "identity*2", feed_forward=8, dim=32, vocab=256, context=32)
    with pytest.raises(ValueError, match="no feed-forward width"):
        tiny.model("attention*2", "parameters")


def test_stacks_are_shown_by_variant() -> None:
    assert lm_plan.shown("hsm(variant='ab')*3, attention, hsm(variant='gate', heads=2), hsm") == "ab*3, attention, gate(heads=2), vector"
