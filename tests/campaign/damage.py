"""Files that changed on the disk, and folders made to harm: what comes of them is right, or one line of error."""

from __future__ import annotations

import functools
import json
import os
import pickle
import random
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaign.children import Child, Tally, start, verdict
from tests.campaign.programs import BAG, Program
from tests.lab import BAD, GOOD, REST
from tokmix.cli.main import main
from tokmix.runs.files import seal, sha256_file
from tokmix.study.verify import DAMAGED, verify

HANG = 10.0  # seconds without those of waiting for a processor; each takes below one


def mutate(data: bytes, draw: random.Random, name: str) -> bytes:
    """Another content, never the same one."""
    kinds: list[Callable[[], bytes]] = [lambda: _flip(data, draw), lambda: data[: draw.randrange(len(data))], lambda: _zeros(data, draw)]
    if name.endswith(".json"):
        kinds += [lambda: _edit(data, draw)] * 3
    changed = data
    while changed == data:
        changed = draw.choice(kinds)()
    return changed


def _flip(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]


def _zeros(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    size = min(draw.choice([1, 8, 512]), len(data) - place)
    return data[:place] + b"\0" * size + data[place + size :]


def _edit(data: bytes, draw: random.Random) -> bytes:
    """A field removed, or of another type or value."""
    known = json.loads(data)
    owner, key = draw.choice(list(_places(known)))
    value = draw.choice([None, True, -1, 10**9, 1e308, "x", [], {}, "remove", "deep"])
    if value == "remove":
        del owner[key]
    elif value == "deep":
        return json.dumps(known).replace("{", "[" * 5000 + "{", 1).encode()
    else:
        owner[key] = value
    return json.dumps(known).encode()


def _places(known: Any) -> Any:
    inner = known.items() if isinstance(known, dict) else enumerate(known) if isinstance(known, list) else ()
    for key, value in list(inner):
        yield known, key
        yield from _places(value)


def predict(model: Path, answers: Path) -> int:
    """Write what the model says of two texts."""
    from tokmix.training import model_folder
    from tokmix.training.predict import Predictor

    answers.write_text(json.dumps(list(Predictor(model_folder.load(model))(TEXTS))))
    return 0


def answer(exported: Path, answers: Path) -> int:
    from tokmix.runtime import load

    answers.write_text(json.dumps(load(exported).answers(TEXTS)))
    return 0


def or_say(look: Callable[[Path, Path], int], folder: Path, answers: Path) -> int:
    """As the command line does: one line for what does not work."""
    try:
        return look(folder, answers)
    except (ValueError, OSError) as error:
        print(f"tokmix: {error}", file=sys.stderr)
        return 1


# With every word of the table: a row of the embedding that no text reads would hide a change.
TEXTS = ["a fine day", "the road was dull and cold", f"{GOOD} {BAD} {REST}", " ".join(map(str, range(100)))]
WEIGHTY = (".safetensors", ".bin", ".onnx", ".npz")  # half of the changes are in one of these: in no other is a change as silent
READ = {"model folder": predict, "exported folder": answer}
# Kinds of folders: how often, and whose they are.
KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "model folder": (5, ("train", BAG)), "exported folder": (2, ("export",)), "tune": (1, ("tune",)), "compare": (1, ("compare",)),
    "run to go on with": (4, ("train", "train with a warm-up", "embed-train", "distill", "transfer")),
}  # fmt: skip


def mutations(folder: Path, whole: dict[str, Path], by_name: dict[str, Program], count: int, draw: random.Random) -> list[Tally]:
    """A file changed in a copy of a finished folder, of one whose model is still to be made, and of a study."""
    tallies, good = {kind: Tally(f"mutations: {kind}") for kind in KINDS}, {}
    answers = folder / "answers.json"

    def look(kind: str, name: str, copy: Path) -> Child:
        """What a user would do with it."""
        act = functools.partial(or_say, READ[kind], copy, answers) if kind in READ else functools.partial(by_name[name].run, copy)
        return start(folder / "e", act)

    def result(kind: str, name: str, copy: Path) -> str:
        return answers.read_text() if kind in READ else by_name[name].result(copy)

    known = {kind: (share, [name for name in names if name in whole]) for kind, (share, names) in KINDS.items()}
    kinds = {kind: (share, names) for kind, (share, names) in known.items() if names}
    for kind, (_, names) in kinds.items():  # unchanged copies come out right: else the counts would say nothing
        for name in names:
            copy = _copy(folder, whole[name], kind)
            child = look(kind, name, copy)
            assert child.wait() == 0, f"{kind} of {name}: {child.said()}"
            good[kind, name] = result(kind, name, copy)
            assert kind in READ or good[kind, name] == by_name[name].result(whole[name]), f"{kind} of {name}: another result"
    for number in range(count):
        kind = draw.choices(list(kinds), weights=[share for share, _ in kinds.values()])[0]
        name = draw.choice(kinds[kind][1])
        copy = _copy(folder, whole[name], kind)
        files = [one for one in sorted(copy.rglob("*")) if one.is_file() and one.stat().st_size and not one.name.startswith(".")]
        files = [one for one in files if one.suffix not in (".png", ".md", ".txt")]  # those are for people
        weighty = [one for one in files if one.suffix in WEIGHTY]
        path = draw.choice(weighty if weighty and draw.random() < 0.5 else files)
        path.write_bytes(mutate(path.read_bytes(), draw, path.name))
        answers.unlink(missing_ok=True)
        child = look(kind, name, copy)
        code = child.wait(HANG if kind != "compare" else 120)
        right = code == 0 and _same(kind, result(kind, name, copy), good[kind, name], copy)
        note = f"{kind} of {name} {number}: {path.relative_to(copy)}: exit {code}: {child.said().strip()[-200:]}"
        tallies[kind].add(verdict(code, child.said(), right), note)
    return [one for one in tallies.values() if one.tried]


