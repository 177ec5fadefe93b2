"""The versions that the tests run with: requirements/test.lock.

python -m tests.lock            write it from what is installed
python -m tests.lock --check    compare it with what is installed and with pyproject.toml
python -m tests.lock --lowest   print the lowest versions that pyproject.toml declares for the wheel, as constraints for pip
"""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as name_of
from packaging.version import Version

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements" / "test.lock"
HEAD = "# What the tests were run with. Written by `python -m tests.lock`; pip takes it as --constraint.\n"


TOOLS = ("test", "docs")  # extras of a checkout: what only they name, the wheel does not need


def declared(tools: bool = True) -> list[Requirement]:
    """Of the extra `test` and the extras that it names, without tokmix's own names for them. tools: also what the wheel does not need."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    todo, seen, found = ["test"], set[str](), list[Requirement]()
    while todo:
        extra = todo.pop()
        if extra in seen:
            continue
        seen.add(extra)
        needs = [Requirement(line) for line in extras[extra]]
        found += [one for one in needs if name_of(one.name) != "tokmix" and (tools or extra not in TOOLS)]
        todo += [name for one in needs if name_of(one.name) == "tokmix" for name in one.extras]
    return found


def installed() -> dict[str, str]:
    """Of everything that the declared packages need, directly or not: name -> version."""
    found: dict[str, str] = {}
    todo = [(one.name, frozenset(one.extras)) for one in declared()]
    seen = set()
    while todo:
        wanted = todo.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        try:
            package = metadata.distribution(wanted[0])
        except metadata.PackageNotFoundError:
            continue  # of another system, or an extra that is not here
        found[name_of(wanted[0])] = package.version.split("+")[0]
        for line in package.requires or []:
            need = Requirement(line)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ["", *wanted[1]]):
                todo.append((need.name, frozenset(need.extras)))
    return dict(sorted(found.items()))


def locked() -> dict[str, str]:
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def problems() -> list[str]:
    """What of the lock does not fit pyproject.toml, or this environment."""
    lock, here, found = locked(), installed(), []
    for need in declared():
        version = lock.get(name_of(need.name))
        if version is None:
            found.append(f"{need.name} is declared and not locked")
        elif not need.specifier.contains(version, prereleases=True):
            found.append(f"{need.name} {version} is locked, and {need.specifier} declared")
    other = {name: version for name, version in lock.items() if here.get(name, version) != version}
    return found + [f"{name} {here[name]} is installed, {version} locked" for name, version in other.items()]


def lowest() -> list[str]:
    low: dict[str, Version] = {}
    for need in declared(tools=False):
        for one in need.specifier:
            if one.operator in (">=", "=="):
                low[name_of(need.name)] = max(Version(one.version), low.get(name_of(need.name), Version("0")))
    return [f"{name}=={version}" for name, version in sorted(low.items())]


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        print("\n".join(problems()) or f"{LOCK.relative_to(ROOT)} fits")
        return 1 if problems() else 0
    if arguments == ["--lowest"]:
        print("\n".join(lowest()))
        return 0
    LOCK.parent.mkdir(exist_ok=True)
    LOCK.write_text(HEAD + "".join(f"{name}=={version}\n" for name, version in installed().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
