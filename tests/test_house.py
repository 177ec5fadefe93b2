"""The house rules: one-way imports, a light import, a quick --help, no lint, no type errors."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tokmix
from tokmix.cli.commands import COMMANDS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tokmix"

# Bottom to top: a floor imports from those before it, never from those behind it. `reproduce/` stands on top of all of them.
ROOMS = [
    "core", "ops", "layers", "contract", "hf", "show", "runs", "data", "runtime", "training", "study", "export", "pages",
    "api", "sklearn", "cli", "__main__",
]  # fmt: skip


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT)


def room(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "tokmix":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tokmix."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("tokmix.")}
    return found


def test_imports_go_one_way() -> None:
    for path in SOURCE.rglob("*.py"):
        here = room(path)
        if here == "__init__":
            continue
        assert here in ROOMS, f"{path.name} has no place in the house: add it to ROOMS"
        for other in imported_rooms(path):
            assert ROOMS.index(other) <= ROOMS.index(here), f"{path.relative_to(ROOT)} imports from {other}, which is a higher floor"


LOOPS = {
    "training/optimizers.py",
    "speed/train.py",
    "speed/train_loop.py",
    "speed/user_child.py",
}  # all but the first are rivals, written as anybody would


def test_one_place_steps_an_optimizer() -> None:
    """All training goes through Optimizers.update: nothing else makes or steps an optimizer of torch's."""
    found = set()
    for top in (SOURCE, ROOT / "reproduce", ROOT / "bench"):
        for path in top.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                made = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch.optim" and node.attr != "Optimizer"
                imported = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.optim")
                name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if made or imported or (name.endswith(".step") and "optim" in name):
                    found.add(str(path.relative_to(top)))
    assert found == LOOPS


LOOP = ["loop", "step", "engine", "replicas", "capture"]  # files of training/: the loop, its replicas and what records them


def test_one_training_loop_and_it_stays_short() -> None:
    assert sum(len((SOURCE / "training" / f"{name}.py").read_text().splitlines()) for name in LOOP) <= 900
    callers = {
        str(path.relative_to(top))
        for top in (SOURCE, ROOT / "reproduce")
        for path in top.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and not node.args and ast.unparse(node.func).endswith(".advance")  # a mixer's takes arguments
    }
    assert callers == {"training/loop.py"}


# Ratchets: numbers that may fall and must not rise. Whoever lowers one writes the new number here.
MOST_FILE_LINES = 350
LONG_FILES: dict[str, int] = {}
MOST_FUNCTION_LINES = 60  # a longer one has `# long: <why>` in its first lines
MOST_ANY_LINES = 188
MOST_SOURCE_LINES = 43_500


def python_files(*tops: str) -> list[Path]:
    return [path for top in tops for path in sorted((ROOT / top).rglob("*.py"))]


def test_no_file_outgrows_a_sitting() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files("src", "reproduce", "bench")}
    assert {name: count for name, count in lines.items() if count > LONG_FILES.get(name, MOST_FILE_LINES)} == {}
    mended = {name for name in LONG_FILES if lines.get(name, 0) <= MOST_FILE_LINES}
    assert not mended, f"short again: take {mended} out of LONG_FILES"


def test_no_long_function_without_a_reason() -> None:
    found = []
    for path in python_files("src", "reproduce", "bench"):
        text = path.read_text()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                head = lines[max(node.lineno - 3, 0) : node.body[0].end_lineno]
                if length > MOST_FUNCTION_LINES and not any(re.search(r"# long: \w", line) for line in head):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {length} lines")
    assert not found


def test_the_source_does_not_grow_back() -> None:
    lines = [line for path in python_files("src") for line in path.read_text().splitlines()]
    loose = sum(bool(re.search(r"\bAny\b", line)) for line in lines)
    assert loose <= MOST_ANY_LINES, f"{loose} lines with the word Any: name the type, or make the dict a dataclass"
    assert len(lines) <= MOST_SOURCE_LINES, f"{len(lines)} lines: delete what no longer earns its place"


def test_importing_loads_no_package_beyond_torchs_own() -> None:
    code = """
import sys, torch
torch.compile, torch.utils.checkpoint
before = {name.split('.')[0] for name in sys.modules}
import tokmix
from tokmix.cli.commands import COMMANDS
for name in tokmix.__all__: getattr(tokmix, name)
for name in tokmix.mixers():
    tokmix.create(name, 16, causal='causal' in tokmix.core.mixer.mixer_class(name).modes, max_len=8)
new = {name.split('.')[0] for name in sys.modules} - before - set(sys.stdlib_module_names)
print(sorted(name for name in new if name != 'tokmix'))
"""
    done = run("-c", code)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [["--help"], *([name, "--help"] for name in COMMANDS)],
    ids=" ".join,
)
def test_help_needs_no_torch(command: list[str]) -> None:
    code = f"""
import sys
from tokmix.cli import main
try: main({command!r})
finally: assert 'torch' not in sys.modules
"""
    done = run("-c", code)
    assert done.returncode == 0 and "usage: tokmix" in done.stdout, done.stderr


def test_everything_public_is_there_and_typed() -> None:
    assert tokmix.__all__ == ["__version__", *tokmix._HOME]
    for name in tokmix.__all__:
        assert getattr(tokmix, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'mixer_zoo'"):
        tokmix.mixer_zoo  # noqa: B018
    assert callable(tokmix.mixers) and callable(tokmix.generate), "no submodule may take a public function's name"


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "ruff", "check", "src", "tests", "reproduce", "bench"],
        ["-m", "ruff", "format", "--check", "src", "tests", "reproduce", "bench"],
        ["-m", "mypy"],
    ],
    ids=["lint", "format", "types"],
)
def test_lint_format_and_types(command: list[str]) -> None:
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
