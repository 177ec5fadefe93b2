"""`tokmix show` of a model folder: its own layers at its own length."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tests.lab import settings, write_table
from tokmix.cli.main import main
from tokmix.training import model_folder
from tokmix.training.train import run


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("show")
    given = {"model__stack": "hsm*2, gmlp", "prepare__max_len": 40, "train__steps": 1, "train__evaluations": 1}
    run(write_table(folder / "t.csv"), folder / "run", settings(**given), quiet=True)
    return folder / "run"


def cells(line: str) -> list[str]:
    return line.split()


def test_a_model_folder_is_shown_layer_by_layer(trained, capsys):
    assert main(["show", str(trained)]) == 0
    shown = capsys.readouterr().out.splitlines()
    model = model_folder.load(trained).model
    assert shown[0] == f"{trained / 'model'}: classify, 2 classes" and "one sequence of 40 tokens" in shown[1]
    for number, (layer, line) in enumerate(zip(model.layers, shown[4:7], strict=True), 1):
        cost, reach = layer.cost(40), layer.mixer.reach()
        counts = [sum(p.numel() for p in layer.parameters()), cost.matmul, cost.pointwise, cost.state]
        assert cells(line) == [
            str(number), layer.mixer.kind, *(f"{count:,}" for count in counts), "all" if reach is None else f"{reach:,}",
        ]  # fmt: skip
    assert f"{model.parameter_count():,} parameters, {model.cost(40).matmul:,} matmul FLOPs" in shown[-1]


def test_another_length_can_be_asked_for_as_far_as_the_model_goes(trained, capsys):
    assert main(["show", str(trained / "model"), "--length", "12"]) == 0
    assert "one sequence of 12 tokens" in capsys.readouterr().out
    for more, words in (
        (["--length", "41"], "length=41 is more than this model takes: max_len=40"),
        (["--length", "0"], "length=0 is not a whole number"),
        (["--dim", "3"], "--dim is for a stack"),
        (["--causal"], "--causal is for a stack"),
    ):
        assert main(["show", str(trained), *more]) == 1
        said = capsys.readouterr().err
        assert words in said and len(said.splitlines()) == 1


def test_a_folder_that_is_no_model_is_one_line(tmp_path, capsys):
    for folder, words in ((tmp_path, "is not a model folder"), (tmp_path / "nothing", "no model folder")):
        assert main(["show", str(folder)]) == 1
        said = capsys.readouterr().err
        assert words in said and len(said.splitlines()) == 1


def test_a_stack_is_shown_whatever_folders_are_there(tmp_path, capsys, monkeypatch):
    (tmp_path / "hsm").mkdir()  # an empty folder does not hide the mixer of that name
    monkeypatch.chdir(tmp_path)
    for stack in ("hsm", ", ".join(["attention(heads=4)", "hsm(variant='gate')"] * 8)):  # the second longer than any file's name
        assert main(["show", stack, "--dim", "16", "--vocab", "50", "--length", "8"]) == 0
    assert main(["show", ""]) == 1
    assert "stack '' is empty" in capsys.readouterr().err


@pytest.mark.usefixtures("clean_registry")
def test_mixers_of_ones_own_can_be_shown_listed_and_costed(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import tokmix\n\n"
        "@tokmix.register('shown_mean')\n"
        "class Mean(tokmix.RowMixer):\n"
        "    modes, order = frozenset({'bidirectional', 'padded', 'packed'}), 'T'\n"
        "    def mix(self, x, rows):\n"
        "        return x.mean(1, keepdim=True).expand(x.shape)\n"
        "    def cost(self, length):\n"
        "        return tokmix.Cost(0, length * self.dim)\n"
    )
    mine = ["--import", str(tmp_path / "mine.py")]
    for words in (["show", "shown_mean*2", "--dim", "8"], ["cost", "shown_mean*2", "--lengths", "8"], ["list"]):
        assert main([*words, *mine]) == 0
        assert "shown_mean" in capsys.readouterr().out
