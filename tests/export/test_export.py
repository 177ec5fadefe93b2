"""`tokmix export`: graphs of all kinds of models agree with torch at any shape; the folder appears whole or not at all."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")

import onnx

import tokmix
from tests.lab import settings, write_scores, write_table, write_text
from tokmix.cli.main import main
from tokmix.core.features import compare
from tokmix.core.segments import Rows, Segments
from tokmix.export import check, export, int8
from tokmix.export.torch_model import TorchModel
from tokmix.runtime import load
from tokmix.runtime.folder import read
from tokmix.study.verify import verify
from tokmix.training import generate as writing
from tokmix.training import model_folder
from tokmix.training.mixture import BAG, BOTH, Mixture
from tokmix.training.predict import Predictor
from tokmix.training.train import run as train

TEXTS = ["a fine film", "the awful day was cold and grey so then it was one", "film", "house of the dull road 7"]
SHORT = {"train__steps": 4, "train__evaluations": 1}


@pytest.fixture(scope="module")
def films(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "films"
    export(trained / "run", out)
    return out


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HSM, causal HyperMixing and attention in one language model."""
    place = tmp_path_factory.mktemp("writer")
    stack = "hsm(heads=2), hypermixing(hidden=16), attention(heads=2)"
    train(
        write_text(place / "text", 20),
        place / "lm",
        settings(model__stack=stack, model__length=32, prepare__vocab=300, **SHORT),
        quiet=True,
    )
    return place


def test_predictions_are_those_of_predict(trained: Path, films: Path) -> None:
    wanted = list(Predictor(model_folder.load(trained / "run"))(TEXTS))
    model = load(films)
    assert model.predict(TEXTS) == [one["label"] for one in wanted]
    for found, known in zip(model.answers(TEXTS), wanted, strict=True):
        assert found["text"] == known["text"] and found["probabilities"] == pytest.approx(known["probabilities"], abs=1e-5)
    torch.testing.assert_close(torch.from_numpy(model.predict_proba(TEXTS)).sum(1), torch.ones(len(TEXTS)))
    assert model.predict([]) == [] and model.embed([]).shape == (0, model.about.dim)


