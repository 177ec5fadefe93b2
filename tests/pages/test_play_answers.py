"""What `play` answers: predictions, maps and texts that are those of the model, from the server and on the page in a real browser."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
if os.environ.get("CI") != "true":  # in CI a missing package is a failure, not a skip
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")

from tests import browser as browsers
from tests.lab import settings, write_scores
from tests.serving import GOOD, SHORT, Server, lines
from tokmix import Model, generate
from tokmix.pages.play.engine import MAP_TOKENS, WORDS, PlayService, attention_config
from tokmix.pages.play.schemas import MAX_NEW, TEXT, PredictRequest
from tokmix.pages.requests import Refusal
from tokmix.study.explain.words import attribute
from tokmix.training import model_folder
from tokmix.training.generate import stream
from tokmix.training.predict import Predictor
from tokmix.training.train import run as train

# --- from the server ---------------------------------------------------------------------------------------------------------


def test_a_prediction_is_that_of_predict(films: Server, folder: Path) -> None:
    found = films.get("/api/predict", GOOD)
    (known,) = Predictor(model_folder.load(folder / "films"))([GOOD["text"]])
    assert found["main"]["label"] == known["label"] and found["main"]["probabilities"] == pytest.approx(known["probabilities"], abs=1e-6)
    assert found["tokens"] == 5 and found["main"]["ms"] > 0 and found["main"]["flops"] > 0
    assert set(found["other"]) == {"ms", "flops"}, "an untrained model's opinion is not shown"


def test_the_model_beside_it_is_attention_of_the_same_size(films: Server, folder: Path) -> None:
    status, _, said = films.ask("/api/model", method="GET")
    facts = json.loads(said)
    assert status == 200 and facts["task"] == "classify" and facts["labels"] == ["bad", "good"] and facts["limits"]["text"] == TEXT
    assert facts["other"]["untrained"] and facts["other"]["stack"] == "attention(heads=4)*2"
    assert abs(facts["other"]["parameters"] - facts["main"]["parameters"]) <= 0.005 * facts["main"]["parameters"]
    config = model_folder.load(folder / "lm").model.config
    assert attention_config(config).causal and Model(attention_config(config)).config.stack == "attention(heads=4)*2"


def test_the_time_of_the_first_answer_holds_no_imports(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[tuple[str, ...]]] = []
    made = Predictor.__call__
    monkeypatch.setattr(Predictor, "__call__", lambda self, texts: asked.append(list(texts)) or made(self, asked[-1]))
    PlayService(model_folder.load(folder / "films"))
    assert asked == [[(".",)]] * 2, "one answer of each model, before the page asks"


def test_maps_are_labelled_and_bounded(films: Server) -> None:
    found = films.get("/api/map", GOOD)
    assert found["tokens"] == ["[CLS]", "a", "fine", "film", "[SEP]"] and len(found["maps"]) == 4
    assert len(found["maps"][0]["weights"]) == 5 and found["maps"][0]["estimate"] is False
    long = films.get("/api/map", {"text": "day " * (MAP_TOKENS - 2), "layer": 1, "model": "other"})
    assert long["maps"][0]["estimate"] and "estimate" in long["maps"][0]["title"]
    status, _, said = films.ask("/api/map", {"text": "day " * MAP_TOKENS})
    assert status == 422 and f"at most {MAP_TOKENS}" in json.loads(said)["error"]


def test_the_words_of_a_text_carry_what_they_did(films: Server, writer: Server, folder: Path) -> None:
    found = films.get("/api/words", GOOD)
    (row,) = found["texts"]
    assert "".join(one["text"] for one in row) == GOOD["text"]
    told = {one["text"]: one["effect"] for one in row if one["effect"] is not None}
    known = attribute(model_folder.load(folder / "films"), [GOOD["text"]])
    assert told == pytest.approx({word.text: word.effect for word in known.words}, abs=1e-4) and list(told) == ["a", "fine", "film"]
    assert found["answer"] == known.answer and max(abs(one["share"]) for one in row) == 1
    status, _, said = films.ask("/api/words", {"text": "day " * (WORDS + 1)})
    assert status == 422 and f"leave out {WORDS} of them" in json.loads(said)["error"]
    status, _, said = writer.ask("/api/words", GOOD)
    assert status == 422 and "a model for lm" in json.loads(said)["error"]


def test_a_model_of_pairs_asks_for_two_texts(tmp_path: Path) -> None:
    train(write_scores(tmp_path / "pairs.tsv", 60), tmp_path / "pairs", settings(**SHORT), quiet=True)
    engine = PlayService(model_folder.load(tmp_path / "pairs"))
    assert engine.facts()["pair"] is True
    with pytest.raises(Refusal, match="'text2' is missing"):
        PredictRequest(**GOOD).texts(engine.pair)
    texts = PredictRequest(**GOOD, text2="dull road").texts(engine.pair)
    (known,) = Predictor(model_folder.load(tmp_path / "pairs"))([(GOOD["text"], "dull road")])
    found = engine.predict(texts)
    assert found["main"]["score"] == pytest.approx(known["score"], abs=1e-5) and "score" not in found["other"]
    assert engine.maps(texts)["tokens"][-1] == "[SEP]"


def test_a_text_goes_on_as_generate_says(writer: Server, folder: Path) -> None:
    asked = {"text": "the day", "max_new": 12, "temperature": 0.9, "seed": 5}
    for name, model in (("lm", "main"), ("lm2", "other")):
        status, headers, said = writer.ask("/api/generate", {**asked, "model": model})
        assert status == 200 and headers["content-type"].startswith("application/x-ndjson")
        tokens = lines(said)
        trained = model_folder.load(folder / name)
        assert "".join(one["text"] for one in tokens) == "".join(stream(trained, "the day", 12, temperature=0.9, seed=5))
        start = [trained.roles["eot"], *map(int, trained.encoder().documents(["the day"])[0])]
        ids = generate(trained.model, [start], 12, temperature=0.9, seed=5, stop=(trained.roles["eot"],))[0]
        assert len(tokens) == len(ids) and all(one["ms"] > 0 for one in tokens)
        state = trained.model.init_state(1)
        for at, one in enumerate(tokens):
            _, state = trained.model.step(torch.tensor([start if at == 0 else [ids[at - 1]]]), state)
            assert one["read"] == len(start) + at and one["state"] == numbers(state), "the state is what decoding keeps"


def numbers(state: Any) -> int:
    if isinstance(state, torch.Tensor):
        return state.numel()
    return sum(numbers(part) for part in (state.values() if isinstance(state, dict) else state))


def test_the_state_of_shift_mixing_stays_and_that_of_attention_grows(writer: Server) -> None:
    sizes = {}
    for model in ("main", "other"):
        tokens = lines(writer.ask("/api/generate", {"text": "the day was in the house", "max_new": 20, "seed": 1, "model": model})[2])
        assert len(tokens) > 1
        sizes[model] = [one["state"] for one in tokens]
    assert len(set(sizes["main"])) == 1
    assert all(a < b for a, b in zip(sizes["other"], sizes["other"][1:], strict=False))


# --- in a browser ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsers.open_browser() as found:
        yield found


@pytest.mark.parametrize("size", [browsers.DESKTOP, browsers.PHONE], ids=["desktop", "phone"])
def test_the_page_of_a_classifier(browser: Any, films: Server, size: tuple[int, int]) -> None:
    with browsers.open_page(browser, films.url, size, only=films.url) as page:
        page.wait_for_selector("body[data-ready]")
        assert page.locator("#writing").is_hidden() and page.locator("#second").is_hidden()
        assert "hypermixing" in page.inner_text("#about") and "untrained attention" in page.inner_text("#about")
        page.fill("#text", "a fine <b>film</b>")
        page.wait_for_selector("#map canvas")
        assert page.inner_text("#answer-title") in ("good", "bad") and page.locator(".bar").count() == 2
        shares = [float(share) for share in page.locator(".bar .share").all_inner_texts()]
        assert sum(shares) == pytest.approx(1, abs=1e-3) and shares[0] >= shares[1]
        assert page.locator("#words span").all_inner_texts() == ["a", "fine", "<", "b", ">", "film", "<", "/", "b", ">"]
        assert "words for" in page.inner_text("#why-lines")
        assert "untrained attention" in page.inner_text("#took") and " ms" in page.inner_text("#took")
        page.locator("#map canvas").hover(position={"x": 3, "y": 3})
        assert page.inner_text("#map .tip").startswith("[CLS] (1) reads [CLS] (1)")
        picture = page.locator("#map canvas").evaluate("canvas => canvas.toDataURL()")
        page.select_option("#layer", label="layer 2, attention")
        page.wait_for_selector("#map select option:nth-child(2)", state="attached")
        assert page.locator("#map option").all_inner_texts() == [
            "layer 2, attention: pseudo-attention",
            "layer 2, attention: softmax weights",
        ]
        page.select_option("#map select", index=1)
        assert page.locator("#map canvas").evaluate("canvas => canvas.toDataURL()") != picture
        page.fill("#text", "")
        page.wait_for_selector("#answer", state="hidden")
        page.select_option("#example", index=1)
        page.wait_for_selector("#answer", state="visible")
        assert page.input_value("#text") and page.input_value("#text").startswith(page.locator("#example option").nth(1).inner_text()[:20])


def test_the_page_says_why_there_is_no_map(browser: Any, films: Server) -> None:
    with browsers.open_page(browser, films.url, only=films.url) as page:
        page.wait_for_selector("body[data-ready]")
        assert page.locator("#text").get_attribute("maxlength") == str(TEXT)
        page.fill("#text", "fine day")
        page.wait_for_selector("#map canvas")
        page.fill("#text", "day " * MAP_TOKENS)
        page.wait_for_selector("#maps", state="hidden")
        assert page.inner_text("#message") == f"No map: the text has {MAP_TOKENS + 2} tokens, and a map takes at most {MAP_TOKENS}."
        assert page.locator(".bar").count() == 2


@pytest.mark.parametrize("size", [browsers.DESKTOP, browsers.PHONE], ids=["desktop", "phone"])
def test_the_page_of_a_language_model(browser: Any, writer: Server, size: tuple[int, int]) -> None:
    with browsers.open_page(browser, writer.url, size, only=writer.url) as page:
        page.wait_for_selector("body[data-ready]")
        page.fill("#text", "the day")
        page.fill("#max-new", "15")
        page.fill("#seed", "1")
        page.click("#go")
        page.wait_for_selector("#pace svg")
        said = page.inner_text("#main"), page.inner_text("#other")
        assert all(
            "ms (median)" in one and "numbers after" in one and one.startswith(name) for one, name in zip(said, ("lm", "lm2"), strict=True)
        )
        assert "untrained" not in said[1]
        assert page.locator("#pace polyline").count() == 2 and page.locator("#stop").is_disabled() and page.locator("#go").is_enabled()
        page.select_option("#pace select", "milliseconds a token")
        assert "ms" in page.locator("#pace svg").text_content()


def test_a_text_being_written_can_be_stopped(browser: Any, writer: Server) -> None:
    with browsers.open_page(browser, writer.url, only=writer.url) as page:
        page.wait_for_selector("body[data-ready]")
        page.fill("#text", "the day")
        page.fill("#max-new", str(MAX_NEW))
        page.fill("#seed", "3")
        page.click("#go")
        page.wait_for_selector("#main dl dd")
        page.click("#stop")
        page.wait_for_selector("#go:not([disabled])")
        assert page.inner_text("#message") == ""
