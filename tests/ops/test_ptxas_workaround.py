"""Which ptxas is taken on Hopper, and how one that errs is found out."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from tests.machine_code import unset_in
from tokmix.ops import dispatch, ptxas_workaround

triton = pytest.importorskip("triton")


class Tools:
    """As Triton tells them: one that it does not bring along is an error."""

    def __init__(self, own: str, other: str | None):
        self.ptxas, self.other = SimpleNamespace(path="/own", version=own), other

    @property
    def ptxas_blackwell(self) -> SimpleNamespace:
        if self.other is None:
            raise RuntimeError("Cannot find ptxas-blackwell")
        return SimpleNamespace(path="/other", version=self.other)


def tools(monkeypatch: pytest.MonkeyPatch, own: str, other: str | None) -> None:
    monkeypatch.setattr(triton, "knobs", SimpleNamespace(nvidia=Tools(own, other)))


@pytest.mark.parametrize(
    ("own", "other", "sound", "taken"),
    [
        ("12.9", "12.9", True, None),
        ("13.0", None, True, None),
        ("12.8", "12.9", True, "/other"),
        ("12.8", "12.8", False, None),
        ("12.8", None, False, None),
    ],
)
def test_choice(own: str, other: str | None, sound: bool, taken: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    tools(monkeypatch, own, other)
    monkeypatch.setattr(ptxas_workaround.os, "environ", {})
    with nullcontext() if sound else pytest.warns(UserWarning, match="/own makes wrong code"):
        assert ptxas_workaround.choose() == sound
    assert ptxas_workaround.os.environ.get(ptxas_workaround.CHOICE) == taken


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    tools(monkeypatch, "12.8", "12.9")
    monkeypatch.setattr(ptxas_workaround.os, "environ", {ptxas_workaround.CHOICE: "/mine"})
    with pytest.warns(UserWarning, match=ptxas_workaround.CHOICE):
        assert not ptxas_workaround.choose()
    assert ptxas_workaround.os.environ == {ptxas_workaround.CHOICE: "/mine"}


@pytest.mark.parametrize(("major", "sound", "found"), [(9, True, 227), (9, False, 0), (8, False, 227), (10, False, 227)])
def test_without_a_sound_one_hopper_runs_plain_torch(major: int, sound: bool, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(major=major, shared_memory_per_block_optin=227 * 1024)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(ptxas_workaround, "choose", lambda: sound)
    dispatch._room.cache_clear()
    try:
        assert dispatch.room(torch.device("cuda:0")) == found * 1024
    finally:
        dispatch._room.cache_clear()


def listing(*lines: str) -> str:
    return "\n".join(f"        /*{16 * at:04x}*/    {line} ;" for at, line in enumerate(lines))


SET_UP = ("ULDC.64 UR16, c[0x0][0x208]", "USHF.R.U32.HI UR10, URZ, 0x4, UR16", "UMOV UR11, 0xc0000010")


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((*SET_UP, "UIADD3 UR18, UP0, UR10, 0x20, URZ", "@P0 LDG.E R2, desc[UR16][R4.64]"), 0),
        ((*SET_UP, "UIADD3 UR18, UP0, UR18, 0x20, URZ"), 1),
        ((*SET_UP, "HGMMA.64x16x16.F32.BF16 R24, R32, gdesc[UR8].tnspB, R24"), 0),  # the first factor is in registers
        ((*SET_UP, "HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24"), 1),
        ((*SET_UP, "UIMAD.WIDE.U32 UR4, UR10, UR11, UR16"), 0),
        ((*SET_UP, "UIMAD.WIDE.U32 UR4, UR10, UR11, UR11"), 1),
    ],
)
def test_unset_registers_are_found(lines: tuple[str, ...], found: int) -> None:
    assert len(unset_in(listing(*lines))) == found


def test_the_listing_is_told_apart_from_other_text() -> None:
    assert unset_in(".section .text\n.L_x_1:\n  no instruction UR5 here\n") == []