def test_embeddings_are_those_of_the_model(trained: Path, films: Path) -> None:
    found = torch.from_numpy(load(films).embed(TEXTS))
    torch.testing.assert_close(found, torch.from_numpy(tokmix.load(trained / "run").embed(TEXTS)), atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("stack", ["hypermixing(hidden=16)", "attention(heads=2)"])
def test_an_encoder_of_plain_text_reads_ids_as_in_training(tmp_path: Path, stack: str) -> None:
    """Its documents begin with end-of-text. [CLS] and [SEP], which the tokenizer has for rows, are not among them."""
    given = settings(model__stack=stack, model__positions="learned", model__length=32, train__task="mlm", prepare__vocab=300, **SHORT)
    train(write_text(tmp_path / "text", 20), tmp_path / "run", given, quiet=True)
    about = export(tmp_path / "run", tmp_path / "out")
    assert about.task == "mlm" and not about.truncate and about.limit == 32
    texts = [*TEXTS, "", "the " * 100]
    wanted = tokmix.load(tmp_path / "run").embed(texts)
    for model in (load(tmp_path / "out"), TorchModel(model_folder.load(tmp_path / "run"))):
        assert model.embed(texts) == pytest.approx(wanted, abs=1e-5)
        assert model.run(model.rows(texts)).cut == [False] * 5 + [True]
    assert f"behind the end-of-text token ({about.roles['eot']})" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("by", [BAG, BOTH])
def test_a_bag_of_words_is_exported_with_the_network(tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder.Trained, "mixture", Mixture(by, 0.7 * (by == BOTH), 1.3, 0.0))
    run = tmp_path / "run"
    train(write_table(tmp_path / "films.csv", 300), run, settings(model__stack="hsm", **SHORT, train__baseline=True), quiet=True)
    assert (run / "model" / "linear.json").is_file(), "four steps teach a network less than a bag of words knows"
    trained = model_folder.load(run)
    wanted = list(Predictor(trained)(TEXTS))
    export(run, tmp_path / "out")
    assert {"linear.json", "linear.safetensors"} <= set(read(tmp_path / "out").files)
    for model in (TorchModel(trained), load(tmp_path / "out")):
        for found, known in zip(model.answers(TEXTS), wanted, strict=True):
            assert found["probabilities"] == pytest.approx(known["probabilities"], abs=1e-5)
    export(run, tmp_path / "network", network=True)
    assert read(tmp_path / "network").blend is None and not (tmp_path / "network" / "linear.json").exists()
    assert load(tmp_path / "network").answers(TEXTS) != wanted
    export(run, tmp_path / "int8", int8=True)
    for found, known in zip(load(tmp_path / "int8").answers(TEXTS), wanted, strict=True):
        assert found["probabilities"] == pytest.approx(known["probabilities"], abs=0.05)
    assert (tmp_path / "int8" / "linear.safetensors").stat().st_size < (tmp_path / "out" / "linear.safetensors").stat().st_size


@pytest.mark.slow
def test_several_labels_a_text(tmp_path: Path) -> None:
    rows = [f"{text},{label}" for text, label in (("a fine film", "good|film"), ("a dull day", "bad"), ("a fine day", "good"))] * 60
    (tmp_path / "rows.csv").write_text("text,labels\n" + "\n".join(rows) + "\n")
    train(
        tmp_path / "rows.csv",
        tmp_path / "run",
        settings(model__stack="hsm", **SHORT, train__baseline=True, prepare__task="multilabel"),
        quiet=True,
    )
    trained = model_folder.load(tmp_path / "run")
    assert trained.task == "multilabel"
    export(tmp_path / "run", tmp_path / "out")
    assert f"`outputs` [B, {len(trained.labels)}] (logits)" in (tmp_path / "out" / "README.md").read_text()
    model, wanted = load(tmp_path / "out"), list(Predictor(trained)(TEXTS))
    assert model.predict(TEXTS) == [one["labels"] for one in wanted]
    for found, known in zip(model.answers(TEXTS), wanted, strict=True):
        assert found["labels"] == known["labels"] and found["probabilities"] == pytest.approx(known["probabilities"], abs=1e-5)


def test_five_shapes_are_checked_and_told(films: Path) -> None:
    about = read(films)
    assert len(about.checks) == 5 and {one.length for one in about.checks} >= {1, about.max_len}
    assert all(one.difference < check.FLOAT32 for one in about.checks)
    assert set(about.files) == {"model.onnx", "tokenizer.json", "README.md"}


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_pairs_and_scores(tmp_path: Path, format: str) -> None:
    train(write_scores(tmp_path / "scores.tsv", 60), tmp_path / "run", settings(**SHORT, model__ngrams=2), quiet=True)
    config = model_folder.load(tmp_path / "run").model.config
    assert config.separator is not None, "texts of a pair are compared: the export has its own way to"
    about = export(tmp_path / "run", tmp_path / "out", format=format)
    assert about.pair and about.task == "regress" and max(one.difference for one in about.checks) < check.FLOAT32
    if format == "onnx":
        pair = ("the day", "fine warm dull day")
        (wanted,) = Predictor(model_folder.load(tmp_path / "run"))([pair])
        assert load(tmp_path / "out").predict([pair]) == pytest.approx([wanted["score"]], abs=1e-4)
        with pytest.raises(ValueError, match="reads 2 texts at a time, not 1"):
            load(tmp_path / "out").predict(["alone"])


@pytest.mark.slow
def test_a_language_model_steps_with_states(writer: Path, tmp_path: Path) -> None:
    about = export(writer / "lm", tmp_path / "out")
    assert about.chunk == 1, "causal HyperMixing is exported token by token"
    assert [spec.grows for spec in about.states].count(True) == 2, "attention's keys and values"
    trained = model_folder.load(writer / "lm")
    for prompt in ("the day", "one film with a house"):
        start, _ = writing.begin(trained, prompt)
        eot = trained.roles["eot"]
        (ids,) = tokmix.generate(trained.model, [start], 12, stop=(eot,))
        before = trained.tokenizer.decode(start[1:])
        wanted = trained.tokenizer.decode(start[1:] + [i for i in ids if i != eot])[len(before) :]
        assert wanted
        assert "".join(load(tmp_path / "out").generate(prompt, 12)) == wanted
        assert "".join(TorchModel(trained).generate(prompt, 12)) == wanted
    with pytest.raises(ValueError, match="embed needs one for classify"):
        load(tmp_path / "out").embed(["a"])
    with pytest.raises(ValueError, match="predict needs one for classify"):
        load(tmp_path / "out").predict(["a"])


@pytest.mark.slow
def test_int8_is_smaller_and_close(trained: Path, films: Path, tmp_path: Path) -> None:
    tokmix.load(trained / "run").export(tmp_path / "int8", int8=True)
    small, whole = load(tmp_path / "int8"), load(films)
    assert small.predict_proba(TEXTS) == pytest.approx(whole.predict_proba(TEXTS), abs=0.05)
    graph = onnx.load(tmp_path / "int8" / "model.onnx").graph
    assert any(one.data_type == onnx.TensorProto.INT8 for one in graph.initializer)
    whole_ones = [one.name for one in graph.initializer if one.data_type == onnx.TensorProto.FLOAT and not one.name.endswith("_scale")]
    large = {one.name for one in graph.initializer if len(one.dims) > 1 and math.prod(one.dims) >= int8.SMALLEST}
    assert not large & set(whole_ones), "every weight of this size is rounded"
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    rounded = [name for name in arrays if name.endswith("_int8")]
    stored = sum(arrays[name].nbytes + arrays[name.replace("_int8", "_scale")].nbytes for name in rounded)
    assert stored < 0.45 * sum(4 * arrays[name].size for name in rounded)
    rows = [(text,) for text in TEXTS]
    alone = [small.run([row]) for row in rows]
    for field in ("outputs", "pooled"):
        together = getattr(small.run(rows), field)
        assert together == pytest.approx(np.concatenate([getattr(one, field) for one in alone]), abs=1e-5), "int8 too"


@pytest.mark.slow
def test_int8_products_of_integers_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    stack = "hsm(variant='fusion', hidden=32), hypermixing(heads=2, shift=1), attention(heads=2, rotary=True)"
    train(write_table(tmp_path / "films.csv", 60), tmp_path / "run", settings(model__stack=stack, model__dim=64, **SHORT), quiet=True)
    export(tmp_path / "run", tmp_path / "whole")
    export(tmp_path / "run", tmp_path / "int8", int8=True)
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "int8" / "model.onnx").graph.node)
    assert kinds["MatMulIntegerToFloat"] == 4 + 4 + 6, "fusion's four, attention's four, two of each feed-forward net"
    small, whole = load(tmp_path / "int8"), load(tmp_path / "whole")
    texts = [" ".join(["fine", "day", "film", "dull", "the"][i % 5] for i in range(n, n + 1 + n % 23)) for n in range(60)]
    together, wanted = small.run([(text,) for text in texts]), whole.run([(text,) for text in texts])
    assert together.outputs is not None and wanted.outputs is not None
    for i, text in enumerate(texts):
        alone = small.run([(text,)])
        assert alone.outputs is not None
        assert together.pooled[i] == pytest.approx(alone.pooled[0], abs=1e-5)
        assert together.outputs[i] == pytest.approx(alone.outputs[0], abs=1e-5)
    assert together.pooled != pytest.approx(wanted.pooled, abs=1e-4), "activations are rounded too"
    assert np.linalg.norm(together.pooled - wanted.pooled) < 0.03 * np.linalg.norm(wanted.pooled)


