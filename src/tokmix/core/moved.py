"""Where modules of version 0.1.0 are today: importing one by its old name fails with the new name."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

CORE = ("adapt", "block", "budget", "checks", "mixer", "model", "positions", "rowmixer", "sampling", "segments", "stack")
MOVED = {f"tokmix.{name}": f"tokmix.core.{name}" for name in CORE} | {
    "tokmix.commands": "tokmix.cli.commands",
    "tokmix.compare": "tokmix.study.compare",
    "tokmix.cost": "tokmix.study.cost",
    "tokmix.demo": "tokmix.cli.demo",
    "tokmix.explain": "tokmix.study.explain",
    "tokmix.lab": "tokmix.training",
    "tokmix.bench": "bench.speed, in the repository",
    "tokmix.papers": "reproduce, in the repository",
    "tokmix.play": "tokmix.pages.play",
    "tokmix.report": "tokmix.pages.report",
    "tokmix.tune": "tokmix.study.tune",
    "tokmix.data.synthetic.shapes": "reproduce.toy.data, in the repository",
    "tokmix.data.synthetic.run": "tokmix.training.synthetic",
}


class MovedModules(MetaPathFinder):
    """Last in sys.meta_path, so Python asks it only for modules that were not found."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname in MOVED:
            raise ModuleNotFoundError(f"{fullname} is now {MOVED[fullname]}", name=fullname)
        return None


def install() -> None:
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
