"""Pages of the site that are written from the code: the commands, the Python API, the measurements, and pages from outside of docs/.

generated/mixers.md         the table of all mixers
generated/commands.md       --help-all of every command
generated/python_api.md     signature and docstring of every public name
generated/benchmarks.md     figures drawn from bench/results.jsonl
generated/reproduce/        the papers' results, copied from reproduce/
generated/notebooks/        each tutorial as a notebook
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokmix.cli.commands import COMMANDS
from tokmix.cli.main import command_parser

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
GENERATED = DOCS / "generated"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", lambda _: write_all())
    app.connect("source-read", _links_inside)
    app.connect("source-read", _notebook_link)
    app.connect("build-finished", _reachable)
    return {"parallel_read_safe": True}


def write_all() -> None:
    shutil.rmtree(GENERATED, ignore_errors=True)
    _write("commands.md", commands())
    _write("python_api.md", python_api())
    _write("benchmarks.md", benchmarks())
    _write("mixers.md", mixers())
    _write("changelog.md", (ROOT / "CHANGELOG.md").read_text())
    _write("contributing.md", (ROOT / "CONTRIBUTING.md").read_text())
    for page in sorted((ROOT / "reproduce").rglob("README.md")):
        place = page.relative_to(ROOT).parent
        _write(str(place / "index.md"), page.read_text())
        if (page.parent / "figures").is_dir():
            shutil.copytree(page.parent / "figures", GENERATED / place / "figures")
    notebooks()


def mixers() -> str:
    """The table of all mixers, which stands in the folder's own README, and the letters that all pages use."""
    text = (DOCS / "README.md").read_text()
    table = text.split("## Mixers\n", 1)[1].split("\n## ", 1)[0]
    letters = text[text.index("Letters used on all pages") :]
    return f"# All mixers\n{table}\n{letters}"


def _write(name: str, text: str) -> None:
    path = GENERATED / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def commands() -> str:
    os.environ["COLUMNS"] = "96"
    parts = ["# Commands\n\nEvery command with all its options. `tokmix COMMAND --help` shows the ones that matter first.\n"]
    for name in COMMANDS:
        parser = command_parser(name)
        parts.append(f"## tokmix {name}\n\n```text\n{parser.format_help().strip()}\n```\n")
    return "\n".join(parts)


def python_api() -> str:
    """One section a public name; classes with their public methods."""
    import tokmix.sklearn

    parts = ["# Python API\n\nWhat `import tokmix` offers. [Work from Python](../python.md) shows how the parts go together.\n"]
    for name in tokmix.__all__[1:]:
        parts += _documented(f"tokmix.{name}", getattr(tokmix, name), 2)
    for name in ("TextClassifier", "TextRegressor", "TextEmbedder"):
        parts += _documented(f"tokmix.sklearn.{name}", getattr(tokmix.sklearn, name), 2)
    return "\n".join(parts)


def _documented(name: str, thing: object, level: int) -> list[str]:
    assert callable(thing)
    try:
        signature = re.sub(r"((?:: |-> ))'([^']*)'", r"\1\2", str(inspect.signature(thing)))  # annotations are text in our files
    except ValueError:  # a class of torch's
        signature = "(...)"
    lines = [f"{'#' * level} {name.removeprefix('tokmix.')}\n", f"```python\n{_wrapped(name, signature)}\n```\n", _text(thing)]
    if inspect.isclass(thing):
        for key, value in vars(thing).items():
            if not key.startswith("_") and inspect.isfunction(value) and value.__doc__:
                lines += _documented(f"{name}.{key}", value, level + 1)
    return lines


def _wrapped(name: str, signature: str) -> str:
    """One parameter a line where a line would be long."""
    if len(name + signature) <= 96 or "(" not in signature:
        return name + signature
    parameters, _, result = signature[1:].rpartition(")")
    pieces, depth, start = [], 0, 0
    for at, letter in enumerate(parameters):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            pieces.append(parameters[start:at].strip())
            start = at + 1
    pieces.append(parameters[start:].strip())
    return f"{name}(\n" + "".join(f"    {piece},\n" for piece in pieces) + f"){result}"


def _text(thing: object) -> str:
    """A docstring as Markdown: indented parts stay as they stand."""
    parts = []
    for part in re.split(r"\n\s*\n", inspect.getdoc(thing) or ""):
        indented = any(line.startswith("  ") or "   " in line for line in part.splitlines())
        parts.append(f"```text\n{part}\n```" if indented else part)
    return "\n\n".join(parts) + "\n"


