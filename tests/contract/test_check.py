"""`tokmix check` and `tokmix new-mixer`: a mixer of one's own, without the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tokmix.api.mixers import check
from tokmix.cli.main import main
from tokmix.contract.template import write

pytestmark = pytest.mark.usefixtures("clean_registry")
ROOT = Path(__file__).parent.parent.parent

WRONG = """
import torch
import tokmix


@tokmix.register("wrong_mean")
class WrongMean(tokmix.RowMixer):
    modes = frozenset({"causal", "padded", "packed"})
    order = "T"

    def __init__(self, dim: int, *, causal: bool, max_len: int, layer: int = 0, power: int = 3):
        super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
        self.power = power
        self.weight = torch.nn.Parameter(torch.eye(dim))

    def mix(self, x, rows):
        if self.power == 1:
            return x.nothing()
        return (x @ self.weight).mean(1, keepdim=True).expand(x.shape)

    def cost(self, length):
        return tokmix.Cost(matmul=7, pointwise=length * self.dim)
"""


def test_what_is_wrong_is_said_with_place_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    assert main(["check", str(tmp_path / "wrong.py"), "--json"]) == 1
    found = {one["rule"]: one["failures"] for one in json.loads(capsys.readouterr().out)["wrong_mean"]}
    default, loud = "wrong_mean-causal-default", "wrong_mean-causal-power=1"
    assert (
        found["the future has exactly zero gradient"][default] == "token 0 reads token 1, which is the future: gradient 0.163 instead of 0"
    )
    assert found["cost equals torch's operation counter"][default] == "cost(1).matmul is 7, and torch counts 512"
    padded = found["padded sequences come out as they do alone"][default]
    assert padded.startswith("padded, against each sequence alone: ") and "at token 22, channel 12; 368 of 688 numbers differ" in padded
    assert found["weights can be saved and loaded"][loud].endswith("has no attribute 'nothing' (wrong.py, line 18, in mix)")
    assert not found["modes, order and options are declared"] and not found["a batch may have no rows, no tokens, or one token"].get(
        default
    )


def test_a_rule_can_be_asked_for_and_a_known_mixer_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "identity", "--only", "COST"]) == 0
    printed = capsys.readouterr().out
    assert "ok    cost equals torch's operation counter" in printed and printed.endswith("identity: all 2 rules hold\n")
    with pytest.raises(ValueError, match="no rule has 'spelling' in its name"):
        check("identity", only="spelling")
    with pytest.raises(ValueError, match="unknown mixer 'hsmm'.*did you mean 'hsm'"):
        check("hsmm")


def test_a_declaration_that_is_not_one_is_named(tmp_path: Path) -> None:
    changes = {
        'order = "T"': "",
        '"causal", "padded", "packed"': '"padded", "packed"',
        "causal: bool,": "causal: bool = False,",
        "power: int = 3": "power=3",
    }
    for number, (old, new) in enumerate(changes.items()):
        path = tmp_path / f"wrong{number}.py"
        path.write_text(WRONG.replace(old, new).replace("wrong_mean", f"wrong_mean{number}"))
        ((first, *rest),) = check(path).values()
        assert not rest and len(first.failures) == 1, first
    (tmp_path / "none.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match="registers no mixer"):
        check(tmp_path / "none.py")
    with pytest.raises(ValueError, match="no file"):
        check(tmp_path / "absent.py")


def test_the_template_holds_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-mixer", "slow_mean"]) == 0
    assert main(["check", "slow_mean.py"]) == 0, capsys.readouterr().out
    assert "slow_mean: all 26 rules hold" in capsys.readouterr().out
    assert main(["new-mixer", "slow_mean"]) == 1 and "slow_mean' is taken" in capsys.readouterr().err


def test_the_mixer_that_contributing_shows_holds_the_contract(tmp_path: Path) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    block = page.split("   ```python\n")[1].split("   ```\n")[0]
    (tmp_path / "shown.py").write_text(textwrap.dedent(block))
    (outcomes,) = check(tmp_path / "shown.py").values()
    assert len(outcomes) == 26 and not any(one.failures for one in outcomes), [one for one in outcomes if one.failures]


def test_names_that_do_not_work(tmp_path: Path) -> None:
    for name, words in (("My-Mixer", "lower-case letters"), ("class", "lower-case"), ("hsm", "is taken by tokmix.layers.hsm")):
        with pytest.raises(ValueError, match=words):
            write(name, tmp_path)
    write("my_mixer", tmp_path)
    with pytest.raises(ValueError, match="nothing is overwritten"):
        write("my_mixer", tmp_path)
    with pytest.raises(ValueError, match="no folder"):
        write("my_mixer", tmp_path / "absent")


@pytest.mark.slow
def test_one_file_one_import_line_and_one_row_of_the_readme_add_a_mixer(tmp_path: Path) -> None:
    """To a temporary checkout, whose own tests then find it and try it."""
    for name in ("src/tokmix", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "Makefile", "pyproject.toml", "docs", "bench"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile)(ROOT / name, tmp_path / name)
    write("slow_mean", tmp_path / "src" / "tokmix" / "layers")
    layers, readme = tmp_path / "src" / "tokmix" / "layers" / "__init__.py", tmp_path / "docs" / "README.md"
    layers.write_text(layers.read_text() + "from tokmix.layers import slow_mean  # noqa: F401\n")
    row = "| [`slow_mean`](README.md) | T | causal, step | a running mean |\n<!-- end -->"
    readme.write_text(readme.read_text().replace("<!-- end -->", row, 1))
    tests = ["tests/test_readme.py", "tests/layers/test_mixers.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "slow_mean or readme", *tests]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1])
    assert passed > 40, "every rule should have been tried on the new mixer"
