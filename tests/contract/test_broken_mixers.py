"""`tokmix check` on mixers that are wrong in one way each: the message says what, where and with which numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tokmix.api.mixers import check

pytestmark = pytest.mark.usefixtures("clean_registry")

RIGHT = """
import torch
import tokmix


@tokmix.register("NAME")
class RunningSum(tokmix.RowMixer):
    modes = frozenset({"causal", "padded", "packed", "step"})
    order = "T"

    def __init__(self, dim: int, *, causal: bool, max_len: int, layer: int = 0):
        super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
        self.gain = torch.nn.Parameter(torch.ones(dim))

    def mix(self, x, rows):
        return self.advance(x, self.empty_state(x.shape[0], x), rows)[0]

    def empty_state(self, batch, like):
        return {"total": like.new_zeros(batch, self.dim)}

    def advance(self, x, state, rows):
        total = x.cumsum(1) + state["total"][:, None]
        y = self.gain.to(x.dtype) * total
        return y, {"total": state["total"] + x.sum(1)}

    def cost(self, length):
        return tokmix.Cost(0, 2 * length * self.dim, self.dim)
"""
OUTPUT = "y = self.gain.to(x.dtype) * total"
OWN_FORWARD = """def forward(self, x, segments=None, *, keys=None, values=None, key_segments=None):
        y = self.gain.to(x.dtype) * x.cumsum(1)
        return y if segments is None else RESULT

    def mix(self, x, rows)"""
DECLARED, FITS, PADDED = "modes, order and options are declared", "the output has the shape of the input, and repeats", "padded sequences"
# name -> what is replaced, by what, the rule that fails, its message
BROKEN = {
    "future": (
        OUTPUT,
        OUTPUT + " + torch.cat([x[:, 1:], 0 * x[:, :1]], 1)",
        "future",
        "token 0 reads token 1, .*: gradient 1 instead of 0",
    ),
    "padding": (
        "def mix(self, x, rows)",
        OWN_FORWARD.replace("RESULT", "y"),
        PADDED,
        "at padding should be 0, but is nan at row 0, token 7",
    ),
    "nan": (
        "def mix(self, x, rows)",
        OWN_FORWARD.replace("RESULT", "y * segments.mask[..., None]"),
        PADDED,
        "at padding should be 0, but is nan at row 0, token 7",
    ),
    "batch": (
        OUTPUT,
        OUTPUT + " + total.mean(0)",
        PADDED,
        r"against each sequence alone: .* at token \d+, channel \d+; 688 of 688 numbers",
    ),
    "drift": (
        '{"total": state["total"]',
        '{"total": 0.999 * state["total"]',
        "token by token",
        r"token 5 by step, .*: -?\d.* instead of -?\d",
    ),
    "in_place": (
        'state["total"] + x.sum(1)}',
        'state["total"].add_(x.sum(1).detach())}',
        "leaves a state",
        "step changed the state it was given",
    ),
    "state": ("self.dim, self.dim)", "self.dim, 5)", "size of the state", "3 rows keep 48 numbers after 9 tokens, and .* says 5 a row"),
    "cost": ("Cost(0,", "Cost(6,", "operation counter", r"cost\(1\).matmul is 6, and torch counts 0"),
    "no_cost": (
        "return tokmix.Cost(0, 2 * length * self.dim, self.dim)",
        "return 7",
        "operation counter",
        "returns 7 instead of a tokmix.Cost",
    ),
    "shape": ("return y, {", "return y[:, :-1], {", FITS, r"tokens of shape \[2, 6, 16\] come out as \[2, 5, 16\]"),
    "random": (OUTPUT, OUTPUT + " * (1 + torch.rand(()))", FITS, r"a second call with the same tokens: .* 192 of 192 numbers differ"),
    "detached": (
        OUTPUT,
        OUTPUT.replace("total", "total.detach()").replace("self.gain", "self.gain.detach()"),
        FITS,
        "no gradient flows back",
    ),
    "dtype": (OUTPUT, OUTPUT + ".float()", "half precision", "tokens of torch.bfloat16 come out as torch.float32"),
    "slope": (
        OUTPUT,
        OUTPUT.replace("total", "total.float()"),
        "finite differences",
        "the gradient of x is not the slope: Jacobian mismatch",
    ),
    "crash": (
        "torch.ones(dim))",
        "torch.ones(3) @ torch.ones(4))",
        "it can be made",
        r"RuntimeError: .* \(crash.py, line 13, in __init__\)",
    ),
    "signature": ("def mix(self, x, rows)", "def mix(self, x)", DECLARED, r"too many positional .* called with \(self, x, rows\)"),
    "constructor": (
        ", max_len: int, layer: int = 0",
        "",
        DECLARED,
        "unexpected keyword argument 'max_len'; it is called with .dim, causal",
    ),
    "missing": ("def cost(", "def costs(", DECLARED, "the method is missing"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    old, new, rule, message = BROKEN[name]
    assert old in RIGHT
    path = tmp_path / f"{name}.py"
    path.write_text(RIGHT.replace(old, new).replace("NAME", name))
    whole = rule in (DECLARED, FITS, "it can be made")  # after these nothing else is tried, so that one failure is not told 20 times
    failed = [one for one in check(path, only=None if whole else rule)[name] if one.failed]
    assert len(failed) == 1 and rule in failed[0].rule and failed[0].stopped == whole, failed
    assert any(re.search(message, told) for told in failed[0].failures.values()), failed[0].failures


def test_a_file_that_does_not_run_is_named_with_its_line(tmp_path: Path) -> None:
    for number, (old, new, message) in enumerate([
        ("self.dim, self.dim)", "self.dim, self.dim", r"typo0.py: SyntaxError: '\(' was never closed \(typo0.py, line \d+\)"),
        ("import torch\n", "import torch\n1 / 0\n", "typo1.py, line 3: ZeroDivisionError: division by zero"),
    ]):  # fmt: skip
        path = tmp_path / f"typo{number}.py"
        path.write_text(RIGHT.replace(old, new))
        with pytest.raises(ValueError, match=message):
            check(path)


@pytest.mark.slow
def test_the_mixer_that_the_others_are_made_from_is_right(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT.replace("NAME", "right"))
    assert not any(one.failed for one in check(tmp_path / "right.py")["right"])
