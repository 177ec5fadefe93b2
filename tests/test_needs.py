"""What is missing skips a test on a person's machine, and fails it in CI."""

from __future__ import annotations

import pytest

from tests import needs


@pytest.mark.parametrize(("ci", "ends"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_what_is_missing_skips_here_and_fails_in_ci(ci: str, ends: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setitem(needs.TOOLS, "loom", ("a loom", ("no-such-loom",), ("/nowhere/*/loom",)))
    with pytest.raises(ends, match="a loom is not installed: make test-deps"):
        needs.tool("loom")
    with pytest.raises(ends, match="the package no_such_package is not installed"):
        needs.package("no_such_package")


def test_what_is_there_is_found() -> None:
    assert needs.package("json").loads("1") == 1
