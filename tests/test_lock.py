"""What is declared is locked, within its bounds; majors that may break are bounded."""

from __future__ import annotations

from packaging.requirements import Requirement

from tests import lock


def test_the_lock_fits_what_is_declared():
    outside = [line for line in lock.problems() if "declared" in line]
    assert not outside, "run `python -m tests.lock` in the environment of the tests"


def test_every_package_that_the_wheel_needs_has_an_upper_bound():
    needed = lock.declared(tools=False)
    assert len(needed) > 20 and not [str(one) for one in needed if not any(bound.operator in ("<", "==") for bound in one.specifier)]


def test_problems_are_found(monkeypatch):
    monkeypatch.setattr(lock, "declared", lambda tools=True: [Requirement("numpy>=9"), Requirement("nowhere>=1,<2")])
    assert [line for line in lock.problems() if "declared" in line] == [
        f"numpy {lock.locked()['numpy']} is locked, and >=9 declared", "nowhere is declared and not locked",
    ]  # fmt: skip
    assert lock.lowest() == ["nowhere==1", "numpy==9"]
