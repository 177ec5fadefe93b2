"""`tokmix train`: data -> a run folder.

    run.json       the settings, which --resume compares, and what was chosen at the start: threads, whether there is a warm-up
    data/          token files, where the data was not prepared already
    warmup/        a warm-up before it, where there is one (warmup.py)
    checkpoints/   the last few
    log.jsonl      losses and figures by step, at the end what the run cost;  curve.png draws them
    model/         the model folder; appears at the end, complete

run("reviews.csv", "run")  ->  the record of the run (training.json)
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from tokmix.data.prepare.targets import LABELLED
from tokmix.data.tokens import TokenFiles
from tokmix.runs.files import Damaged, check_free, remove_partial
from tokmix.runs.locks import RUN_LOCK, owning
from tokmix.training import automatic, cost_record, encoder, frozen, model_folder, ngram, preflight, report, threads, trackers, warmup
from tokmix.training.answers import RowAnswers, beside, told_of_rows
from tokmix.training.checkpoint import Checkpoints
from tokmix.training.defaults import default_tokens
from tokmix.training.distributed import World, join_world
from tokmix.training.engine import Engine
from tokmix.training.imports import import_files
from tokmix.training.progress import Diverged, Interrupted
from tokmix.training.refit import refit
from tokmix.training.run_record import NAME as RUN
from tokmix.training.run_record import Choices, RunRecord
from tokmix.training.settings import Settings, differences
from tokmix.training.sharding import sharding
from tokmix.training.side_by_side import Session, train_one
from tokmix.training.task import TrainingTask, main_figure
from tokmix.training.tasks import task_for
from tokmix.training.time_budget import TimeBudget
from tokmix.training.training_record import training_record

Cost = dict[str, Any]  # what a run cost, as its record has it
CHANGING = ("save_seconds", "save_steps", "keep", "log_steps", "baseline", "device", "shard", "threads", "compile", "report_to")
FREE = tuple(f"train.{name}" for name in CHANGING)  # what may change on --resume


def run(
    data: str | Path,
    out: str | Path,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    *,
    resume: bool = False,
    imports: Sequence[str | Path] = (),
    quiet: bool = False,
) -> dict[str, Any]:
    """Train and save. ValueError for what does not work, naming it; KeyboardInterrupt after Ctrl-C, with a checkpoint saved."""
    return train_one(session(data, out, settings, resume=resume, imports=imports, quiet=quiet))


def session(
    data: str | Path, out: str | Path, settings: Settings, *, resume: bool = False, imports: Sequence[str | Path] = (),
    quiet: bool = False, side_by_side: int = 1,
) -> Session[dict[str, Any]]:  # fmt: skip
    """`run` as one of so many sessions side by side."""
    out, began = Path(out), time.monotonic()
    if not resume and int(os.environ.get("RANK", "0")) == 0:
        check_free(out)
    trackers.check(settings.train.report_to)
    import_files(imports)
    if settings.model.stack is not None:
        preflight.check_stack(settings.model.stack)
    with join_world(settings.train.device) as world, threads.restored():
        if settings.train.compile == "yes" and world.device.type != "cuda":
            raise ValueError(f"train.compile='yes' is for a GPU, and this run is on {world.device.type}: leave it out")
        sharding(settings.train.shard, world)  # what cannot be is said before anything is written
        say: Callable[[str], None] = print if world.first and not quiet else lambda line: None
        made = not out.exists()
        with owning(out) if world.first else nullcontext():
            new = made and world.first and empty(out)
            settings = automatic.as_started(out, settings)
            if not resume and world.first and not new:
                raise ValueError(f"{out} exists already; nothing is overwritten: name another folder, or remove it")
            if resume and (ended := world.agree(_ended(Path(data), out, settings, say) if world.first else None)) is not None:
                return ended
            with preflight.nothing_left_of(out, new=new):
                if world.first:
                    settings = automatic.settled(Path(data), out, settings, world.device, say)
                    _open_run(Path(data), out, settings)
                settings = world.agree(settings)
                files = TokenFiles(preflight.token_folder(Path(data), out))
                if world.first:
                    files.verify()
                chosen = Choices(out, world)
                if settings.train.tokens is None:  # by the device of the first start: another one may resume
                    tokens = chosen.get("tokens", lambda: default_tokens(world.device.type, files.card.stream))
                    settings = replace(settings, train=replace(settings.train, tokens=tokens))
                work = task_for(files, settings)
                preflight.check_start(work.start, out, chosen)
                frozen.check(work)
                preflight.check_memory(work.config, world)
            say(work.card.summary())
            work.before(world, quiet)
            one = _Run(work, out, world, say, quiet or not world.first, [Path(file).name for file in imports], began, chosen, side_by_side)
            return (yield from one.train(resume))


def empty(out: Path) -> bool:
    return all(one.name == RUN_LOCK for one in out.iterdir())


def _ended(data: Path, out: Path, settings: Settings, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The record of a run that has ended, which is one whose model can be loaded; None: it goes on. A damaged model is put aside."""
    for folder in (out, out / warmup.FOLDER):
        remove_partial(folder)
        Checkpoints(folder / "checkpoints").clear()
    if not (out / "model").exists():
        return None
    if (out / RUN).is_file():
        _check_same(data, out, settings)
    try:
        record = model_folder.load(out / "model").record
    except Damaged as error:
        preflight.put_aside(out / "model", error, say)
        return None
    say(f"{out / 'model'} is there already: this run has ended")
    return record


