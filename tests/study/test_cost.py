"""What things cost: formulas against the operation counter and the paper, crossings, and the command about stacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tokmix
from tests.cases import ALL, DIM, Case
from tokmix.cli.main import main
from tokmix.core import mixer as registry
from tokmix.ops import flops as _flops  # noqa: F401  (tells the counter what is inside our own ops)
from tokmix.ops.hyper_mix import reference
from tokmix.study.cost import paper
from tokmix.study.cost.crossing import crossing, sentence
from tokmix.study.cost.stacks import Priced, Shape, pairs

SIZES = paper.Sizes()


# --- formulas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ALL, ids=str)
def test_forward_and_backward_equal_the_operation_counter(case: Case) -> None:
    """Two gradients a product, and what is computed again: exactly."""
    mixer = case.make().to("meta")
    for length in (16, 39):
        with FlopCounterMode(display=False) as counter:
            mixer(torch.empty(1, length, DIM, device="meta", dtype=torch.float64, requires_grad=True)).sum().backward()
        assert mixer.cost(length).training == counter.get_total_flops()


def test_costs_add_up_and_only_the_causal_scan_is_computed_again() -> None:
    a, b = tokmix.Cost(3, 5, 7, recomputed=2), tokmix.Cost(10, 1)
    assert a + b == tokmix.Cost(13, 6, 7, 13, 2) and (a + b).training == 41
    again = {case.name for case in ALL if case.make().cost(64).recomputed}
    assert again == {"hypermixing"}


def test_figure_2_is_the_printed_formulas_over_1e7() -> None:
    """Worked out by hand from section 7 of the formulas: d = 256, d' = 512, 4 heads."""
    found = paper.table(SIZES)
    assert found.lengths == [64, 125, 250, 500, 1000, 2000, 4000]
    hyper = [919_808 * n + 1_179_648 for n in found.lengths]  # 4dd' + 2d² + 2dd' + 9d a token, 9dd' a sequence
    printed = [98_304 + 1_024 * n * n + 3 * n for n in found.lengths]  # 6d²/h + 4dN² + 3N
    assert found.flops["hypermixing"] == hyper and found.flops["attention_printed"] == printed
    assert found.figure_2["hypermixing"] == pytest.approx([6.0047, 11.6156, 23.1132, 46.1084, 92.0988, 184.0796, 368.0412], abs=1e-4)
    assert found.figure_2["attention_printed"] == pytest.approx([0.4293, 1.6099, 6.4099, 25.61, 102.4101, 409.6104, 1638.411], abs=1e-4)


def test_the_corrected_crossing() -> None:
    assert paper.crossings(SIZES) == {"printed": 900, "corrected": 384}
    for name, start in (("attention_printed", 900), ("attention_corrected", 384)):
        attention = getattr(paper, name)
        assert paper.hypermixing(start - 1, SIZES) >= attention(start - 1, SIZES)
        assert all(paper.hypermixing(n, SIZES) < attention(n, SIZES) for n in range(start, 3000))
    assert paper.crossings(paper.Sizes(8, 100_000, 1))["corrected"] is None


@pytest.mark.parametrize("length", [1, 64, 125, 384, 4000])
def test_corrected_formulas_hold_the_products_that_are_counted(length: int) -> None:
    attention = tokmix.create("attention", 256, causal=False, max_len=4000, heads=4).to("meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        attention(torch.empty(1, length, 256, device="meta"))
    assert paper.attention_corrected(length, SIZES) - 4 * 4 * length**2 == counter.get_total_flops()
    gelu = 9 * 256 * 512 + 9 * 256 * length
    assert paper.hypermixing(length, SIZES) - gelu == reference.matmul_flops(length, length, 1, 256, 512, shared=True)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="heads=4 does not divide dim=30"):
        paper.Sizes(30, 60)
    with pytest.raises(ValueError, match="hidden=0"):
        paper.Sizes(32, 0)


# --- crossings -------------------------------------------------------------------------------------------------------


