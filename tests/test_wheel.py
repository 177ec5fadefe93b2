"""The wheel holds the package, its recipes and pages, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tokmix"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What the wheel's archive lists. Built from a copy: setuptools leaves a build folder in the source tree."""
    place = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        if name.startswith("src/") or name in ("pyproject.toml", "README.md", "LICENSE"):
            (place / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (place / "source" / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(place), str(place / "source")]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    (wheel,) = place.glob("tokmix-*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_the_whole_package(names: set[str]) -> None:
    tracked = subprocess.run(["git", "ls-files", "src/tokmix"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert {name.removeprefix("src/") for name in tracked} == {name for name in names if name.startswith("tokmix/")}


def test_the_wheel_holds_nothing_else(names: set[str]) -> None:
    rest = {name for name in names if not name.startswith("tokmix/")}
    assert all(name.split("/")[0].endswith(".dist-info") for name in rest), rest
    assert any(name.endswith("licenses/LICENSE") for name in rest)
