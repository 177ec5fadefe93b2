"""A paper's README, whose tables stand between markers, and the page above all papers.

    <!-- item:table1 -->
    what `tokmix papers hypermixer --tables` writes here
    <!-- /item:table1 -->

Everything outside of the markers is written by hand and holds no measured number.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reproduce import headline, results
from reproduce import item as catalogue
from reproduce.item import Item, Results
from reproduce.job import Job
from reproduce.page import NOT_RUN, command, count_verdicts, table, tally
from tokmix.core.checks import nearest
from tokmix.runs.files import write_json

SHIPPED = Path("src/tokmix/study/papers.json")  # the summary in the wheel
MARKER = re.compile(r"<!-- item:([\w-]+) -->\n(.*?)<!-- /item:\1 -->", re.DOTALL)
OPENING = re.compile(r"<!-- (/?)item:([^ ]+) -->")
HEADLINE = re.compile(r"(<!-- headline -->\n).*?(<!-- /headline -->)", re.DOTALL)
INDEX = re.compile(r"(<!-- items -->\n).*?(<!-- /items -->)", re.DOTALL)


# --- the state of an item ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """What a results folder holds of an item."""

    file: Path
    done: int = 0
    jobs: int = 0
    failed: int = 0
    quick: bool = False

    def __str__(self) -> str:
        if not self.done:
            return NOT_RUN
        text = "complete" if self.done == self.jobs else f"partial, {self.done} of {self.jobs} jobs"
        return text + (f", {self.failed} failed" if self.failed else "") + (", quick" if self.quick else "")


def state(item: Item, folder: Path) -> State:
    """Of the results file, and not of jobs that are on disk beside it. A job whose recipe has changed since is not done."""
    path = folder / f"{item.name}.json"
    if not path.is_file():
        return State(path)
    content = load(item, path)
    outcomes, quick = results.outcomes(content), bool(content["quick"])
    made = {job["key"]: job["spec"] for job in content["jobs"]}
    jobs = item.jobs(quick, outcomes)
    done = [job.key for job in jobs if job.key in outcomes and made[job.key] == json.loads(json.dumps(job.spec))]
    return State(path, len(done), len(jobs), sum("error" in outcomes[key] for key in done), quick)


def load(item: Item, path: Path) -> Results:
    """A results file of this item, or one line that says why it is none."""
    content = results.load(path)
    owner = (content["paper"], content["item"])
    if owner != (item.paper, item.name):
        raise ValueError(f"{path} holds results of {' '.join(owner)}, not of {item.paper} {item.name}")
    return content


def go_on(item: Item, folder: Path, quick: bool) -> None:
    """Before a run: what a results file holds is done, also where the jobs' own files are elsewhere (they are not committed). Quick
    results and full ones stay apart."""
    path, jobs = folder / f"{item.name}.json", results.jobs_folder(folder, item.name)
    if not path.is_file():
        return
    content = load(item, path)
    if bool(content["quick"]) != quick:
        raise ValueError(f"{path} holds results of {'full runs' if quick else '--quick'}: name another folder with --out")
    for record in content["jobs"]:
        file = jobs / Job(record["key"], record["kind"], record["spec"]).file
        if record["outcome"] is not None and not file.is_file():
            write_json(file, record)
    if content["calls"] and not (jobs / results.CALLS).is_file():
        jobs.mkdir(parents=True, exist_ok=True)
        (jobs / results.CALLS).write_text("".join(json.dumps(call) + "\n" for call in content["calls"]), encoding="utf-8")


# --- a paper's README ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Page:
    """What the README and the figures of a paper should be."""

    text: str
    figures: dict[str, bytes] = field(default_factory=dict)  # file name in figures/ -> content


def build(paper: str, folder: Path) -> Page:
    """folder: reproduce/NAME, with README.md and results/."""
    known = catalogue.items(paper)
    text = (folder / "README.md").read_text(encoding="utf-8")
    check_markers(folder / "README.md", text, known)
    figures: dict[str, bytes] = {}
    for name, item in known.items():
        body, drawn = section(item, folder / "results")
        figures |= drawn
        text = fill(text, name, body)
    return Page(text, figures)


def section(item: Item, folder: Path) -> tuple[str, dict[str, bytes]]:
    """What stands between an item's markers, and its figures."""
    path = folder / f"{item.name}.json"
    if not path.is_file():
        return f"Not run: `{command(item)}` has no results file yet.\n", {}
    content = load(item, path)
    if content["quick"]:
        raise ValueError(f"{path} comes from --quick: such numbers fill no table; remove it, or run `{command(item)}`")
    now, drawn = state(item, folder), draw(item, content)
    parts = [item.tables(content).strip(), *(f"![{_title(item, name)}](figures/{name})" for name in sorted(drawn))]
    left = "" if now.done == now.jobs else f" {now.jobs - now.done} of {now.jobs} jobs are not run; the same command goes on with them."
    parts.append(f"From [{item.name}.json](results/{item.name}.json), `{command(item)}`.{left}")
    return "\n\n".join(part for part in parts if part) + "\n", drawn