def test_crossings_are_found_one_by_one() -> None:
    met = crossing(lambda n: 100, lambda n: n * n, 50)
    assert (met.winner, met.start, met.b_less, met.a_less) == ("a", 11, [(1, 9)], [(11, 50)])  # equal at 10
    stairs = crossing(lambda n: n, lambda n: 10 * (n // 10) + 5, 34)  # back and forth on every step
    assert stairs.a_less[0] == (1, 4) and stairs.winner == "a" and stairs.start == 30
    assert sentence("A", "B", stairs) == "A costs less than B from 30 tokens on, and at 1 to 4, 10 to 14, 20 to 24"
    assert sentence("A", "B", crossing(lambda n: 2 * n, lambda n: n, 9)) == "B costs less than A at every length"
    assert sentence("A", "B", crossing(lambda n: n, lambda n: n, 9)) == "A and B cost the same at every length"
    assert sentence("A", "B", crossing(lambda n: min(n, 5), lambda n: min(2 * n, 5), 9)) == "A and B cost the same at 9 tokens"


def test_stacks_cross_where_their_costs_do() -> None:
    """Ours takes the re-associated form where it pays, so the crossing comes earlier than by the textbook's."""
    shape = Shape(dim=256, vocab=10, feed_forward=0)
    a, b = (Priced(stack, [8], shape, 600) for stack in ("hypermixing(norm='none')", "attention(heads=4)"))
    (pair,) = pairs([a, b], 600)
    mixers = [one.model.layers[0].mixer for one in (a, b)]
    slower = [n for n in range(1, 601) if mixers[0].cost(n).matmul >= mixers[1].cost(n).matmul]
    assert pair.matmul.winner == "a" and pair.matmul.start == max(slower) + 1 == 304


# --- stacks ----------------------------------------------------------------------------------------------------------


def test_layers_and_output_add_up_to_the_model() -> None:
    priced = Priced("(hsm, attention(heads=2))*2, hypermixing*3", [5, 40], Shape(16, 50, causal=True))
    record = priced.record()
    for place, length in enumerate((5, 40)):
        whole = tokmix.Model(priced.config).cost(length)
        for name in ("matmul", "pointwise", "training"):
            parts = [layer[name][place] for layer in record["layers"]] + [record["output"][name][place]]
            assert sum(parts) == record["total"][name][place] == getattr(whole, name)
            assert record["per_token"][name][place] == getattr(whole, name) / length
    assert record["output"]["matmul"] == [2 * 5 * 16 * 50, 2 * 40 * 16 * 50]
    assert [(group.places, group.mixer) for group in priced.groups] == [
        ("0", "hsm"), ("1", "attention"), ("2", "hsm"), ("3", "attention"), ("4-6, each", "hypermixing"),
    ]  # fmt: skip
    assert priced.curves(40)[40][0] == sum(layer["matmul"][1] for layer in record["layers"])


def said(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> str:
    assert main(["cost", *command]) == code
    told = capsys.readouterr()
    return told.err if code and not told.out else told.out


SMALL = ("--dim", "16", "--vocab", "11", "--lengths", "4,17", "--farthest", "300")


def test_one_command_checks_every_mixer(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, mode in (([], "bidirectional"), (["--causal"], "causal")):
        names = [name for name in tokmix.mixers() if mode in registry.mixer_class(name).modes]
        found = json.loads(said(capsys, *names[:1], ", ".join(names), *SMALL, *flag, "--check", "--json"))
        assert [layer["mixer"] for layer in found["stacks"][1]["layers"]] == names
        for one in found["stacks"]:
            assert [check["length"] for check in one["check"]] == [4, 17]
            assert all(check["equal"] and check["forward"] == check["forward_counted"] > 0 for check in one["check"])
            assert [check["forward"] for check in one["check"]] == one["total"]["matmul"]
            assert [check["training_counted"] for check in one["check"]] == one["total"]["training"]


def test_a_long_count_says_what_it_is_at(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokmix.study.cost.counter.SILENT", 0.0)
    assert main(["cost", "hsm", *SMALL, "--check", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) and "counting the operations of hsm at 17 tokens, 1 of 2 lengths done in 0 s" in told.err


@pytest.mark.usefixtures("clean_registry")
def test_a_formula_that_is_wrong_fails_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    @tokmix.register("too_cheap")
    class TooCheap(registry.mixer_class("attention")):  # type: ignore[misc]
        def cost(self, length: int) -> tokmix.Cost:
            return tokmix.Cost(super().cost(length).matmul - 1)

    told = said(capsys, "too_cheap", *SMALL, "--check", code=1)
    assert "NO" in told and said(capsys, "attention", *SMALL, "--check").count("yes") == 2


def test_tables_crossing_paper_and_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    told = said(capsys, "hypermixing*2", "attention(heads=4)*2", "--feed-forward", "0", "--lengths", "64,512", "--farthest", "400",
                "--paper", "--out", str(tmp_path / "c.png"))  # fmt: skip
    assert "matrix products: hypermixing*2 costs less than attention(heads=4)*2 from 304 tokens on" in told
    assert "as printed: from N = 900 on" in told and "as corrected: from N = 384 on" in told
    assert "0-1, each  hypermixing" in told and "58.72 M" in told and "917.5 k" in told
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    found = json.loads(said(capsys, "--paper", "--json"))
    assert found["stacks"] == [] and found["paper"]["hypermixing_costs_less_from"]["corrected"] == 384


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], "nothing to cost"),
        (["hypermixin"], "did you mean 'hypermixing'"),
        (["runs/none"], "'runs/none' is neither a folder nor a stack"),
        (["hsm", "--lengths", "3,x"], "--lengths '3,x' should be whole numbers"),
        (["hsm", "--lengths", "0,4"], "a length is at least 1"),
        (["hsm", "--farthest", "0"], "farthest=0"),
        (["fnet", "--causal"], "'fnet' has no 'causal' mode"),
        (["hsm", "--dim", "0"], "dim=0"),
        (["hsm", "--out", "nodir/c.png"], "--out 'nodir/c.png': there is no folder 'nodir'"),
        (["--paper", "--lengths", "64"], "--lengths is about stacks"),
        (["--paper", "--feed-forward", "0"], "--feed-forward is about stacks"),
        (["--paper", "--vocab", "9"], "--vocab is about stacks"),
        (["--paper", "--farthest", "9"], "--farthest is about stacks"),
        (["--paper", "--causal"], "--causal is about stacks"),
        (["--paper", "--dim", "30"], "heads=4 does not divide dim=30"),
    ],
)
def test_what_does_not_work_is_said_in_one_line(command: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, *command, code=1)
    assert words in told and len(told.splitlines()) == 1


def test_a_folder_that_is_no_result_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = said(capsys, str(tmp_path), code=1)
    assert "is there, but is neither a run, model, tune or compare folder that has ended nor a stack" in told
    (tmp_path / "hsm").mkdir()  # an empty folder does not hide the mixer of that name
    monkeypatch.chdir(tmp_path)
    assert "hsm: width 16" in said(capsys, "hsm", *SMALL)
    (tmp_path / "study").mkdir()  # of a search that goes on, say: no mixer has that name
    assert "'study' is there, but" in said(capsys, "study", code=1)


def test_a_stack_longer_than_any_file_name_is_a_stack(capsys: pytest.CaptureFixture[str]) -> None:
    long = ", ".join(["attention(heads=4)", "hsm(variant='gate')"] * 8)
    assert "width 16" in said(capsys, long, *SMALL)


def test_a_picture_is_checked_before_anything_is_computed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "ends in one of .png, .svg, .pdf" in said(capsys, "hsm", "--out", str(tmp_path / "c.txt"), code=1)
    (tmp_path / "c.png").write_bytes(b"mine")
    assert "nothing is overwritten" in said(capsys, "hsm", "--out", str(tmp_path / "c.png"), code=1)
    assert (tmp_path / "c.png").read_bytes() == b"mine"