def _same(kind: str, found: str, wanted: str, copy: Path) -> bool:
    """A study does not read the weights of finished runs again: its table has to be the same, and `tokmix verify` has to tell."""
    if found == wanted or kind not in ("tune", "compare"):
        return found == wanted
    return json.loads(found)[1:] == json.loads(wanted)[1:] and any(one.state == DAMAGED for one in verify(copy))


def _copy(folder: Path, source: Path, kind: str) -> Path:
    """Of the same name: a study is known by it."""
    copy = folder / "copies" / source.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source / "model" if kind == "model folder" else source, copy)
    if kind == "run to go on with":
        shutil.rmtree(copy / "model")
    if kind in ("tune", "compare"):
        (copy / f"{kind}.json").unlink()
    return copy


def _forge(folder: Path, name: str, content: bytes) -> None:
    """With hashes that fit, as someone would who knows the format."""
    (folder / name).write_bytes(content)
    known = json.loads((folder / "training.json").read_text())
    known.pop("checksum")
    known["files"][name] = sha256_file(folder / name)[1]
    (folder / "training.json").write_text(json.dumps(seal(known)))


class _Bomb:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def hostile(folder: Path, whole: Path) -> Tally:
    """No code runs, memory stays bounded, nothing hangs."""
    tally, mark = Tally("hostile folders"), folder / "ran"
    config = json.loads((whole / "model" / "config.json").read_text())

    def changed(**more: Any) -> Callable[[Path], None]:
        return lambda copy: _forge(copy, "config.json", json.dumps(config | more).encode())

    def replaced(name: str, content: bytes) -> Callable[[Path], None]:
        return lambda copy: _forge(copy, name, content)

    def fifo(copy: Path) -> None:
        (copy / "config.json").unlink()
        os.mkfifo(copy / "config.json")

    def loop(copy: Path) -> None:
        (copy / "tokenizer.json").unlink()
        (copy / "tokenizer.json").symlink_to("tokenizer.json")

    code = {"auto_map": {"AutoConfig": "evil.Config"}, "dim": 10**9}
    header = json.dumps({"core.embedding.weight": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}}).encode()
    cases: list[Callable[[Path], None]] = [
        *(changed(**{name: size}) for name in ("dim", "vocab", "max_len", "feed_forward", "classes", "buckets") for size in (10**9, 2**62)),
        changed(stack="attention*10000"), changed(stack="(" * 5000), changed(stack="hypermixing(hidden=10**18)"), changed(separator=2**31),
        changed(**code), replaced("model.safetensors", pickle.dumps(_Bomb(mark))), replaced("config.json", b"[" * 10**6),
        replaced("model.safetensors", len(header).to_bytes(8, "little") + header), replaced("model.safetensors", b"\xff" * 64),
        replaced("tokenizer.json", pickle.dumps(_Bomb(mark))), replaced("tokenizer.json", b"{" * 10**6), fifo, loop,
    ]  # fmt: skip
    for number, case in enumerate(cases):
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole / "model", copy)
        case(copy)

        def look(copy: Path = copy) -> int:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
            return main(["predict", str(copy), "a fine day"])

        child = start(folder / "e", look)
        code_ = child.wait(HANG)
        note = f"hostile {number}: exit {code_}, code ran: {mark.exists()}: {child.said()[-200:]}"
        full = "allocate" in child.said()  # only the limit of memory ended it
        tally.add("wrong" if full or mark.exists() else verdict(code_, child.said(), True), note)  # exit 0: the change bears on no weight
    return tally
