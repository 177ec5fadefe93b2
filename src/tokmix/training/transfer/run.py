"""`tokmix transfer`: a Hugging Face model -> the same model with mixers in place of attention in some layers, taught by the old one.

    run.json       the settings, which --resume compares
    data/          the text, in the teacher's tokens (not where the data were prepared before)
    layers/        part 1: the swapped layers learn what the old attention gave, all side by side (checkpoints/, log.jsonl, weights)
    whole/         part 2: the whole model learns what the teacher says (checkpoints/, log.jsonl)
    model/         the folder for from_pretrained: the teacher's, with new weights; transfer.json tells the cost and the curves

run("teacher", "text.txt", "run", TransferSettings("hypermixing(heads=4)"))  ->  the record of the run (transfer.json)
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

import tokmix
from tokmix.core import stack
from tokmix.core.model import ModelConfig
from tokmix.core.seeds import seeded
from tokmix.data.prepare.pipeline import prepare
from tokmix.data.prepare.tokenize import load_tokenizer
from tokmix.data.tokens import TokenFiles, is_prepared
from tokmix.hf.audits import load_any
from tokmix.hf.swaps import attention_layers, choose, longest, swap
from tokmix.runs.files import (
    Damaged,
    check_files,
    check_free,
    finite,
    new_folder,
    read_json,
    remove_partial,
    seal,
    sha256_file,
    write_json,
    write_text,
)  # fmt: skip
from tokmix.runs.locks import owning
from tokmix.training import cost_record, report, threads
from tokmix.training.checkpoint import Checkpoints, load_tensors, save_tensors
from tokmix.training.distill.teacher import teacher_hash
from tokmix.training.distributed import World, join_world
from tokmix.training.engine import Engine
from tokmix.training.imports import import_files
from tokmix.training.preflight import nothing_left_of, put_aside
from tokmix.training.run_record import NAME, RunRecord
from tokmix.training.settings import TrainSettings
from tokmix.training.side_by_side import train_one
from tokmix.training.train import empty, go
from tokmix.training.transfer.distillation import Distillation, Layers, Pair, Whole
from tokmix.training.transfer.settings import PARTS, RECORD, WEIGHTS, TransferSettings
from tokmix.training.transfer.task import EVALUATIONS, Frame, TransferTask

WEIGHT_FILES = (".safetensors", ".bin", ".h5", ".msgpack", ".onnx", ".ot", ".index.json")


def run(
    teacher: str | Path,
    data: str | Path,
    out: str | Path,
    settings: TransferSettings,
    *,
    resume: bool = False,
    imports: Sequence[str | Path] = (),
    quiet: bool = False,
) -> dict[str, Any]:
    """Transfer and save. ValueError for what does not work; KeyboardInterrupt after Ctrl-C, with a checkpoint saved."""
    teacher, out = Path(teacher), Path(out)
    tokenizer = _tokenizer_of(teacher)
    if not resume:
        check_free(out)
    import_files(imports)
    say: Callable[[str], None] = (lambda line: None) if quiet else print
    with join_world(settings.device) as world, threads.restored(), owning(out):
        if world.size > 1:
            raise ValueError("transfer runs in one process: start it without torchrun")
        torch.set_num_threads(threads.given(settings.threads) or torch.get_num_threads())
        new = empty(out)
        if not new and not (resume and (out / NAME).is_file()):
            raise ValueError(f"{out} exists already and is not a run to resume; nothing is overwritten: name another folder")
        if (record := _ended(out, say)) is not None:
            return record
        with nothing_left_of(out, new=new):
            prepared = _prepared(Path(data), tokenizer, out / "data")
            _open(teacher, Path(data), out, settings)
            pair = make_pair(teacher, settings)
            if not prepared.exists():
                prepare(Path(data), prepared, task="lm", tokenizer=str(tokenizer))
            files = TokenFiles(prepared)
            files.verify()
        return _Transfer(pair, files, frame_of(tokenizer, pair, files), settings, out, world, say, quiet).train(teacher, resume)


def _tokenizer_of(teacher: Path) -> Path:
    if not teacher.is_dir():
        raise ValueError(f"no folder {str(teacher)!r}: transfer reads a model that save_pretrained wrote")
    if not (teacher / "tokenizer.json").is_file():
        raise ValueError(f"{teacher} has no tokenizer.json, by which the text is read: save the model's fast tokenizer there")
    return teacher / "tokenizer.json"


def _prepared(data: Path, tokenizer: Path, own: Path) -> Path:
    """Where the tokens are: in `data`, if it is prepared for language models with the teacher's tokenizer, else in `own`."""
    if not is_prepared(data):
        return own
    card = TokenFiles(data).card
    if (
        card.task != "lm"
        or not load_tokenizer(tokenizer).get_vocab().items() <= load_tokenizer(data / "tokenizer.json").get_vocab().items()
    ):
        raise ValueError(
            f"{data} is not prepared with task=lm and the tokenizer of the teacher: give the text, or prepare it with {tokenizer}"
        )
    return data