def benchmarks() -> str:
    from site_figures import commands, read_results, write_figures

    results = read_results()
    parts = [
        "# Benchmarks\n",
        "Each figure is drawn from one measurement, so you can compare the numbers within it. Times of different measurements "
        "cannot be compared. [How to measure speed](../bench.md) explains how `tokmix bench` measures.\n",
        *write_figures(results, GENERATED / "figures"),
        "## Every measurement\n",
        "| measurement | machine | command | what it is |\n|---|---|---|---|",
    ]
    rows = [
        f"| {name} | {_cell(one.get('machine'))} | {_command(one, commands)} | {_cell(one.get('note'))} |" for name, one in results.items()
    ]
    return "\n".join([*parts, *rows, ""])


def _command(one: dict[str, Any], quoted: Callable[[str], str]) -> str:
    return quoted(_cell(one["command"])) if one.get("command") else ""


def _cell(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("gpu") or value.get("device") or value.get("processor") or ", ".join(f"{k} {v}" for k, v in value.items())
    return str(value or "").replace("|", "\\|").replace("\n", " ")


def notebooks() -> None:
    """Tutorials as notebooks; lines of a shell become cells that a notebook runs by `!`."""
    import jupytext

    folder = GENERATED / "notebooks"
    folder.mkdir(parents=True)
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        text = re.sub(r"^```text\n.*?^```\n", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)  # what a cell prints
        text = re.sub(r"^```sh\n(.*?)^```", r"```python\n%%bash\n\1```", text, flags=re.MULTILINE | re.DOTALL)
        notebook = jupytext.reads(text, fmt="md")
        notebook.metadata.update({"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
        jupytext.write(notebook, folder / f"{page.stem}.ipynb")


def _reachable(app: Sphinx, error: Exception | None) -> None:
    """What scrolls can be reached by keyboard, and headings of the menu have a level: screen readers ask for both."""
    if error is None and app.builder.format == "html":
        for path in Path(app.outdir).rglob("*.html"):
            text = path.read_text(encoding="utf-8")
            text = re.sub(r"<(pre|table)(?=[ >])", r'<\1 tabindex="0"', text)
            path.write_text(
                text.replace('class="caption" role="heading"', 'class="caption" role="heading" aria-level="2"'), encoding="utf-8"
            )


def _links_inside(app: Sphinx, name: str, source: list[str]) -> None:
    """Links to files outside of docs/ become links to their page on the site, or the path where there is no page."""
    here = (DOCS / name).parent
    if name.startswith("generated/reproduce"):
        here = ROOT / Path(name).parent.relative_to("generated")
    elif name in ("generated/changelog", "generated/contributing"):
        here = ROOT
    elif name == "generated/mixers":
        here = DOCS
    base = (DOCS / name).parent

    def inside(match: re.Match[str]) -> str:
        image, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or ":" in target or image:
            return match[0]
        path = (here / target).resolve()
        page = _page(path)
        if page is None:
            shown = label.strip("`") if path.name in label else path.relative_to(ROOT) if path.is_relative_to(ROOT) else label
            return f"`{shown}`" if path.name in label or label.startswith("`") else f"{label} (`{path.relative_to(ROOT)}`)"
        if path.suffix == ".jsonl":
            anchor = "#every-measurement"
        return f"[{label}]({os.path.relpath(page, base)}{anchor})"

    pieces = FENCED.split(source[0])
    source[0] = "".join(piece if at % 2 else LINK.sub(inside, piece) for at, piece in enumerate(pieces))


def _notebook_link(app: Sphinx, name: str, source: list[str]) -> None:
    """Below the title of a tutorial: itself as a notebook."""
    if name.startswith("tutorials/"):
        title, rest = source[0].split("\n", 1)
        source[0] = f"{title}\n\n{{download}}`This page as a notebook </generated/notebooks/{Path(name).name}.ipynb>`\n{rest}"


def _page(path: Path) -> Path | None:
    """The file in docs/ that shows this path on the site."""
    if path == ROOT / "README.md" or path == DOCS / "README.md":
        return DOCS / "index.md"
    if path == ROOT / "CHANGELOG.md":
        return GENERATED / "changelog.md"
    if path == ROOT / "CONTRIBUTING.md":
        return GENERATED / "contributing.md"
    if path.is_relative_to(ROOT / "reproduce") and (path.name == "README.md" or path.is_dir()):
        folder = path if path.is_dir() else path.parent
        page = GENERATED / folder.relative_to(ROOT) / "index.md"
        return page if page.exists() else None
    if path.is_relative_to(ROOT / "bench") and path.name in ("README.md", "results.jsonl"):
        return GENERATED / "benchmarks.md"
    return path if path.is_relative_to(DOCS) else None