def _title(item: Item, name: str) -> str:
    return f"{item.about} ({name})".replace("[", "(").replace("]", ")")


def draw(item: Item, content: Results) -> dict[str, bytes]:
    """The figures of an item by file name; they are drawn elsewhere first, so that a failure leaves the old ones."""
    if item.figures is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        return {path.name: path.read_bytes() for path in item.figures(content, Path(folder))}


def fill(text: str, name: str, body: str) -> str:
    """Put `body` between the markers of an item."""
    return MARKER.sub(lambda found: f"<!-- item:{name} -->\n{body}<!-- /item:{name} -->" if found[1] == name else found[0], text)


def check_markers(path: Path, text: str, known: Mapping[str, Item]) -> None:
    """Every item has one pair of markers, and every marker an item."""
    pairs = [found[1] for found in MARKER.finditer(text)]
    for name in [*pairs, *(found[2] for found in OPENING.finditer(text))]:
        if name not in known:
            raise ValueError(f"{path} has markers of an item {name!r} that is not known{nearest(name, known)}")
    for name in known:
        if pairs.count(name) != 1 or len(re.findall(f"<!-- /?item:{name} -->", text)) != 2:
            raise ValueError(f"{path} should have one pair of lines <!-- item:{name} --> and <!-- /item:{name} -->")


# --- the page above all papers -------------------------------------------------------------------------------------------------


def build_index(root: Path) -> str:
    """root: reproduce/, with README.md. Each item with its state and how its claims fared."""
    text = (root / "README.md").read_text(encoding="utf-8")
    if not INDEX.search(text):
        raise ValueError(f"{root / 'README.md'} should have lines <!-- items --> and <!-- /items -->")
    rows = []
    for paper in catalogue.PAPERS:
        for name, item in catalogue.items(paper).items():
            now = state(item, root / paper / "results")
            counts = count_verdicts(item.tables(load(item, now.file))) if now.done else {}
            rows.append([f"[{paper} {name}]({paper}/README.md)", item.about, str(now), tally(counts)])
    made = table(["item", "what it is", "state", "its claims"], rows)
    text = INDEX.sub(lambda found: f"{found[1]}{made}\n{found[2]}", text)
    return HEADLINE.sub(lambda found: f"{found[1]}{headline.table(root)}\n{found[2]}", text)


# --- to disk -------------------------------------------------------------------------------------------------------------------


def write(paper: str, folder: Path) -> list[Path]:
    """-> the files that changed. A figure that no item draws any more is removed."""
    page, changed = build(paper, folder), []
    wanted = {folder / "README.md": page.text.encode(), **{folder / "figures" / name: data for name, data in page.figures.items()}}
    if (folder.parent / "README.md").is_file():
        wanted[folder.parent / "README.md"] = build_index(folder.parent).encode()
    wanted |= {path: text.encode() for path, text in outside(folder.parent).items()}
    for path, data in wanted.items():
        if not path.is_file() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            changed.append(path)
    for path in sorted((folder / "figures").glob("*.*")):
        if path not in wanted:
            path.unlink()
            changed.append(path)
    return changed


def differences(paper: str, folder: Path) -> list[str]:
    """What `write` would change, in words. Figures are asked for by name alone: two versions of matplotlib draw the same
    curve with other bytes."""
    page = build(paper, folder)
    found = []
    if (folder / "README.md").read_text(encoding="utf-8") != page.text:
        found.append(f"{folder / 'README.md'} does not say what the results files give")
    there = {path.name for path in (folder / "figures").glob("*.*")}
    found += [f"{folder / 'figures' / name} is missing" for name in sorted(set(page.figures) - there)]
    found += [f"{folder / 'figures' / name} belongs to no results file" for name in sorted(there - set(page.figures))]
    return found


def index_differs(root: Path) -> list[str]:
    """The same of the page above all papers, where there is one."""
    path = root / "README.md"
    wanted = {path: build_index(root)} if path.is_file() else {}
    wanted |= outside(root)
    differ = [path for path, text in wanted.items() if path.read_text(encoding="utf-8") != text]
    return [f"{path} does not say what the results files give" for path in differ]


def outside(root: Path) -> dict[Path, str]:
    """What stands outside of reproduce/ and comes from the same verdicts: the summary in the wheel, the table in the project's README."""
    found: dict[Path, str] = {}
    if (shipped := root.parent / SHIPPED).is_file():
        found[shipped] = shipped_summary(root)
        front = root.parent / "README.md"
        text = front.read_text(encoding="utf-8")
        found[front] = HEADLINE.sub(lambda marks: f"{marks[1]}{headline.short_table(root)}\n{marks[2]}", text)
    return found


def shipped_summary(root: Path) -> str:
    return json.dumps(headline.summary(root), indent=1, ensure_ascii=False) + "\n"
