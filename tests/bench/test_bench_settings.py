"""What a benchmark is asked for: sizes, names, options, time, and what it says where it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.speed.session import Session
from bench.speed.settings import BenchSettings
from tests.benches import quick
from tokmix.cli.main import main


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--lengths", "0"], "lengths=0 is not a whole number of at least 1"),
        (["--threads", "-1"], "threads=-1"),
        (["--threads", "0"], "threads=0 is not a whole number of at least 1"),
        (["--dim", "0"], "dim=0 is not a whole number of at least 1"),
        (["--minutes", "0"], "minutes=0.0 should be above 0"),
        (["--out", "nowhere/ops.json"], "nowhere is no folder"),
        (["--out", "ops.txt"], "should name a .json file"),
    ],
)
def test_what_does_not_work_is_said_in_one_line(more: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ops", "--quick", "--device", "cpu", *more]) == 1
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("what", "more", "words"),
    [
        ("train", ["--dim", "10"], "bench train does not read --dim; it reads --quick, "),
        ("train", ["--dtype", "float16"], "bench train does not read --dtype"),
        ("train-loop", ["--lengths", "3"], "bench train-loop does not read --lengths"),
        ("decode", ["--tokens", "64"], "bench decode does not read --tokens"),
        ("layers", ["--compiled", "all"], "bench layers does not read --compiled"),
        ("user", ["--lengths", "3"], "bench user does not read --lengths"),
        ("ops", ["--data", "x.csv"], "bench ops does not read --data"),
        ("import", ["--quick"], "bench import does not read --quick; it reads no option"),
    ],
)
def test_an_option_that_a_benchmark_does_not_read_is_refused(
    what: str, more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", what, *more]) == 1
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1


def test_sizes_that_say_nothing_are_neither_recorded_nor_in_the_title() -> None:
    from bench.speed.run import title_of

    ops, train = (Session(BenchSettings(what, quick=True, device="cpu"), say=lambda line: None).record() for what in ("ops", "train"))
    assert train["asked"]["dim"] is None and train["asked"]["dtype"] is None and train["asked"]["lengths"] == (16, 32)
    assert title_of(ops).endswith(", float32, d = 32") and "d = " not in title_of(train) and "float32" not in title_of(train)


@pytest.mark.parametrize(("what", "name"), [("ops", "shift_mix, ab"), ("decode", "hsm, ladder"), ("train", "LM")])
def test_a_name_that_nothing_has_is_told(what: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    assert main(["bench", what, "--quick", "--device", "cpu", "--only", "nope", "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert f"--only nope: bench {what} has nothing of that name" in said and name in said and not out.exists()


def test_one_name_of_two_that_nothing_has_is_noted(tmp_path: Path) -> None:
    code, found = quick("decode", "--only", "hsm, ladder", "nope", "--lengths", "16", out=tmp_path / "decode.json")
    assert code == 0 and found["rows"] and found["left_out"] == ["nope: nothing has such a name"]


def test_only_its_own_files_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["bench", "decode", "--quick", "--device", "cpu", "--only", "hsm, ladder", "--lengths", "16", "--out"]
    own, other, text, lone = (tmp_path / name for name in ("own.json", "other.json", "text.json", "lone.json"))
    assert main([*ask, str(own)]) == main([*ask, str(own)]) == 0
    other.write_text(json.dumps({"bench": "ops", "asked": {}, "rows": []}))
    text.write_bytes(b"\xff mine")
    lone.with_suffix(".png").write_text("mine")
    capsys.readouterr()
    for path, taken in ((other, other), (text, text), (lone, lone.with_suffix(".png"))):
        before = taken.read_bytes()
        assert main([*ask, str(path)]) == 1
        said = capsys.readouterr()
        assert not said.out and f"{taken} exists" in said.err and "nothing is overwritten" in said.err and taken.read_bytes() == before


def test_a_layer_that_cannot_be_built_is_told_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "layers", "--quick", "--device", "cpu", "--only", "hypermlp", "--dim", "7"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("refused, since it fails: hypermlp: ValueError: ") and "numbers are wrong" not in last


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ops", "--device", "cuda"]) == 1
    assert "finds no GPU" in capsys.readouterr().err


def test_a_run_out_of_time_says_what_it_left_out(tmp_path: Path) -> None:
    code, found = quick("ops", "--minutes", "1e-9", out=tmp_path / "ops.json")
    assert code == 0 and found["rows"] == [] and found["left_out"] == ["everything after 1e-09 minutes"]


def test_sizes_by_device() -> None:
    gpu, cpu = (BenchSettings("ops").sized(device) for device in ("cuda", "cpu"))
    assert gpu.lengths[0] == cpu.lengths[0] == 128 and gpu.lengths[-1] == 65_536 and cpu.lengths[-1] == 4096
    assert (gpu.dtype, gpu.compiled, gpu.tokens) == ("bfloat16", "one", 65_536) and (cpu.dtype, cpu.compiled) == ("float32", "none")
    assert BenchSettings("ops", lengths=(64, 8, 64)).sized("cpu").lengths == (8, 64)


def test_a_body_that_fails_does_not_end_a_run() -> None:
    session = Session(BenchSettings("ops", quick=True, device="cpu"), say=lambda line: None)

    def fails() -> None:
        raise RuntimeError("no room")

    assert session.time(fails, {"name": "a", "body": "b", "way": "forward", "N": 8}) is None
    assert session.rows == [] and session.notes == ["a, b, forward, N=8: RuntimeError: no room"]
