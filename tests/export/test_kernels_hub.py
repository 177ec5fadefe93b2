"""The kernel repository is loaded without tokmix and computes what the references compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tokmix.cli.main import main
from tokmix.ops import hyper_mix, linear_attention, shift_mix
from tokmix.ops.hyper_mix import Net

LOAD = """
import importlib.util, json, sys
from pathlib import Path
sys.modules["tokmix"] = None  # importing it is an error
import torch
from safetensors.torch import load_file
place, tensors = Path(sys.argv[1]), load_file(sys.argv[2])
name = json.loads((place / "metadata.json").read_text())["id"]
spec = importlib.util.spec_from_file_location(name, place / "__init__.py")  # as the package `kernels` does
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
spec.loader.exec_module(module)
x, a, b, q = (tensors[key] for key in ("x", "a", "b", "q"))
net = module.hyper_mix.Net(*(tensors[key] for key in ("w1", "b1", "w2", "b2")))
found = {
    "shift": module.shift_mix.shift_mix(x, [a, b], (1, 2)),
    "hyper": module.hyper_mix.mix(x, net),
    "linear": module.linear_attention.bidirectional(*(module.linear_attention.features(q),) * 2, q),
}
for key, value in found.items():
    gap = (value - tensors[key]).abs().max() / tensors[key].abs().max()
    assert gap < 1e-5, (key, float(gap))
assert not [key for key in sys.modules if key.split(".")[0] == "tokmix" and sys.modules[key] is not None]
print("same")
"""


def expected(path: Path) -> None:
    torch.manual_seed(0)
    draw = {"x": (2, 9, 16), "a": (2, 8), "b": (2, 8), "q": (2, 2, 9, 8), "w1": (2, 8, 8), "b1": (2, 8), "w2": (2, 8, 16), "b2": (2, 16)}
    t = {name: torch.randn(shape) for name, shape in draw.items()}
    net = Net(t["w1"], t["b1"], t["w2"], t["b2"])
    heads = t["x"].unflatten(-1, (2, 8))
    t["shift"] = shift_mix.weighted(heads, [shift_mix.partners(heads, (1, 2))], [t["a"], t["b"]]).flatten(2)
    t["hyper"] = hyper_mix.mix(t["x"], net)
    features = linear_attention.features(t["q"])
    t["linear"] = linear_attention.bidirectional(features, features, t["q"])
    save_file({name: value.contiguous() for name, value in t.items()}, path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    assert main(["kernels", str(folder / "repository")]) == 0
    expected(folder / "expected.safetensors")
    return folder / "repository"


def run(built: Path, backend: str, **more: str) -> subprocess.CompletedProcess[str]:
    place = built / "build" / f"torch-{backend}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    command = [sys.executable, "-c", LOAD, str(place), str(built.parent / "expected.safetensors")]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
def test_it_is_loaded_without_tokmix_and_gives_the_same(built: Path, backend: str) -> None:
    done = run(built, backend)
    assert done.stdout.strip() == "same", done.stderr


@pytest.mark.slow
def test_its_kernels_give_the_same_in_the_interpreter(built: Path) -> None:
    pytest.importorskip("triton")
    done = run(built, "cuda", TOKMIX_IMPL="triton", TRITON_INTERPRET="1")
    assert done.stdout.strip() == "same", done.stderr


def test_its_parts_are_whole(built: Path) -> None:
    about = json.loads((built / "build" / "torch-cpu" / "metadata.json").read_text())
    assert about["backend"] == {"type": "cpu"} and about["id"].isidentifier()
    text = "".join(path.read_text() for path in (built / "build").rglob("*.py"))
    for left in ("from tokmix", "import tokmix", '"tokmix::', "torch.ops.tokmix.", '"tokmix.'):
        assert left not in text
    assert {"README.md", "LICENSE", "build"} == {path.name for path in built.iterdir()}


@pytest.mark.slow
def test_the_package_kernels_loads_it(built: Path) -> None:
    kernels = pytest.importorskip("kernels")
    module = kernels.get_local_kernel(built)
    assert torch.equal(module.shift_mix.shifted(torch.arange(3.0)[None, :, None], 1).flatten(), torch.tensor([0.0, 0.0, 1.0]))


def test_a_folder_that_is_there_is_left_alone(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", str(built)]) == 1
    assert "exists" in capsys.readouterr().err
