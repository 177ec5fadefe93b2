"""Transfer: swapped layers learn from the old model, on the engine, and a killed run ends with the same weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.hf.test_hf_swap import made
from tokmix.cli.main import main
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.prepare.tokenize import byte_tokenizer
from tokmix.hf import swap
from tokmix.study.verify import verify
from tokmix.training.engine import Engine
from tokmix.training.progress import Interrupted
from tokmix.training.transfer import run as transfer_run
from tokmix.training.transfer.run import make_pair, run
from tokmix.training.transfer.settings import TransferSettings

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
SMALL = {"tokens": 3000, "batch": 200, "length": 20, "precision": "float32", "lr": 1e-2, "lr_whole": 3e-3}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"the {n} foxes jump over {n * 7} lazy dogs\n<|endoftext|>\n" for n in range(400)))
    return path


def teacher(folder: Path, kind: str) -> Path:
    """A small model over bytes, with its tokenizer."""
    torch.manual_seed(0)
    small: dict[str, Any] = {"vocab_size": 262, "num_hidden_layers": 4, "hidden_size": 16, "num_attention_heads": 2}
    if kind == "gpt2":
        model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=262, n_embd=16, n_layer=4, n_head=2, n_positions=40))
    else:
        config = transformers.BertConfig(**small, intermediate_size=24, max_position_embeddings=40)
        model = transformers.BertModel(config) if kind == "bert" else transformers.BertForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("kind", ["bert", "gpt2", "mlm"])
def test_a_copy_learns_and_is_loaded_like_the_old_one(kind: str, tmp_path: Path, text: Path) -> None:
    old = teacher(tmp_path / "old", kind)
    record = run(old, text, tmp_path / "run", TransferSettings("hypermixing(heads=2)", **SMALL), quiet=True)
    assert record["layers"] == [1, 3] and record["cost"]["tokens"] > 2000 and record["cost"]["warm_up"]["steps"] > 0
    for part in ("layers", "whole"):
        losses = [entry["loss"] for entry in record["curves"][part]]
        assert losses[-1] < losses[0], part
    loaded = {"bert": transformers.BertModel, "gpt2": transformers.GPT2LMHeadModel, "mlm": transformers.BertForMaskedLM}[kind]
    model = loaded.from_pretrained(tmp_path / "run" / "model").eval()
    assert model.config.tokmix_swap[0]["layers"] == [1, 3]
    assert torch.equal(model.get_input_embeddings().weight, loaded.from_pretrained(old).get_input_embeddings().weight)
    assert (tmp_path / "run" / "model" / "tokenizer.json").read_bytes() == (old / "tokenizer.json").read_bytes()
    assert run(old, text, tmp_path / "run", TransferSettings("hypermixing(heads=2)", **SMALL), resume=True, quiet=True) == record


@pytest.mark.parametrize("stop", [2, pytest.param(9, marks=pytest.mark.slow)])
def test_a_stopped_run_ends_with_the_same_weights(stop: int, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, settings = teacher(tmp_path / "old", "gpt2"), TransferSettings("hypermixing(heads=2)", **SMALL)
    run(old, text, tmp_path / "whole", settings, quiet=True)
    step, count = Engine.step, 0

    def stopping(self: Engine) -> None:
        nonlocal count
        step(self)
        count += 1
        self.stop = count == stop

    monkeypatch.setattr(Engine, "step", stopping)
    with pytest.raises(Interrupted, match="--resume"):
        run(old, text, tmp_path / "parts", settings, quiet=True)
    run(old, text, tmp_path / "parts", settings, resume=True, quiet=True)
    files = [tmp_path / name / "model" / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_text_is_prepared_once_for_several_transfers(tmp_path: Path, text: Path) -> None:
    old, settings = teacher(tmp_path / "old", "bert"), TransferSettings("hsm", **{**SMALL, "tokens": 800})
    prepare(text, tmp_path / "tokens", task="lm", tokenizer=str(old / "tokenizer.json"))
    prepare(text, tmp_path / "others", task="lm", tokenizer="bpe", vocab=300)
    run(old, text, tmp_path / "from text", settings, quiet=True)
    run(old, tmp_path / "tokens", tmp_path / "from tokens", settings, quiet=True)
    assert not (tmp_path / "from tokens" / "data").exists()
    files = [tmp_path / name / "model" / "model.safetensors" for name in ("from text", "from tokens")]
    assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(ValueError, match="not prepared with task=lm and the tokenizer of the teacher"):
        run(old, tmp_path / "others", tmp_path / "not made", settings, quiet=True)
    assert not (tmp_path / "not made").exists()


@pytest.mark.slow
def test_attention_in_place_of_attention_has_nothing_to_learn(tmp_path: Path, text: Path) -> None:
    """With its old weights the copy is the teacher from the start: both losses are zero."""
    settings = TransferSettings("attention", layers="all", init="attention", **{**SMALL, "lr": 1e-12, "lr_whole": 1e-12})
    for kind in ("bert", "gpt2"):
        record = run(teacher(tmp_path / kind, kind), text, tmp_path / f"run-{kind}", settings, quiet=True)
        assert all(entry["loss"] < 1e-6 for part in record["curves"].values() for entry in part)


def test_a_stack_names_each_layer(tmp_path: Path) -> None:
    old = teacher(tmp_path / "old", "bert")
    pair = make_pair(old, TransferSettings("attention, hsm, (attention, hypermixing(heads=2))"))
    assert pair.layers == (1, 3)
    assert transfer_run._stack_of(pair.student) == "attention, hsm, attention, hypermixing(heads=2)"
    for given, words in (
        ({"stack": "hsm, hsm"}, "has 2 layers and the teacher 4"),
        ({"stack": "hsm*4", "layers": "all"}, "leave it out"),
        ({"stack": "attention*4"}, "keeps every layer"),
        ({"stack": "hsm", "layers": "1,9"}, "numbers from 0 to 3"),
    ):
        with pytest.raises(ValueError, match=words):
            make_pair(old, TransferSettings(**given))


@pytest.mark.parametrize("kind", ["bert", "distilbert", "modernbert", "gpt2", "llama", "mistral"])
def test_the_linear_map_begins_as_the_old_value_and_output_weights(kind: str) -> None:
    """A mixer that changes nothing, then this map, is attention of a token that reads itself alone."""
    old, new = made(kind).double(), swap(made(kind).double(), "identity", init="values")
    ids = torch.tensor([[7], [9]])
    more = {} if kind not in ("gpt2", "llama", "mistral") else {"use_cache": False}
    assert torch.allclose(new(ids, **more)[0], old(ids, **more)[0], atol=1e-10)


def test_the_command_says_what_is_missing(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, out = str(teacher(tmp_path / "old", "bert")), str(tmp_path / "out")
    for given, words in (
        ([old, "--data", str(text), "--out", out], "--stack is missing"),
        ([out, "--data", str(text), "--out", out, "--stack", "hsm"], "no folder"),
        ([old, "--data", str(text), "--out", out, "--stack", "hsn"], "'hsm'"),
        ([old, "--data", str(text), "--out", out, "--stack", "hsm", "--init", "attention"], "q, k and v"),
        ([old, "--data", str(tmp_path / "no.txt"), "--out", out, "--stack", "hsm"], "no.txt"),
    ):
        assert main(["transfer", *given]) == 1
        assert words in capsys.readouterr().err
        assert not Path(out).exists()
    small = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["transfer", old, "--data", str(text), "--out", out, "--stack", "hsm", *small]) == 0
    assert main(["transfer", old, "--data", str(text), "--out", out, "--stack", "hsm", "--resume", *small, "--seed", "1"]) == 0
    assert "ended" in capsys.readouterr().out


def test_a_damaged_copy_is_made_again_and_another_teacher_or_folder_is_refused(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = TransferSettings("hypermixing(heads=2)", **{**SMALL, "tokens": 800})
    old, out = teacher(tmp_path / "old", "gpt2"), tmp_path / "run"
    record = run(old, text, out, settings, quiet=True)
    assert all(one.state != "damaged" for one in verify(out)) and len(verify(out)) >= 6
    weights, whole = out / "model" / "model.safetensors", (out / "model" / "model.safetensors").read_bytes()
    weights.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    assert [one.path.name for one in verify(out) if one.state == "damaged"] == ["model"]
    assert run(old, text, out, settings, resume=True)["layers"] == record["layers"]
    assert "model.safetensors has changed; it is now called model.damaged-" in capsys.readouterr().out
    assert weights.read_bytes() == whole
    other = teacher(tmp_path / "other", "gpt2")
    model = transformers.GPT2LMHeadModel.from_pretrained(other)
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.bias[0] += 1
    model.save_pretrained(other)
    shutil.rmtree(out / "model")
    with pytest.raises(ValueError, match="another teacher or text"):
        run(other, text, out, settings, resume=True, quiet=True)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear reader")
    with pytest.raises(ValueError, match="not a run to resume"):
        run(old, text, mine, settings, resume=True, quiet=True)
    assert [path.name for path in mine.iterdir()] == ["letter.txt"]
