"""Encoders that ship: small weights that load as float32, the package's builder, and what it refuses."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import tokmix
from tests.lab import write_table, write_text
from tokmix.training import encoder, model_folder
from tokmix.training.shipping import store
from tokmix.training.small_weights import compressed, expanded

ENCODERS = Path(__file__).parents[2] / "encoders"
SMALL = {"model.dim": 64, "model.length": 16, "train.threads": 1, "prepare.vocab": 200, "train.steps": 2}


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("encoders_build", ENCODERS / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = write_text(tmp_path_factory.mktemp("text") / "texts", documents=120)
    out = tmp_path_factory.mktemp("encoder") / "run"
    tokmix.pretrain(text, out, stack="hsm(variant='fusion'), hypermixing(heads=2, shift=1)", **SMALL)
    return out


def test_small_weights_are_near_and_small() -> None:
    torch.manual_seed(0)
    tensors = {
        "matrix": torch.randn(100, 80) * torch.rand(100, 1),
        "bias": torch.randn(80),
        "numbers": torch.arange(5),
        "x.scale": torch.ones(3),
    }
    for kind, share, error in (("float16", 0.51, 1e-3), ("int8", 0.29, 8e-3)):
        stored = compressed(tensors, kind)
        back = expanded(stored)
        assert set(back) == set(tensors) and all(back[name].dtype == tensors[name].dtype for name in tensors)
        worst = (back["matrix"] - tensors["matrix"]).abs().amax(1) / tensors["matrix"].abs().amax(1)
        assert float(worst.max()) < error
        sizes = [sum(one.numel() * one.element_size() for one in some.values()) for some in (stored, tensors)]
        assert sizes[0] < share * sizes[1]
    assert torch.equal(expanded(compressed(tensors, "int8"))["numbers"], tensors["numbers"])


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_a_stored_folder_is_a_model_folder_like_any_other(made: Path, tmp_path: Path, kind: str) -> None:
    out = store(made, tmp_path / "small", kind)
    before, after = model_folder.load(made), model_folder.load(out)
    assert all(tensor.dtype == torch.float32 for tensor in after.model.state_dict().values())
    texts = ["the day was so", "a road with one film"]
    one, other = tokmix.load(made).embed(texts), tokmix.load(out).embed(texts)
    assert abs(one - other).max() < 0.05 * abs(one).max()
    assert model_folder.verify(out, after.record) == len(after.record["files"]) + 1 and before.record["cost"] == after.record["cost"]
    whole = sum(file.stat().st_size for file in (made / "model").glob("*.safetensors"))
    assert sum(file.stat().st_size for file in out.glob("*.safetensors")) < (0.6 if kind == "float16" else 0.4) * whole


def test_the_builder_makes_a_package_whose_encoders_are_found_by_name(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / encoder.PACKAGE
    assert builder().main([f"tiny={made}", f"other={made}", "--licence", "public domain", "--out", str(package)]) == 0
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (package / "tiny" / "README.md").read_text()
    assert "Licence of the text: public domain" in text and "tokens" in text and "FLOPs" in text and "--from tiny" in text
    assert list(encoder.shipped()) == ["other", "tiny"]
    assert tokmix.load("tiny").embed("the day").shape == (64,)
    run = tokmix.train(
        write_table(tmp_path / "films.csv"),
        tmp_path / "run",
        start="tiny",
        **{"train.steps": 2, "train.baseline": False, "train.threads": 1},
    )
    assert run.record["encoder"]["name"] == "tiny"


def test_the_builder_refuses_in_one_line_and_leaves_nothing(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build, out = builder(), tmp_path / "package"
    broken, other = tmp_path / "broken", tmp_path / "other"
    shutil.copytree(made / "model", broken)
    data = bytearray((broken / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (broken / "model.safetensors").write_bytes(data)
    shutil.copytree(made / "model", other)
    config = (other / "config.json").read_text()
    (other / "config.json").write_text(config.replace('"format_version": 2', '"format_version": 9'))
    for words, told in (
        ([f"good={made}", f"bad={broken}"], "damaged"),
        ([f"bad={other}"], "format version 9"),
        ([f"bad={tmp_path / 'nowhere'}"], "no encoder"),
        (["bad"], "NAME=RUN"),
        ([f"../bad={made}"], "should be a name"),
    ):
        assert build.main([*words, "--licence", "none", "--out", str(out)]) == 1
        said = capsys.readouterr().err
        assert told in said and said.count("\n") == 1
        assert not out.exists() or not list(out.iterdir())
    build.MOST = 1000
    assert build.main([f"good={made}", "--licence", "none", "--out", str(out)]) == 1
    assert "is the most" in capsys.readouterr().err and not list(out.iterdir())


@pytest.mark.slow
def test_the_package_installs(made: Path, tmp_path: Path) -> None:
    source = tmp_path / "encoders"
    shutil.copytree(ENCODERS, source)
    assert builder().main([f"tiny={made}", "--licence", "none", "--out", str(source / "src" / encoder.PACKAGE)]) == 0
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site")]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    assert (tmp_path / "site" / encoder.PACKAGE / "tiny" / "model.safetensors").is_file()
