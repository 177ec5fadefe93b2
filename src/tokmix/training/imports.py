"""--import my_mixer.py: a user's own mixers, registered by running the file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path


def import_files(files: Sequence[str | Path] | Path) -> None:
    for file in [files] if isinstance(files, (str, Path)) else files:
        path = Path(file)
        if not path.is_file():
            raise ValueError(f"no file {str(path)!r}")
        name = f"tokmix_user_{path.stem}"
        if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path.resolve()):
            continue
        spec = importlib.util.spec_from_file_location(name, path.resolve())
        if spec is None or spec.loader is None:
            raise ValueError(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path.resolve())]
            line = f", line {own[-1]}" if own else ""
            raise ValueError(f"{path}{line}: {type(error).__name__}: {error}") from error