def _open_run(data: Path, out: Path, settings: Settings) -> None:
    """Make the folder and note what was asked, or see that it is what was asked before; prepare the data."""
    preflight.check_not_late(data, settings.prepare, "prepare.")
    path = out / RUN
    if path.is_file():
        _check_same(data, out, settings)
    elif not all(one.name in (RUN_LOCK, ".run.json") for one in out.iterdir()):
        raise ValueError(f"{out} exists and is not a run of tokmix train: nothing is overwritten; name another folder")
    else:
        RunRecord(preflight.source_of(data), settings.record()).write(out)
    preflight.prepared_in(data, out, settings)


def _check_same(data: Path, out: Path, settings: Settings) -> None:
    """A run goes on as it was started: with these settings, on this data."""
    before = RunRecord.read(out)
    known = Settings().record()["train"] | before.settings["train"]  # a run of an older version does not know newer settings
    if changed := differences(before.settings | {"train": known}, settings.record(), FREE):
        raise ValueError(f"{out} was started with other settings, so it cannot be resumed with these: {'; '.join(changed)}")
    chosen, asked = before.chosen.get("threads"), settings.train.threads
    if chosen and asked and asked != chosen:
        raise ValueError(f"{out} was started with {chosen} threads, so it cannot be resumed with train.threads={asked}: leave that out")
    gone = not data.exists() and not (out / "data").exists()  # prepared data, which has to be there to go on, and not to have ended
    if before.source != preflight.source_of(data) and not gone:
        raise ValueError(f"{out} was started on other data, so it cannot be resumed on {data}")
    preflight.check_source(data, out, settings)


def go(engine: Engine, log: report.Log, resume: bool, say: Callable[[str], None], before: Cost | None = None) -> Session[None]:
    """From the start or the last checkpoint to the end; `before`: what was spent on the way here."""
    if resume and engine.restore():
        for line in engine.checkpoints.passed_over:
            say(f"{line}; an older checkpoint is used")
        say(f"resumed after step {engine.progress.step} of {engine.progress.total}")
    if engine.world.first:
        log.path.parent.mkdir(exist_ok=True)
        if lost := log.open(engine.progress.step):
            say(f"{log.path}: {lost} damaged line{'s' * (lost > 1)} left out")
    try:
        yield engine
        engine.finish()
    except Interrupted as error:
        raise Interrupted(f"{error}; saved {engine.checkpoints.last}; continue with the same command and --resume") from None
    except Diverged as error:
        error.cost = cost_record.with_warm_up(cost_record.cost_so_far(engine), before)
        if engine.world.first:
            log.add_cost(engine.progress.step, engine.progress.epoch, error.cost)
        raise
    finally:
        engine.checkpoints.settle()
        log.close()


