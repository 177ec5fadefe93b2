"""A run has one owner, nothing damaged passes for whole, and sizes are checked before memory is taken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tests.lab import write_table
from tokmix.cli.main import main
from tokmix.data.tokens import TokenFiles
from tokmix.runs.files import Damaged, seal, sha256_file
from tokmix.runs.locks import owning
from tokmix.training import model_folder
from tokmix.training.checkpoint import Checkpoints, load_tensors, save_tensors
from tokmix.training.report import read_log
from tokmix.training.settings import Settings
from tokmix.training.train import run

ROOT = Path(__file__).parents[2]
GIVEN = {
    "model.stack": "hypermixing(hidden=16)", "model.dim": 16, "train.rows": 16, "train.steps": 9, "train.save_steps": 2,
    "train.evaluations": 2, "train.baseline": False, "train.device": "cpu", "prepare.vocab": 200,
}  # fmt: skip
SETTINGS = Settings.of(None, GIVEN)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(write_table(folder / "t.csv", 100), folder / "run", SETTINGS, quiet=True)
    return folder


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    """The table, and a run on it that has ended."""
    shutil.copytree(whole, tmp_path / "c")
    return tmp_path / "c"


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_tensors(out / "model" / "model.safetensors")[0]


def same(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def resume(folder: Path, quiet: bool = True) -> dict:
    return run(folder / "t.csv", folder / "run", SETTINGS, resume=True, quiet=quiet)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


# --- one owner -------------------------------------------------------------------------------------------------------

TRAIN = """
import json, sys, torch
torch.set_num_threads(1)
from tokmix.training.settings import Settings
from tokmix.training.train import run
try:
    run(sys.argv[1], sys.argv[2], Settings.of(None, json.loads(sys.argv[3])), resume=sys.argv[4] == "resume", quiet=True)
except ValueError as error:
    sys.exit(str(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["new", "resume"])
def test_of_two_processes_in_one_folder_one_trains_and_the_other_harms_nothing(how, whole, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-c", TRAIN, str(whole / "t.csv"), str(out), json.dumps(GIVEN), how]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    told = [process.communicate()[1] for process in both]
    lost = [text for process, text in zip(both, told, strict=True) if process.returncode]
    assert len(lost) <= 1 and all("in use by process" in text or "exists already" in text for text in lost), told
    assert same(out, whole / "run")
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_a_run_in_use_is_left_alone(copy):
    with owning(copy / "run"), pytest.raises(ValueError, match=f"in use by process {os.getpid()}"):
        resume(copy)


# --- power cuts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "training.json"])
def test_a_model_that_a_power_cut_emptied_is_made_again(name, copy, whole, capsys):
    (copy / "run" / "model" / name).write_bytes(b"")
    resume(copy, quiet=False)
    said = capsys.readouterr().out
    assert "is damaged" in said and "the model is made again from the last checkpoint" in said and "has ended" not in said
    assert same(copy / "run", whole / "run") and list((copy / "run").glob("model.damaged-*"))


def test_damaged_lines_of_a_log_are_left_out_and_counted(copy, whole, capsys):
    shutil.rmtree(copy / "run" / "model")
    log = copy / "run" / "log.jsonl"
    lines = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join([b"\0" * 200, b'{"step": 1, "lo', b"[]", b"[" * 9999, *lines]))
    resume(copy, quiet=False)
    assert f"{log}: 4 damaged lines left out" in capsys.readouterr().out
    entries, lost = read_log(log)
    assert lost == 0 and entries[-1]["cost"] and same(copy / "run", whole / "run")


def test_what_killed_writers_left_is_removed_on_resume(copy):
    out = copy / "run"
    shutil.rmtree(out / "model")
    left = [out / "checkpoints" / ".tmpAb12", out / "checkpoints" / ".step-00000004.safetensors.partial-00", out / ".run.json.partial-00"]
    for path in left:
        path.write_bytes(b"x" * 1000)
    (out / ".model.partial-00").mkdir()
    resume(copy)
    assert not [path for path in left if path.exists()] and not (out / ".model.partial-00").exists()


# --- checksums -------------------------------------------------------------------------------------------------------


def test_a_changed_checkpoint_is_passed_over_and_the_run_ends_the_same(copy, whole, capsys):
    shutil.rmtree(copy / "run" / "model")
    newest = Checkpoints(copy / "run" / "checkpoints").last
    flip(newest, newest.stat().st_size - 9)  # in a tensor: every number is still a number
    resume(copy, quiet=False)
    said = capsys.readouterr().out
    assert f"{newest} is damaged: its content has changed; an older checkpoint is used" in said and "resumed after step" in said
    assert same(copy / "run", whole / "run")


def test_every_byte_of_a_checkpoint_counts(tmp_path):
    path = tmp_path / "step-00000001.safetensors"
    save_tensors(path, {"a": torch.arange(4.0), "b": torch.zeros(3, dtype=torch.bfloat16)}, {"state": '{"step": 1}'})
    good = path.read_bytes()
    load_tensors(path)
    for place in range(8, len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        try:
            tensors, notes = load_tensors(path)
        except ValueError:
            continue
        # Only a header that says the same, or none of whose checksum is left, may pass; a checkpoint needs its checksum.
        assert "sha256" not in notes or (torch.equal(tensors["a"], torch.arange(4.0)) and notes["state"] == '{"step": 1}'), place


@pytest.mark.parametrize("keep", [1, 3])
def test_as_many_checkpoints_are_kept_as_asked(keep, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, {"a": torch.zeros(1)}, {})
    assert [path.stem for path in checkpoints.files()] == [f"step-{step:08d}" for step in range(5 - keep, 5)]
    checkpoints.save(2, {"a": torch.zeros(1)}, {})  # gone back to: later ones were passed over
    assert checkpoints.last.stem == "step-00000002"


def test_keep_is_an_option_that_may_change(copy, capsys):
    shutil.rmtree(copy / "run" / "model")
    for path in Checkpoints(copy / "run" / "checkpoints").files():
        path.unlink()
    command = ["train", str(copy / "t.csv"), "--out", str(copy / "run"), "--resume", "--train.keep", "4"]
    command += [word for name, value in GIVEN.items() if name != "train.baseline" for word in (f"--{name}", str(value))]
    assert main([*command, "--no-train.baseline"]) == 0, capsys.readouterr().err
    assert len(Checkpoints(copy / "run" / "checkpoints").files()) == 4


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "training.json"])
def test_a_changed_file_of_a_model_is_an_error_and_not_another_prediction(name, copy):
    path = copy / "run" / "model" / name
    if name == "config.json":
        known = json.loads(path.read_text())
        del known["positions"]  # read with its default, that would be another model
        path.write_text(json.dumps(known))
    elif name == "training.json":
        path.write_text(path.read_text().replace('"bad",', '"BAD",', 1))
    else:
        flip(path, path.stat().st_size - 9)
    with pytest.raises(Damaged, match=rf"{name} has changed"):
        model_folder.load(copy / "run")