@pytest.mark.slow
def test_an_int8_language_model_writes_the_same_alone_and_in_a_batch(writer: Path, tmp_path: Path) -> None:
    export(writer / "lm", tmp_path / "whole")
    export(writer / "lm", tmp_path / "int8", int8=True)
    small, whole = load(tmp_path / "int8"), load(tmp_path / "whole")
    rows = [small.prompt(prompt, 4)[0] for prompt in ("the day", "one film with a house", "a")]
    together, state = small.read(rows, small.empty_state(3))
    wanted, _ = whole.read(rows, whole.empty_state(3))
    assert np.linalg.norm(together - wanted) < 0.05 * np.linalg.norm(wanted)
    later, _ = small.step([[5]] * 3, state)
    for i, row in enumerate(rows):
        logits, state = small.read([row], small.empty_state(1))
        assert together[i] == pytest.approx(logits[0], abs=1e-5)
        assert later[i] == pytest.approx(small.step([[5]], state)[0][0], abs=1e-5)


def test_a_graph_that_does_not_agree_leaves_no_folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "FLOAT32", 0.0)
    monkeypatch.setattr(check, "_rows", lambda *given: 0.5)
    with pytest.raises(ValueError, match=r"differs from the model by 5\.0e-01 at batch 1, length 1; .* nothing was written"):
        export(trained / "run", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_stack_that_cannot_be_traced_says_why(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch ends its messages with advice for those who wrote the call."""
    told = "Constraints violated (length)!\n\nThe error above occurred when calling torch.export.export. " + "To see more, call. " * 20
    monkeypatch.setattr(torch.export, "export", lambda *given, **more: (_ for _ in ()).throw(RuntimeError(told)))
    with pytest.raises(ValueError, match=r"cannot be exported to torch \(Constraints violated \(length\)!\)$"):
        export(trained / "run", tmp_path / "out", format="torch")
    assert not list(tmp_path.iterdir())


def test_refusals(trained: Path, films: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(trained / "run"), "--out", str(films)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["export", str(trained / "run"), "--out", str(tmp_path / "x"), "--int8", "--format", "torch"]) == 1
    assert "--int8 works with --format onnx" in capsys.readouterr().err
    with pytest.raises(ValueError, match="is not an exported folder"):
        load(trained / "run")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"labels": ["bad", "good", "odd"]}, "content of manifest.json has changed"),
        ({"labels": None, "version": 2}, "no 'labels' that can be read"),
        ({"labels": [1, 2], "version": 2}, r"no 'labels\[0\]' that can be read"),
        ({"files": {}, "version": 2}, "is not the file that was exported"),
        ({"format": "exe", "version": 2}, "no 'format' that can be read"),
        ({"version": True}, "version True"),
        ({"version": [3]}, r"version \[3\]"),
    ],
)
def test_a_changed_manifest_is_an_error_and_not_another_answer(films: Path, tmp_path: Path, change: dict[str, Any], told: str) -> None:
    copy = Path(shutil.copytree(films, tmp_path / "copy"))
    known = json.loads((copy / "manifest.json").read_text()) | change
    if known["version"] != 3:  # of before the manifest had a checksum
        del known["checksum"]
    (copy / "manifest.json").write_text(json.dumps(known))
    with pytest.raises(ValueError, match=told):
        load(copy)
    assert [one.state for one in verify(copy)] == ["damaged"] and [one.state for one in verify(films)] == ["whole"]


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json", "manifest.json"])
def test_damage_is_found(films: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in films.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    if name == "manifest.json":
        content = bytearray(json.dumps({**json.loads((copy / name).read_text()), "kind": "other"}).encode())
    (copy / name).write_bytes(content)
    with pytest.raises(ValueError, match="its checksum differs|has format 'other'"):
        load(copy)


def test_comparing_texts_token_by_token_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.randint(0, 9, (6, 20), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(20) < torch.tensor([20, 3, 11, 1, 8, 15])[:, None]
    for rows in (None, Rows(mask, mask.sum(1))):
        wanted = compare(ids, 3, rows)
        with monkeypatch.context() as patch:
            patch.setattr(torch.compiler, "is_exporting", lambda: True)
            found = compare(ids, 3, rows)
        assert all(torch.equal(one[mask], other[mask]) for one, other in zip(found, wanted, strict=True))


STACKS: dict[str, dict[str, Any]] = {
    "hypermixing(hidden=8)": {}, "hsm(variant='gate')": {}, "fnet": {}, "gmlp": {}, "mlp_mixer": {}, "linear_attention": {},
    "relu_attention": {}, "shared_vector": {}, "attention(heads=2, rotary=True)": {"pooling": "max", "positions": "learned"},
}  # fmt: skip


@pytest.mark.parametrize("stack", STACKS)
def test_traceable_segments_give_what_segments_give(stack: str) -> None:
    config = tokmix.ModelConfig(stack, dim=8, vocab=20, head="classify", causal=False, max_len=16, **STACKS[stack])
    model = tokmix.Model(config).eval()
    mask = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]
    ids = torch.randint(0, 20, (3, 9))
    torch.testing.assert_close(model(ids, Segments.traceable(mask)), model(ids, Segments.from_mask(mask)))


def test_the_runtime_needs_no_torch(films: Path) -> None:
    absent = ("torch", "transformers", "onnx", "tokenizers", "safetensors", "sklearn", "scipy")
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent}: raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
import tokmix, tokmix.runtime
model = tokmix.runtime.load({str(films)!r})
print(model.predict(["a fine film"])[0], model.embed(["a fine film"]).shape[0])
try: tokmix.Model
except ImportError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["good 1", "tokmix.Model needs torch: pip install 'tokmix[torch]'"], done.stderr