class _Run:
    def __init__(
        self, work: TrainingTask, out: Path, world: World, say: Callable[[str], None], quiet: bool, imports: list[str], began: float,
        chosen: Choices, side_by_side: int,
    ):  # fmt: skip
        self.work, self.files, self.out, self.world, self.say, self.quiet = work, work.files, out, world, say, quiet
        self.imports, self.began, self.chosen, self.side_by_side = imports, began, chosen, side_by_side
        self.rows: RowAnswers | None = None
        self.budget = TimeBudget(work, world, chosen, say, began)

    def train(self, resume: bool) -> Session[dict[str, Any]]:
        self.rows = RowAnswers(self.work, self.world, self.say) if self.work.task in LABELLED else None
        bag = None
        if self.work.train.minutes is not None and self.world.first:  # its time counts, so it comes before the steps that fill the rest
            bag = self._baseline(self.work.final)
        start, loaded = None, False
        if self.work.warm_up_epochs and self.chosen.known.get("warm_up", True):
            loaded = (self.out / warmup.FOLDER / warmup.WEIGHTS).is_file()
            start = yield from self._warm_up(resume)
        engine, log = self._engine(self.work, self.out)
        still = frozen.wanted(engine, self.chosen, self.budget.seconds, time.monotonic() - self.began, self.say)
        if not still:
            self.budget.fit(engine)
            self._describe(engine)
        if start is not None:
            engine.begin_with(start.weights)
        elif self.work.start is not None:
            taken = encoder.weights(self.work.start, engine.model)
            engine.begin_with(taken)
            fresh = sorted({name.split(".")[0] for name in engine.model.state_dict() if name not in taken})
            self.say(f"starts from the encoder {self.work.start.name}; fresh: {', '.join(fresh)}")
        engine.progress.spent = time.monotonic() - self.began + (start.cost["seconds"] if start and loaded else 0.0)
        if still:
            frozen.fit(engine, log, self.say)
        else:
            engine.progress.spent += self.budget.kept_for_refit(engine)
            if self.rows is not None and self.rows.bag is not None:  # it is fitted once more at the end
                engine.progress.spent += self.rows.bag.fitted.fit_seconds
            yield from go(engine, log, resume, self.say, None if start is None else start.cost)
        return self._finish(engine, log, start, bag)

    def _warm_up(self, resume: bool) -> Session[warmup.Start | None]:
        folder = self.out / warmup.FOLDER
        if not (folder / warmup.WEIGHTS).is_file():
            engine, log = self._engine(warmup.MaskedPretraining(self.work), folder)
            if not self.budget.fit_warm_up(engine):
                self.chosen.set("warm_up", False)
                return None
            self.say(
                f"first a warm-up, {self.work.warm_up_epochs} epochs: finding hidden tokens in train's text (without: --train.pretrain 0)"
            )
            yield from go(engine, log, resume, self.say)
            warmup.save(engine, folder / warmup.WEIGHTS)
        self.world.wait()
        return warmup.load(folder / warmup.WEIGHTS)

    def _choose_threads(self, engine: Engine) -> None:
        """On a CPU: those of the first start, else the user's number, else the fastest in a trial."""
        if self.world.device.type != "cpu":
            return
        asked = threads.given(self.work.train.threads)
        count = self.chosen.get("threads", lambda: asked or self._fastest(engine))
        if asked is not None and asked != count:
            self.say(f"{count} threads, as this run was started with, not {asked}")
        torch.set_num_threads(count)

    def _fastest(self, engine: Engine) -> int:
        counts = threads.candidates()
        if self.world.size > 1 or len(counts) == 1 or engine.checkpoints.last is not None:
            return torch.get_num_threads()
        with engine.untouched():
            count = threads.choose(engine.time_step, counts)
        self.say(f"{count} of {counts[-1]} threads: the fastest in a short trial (--threads sets a number)")
        return count

    def _engine(self, work: TrainingTask, folder: Path) -> tuple[Engine, report.Log]:
        log = report.Log(folder / "log.jsonl", self.quiet, work.train.report_to, asdict(work.train) | asdict(work.settings.model))
        checkpoints, noted = Checkpoints(folder / "checkpoints", work.train.keep), log if self.world.first else lambda entry: None
        engine = Engine(work, self.world, checkpoints, noted, self.side_by_side)
        engine.say = self.say
        if self.world.device.type == "cuda" and engine.eager is not None:
            self.say(f"steps run one kernel at a time, not as CUDA graphs: {engine.eager}")
        self._choose_threads(engine)
        if self.chosen.get("compile", lambda: engine.compile_pays()):
            engine.compile()
        return engine, log

    def _describe(self, engine: Engine) -> None:
        kept = "nothing is held out: the last weights are kept"
        if self.work.held is not None:
            rows = f"{len(self.work.held):,} {'rows of valid' if self.work.held_split == 'valid' else 'held-out rows of train'}"
            kept = f"the best weights by {rows} are kept"
            if self.work.train.minutes is None:
                engine.plan_evaluations()
                share = engine.progress.held_share
                on = rows if share == 1 else f"a sample of {100 * share:.3g} % of {rows}"
                kept = f"the best of {engine.progress.evaluations} evaluations on {on} is kept"
        self.say(f"{self.work.config.stack}, dim {self.work.config.dim}: {engine.model.parameter_count():,} parameters; {kept}")

    def _finish(self, engine: Engine, log: report.Log, start: warmup.Start | None, bag: dict[str, Any] | None) -> dict[str, Any]:
        """The reported figure, once; the bag of words; the model folder."""
        work, files = self.work, self.files
        split = work.final
        figures: dict[str, Any] = {} if self.rows is None else self.rows.measure(engine.model)
        if self.rows is None and split is not None:
            size = files.card.split(split).bytes if work.task == "lm" else None
            figures = work.evaluate(engine.model, work.batches(split, self.world), self.world, size)
        if wrong := next((name for name, value in figures.items() if isinstance(value, float) and not math.isfinite(value)), None):
            raise Diverged(f"the {wrong} on {split} is not a finite number: training diverged; try a lower train.lr")
        if self.rows is not None:
            figures = self.rows.settle(engine.model, figures)
            with engine.turn:
                self.rows.refitted = refit(engine)
        model = engine.sharding.gather(engine.model)
        if model is None:
            self.world.wait()
            return {}
        bag = bag or self._baseline(split)
        record = training_record(engine, split, figures, bag, start) | {"imports": self.imports}
        record |= {} if self.rows is None else self.rows.record()
        if files.folder != self.out / "data":  # what `train` was given: a report says how to make it again
            record["data"]["prepared"] = {"folder": files.folder.resolve().name, "settings": files.card.settings}
        log.add_cost(engine.progress.step, engine.progress.epoch, record["cost"])
        model = work.kept_model(model)
        card, more = report.model_card(record), (lambda folder: None) if self.rows is None else self.rows.write
        model_folder.save(self.out / "model", model, files.card, files.folder / "tokenizer.json", record, card, more)
        curve = report.draw_curve(self.out / "log.jsonl", self.out / "curve.png", work.task, self.say)
        self._tell(record, curve)
        self.world.wait()
        return record

    def _baseline(self, split: str | None) -> dict[str, Any] | None:
        """What a user would pick instead: a bag of words, or for a running text an n-gram model of its bytes."""
        if not self.work.train.baseline or split is None:
            return None
        if self.work.task == "lm":
            return ngram.baseline(self.files, split, None if self.work.train.fraction == 1 else self.work.kept)
        return None if self.rows is None else self.rows.baseline(split)

    def _tell(self, record: dict[str, Any], curve: Path | None) -> None:
        cost, bag = record["cost"], record["baseline"]
        self.say(f"model folder {self.out / 'model'}" + (f", learning curve {curve}" if curve else ""))
        if not record["figures"]:
            self.say("no valid or test split: nothing to report on")
            return
        name, _ = main_figure(self.work.task, record["figures"])
        figure = f"{name} {record['figures'][name]:.4f}"
        self.say(
            f"on {record['split']}: {figure}{beside(record['figures'], name)}, trained in {report.clock(cost['seconds'])},"
            f" {cost['parameters']:,} parameters,"
            f" {cost['flops']:,} FLOPs for {cost['length']} tokens"
        )
        self.say(f"{report.factors(cost)}; {report.measured(cost)}")
        if bag and "bits_per_byte" in bag:
            counted = f"{bag['bits_per_byte']:.4f} bits per byte, counted in {report.clock(bag['seconds'])}"
            self.say(f"a byte n-gram model of order {bag['order']} on the same text: {counted}")
        elif bag:
            for line in told_of_rows(record, name):
                self.say(line)
        self.say(figure)
