"""Folders that `train` wrote, in the pipelines of Hugging Face: the numbers of our own commands."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import safetensors.torch
import transformers

import tokmix.hf  # noqa: F401 - makes the models known
from tests.lab import settings, write_scores, write_table, write_text
from tokmix.training import generate, model_folder, predict
from tokmix.training.generate import begin, stream
from tokmix.training.train import run


def trained(data: Path, out: Path, **more) -> Path:
    run(data, out, settings(train__steps=4, train__evaluations=1, **more), quiet=True)
    return out / "model"


def pipeline(task: str, folder: Path):
    transformers.logging.set_verbosity_error()
    return transformers.pipeline(task, model=str(folder), device="cpu")


def test_classes_and_scores(tmp_path):
    texts = ["the film was lovely and warm", "a dull day [SEP] in the house"]
    folder = trained(write_table(tmp_path / "t.csv"), tmp_path / "classes")
    answers = list(predict.Predictor(model_folder.load(folder))(texts))
    for mine, theirs in zip(answers, pipeline("text-classification", folder)(texts, top_k=None, batch_size=2), strict=True):
        assert {one["label"]: one["score"] for one in theirs} == pytest.approx(mine["probabilities"], abs=1e-5)
    folder = trained(write_scores(tmp_path / "pairs.tsv"), tmp_path / "scores")
    pair = ("a road", "fine warm lovely")
    (answer,) = predict.Predictor(model_folder.load(folder))([pair])
    found = pipeline("text-classification", folder)({"text": pair[0], "text_pair": pair[1]}, function_to_apply="none")
    assert found["score"] == pytest.approx(answer["score"], abs=1e-5)


def test_hidden_words(tmp_path):
    folder = trained(write_table(tmp_path / "t.csv"), tmp_path / "run", train__task="mlm")
    ours = model_folder.load(folder)
    fill = pipeline("fill-mask", folder)
    assert fill.tokenizer.mask_token == "[MASK]"
    found = fill("the film was [MASK] and warm", top_k=3)
    before, after = (ours.tokenizer.encode(text, add_special_tokens=False).ids for text in ("the film was", "and warm"))
    ids = [ours.roles["cls"], *before, ours.roles["mask"], *after, ours.roles["sep"]]
    with torch.no_grad():
        chances = ours.model(torch.tensor([ids]))[0, 1 + len(before)].softmax(-1)
    best = chances.topk(3)
    assert [one["token"] for one in found] == best.indices.tolist()
    assert [one["score"] for one in found] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_going_on_with_a_text(tmp_path):
    given = {"model__stack": "hsm, attention(heads=2)", "model__length": 32, "prepare__vocab": 300}
    folder = trained(write_text(tmp_path / "text"), tmp_path / "run", **given)
    ours = model_folder.load(folder)
    prompts = ["the day was", "a house"]
    with io.StringIO() as out:
        found = generate.run(folder, prompts[0], max_new=12, temperature=0, draft=folder.parent, draft_tokens=3, out=out)
        assert found == "".join(stream(ours, prompts[0], 12, temperature=0)) and out.getvalue() == f"{prompts[0]}{found}\n"
    with torch.no_grad():  # so that what comes next depends on all that came before
        for parameter in ours.model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    tensors = {f"{model_folder.PREFIX}{name}": tensor for name, tensor in ours.model.state_dict().items()}
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    write = pipeline("text-generation", folder)
    assert write.tokenizer(prompts[0]).input_ids == begin(ours, prompts[0])[0]
    for size in (1, 2):
        found = write(prompts, max_new_tokens=6, do_sample=False, return_full_text=False, batch_size=size)
        assert [row[0]["generated_text"] for row in found] == ["".join(stream(ours, prompt, 6, temperature=0)) for prompt in prompts]
