"""`pretrain` makes an encoder and `train --from` starts from it: tokenizer, weights, layer-wise rates; what does not fit is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import tokmix
from tests.lab import write_table
from tokmix.cli.main import main
from tokmix.core.model import Model, ModelConfig
from tokmix.training import encoder, model_folder
from tokmix.training.checkpoint import load_tensors, save_tensors
from tokmix.training.optimizers import Optimizers

SMALL = {"model.dim": 16, "train.steps": 4, "train.threads": 1, "prepare.vocab": 300, "train.baseline": False}
ROWS = {name: value for name, value in SMALL.items() if not name.startswith(("model", "prepare"))}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    lines = [f"the film number {n} was {'good' if n % 2 else 'bad'} and the plot of it was long" for n in range(400)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def made(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("encoder") / "encoder"
    tokmix.pretrain(text, out, stack="hsm*2, hypermixing(heads=2)", **{**SMALL, "model.length": 32})
    return out


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "films.csv")


def test_an_encoder_is_a_masked_language_model_with_its_tokenizer(made: Path) -> None:
    trained = model_folder.load(made)
    assert trained.task == "mlm" and trained.model.config.max_len == 32 and not trained.model.config.causal
    assert trained.record["settings"]["train"]["mask"] == 0.3


def test_several_texts_are_read_together(text: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.txt"
    other.write_text("another page about films and plots\n" * 50)
    run = tokmix.pretrain([text, other], tmp_path / "both", stack="hsm", **{**SMALL, "model.length": 32, "train.steps": 1})
    assert [one["name"] for one in run.record["data"]["source"]] == ["000-a.txt", "001-b.txt"]
    with pytest.raises(ValueError, match="no file or folder 'nowhere.txt'"):
        tokmix.pretrain([text, "nowhere.txt"], tmp_path / "none")


def test_a_run_starts_with_the_encoders_weights_tokenizer_and_shape(made: Path, table: Path, tmp_path: Path) -> None:
    run = tokmix.train(table, tmp_path / "run", start=str(made), **{**ROWS, "train.steps": 1, "train.lr": 1e-12})
    before, after = model_folder.load(made), model_folder.load(tmp_path / "run")
    config = after.model.config
    assert (config.stack, config.dim, config.max_len) == (before.model.config.stack, 16, 32)
    assert config.head == "classify" and config.pooling == "mean_max" and after.model.head.weight.shape == (2, 32)
    assert after.tokenizer.get_vocab() == before.tokenizer.get_vocab()
    for name, tensor in before.model.state_dict().items():
        if not name.startswith("head."):
            torch.testing.assert_close(after.model.state_dict()[name], tensor, atol=1e-6, rtol=0)
    assert run.record["encoder"]["files"] == before.record["files"] and run.record["encoder"]["name"] == str(made)
    assert run.model.predict("a good film")


def test_the_two_texts_of_a_pair_are_compared(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    lines = ["premise\thypothesis\tscore", *(f"the film {n}\tthe plot {n + 1}\t{n % 5}.5" for n in range(120))]
    path.write_text("\n".join(lines) + "\n")
    run = tokmix.train(path, tmp_path / "run", start=str(made), **ROWS)
    assert run.task == "regress" and run.record["model"]["separator"] is not None
    assert model_folder.load(tmp_path / "run").model.features is not None


def test_layers_learn_at_shares_of_the_rate() -> None:
    model = Model(ModelConfig(stack="hsm*2", dim=8, vocab=20, head="classify", causal=False, max_len=8))
    scales = encoder.rate_scales(model, 0.5)
    assert scales["embedding.weight"] == 0.125 and "head.weight" not in scales and "norm.weight" not in scales
    assert {scale for name, scale in scales.items() if name.startswith("layers.0.")} == {0.25}
    assert {scale for name, scale in scales.items() if name.startswith("layers.1.")} == {0.5}
    assert encoder.rate_scales(model, 1.0) == {}
    for kind in ("adamw", "muon"):
        optimizers = Optimizers(model.named_parameters(), 1.0, kind=kind, scales=scales)
        optimizers.set_rate(0.1)
        rates = {id(p): group["lr"] for part in optimizers.parts for group in part.param_groups for p in group["params"]}
        for name, parameter in model.named_parameters():
            assert rates[id(parameter)] == pytest.approx(0.1 * scales.get(name, 1.0))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--from", "nowhere"], "no encoder 'nowhere'"),
        (["--from", "ENCODER", "--stack", "hsm"], "model.stack comes from the encoder"),
        (["--from", "ENCODER", "--model.dim", "32"], "model.dim comes from the encoder"),
        (["--from", "ENCODER", "--prepare.tokenizer", "bpe"], "prepare.tokenizer comes from the encoder"),
        (["--from", "ENCODER", "--train.pretrain", "2"], "leave one out"),
        (["--from", "ENCODER", "--prepare.max_len", "100"], "reads at most 32 tokens"),
        (["--train.layer_decay", "0"], "should be above 0"),
    ],
)
def test_what_does_not_fit_is_one_line_and_leaves_nothing(
    made: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    given = [str(made) if word == "ENCODER" else word for word in words]
    assert main(["train", str(table), "--out", str(tmp_path / "run"), *given]) != 0
    said = capsys.readouterr().err
    assert told in said and said.strip().count("\n") == 0
    assert not (tmp_path / "run").exists()


def test_prepared_data_of_another_tokenizer_and_a_damaged_encoder_are_refused(made: Path, table: Path, tmp_path: Path) -> None:
    assert main(["prepare", str(table), "--out", str(tmp_path / "tokens"), "--vocab", "200", "--max-len", "32"]) == 0
    with pytest.raises(ValueError, match="another tokenizer"):
        tokmix.train(tmp_path / "tokens", tmp_path / "run", start=str(made), **ROWS)
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in (made / "model").iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    data = bytearray((broken / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (broken / "model.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        tokmix.train(table, tmp_path / "run", start=str(broken), **ROWS)


def test_a_shipped_encoder_is_found_by_its_name(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / encoder.PACKAGE
    (package / "tiny").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for file in (made / "model").iterdir():
        (package / "tiny" / file.name).write_bytes(file.read_bytes())
    monkeypatch.syspath_prepend(str(tmp_path))
    assert encoder.read("tiny").folder == package / "tiny"
    with pytest.raises(ValueError, match="no encoder 'tinny'.*shipped: tiny"):
        encoder.read("tinny")


def test_a_run_goes_on_from_the_encoder_that_it_started_from(made: Path, table: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "encoder"))
    given = {**ROWS, "train.steps": 2}
    tokmix.train(table, tmp_path / "run", start=str(copy), **given)
    shutil.rmtree(tmp_path / "run" / "model")
    (copy / "model" / "README.md").write_text("other words")  # which decide nothing
    tokmix.train(table, tmp_path / "run", start=str(copy), resume=True, **given)
    shutil.rmtree(tmp_path / "run" / "model")
    path = copy / "model" / "model.safetensors"
    tensors, notes = load_tensors(path)
    tensors["core.norm.weight"] += 1
    save_tensors(path, tensors, notes)
    with pytest.raises(ValueError, match="as it was before"):
        tokmix.train(table, tmp_path / "run", start=str(copy), resume=True, **given)
