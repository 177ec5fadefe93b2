"""Maps of a whole model against the definition, and `explain` on trained models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from tests.lab import settings, write_scores, write_table, write_text
from tokmix import Model, ModelConfig, mixers
from tokmix.cli.main import main
from tokmix.core.mixer import mixer_class
from tokmix.study.explain import jacobian as explain
from tokmix.study.explain.run import EXACT, SAMPLES, of_text, token_names
from tokmix.training import model_folder
from tokmix.training.train import run as train

T, D = 6, 8
PNG = b"\x89PNG\r\n\x1a\n"


def made(stack: str, causal: bool = False, layout: str = "pre") -> Model:
    torch.manual_seed(0)
    config = ModelConfig(stack=stack, dim=D, vocab=11, head="lm" if causal else "classify", causal=causal, max_len=16, layout=layout)
    return Model(config).double().eval()


def norms(jacobian: torch.Tensor) -> torch.Tensor:
    """[T, D, T, D] -> [T, T]"""
    return jacobian.square().sum((1, 3)).sqrt()


# --- of a model ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["pre", "post"])
@pytest.mark.parametrize(("stack", "causal"), [("hypermixing, attention(heads=2)", False), ("hsm*2, relu_attention(heads=2)", True)])
def test_maps_of_a_model_are_those_of_its_mixers_and_of_the_whole(stack: str, causal: bool, layout: str) -> None:
    model = made(stack, causal, layout)
    ids = torch.randint(11, (T,))
    found = explain.model_maps(model, ids)
    pseudo = [one for one in found if one.what == "pseudo-attention"]
    assert [one.layer for one in pseudo] == [*range(1, len(model.layers) + 1), None]

    embedded = model._embed(ids[None], None, torch.arange(T))[0].detach()

    def whole(x: torch.Tensor) -> torch.Tensor:
        x = x[None]
        for layer in model.layers:
            x = layer(x)
        return model.norm(x)[0]

    torch.testing.assert_close(pseudo[-1].weights, norms(torch.autograd.functional.jacobian(whole, embedded)))
    first = model.layers[0]
    entering = (first.norm[0](embedded) if layout == "pre" else embedded).detach()
    torch.testing.assert_close(pseudo[0].weights, norms(torch.autograd.functional.jacobian(lambda x: first.mixer(x[None])[0], entering)))
    if causal:
        assert all(one.weights.triu(1).abs().max() == 0 for one in found)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", mixers())
def test_every_mixer_has_a_map(name: str) -> None:
    model = made(name, "bidirectional" not in mixer_class(name).modes)
    found = explain.model_maps(model, torch.randint(11, (T,)), samples=3)
    assert found[0].mixer == name and found[0].weights.shape == (T, T) and found[0].weights.isfinite().all()
    assert found[0].title == f"layer 1, {name}: pseudo-attention (estimate from 3 directions)"
    assert ("weights" in " ".join(one.what for one in found)) == (name in explain.WEIGHTS)


@pytest.mark.parametrize("options", [{}, {"causal": True, "window": 2}, {"rotary": True, "window": 2}])
def test_relu_weights_give_the_mixers_own_output(options: dict) -> None:
    from tokmix import Segments, create

    torch.manual_seed(0)
    mixer = create("relu_attention", D, **{"causal": False, "max_len": 16, "heads": 2, **options}).double()
    x = torch.randn(2, T, D, dtype=torch.float64)
    values = mixer.v(x).unflatten(-1, (2, -1)).transpose(1, 2)
    weights = explain.attention(mixer, x)
    torch.testing.assert_close(mixer.out((weights @ values).transpose(1, 2).flatten(2)), mixer(x))
    padded = explain.attention(mixer, x, Segments.from_lengths([4, T]))
    torch.testing.assert_close(padded[0, :, :4, :4], explain.attention(mixer, x[:1, :4])[0])
    assert padded[0, :, 4:].abs().max() == padded[0, :, :, 4:].abs().max() == 0


def test_one_map_alone() -> None:
    model, ids = made("hypermixing, attention(heads=2)"), torch.randint(11, (T,))
    every = explain.model_maps(model, ids)
    for layer, wanted in ((0, every[3:]), (1, every[:1]), (2, every[1:3])):
        found = explain.model_maps(model, ids, layer=layer)
        assert [one.title for one in found] == [one.title for one in wanted]
        assert all(torch.equal(one.weights, other.weights) for one, other in zip(found, wanted, strict=True))


def test_samples_are_seeded_and_labelled() -> None:
    model, ids = made("hypermixing"), torch.randint(11, (T,))
    once, again, other = (explain.model_maps(model, ids, samples=2, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(once.weights, again.weights) and not torch.equal(once.weights, other.weights)
    assert explain.model_maps(model, ids, samples=2, seed=10**30)[0].samples == 2  # any whole number
    assert once.samples == 2 and "estimate" in once.title
    assert "estimate" not in explain.model_maps(model, ids)[0].title


# --- of a trained model --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    short = {"train__steps": 2, "train__evaluations": 1}
    stack = "hypermixing(hidden=16), attention(heads=2)"
    train(write_table(folder / "films.csv", 60), folder / "films", settings(model__stack=stack, **short), quiet=True)
    train(write_scores(folder / "pairs.tsv", 60), folder / "pairs", settings(**short), quiet=True)
    stack = "hsm, attention(heads=2)"
    train(
        write_text(folder / "text", 20),
        folder / "lm",
        settings(model__stack=stack, model__length=16, prepare__vocab=300, **short),
        quiet=True,
    )
    return folder


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["explain", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_picture_json_and_shades(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(folder / "films"), tmp_path / "map.png"
    code, said, _ = asked(capsys, run, "the film was $fine$ _ 電 and awful", "--out", str(out))
    assert code == 0 and out.read_bytes().startswith(PNG) and str(out) in said
    assert "layer 1, hypermixing: pseudo-attention" in said and "whole stack: pseudo-attention" in said and " reads " in said

    code, said, _ = asked(capsys, run, "the film", "--json")
    found = json.loads(said)
    assert code == 0 and found["tokens"] == ["[CLS]", "the", "film", "[SEP]"]
    assert [(one["layer"], one["what"]) for one in found["maps"]] == [
        (1, "pseudo-attention"), (2, "pseudo-attention"), (2, "softmax weights"), (None, "pseudo-attention"),
    ]  # fmt: skip
    trained = model_folder.load(run)
    exact = of_text(trained, ["the film"]).maps
    for one, shown in zip(exact, found["maps"], strict=True):
        torch.testing.assert_close(torch.tensor(shown["weights"]), one.weights)
        assert shown["estimate"] is False and shown["samples"] is None
    heads = torch.tensor(found["maps"][2]["heads"])
    assert heads.shape == (2, 4, 4)
    torch.testing.assert_close(heads.sum(-1), torch.ones(2, 4))


def test_a_picture_that_is_there_stays(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "map.png"
    out.write_text("mine")
    code, said, wrong = asked(capsys, str(folder / "films"), "the film", "--out", str(out))
    assert code == 1 and not said and f"{out} exists already; nothing is overwritten" in wrong and out.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["map.png"]


def test_layer_samples_and_other_formats(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "map.svg"
    code, said, _ = asked(capsys, str(folder / "lm"), "the day was", "--layer", "2", "--samples", "2", "--out", str(out))
    assert code == 0 and "<svg" in out.read_text()
    assert (
        "layer 2, attention: pseudo-attention (estimate from 2 directions)" in said and "layer 1" not in said and "whole stack" not in said
    )
    code, said, _ = asked(capsys, str(folder / "lm"), "the day was", "--json")
    found = json.loads(said)
    assert found["tokens"][0] == "<|endoftext|>"
    for one in found["maps"]:
        assert all(value == 0 for i, row in enumerate(one["weights"]) for value in row[i + 1 :]), "a causal model reads no later token"


def test_long_texts_are_estimated_and_then_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = model_folder.load(folder / "films")
    words = int((EXACT / 16 / 2) ** 0.5)
    assert {one.samples for one in of_text(trained, ["day " * (words + 2)], layer=1).maps} == {None}
    assert {one.samples for one in of_text(trained, ["day " * (words + 2)]).maps if one.heads is None} == {SAMPLES}
    code, said, wrong = asked(capsys, str(folder / "films"), "day " * 300)
    assert code == 1 and not said and wrong == "tokmix explain: the text has 302 tokens, and a map takes at most 256: give a shorter one\n"
    code, _, wrong = asked(capsys, str(folder / "films"), "day " * 2000)  # more than the model reads
    assert code == 1 and "the text has 2,002 tokens" in wrong


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["films", " "], "the text is empty"),
        (["films", "a", "b"], "reads 1 text at a time, not 2"),
        (["pairs", "a"], "reads 2 texts at a time, not 1"),
        (["films", "a", "--layer", "3"], "layer=3 is not one of this model's layers: 1 to 2, or 0 for the whole stack"),
        (["films", "a", "--samples", "-1"], "samples=-1"),
        (["films", "a", "--out", "map.txt"], "ends in one of .png, .svg, .pdf"),
        (["films", "a", "--out", "no/map.png"], "no folder 'no'"),
        (["films", "\udcff"], "is not utf-8 at letter 1"),
        (["nowhere", "a"], "no model folder"),
    ],
)
def test_wrong_requests_are_answered_in_a_line(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str) -> None:
    code, said, wrong = asked(capsys, str(folder / words[0]), *words[1:])
    assert code == 1 and not said and reason in wrong and wrong.count("\n") == 1


def test_pairs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = asked(capsys, str(folder / "pairs"), "the day", "fine road", "--json")
    assert code == 0 and json.loads(said)["tokens"] == ["[CLS]", "the", "day", "[SEP]", "fine", "road", "[SEP]"]


def test_tokens_are_shown_as_what_they_stand_for(folder: Path) -> None:
    trained = model_folder.load(folder / "lm")
    ids = trained.encoder().documents(["the day\né"])[0].tolist()
    shown = token_names(trained.tokenizer, ids)
    assert shown[0] == "the" and "⏎" in shown and not any("\ufffd" in one or "\n" in one for one in shown)
    assert any("·" in one for one in shown)


def test_the_command_itself(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tokmix", "explain", str(folder / "films"), "a film", "--out", str(tmp_path / "map.pdf")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr and (tmp_path / "map.pdf").read_bytes().startswith(b"%PDF")