def test_changed_token_files_stop_a_run_before_it_starts(copy):
    shutil.rmtree(copy / "run" / "model")
    flip(copy / "run" / "data" / "train-00000.tokens.bin", 6)
    with pytest.raises(Damaged, match=r"the content of train-00000\.tokens\.bin has changed"):
        resume(copy)
    data = shutil.copytree(copy / "run" / "data", copy / "data")
    with pytest.raises(Damaged, match="has changed"):
        run(data, copy / "new", Settings.of(None, {name: value for name, value in GIVEN.items() if name != "prepare.vocab"}), quiet=True)
    assert not (copy / "new").exists()


def test_a_changed_card_is_an_error(copy):
    card = copy / "run" / "data" / "card.json"
    card.write_text(card.read_text().replace('"shard_tokens": 1', '"shard_tokens": 2', 1))
    with pytest.raises(Damaged, match=r"the content of card\.json has changed"):
        TokenFiles(copy / "run" / "data")


# --- sizes before memory ---------------------------------------------------------------------------------------------


def forged(folder: Path, **changes: object) -> None:
    """As someone who knows the format would: config.json is another one, and every hash fits."""
    config, record = folder / "config.json", folder / "training.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    known = json.loads(record.read_text())
    known.pop("checksum")
    known["files"]["config.json"] = sha256_file(config)[1]
    record.write_text(json.dumps(seal(known)))