def _ended(out: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The record of a run that has ended, whose model is whole; None: it goes on. A damaged model is put aside. What killed processes
    left is removed."""
    for folder in (out, *(out / part for part in PARTS)):
        remove_partial(folder)
        Checkpoints(folder / "checkpoints").clear()
    model = out / "model"
    if not model.exists():
        return None
    try:
        if not (model / RECORD).is_file():
            raise Damaged(f"{model} is damaged: {RECORD} is missing")
        record = read_json(model / RECORD)
        check_files(model, record, RECORD)
    except Damaged as error:
        put_aside(model, error, say)
        return None
    say(f"{model} is there already: this run has ended")
    return record


def _open(teacher: Path, data: Path, out: Path, settings: TransferSettings) -> None:
    """Note what was asked, or see that it is what was asked before."""
    asked = {"teacher": {"sha256": teacher_hash(teacher)}, "transfer": asdict(settings)}
    if not (out / NAME).is_file():
        RunRecord(data.name, asked).write(out)
        return
    before, free = RunRecord.read(out), ("save_seconds", "device", "threads")
    changed = [name for name, value in asked["transfer"].items() if before.settings["transfer"].get(name) != value and name not in free]
    if changed:
        was = before.settings["transfer"].get(changed[0])
        raise ValueError(f"{out} was started with {changed[0]}={was!r}, so it cannot be resumed with {asked['transfer'][changed[0]]!r}")
    if before.source != data.name or before.settings["teacher"] != asked["teacher"]:
        raise ValueError(f"{out} was started with another teacher or text, so it cannot be resumed with these")


def make_pair(teacher: str | Path, settings: TransferSettings) -> Pair:
    """The teacher and its copy, swapped as the settings say, with fresh weights of the seed."""
    old = load_any(str(teacher)).float().eval().requires_grad_(False)
    with seeded(settings.seed):
        new = copy.deepcopy(old).requires_grad_(True)
        layers = swap_stack(new, settings)
    found = [[attention_layers(model)[layer][2] for layer in layers] for model in (old, new)]
    return Pair(old, new, layers, tuple(found[0]), tuple(found[1]))


def swap_stack(model: PreTrainedModel, settings: TransferSettings) -> tuple[int, ...]:
    """Swap as the stack says -> the numbers of the swapped layers."""
    specs, count = stack.parse(settings.stack), len(attention_layers(model))
    limit = min(settings.length, longest(model.config))
    if len(specs) == 1:
        chosen = choose(settings.chosen_layers, count)
        swap(model, settings.stack, layers=chosen, init=settings.init, max_len=max(limit, longest(model.config)))
        return tuple(chosen)
    if len(specs) != count:
        raise ValueError(f"stack {settings.stack!r} has {len(specs)} layers and the teacher {count}: give one mixer, or one for each layer")
    if settings.layers is not None:
        raise ValueError(f"layers={settings.layers!r} is for a single mixer, and the stack names one for each layer: leave it out")
    swapped = [(str(spec), number) for number, spec in enumerate(specs) if str(spec) != "attention"]
    if not swapped:
        raise ValueError(f"stack {settings.stack!r} keeps every layer: name at least one other mixer")
    for mixer, group in groupby(sorted(swapped), key=lambda one: one[0]):
        swap(model, mixer, layers=[number for _, number in group], init=settings.init)
    return tuple(number for _, number in sorted(swapped, key=lambda one: one[1]))


def frame_of(tokenizer: Path, pair: Pair, files: TokenFiles) -> Frame:
    words = load_tokenizer(tokenizer)
    bare, whole = (words.encode("a", add_special_tokens=add).ids for add in (False, True))
    start = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
    before, after = tuple(whole[:start]), tuple(whole[start + len(bare) :])
    eot, vocab = files.card.tokenizer["roles"]["eot"], pair.teacher.config.vocab_size
    known = [after[-1:], before[:1], (eot,) if eot < vocab else ()]
    return Frame(before, after, eot, eot if eot < vocab and not after else next((ids[0] for ids in known if ids), 0))


class _Transfer:
    def __init__(
        self, pair: Pair, files: TokenFiles, frame: Frame, settings: TransferSettings, out: Path, world: World,
        say: Callable[[str], None], quiet: bool,
    ):  # fmt: skip
        self.pair, self.files, self.frame, self.settings, self.out = pair, files, frame, settings, out
        self.world, self.say, self.quiet = world, say, quiet
        config = pair.teacher.config
        self.config = ModelConfig(
            stack=_stack_of(pair.student), dim=config.hidden_size, vocab=config.vocab_size, head="none", causal=pair.student.can_generate(),
            max_len=min(settings.length, longest(config)),
        )  # fmt: skip

    def train(self, teacher: Path, resume: bool) -> dict[str, Any]:
        part, curves = self.out / PARTS[0], {}
        share = self.settings.first
        first: dict[str, Any] | None = None
        if share > 0:
            if not (part / WEIGHTS).is_file():
                self.say(f"part 1: layers {', '.join(map(str, self.pair.layers))} learn what the old attention gave")
                engine = self._go(part, Layers, share, self.settings.lr, resume)
                cost = cost_record.cost_record(engine)
                notes = {"cost": json.dumps(finite(cost)), "curve": json.dumps(engine.progress.history)}
                save_tensors(part / WEIGHTS, engine.model.state_dict(), notes)
            tensors, notes = load_tensors(part / WEIGHTS)
            Layers(self.pair, self.config).load_state_dict(tensors)
            first, curves["layers"] = json.loads(notes["cost"]), json.loads(notes["curve"])
        cost = first or {}
        if share < 1:
            self.say("part 2: the whole model learns what the teacher says")
            engine = self._go(self.out / PARTS[1], Whole, 1 - share, self.settings.lr_whole, resume)
            cost, curves["whole"] = cost_record.with_warm_up(cost_record.cost_record(engine), first), engine.progress.history
        record = finite({
            "tokmix": tokmix.__version__, "teacher": teacher.resolve().name, "settings": asdict(self.settings),
            "layers": list(self.pair.layers), "curves": curves, "cost": cost,
        })  # fmt: skip
        record = self._save(teacher, record)
        self.say(f"model folder {self.out / 'model'}; {cost['tokens']:,} tokens in {report.clock(cost['seconds'])}; {report.factors(cost)}")
        return dict(record)

    def _go(self, folder: Path, kind: type[Distillation], share: float, lr: float, resume: bool) -> Engine:
        settings = self.settings
        steps = max(1, round(share * settings.tokens / settings.batch))
        train = TrainSettings(
            steps=steps, tokens=settings.batch, lr=lr, weight_decay=0.0, seed=settings.seed, evaluations=EVALUATIONS, log_steps=10,
            save_seconds=settings.save_seconds, capture=False, compile="no", precision=settings.precision or _precision(self.world.device),
        )  # fmt: skip
        task = TransferTask(self.files, self.frame, lambda: kind(self.pair, self.config), self.config, train)
        log = report.Log(folder / "log.jsonl", self.quiet)
        engine = Engine(task, self.world, Checkpoints(folder / "checkpoints"), log)
        engine.say = self.say
        train_one(go(engine, log, resume, self.say))
        return engine

    def _save(self, teacher: Path, record: dict[str, Any]) -> dict[str, Any]:
        """The teacher's folder with the new weights: its tokenizer, and what else tools keep beside a model. -> the record, with a hash of
        every file."""
        with new_folder(self.out / "model") as folder:
            for path in sorted(teacher.rglob("*")):
                name = path.relative_to(teacher)
                if path.is_file() and not path.name.endswith(WEIGHT_FILES) and not path.name.startswith(".") and path.name != "README.md":
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, folder / name)
            self.pair.student.cpu().save_pretrained(folder)
            write_text(folder / "README.md", _card(record))
            record = seal({**record, "files": {path.name: sha256_file(path)[1] for path in sorted(folder.iterdir()) if path.is_file()}})
            write_json(folder / RECORD, record)
        return record


def _stack_of(student: PreTrainedModel) -> str:
    """The whole of it, `attention` for the layers that were kept."""
    names = ["attention"] * len(attention_layers(student))
    for one in student.config.tokmix_swap:
        for layer in one["layers"]:
            names[layer] = one["mixer"]
    return ", ".join(names)


def _precision(device: torch.device) -> Literal["float32", "bfloat16"]:
    amx = device.type == "cpu" and torch.cpu._is_amx_tile_supported()
    return "bfloat16" if device.type == "cuda" or amx else "float32"


def _card(record: dict[str, Any]) -> str:
    cost, asked = record["cost"], record["settings"]
    return "\n".join([
        "---", "library_name: transformers", "tags: [tokmix]", "---", "",
        f"# {record['teacher']} with {asked['stack']} in layers {', '.join(map(str, record['layers']))}", "",
        f"Made by `tokmix transfer` (tokmix {record['tokmix']}, seed {asked['seed']}) from {cost['tokens']:,} tokens.",
        "Load it after `import tokmix.hf`.", "",
        "## Cost", "", f"- {report.factors(cost)}", f"- {report.measured(cost)}", "",
    ])  # fmt: skip
