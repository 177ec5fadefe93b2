"""The wheel holds the package, its recipes and pages, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tokmix

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tokmix"


def build(place: Path, kind: str) -> Path:
    """A wheel or an sdist, built from a copy of what git tracks."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        if name.startswith("src/") or name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"):
            (place / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (place / "source" / name).write_bytes((ROOT / name).read_bytes())
    code = f"from hatchling import build; print(build.build_{kind}({str(place)!r}))"
    built = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=place / "source")
    assert built.returncode == 0, built.stderr[-3000:]
    return place / built.stdout.split()[-1]


def test_code_citation_and_changelog_have_one_version() -> None:
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited == [tokmix.__version__]
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in ("Unreleased", tokmix.__version__) and tokmix.__version__ in headings


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """What the wheel's archive lists."""
    return set(zipfile.ZipFile(wheel).namelist())


def test_a_second_build_has_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    assert build(tmp_path / "wheel", "wheel").read_bytes() == wheel.read_bytes()
    assert build(tmp_path / "first", "sdist").read_bytes() == build(tmp_path / "second", "sdist").read_bytes()


def test_the_wheel_alone_says_its_version_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Without torch, numpy or anything else; a command that needs one names the extra."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "there")
    run = lambda *words: subprocess.run(
        [sys.executable, "-S", "-E", "-m", "tokmix", *words], capture_output=True, text=True, cwd=tmp_path / "there"
    )
    assert run("--version").stdout == f"tokmix {tokmix.__version__}\n"
    assert run("train", "--help").returncode == 0
    outside = run("bench", "ops")
    assert outside.returncode == 1 and "does not hold the benchmark 'ops': clone the repository" in outside.stderr, outside.stderr
    missing = run("show", "attention")
    assert missing.returncode == 1 and "pip install" in missing.stderr and len(missing.stderr.splitlines()) == 1, missing.stderr


def test_the_wheel_holds_the_whole_package(names: set[str]) -> None:
    tracked = subprocess.run(["git", "ls-files", "src/tokmix"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert {name.removeprefix("src/") for name in tracked} == {name for name in names if name.startswith("tokmix/")}


def test_the_wheel_holds_nothing_else(names: set[str]) -> None:
    rest = {name for name in names if not name.startswith("tokmix/")}
    assert all(name.split("/")[0].endswith(".dist-info") for name in rest), rest
    assert any(name.endswith("licenses/LICENSE") for name in rest)
