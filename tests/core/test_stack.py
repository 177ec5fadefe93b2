from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmix.core.stack import Spec, parse, unparse


@pytest.mark.parametrize(
    "text",
    [
        "hsm",
        "hsm*3, attention(heads=8), hsm*3",
        "(hsm*3, attention(heads=8))*2",
        "hsm(variant='gate')*3, attention(heads=4), hsm*3",
        "hsm(schedule=(1, 2, 4))",
        "attention(scale=-0.5, window=None, bias=False)",
        "((a, b)*2, c)*3",
    ],
)
def test_canonical_text_comes_back_as_it_was(text: str) -> None:
    assert unparse(parse(text)) == text


def test_other_spellings_become_canonical() -> None:
    assert unparse(parse(" hsm ,hsm,  ( hsm ) * 1 ")) == "hsm*3"
    assert unparse(parse('a(x="y"), b, a(x="y"), b')) == "(a(x='y'), b)*2"
    assert parse("(a)*2, (b, (c)*2)*1") == [Spec("a"), Spec("a"), Spec("b"), Spec("c"), Spec("c")]


def test_very_many_layers_are_written_at_once() -> None:
    for text in ("hsm*10000", "(hsm*300, attention(heads=8), hsm)*3", "hsm*5000, attention, hsm*2, attention", "((a, b*2)*20, c)*9"):
        assert unparse(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        (["hsm"], r"stack \['hsm'\] should be text"),
        ("attention(heads=2, heads=4)", "heads is given twice"),
        ("hsm*", "cannot be read"),
        ("hsm*0", "'0' is not a number of repetitions"),
        ("hsm*x", "'x' is not a number"),
        ("hsm*2.5", "2.5"),
        ("attention(8)", "given by name"),
        ("attention(heads=many)", "heads=many is not a plain value"),
        ("attention(**x)", r"\*\*"),
        ("hsm + hsm", "neither a mixer"),
        ("__import__('os')", "given by name"),
        ("a.b", "neither a mixer"),
        ("hsm*100000", "more than 10000"),
        ("hsm" + "*1" * 2000, "nested too deeply"),
        ("attention(heads=" + "-" * 5000 + "1)", "nested too deeply"),
        ("hsm," * 10_001, "more than 10000"),
        ("x" * 10**6, "has 1,000,000 characters"),
    ],
)
def test_bad_text_is_named(text: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


specs = st.builds(Spec, st.sampled_from(["a", "b", "c"]), st.sampled_from([{}, {"heads": 2}, {"mode": "x, y", "at": (1, 2)}]))


@settings(deadline=None)
@given(st.lists(specs, min_size=1, max_size=14))
def test_any_list_round_trips(given_specs: list[Spec]) -> None:
    assert parse(unparse(given_specs)) == given_specs
    assert unparse(parse(unparse(given_specs))) == unparse(given_specs)
