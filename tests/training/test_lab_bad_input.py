"""What users get wrong, at the command line: one line, a non-zero exit, and nothing overwritten or left half-written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tests.lab import write_table, write_text
from tokmix.cli.main import main
from tokmix.runs.files import seal
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.model_folder import load

ROOT = Path(__file__).parents[2]
QUICK = ["--model.dim", "16", "--train.steps", "3", "--train.evaluations", "1", "--no-train.baseline", "--train.device", "cpu"]
SMALL = [*QUICK, "--prepare.vocab", "300"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    write_table(folder / "good.csv", 120)
    assert main(["train", str(folder / "good.csv"), "--out", str(folder / "run"), *SMALL]) == 0
    return folder


def there(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(folder: Path, capsys, *command: object) -> str:
    """The one line that a command says before it ends; the folder is as it was."""
    before = there(folder)
    capsys.readouterr()
    assert main([str(word) for word in command]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and said.startswith(f"tokmix {command[0]}: "), said
    assert there(folder) == before
    return said


BAD = {
    "empty": (b"", "is empty"),
    "no header": (b"it is a good film,1\nnot so good,0\n", "has no header line"),
    "single class": (b"text,label\na,x\nb,x\n", "a single class"),
    "ragged": (b"text,label\na,x\nb\n", "line 3: 1 fields, but the header has 2"),
    "binary": (b"\x89PNG\0\0\1", "is a binary file"),
    "encoding": ("text,label\na,x\ncaf\u00e9,y\n".encode("latin-1"), "line 3: byte 0xe9 is not utf-8"),
    "nan": (b"text,score\na,1.5\nb,inf\n", "line 3: score is inf"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables(case, tmp_path, capsys):
    content, words = BAD[case]
    (tmp_path / "a.csv").write_bytes(content)
    for command, more in (("prepare", []), ("train", SMALL)):
        assert words in refused(tmp_path, capsys, command, tmp_path / "a.csv", "--out", tmp_path / "out", *more)


def test_bad_settings_for_good_tables(tmp_path, capsys):
    table, out = write_table(tmp_path / "good.csv", 60), ["--out", tmp_path / "out"]
    (tmp_path / "kept").mkdir()
    (tmp_path / "long.csv").write_text("text,label\n" + "word " * 3000 + ",x\nb c,y\n")
    (tmp_path / "split").mkdir()
    (tmp_path / "split" / "train.csv").write_text("text,label\n" + "a b,x\nc d,y\n" * 9)
    (tmp_path / "split" / "test.csv").write_text("text,label\nq,z\n")
    write_text(tmp_path / "text", 20)
    for words, command in {
        "did you mean 'good.csv'": ["prepare", tmp_path / "god.csv", *out],
        "no column 'lable'; it has: text, label, did you mean 'label'": ["prepare", table, *out, "--label", "lable"],
        "line 2: longer than --max-len 2048 tokens": ["prepare", tmp_path / "long.csv", *out, "--long", "refuse"],
        "test.csv, line 2: label 'z' does not occur in training": ["train", tmp_path / "split", *out, *SMALL],
        "kept exists already; nothing is overwritten": ["train", table, "--out", tmp_path / "kept", *SMALL],
        "good.csv exists already": ["prepare", table, "--out", table],
        "good.csv is a file": ["prepare", table, "--out", table / "out"],
        "mixer 'fnet' has no 'causal' mode": ["train", tmp_path / "text", *out, "--stack", "fnet*2", *SMALL],
        "mixer 'fnt'": ["train", table, *out, "--stack", "fnt*2", *SMALL],
        "train.beta2=2.0": ["train", table, *out, "--train.beta2", "2", *SMALL],
        "train.clip=nan": ["train", table, *out, "--train.clip", "nan", *SMALL],
        "train.weight_decay=-1.0": ["train", table, *out, "--train.weight_decay", "-1", *SMALL],
        "train.lr=inf": ["train", table, *out, "--train.lr", "inf", *SMALL],
        "train.seed=9223372036854775808": ["train", table, *out, "--seed", 2**63, *SMALL],
        "no split 'valid'": ["train", table, *out, "--train.final", "valid", "--prepare.valid", "0", *SMALL],
    }.items():
        assert words in refused(tmp_path, capsys, *command), words
    assert main(["prepare", str(tmp_path / "long.csv"), "--out", str(tmp_path / "cut"), "--valid", "0", "--test", "0"]) == 0
    assert "1 rows of train (50 %) were cut to max_len=2048 tokens" in capsys.readouterr().out


def test_bad_data_for_a_model(trained, tmp_path, capsys):
    model = trained / "run"
    for name, content in {"odd.csv": "text,label\nfine day,goood\n", "col.csv": "txt,label\na,good\n", "none.txt": ""}.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "number.jsonl").write_text('{"text": 5}\n')
    for words, command in {
        "label 'goood' does not occur in training; known: bad, good, did you mean 'good'": ["eval", model, tmp_path / "odd.csv"],
        "no column 'text'": ["eval", model, tmp_path / "col.csv"],
        "no file or folder": ["eval", model, tmp_path / "nothing.csv"],
        "no model folder": ["eval", tmp_path / "nothing", tmp_path / "odd.csv"],
        "none.txt is empty": ["predict", model, tmp_path / "none.txt"],
        "line 1: byte 0xe9": ["predict", model, tmp_path / "latin.txt"],
        "no file 'nothing.csv'": ["predict", model, "nothing.csv"],
        "needs one for lm": ["generate", model, "--prompt", "a"],
        "is not utf-8 at letter 3": ["predict", model, "a \udcff"],
        "is a folder": ["predict", model, tmp_path],
        "line 1: column 'text' holds int": ["predict", model, tmp_path / "number.jsonl"],
        "good.csv' is a file, and a file is given alone": ["predict", model, "fine day", trained / "good.csv"],
        "'-' is standard input": ["predict", model, "-", "fine day"],
        "'nothing.csv'; a text that reads like": ["predict", model, "fine day", "nothing.csv"],
    }.items():
        assert words in refused(tmp_path, capsys, *command), words


def test_prepared_data_that_does_not_fit_a_model(trained, tmp_path, capsys):
    tokenizer = ["--tokenizer", str(trained / "run" / "data" / "tokenizer.json")]
    (tmp_path / "pairs.csv").write_text("premise,hypothesis,label\n" + "a fine day,a film,good\na dull day,a road,bad\n" * 9)
    for words, name, more in (
        ("was prepared for mlm, and", "mlm", ["--task", "mlm", "--text", "hypothesis"]),
        ("is a model of single texts, and", "pair", []),
    ):
        assert main(["prepare", str(tmp_path / "pairs.csv"), "--out", str(tmp_path / name), *tokenizer, *more]) == 0
        card = tmp_path / name / "card.json"
        same = json.loads((trained / "run" / "data" / "card.json").read_text())["tokenizer"]  # a tokenizer told as the model's own
        known = json.loads(card.read_text()) | {"tokenizer": same}
        known.pop("checksum")
        card.write_text(json.dumps(seal(known)))
        assert words in refused(tmp_path, capsys, "eval", trained / "run", tmp_path / name)


def test_settings_that_would_do_nothing(trained, tmp_path, capsys):
    for words, more in {
        "train.label_smoothing smooths the classes of classify, and this is mlm": ["--train.task", "mlm", "--train.label_smoothing", "0.1"],
        "train.mask hides tokens to be found, and classify hides none": ["--train.mask", "0.3"],
    }.items():
        assert words in refused(tmp_path, capsys, "train", trained / "run" / "data", "--out", tmp_path / "out", *QUICK, *more)


def test_texts_longer_than_a_files_name_and_rows_without_text(trained, tmp_path, capsys):
    (tmp_path / "none.jsonl").write_text('{"text": null}\n{"text": ""}\n')
    for given, texts in ((["a fine film " * 40], ["a fine film " * 40]), ([str(tmp_path / "none.jsonl")], ["", ""])):
        capsys.readouterr()
        assert main(["predict", str(trained / "run"), *given]) == 0
        assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == texts


def test_other_columns_and_encodings_than_those_of_training(trained, tmp_path, capsys):
    (tmp_path / "a.csv").write_bytes("so ein sch\u00f6ner film,good\n".encode("latin-1"))
    assert main(["eval", str(trained / "run"), str(tmp_path / "a.csv"), "--encoding", "latin-1", "--header", "text,label"]) == 0
    (tmp_path / "b.csv").write_text("review,sentiment\na fine film,good\n")
    assert main(["eval", str(trained / "run"), str(tmp_path / "b.csv"), "--text", "review", "--label", "sentiment"]) == 0
    (tmp_path / "a.txt").write_bytes("sch\u00f6n\n".encode("latin-1"))
    capsys.readouterr()
    assert main(["predict", str(trained / "run"), str(tmp_path / "a.txt"), "--encoding", "latin-1"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "sch\u00f6n"


def test_whoever_may_read_the_folder_may_read_the_weights(trained):
    modes = {path.stat().st_mode & 0o777 for path in (trained / "run" / "model").iterdir()}
    assert len(modes) == 1


def edited(name: str, **values: object):
    def change(folder: Path) -> None:
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | values))

    return change


DAMAGE = {
    "model.safetensors is damaged": lambda folder: os.truncate(folder / "model.safetensors", 3000),
    "model.safetensors is damaged: ": lambda folder: os.truncate(folder / "model.safetensors", 0),
    "model.safetensors is missing": lambda folder: (folder / "model.safetensors").unlink(),
    "it has no config.json": lambda folder: (folder / "config.json").unlink(),
    "config.json is not JSON": lambda folder: os.truncate(folder / "config.json", 9),
    "training.json is missing": lambda folder: (folder / "training.json").unlink(),
    "tokenizer.json is missing": lambda folder: (folder / "tokenizer.json").unlink(),
    "training.json has no 'labels' that can be read": edited("training.json", labels=None),
    "training.json has no 'tokenizer.roles' that can be read": edited("training.json", tokenizer={}),
    "training.json has no 'columns.text' that can be read": edited("training.json", columns={"text": [3]}),
    "training.json has no 'data.source' that can be read": edited("training.json", data={"source": [{"name": 3}]}),
    "no 'data.source' that can be read": edited("training.json", data={"source": "t.csv"}),
    "training.json has no 'deviation' that can be read": edited("training.json", deviation=[1]),
    "training.json has no 'answers' that can be read": edited("training.json", answers="network"),
    "training.json has no 'network' that can be read": edited("training.json", answers={"by": "network", "network": "x"}),
    "training.json has an unknown field 'wings'": edited("training.json", answers={"by": "network", "wings": 2}),
    "training.json names 1 classes, config.json counts 2": edited("training.json", labels=["good"]),
    "is of a model for lm, config.json of one for classify": edited("training.json", task="lm"),
    "dim='x'": edited("config.json", dim="x"),
    "a mixer of your own is made known with --import": edited("config.json", stack="mine*2"),
    "format version 7": edited("config.json", format_version=7),
}


@pytest.mark.parametrize("words", DAMAGE)
def test_a_damaged_model_folder(words, trained, tmp_path, capsys):
    shutil.copytree(trained / "run" / "model", tmp_path / "m")
    DAMAGE[words](tmp_path / "m")
    assert words in refused(tmp_path, capsys, "predict", tmp_path / "m", "fine day")


# The largest file that may be written, which is how a full disk looks from inside: a write fails.
FULL = """
import resource, sys
import torch
from tokmix.cli import main
torch.set_num_threads(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.exit(main(sys.argv[2:]))
"""


def with_room_for(size: int, *command: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-B", "-c", FULL, str(size), *map(str, command)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_no_space_left(trained, tmp_path):
    pytest.importorskip("resource")
    table = write_table(tmp_path / "t.csv", 200)
    done = with_room_for(2000, "prepare", table, "--out", tmp_path / "out", "--vocab", "300")
    assert done.returncode == 1 and "no space left for" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    # Room for what a run begins with, and not for its checkpoint; with more room the run goes on.
    command = ["train", trained / "run" / "data", "--out", tmp_path / "run", *QUICK, "--model.stack", "hypermixing(hidden=16)"]
    done = with_room_for(30_000, *command)
    assert done.returncode == 1 and "no space left for" in done.stderr.splitlines()[-1], done.stderr
    assert not (tmp_path / "run" / "model").exists() and "Traceback" not in done.stderr
    assert not list((tmp_path / "run").rglob("*.partial*"))
    assert main([*map(str, command), "--resume"]) == 0
    assert load(tmp_path / "run").labels == ["bad", "good"]


def test_no_space_left_for_the_model_folder(trained, tmp_path, monkeypatch, capsys):
    """The library that writes the weights has its own error for it."""
    from safetensors import SafetensorError
    from transformers import PreTrainedModel

    def full(self, folder, **more):
        raise SafetensorError('Error while serializing: I/O error: Os { code: 28, kind: StorageFull, message: "No space left on device" }')

    command = ["train", str(trained / "run" / "data"), "--out", str(tmp_path / "run"), *QUICK]
    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedModel, "save_pretrained", full)
        assert main(command) == 1
    assert f"no space left for {tmp_path / 'run' / 'model'}" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run" / "model").exists() and Checkpoints(tmp_path / "run" / "checkpoints").last is not None
    assert main([*command, "--resume"]) == 0 and load(tmp_path / "run")


def test_a_diverging_loss_stops_with_the_step_and_the_last_good_checkpoint(trained, tmp_path, capsys):
    more = ["--train.lr", "1e30", "--train.steps", "30", "--train.save_steps", "1", "--train.warmup", "0"]
    assert main(["train", str(trained / "run" / "data"), "--out", str(tmp_path / "run"), *QUICK, *more]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    tensors, state = checkpoints.load()
    assert f"at step {state['step'] + 1}: training diverged; the last good checkpoint is {checkpoints.last}" in said
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
