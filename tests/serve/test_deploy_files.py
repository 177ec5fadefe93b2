"""The files in deploy/ name options, ports and paths that exist, and agree with each other."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

import pytest

from tokmix.cli.commands import serve
from tokmix.pages.serve.door import BODY, BODY_SECONDS, OPEN_PATHS
from tokmix.pages.serve.schemas import FIELDS, INPUTS, LETTERS, MAX_TOKENS, PROMPTS
from tokmix.pages.serve.server import CONNECTIONS, GRACE, HEADER_SECONDS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def options() -> set[str]:
    parser = argparse.ArgumentParser()
    serve.add(parser)
    return {name for name in parser._option_string_actions if name.startswith("--")}


def test_the_dockerfile_builds_what_is_there() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M):
        for name in line.split():
            assert (ROOT / name).exists(), name
    (extras,) = re.findall(r"'\.\[(.+)\]'", text)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all(name in known for name in extras.split(","))
    assert not any("torch" in package for name in extras.split(",") for package in known[name])
    (start,) = re.findall(r"^ENTRYPOINT \[(.+)\]$", text, re.M)
    assert set(re.findall(r'"(--[a-z]+)"', start)) <= options() and '"tokmix", "serve"' in start
    assert any(path in text for path in OPEN_PATHS)
    assert text.index("USER 10001") < text.index("ENTRYPOINT"), "not as root"


def test_compose_gives_the_server_time_to_end() -> None:
    yaml = pytest.importorskip("yaml")
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert {word for word in service["command"] if word.startswith("--")} <= options()
    assert service["read_only"] and all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert int(service["stop_grace_period"].removesuffix("s")) > GRACE


def test_the_unit_starts_a_command_that_exists() -> None:
    lines = (DEPLOY / "tokmix-serve.service").read_text().splitlines()
    unit = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert set(re.findall(r"--[a-z]+", unit["ExecStart"])) <= options() and " serve " in unit["ExecStart"]
    assert int(unit["TimeoutStopSec"]) > GRACE and unit["KillSignal"] == "SIGTERM"


def test_the_documented_bounds_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    for words in (
        f"{HEADER_SECONDS:g} s, {BODY_SECONDS:g} s", f"{BODY >> 20} MiB", f"{INPUTS}, {LETTERS:,}, {PROMPTS}", f"{MAX_TOKENS:,}, 4,096",
        f"| connections | {CONNECTIONS:,}", f"up to {GRACE} s", f"| fields of a body | {FIELDS} |",
    ):  # fmt: skip
        assert words in page, words