LIMIT = """
import resource, sys
import torch, transformers
from tokmix.training import model_folder
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
try: model_folder.load(sys.argv[1])
except ValueError as error: sys.exit(str(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"dim": 10**9}, {"vocab": 10**9}, {"dim": 2**62}, {"stack": "attention*10000"}, {"stack": "hypermixing(hidden=1000000000)"},
        {"feed_forward": 10**9}, {"positions": "learned", "max_len": 10**9}, {"ngrams": 2, "buckets": 10**9}, {"separator": 2**31},
    ],
    ids=str,
)  # fmt: skip
def test_a_forged_config_takes_no_memory(changes, copy):
    forged(copy / "run" / "model", **changes)
    command = [sys.executable, "-c", LIMIT, str(copy / "run" / "model")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr[-500:]
    assert "does not fit" in done.stderr or "config.json" in done.stderr


def test_a_special_token_outside_the_vocabulary_is_an_error(copy):
    path = copy / "run" / "model" / "training.json"
    known = json.loads(path.read_text())
    known.pop("checksum")
    known["tokenizer"]["roles"]["cls"] = 2**31
    path.write_text(json.dumps(seal(known)))
    with pytest.raises(Damaged, match="special token has the id 2147483648"):
        model_folder.load(copy / "run")


def refilled(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """As `forged`: other weights, and every hash fits."""
    tensors, notes = load_tensors(folder / "model.safetensors")
    change(tensors)
    notes.pop("sha256", None)
    save_tensors(folder / "model.safetensors", tensors, notes)
    known = json.loads((folder / "training.json").read_text())
    known.pop("checksum")
    known["files"]["model.safetensors"] = sha256_file(folder / "model.safetensors")[1]
    (folder / "training.json").write_text(json.dumps(seal(known)))


def test_weights_that_are_not_finite_are_an_error(copy):
    refilled(copy / "run" / "model", lambda tensors: tensors["core.head.bias"].fill_(float("nan")))
    with pytest.raises(Damaged, match=r"core\.head\.bias of model\.safetensors holds numbers that are not finite"):
        model_folder.load(copy / "run")


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str)
def test_weights_of_another_type_are_an_error_and_not_another_prediction(kind, copy):
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["core.head.weight"] = tensors["core.head.weight"].to(kind)

    refilled(copy / "run" / "model", change)
    with pytest.raises(Damaged, match=rf"core\.head\.weight of model\.safetensors is {kind}, not torch\.float32"):
        model_folder.load(copy / "run")


def test_weights_in_half_precision_are_read(copy, whole):
    """As other tools save them."""
    refilled(copy / "run" / "model", lambda tensors: tensors.update({name: one.bfloat16() for name, one in tensors.items()}))
    found, wanted = model_folder.load(copy / "run").model.state_dict(), model_folder.load(whole / "run").model.state_dict()
    assert all(torch.equal(found[name], wanted[name].bfloat16().float()) for name in wanted)


HUGE = {"choose a smaller model.dim": ["--model.dim", "100000000"], "at most 1,000": ["--stack", "attention*10000"]}


@pytest.mark.parametrize("words", HUGE)
def test_a_model_that_no_memory_holds_is_one_line_and_leaves_nothing(words, whole, tmp_path, capsys):
    assert main(["train", str(whole / "t.csv"), "--out", str(tmp_path / "run"), "--prepare.vocab", "200", *HUGE[words]]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and words in said[0], said
    assert list(tmp_path.iterdir()) == []


# --- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_lost_rank_is_one_line_and_the_run_goes_on(whole, tmp_path):
    import socket
    import time

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = tmp_path / "run"
    given = [
        word for name, value in (GIVEN | {"train.steps": 100_000}).items() if name != "train.baseline" for word in (f"--{name}", str(value))
    ]
    command = [sys.executable, "-m", "tokmix", "train", str(whole / "t.csv"), "--out", str(out), "--no-train.baseline", *given]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, **world, "RANK": f"{rank}"})
        for rank in range(2)
    ]
    end = time.monotonic() + 120
    while Checkpoints(out / "checkpoints").last is None and time.monotonic() < end:
        time.sleep(0.05)
    ranks[1].kill()
    said = ranks[0].communicate(timeout=60)[1]
    ranks[1].communicate()
    told = [line for line in said.splitlines() if line.startswith("tokmix ")]
    assert ranks[0].returncode == 1 and len(told) == 1 and "another process of this run was lost" in told[0], said[-800:]
    assert "Traceback" not in said and Checkpoints(out / "checkpoints").load() is not None


@pytest.mark.parametrize("change", ["term", "missing"])
def test_a_changed_bag_of_words_is_an_error_and_not_another_prediction(change, whole, tmp_path):
    settings = Settings.of(None, GIVEN | {"train.steps": 1, "train.baseline": True})
    run(whole / "t.csv", tmp_path / "run", settings, quiet=True)
    path = tmp_path / "run" / "model" / "linear.json"
    assert model_folder.load(tmp_path / "run").linear is not None, "a step teaches a network less than a bag of words knows"
    known = json.loads(path.read_text())
    known["vocabularies"][0]["terms"].reverse()
    path.unlink() if change == "missing" else path.write_text(json.dumps(known))
    with pytest.raises(Damaged, match=r"linear\.json"):
        _ = model_folder.load(tmp_path / "run").linear


def test_changed_token_files_give_no_other_figure(copy, capsys):
    (shard,) = (copy / "run" / "data").glob("test-*.tokens.bin")
    content = bytearray(shard.read_bytes())
    content[2] ^= 1
    shard.write_bytes(content)
    assert main(["eval", str(copy / "run"), str(copy / "run" / "data")]) == 1
    assert "content of test-00000.tokens.bin has changed" in capsys.readouterr().err


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_second_interruption_while_a_run_is_removed_leaves_one_that_goes_on(after, whole, tmp_path, monkeypatch, capsys):
    """The first comes while the data is read, the second so many removals later."""
    real, count = os.unlink, 0

    def interrupted(*given, **named):
        nonlocal count
        count += 1
        if count == after + 1:
            raise KeyboardInterrupt
        real(*given, **named)

    def reading(*given):
        monkeypatch.setattr(os, "unlink", interrupted)
        raise KeyboardInterrupt

    out, table = tmp_path / "run", str(whole / "t.csv")
    words = [word for name, value in GIVEN.items() if name != "train.baseline" for word in (f"--{name}", str(value))]
    with monkeypatch.context() as patch:
        patch.setattr("tokmix.training.train.task_for", reading)
        assert main(["train", table, "--out", str(out), "--no-train.baseline", *words]) == 130
    monkeypatch.undo()
    assert out.exists() and capsys.readouterr().err == "tokmix train: interrupted; continue with the same command and --resume\n"
    assert main(["train", table, "--out", str(out), "--no-train.baseline", "--resume", *words]) == 0
    assert same(out, whole / "run")
