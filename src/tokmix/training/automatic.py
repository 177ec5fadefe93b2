"""Which shipped encoder a run starts from where `--from` says nothing, chosen once, before the data is prepared.

A table of English texts that the encoder reads in the time of the run gets the one of PREFERRED for its kind of rows. Anything else
starts from nothing, as with `--from none`. TOKMIX_FROM names another encoder to choose, or none. The choice is written to run.json as
train.start, so a resumed run does not choose again.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tokmix.data.prepare.pipeline import plan_of
from tokmix.data.prepare.rows import LeftOut
from tokmix.data.prepare.settings import PrepareSettings
from tokmix.data.prepare.targets import LABELLED
from tokmix.data.prepare.tokenize import Encoder
from tokmix.data.tokens import is_prepared
from tokmix.training import encoder, linear, model_folder
from tokmix.training.frozen import Pooled
from tokmix.training.predict import by_length
from tokmix.training.report import clock
from tokmix.training.run_record import NAME as RUN
from tokmix.training.run_record import RunRecord
from tokmix.training.settings import NO_ENCODER, ModelSettings, Settings
from tokmix.training.time_budget import seconds_of

PREFERRED = {"single": ("small", "hybrid"), "pair": ("hybrid",)}  # names of shipped encoders, the best first
VARIABLE = "TOKMIX_FROM"
SAMPLE, TIMED = 500, 64  # rows looked at, and rows that the encoder reads in a trial
PIECES, UNKNOWN = 1.45, 0.02  # tokens of a word and share of unknown tokens, at most: English has 1.0 to 1.3, other languages 1.6 and more
CUT = 0.05  # share of the rows that may be longer than the encoder reads
FROZEN = 0.5  # share of the time that one reading of the rows may take
TRAINING = 3  # a step of fine-tuning takes as long as so many readings
OWN_WORDS = ("tokenizer", "vocab", "max_len")  # settings of prepare that the encoder decides


@dataclass(frozen=True)
class Survey:
    """A table as the choice sees it."""

    rows: int
    sample: list[tuple[str, ...]]

    @property
    def kind(self) -> str:
        return "pair" if len(self.sample[0]) == 2 else "single"


def settled(data: Path, out: Path, settings: Settings, device: torch.device, say: Callable[[str], None]) -> Settings:
    """These settings with train.start decided."""
    if settings.train.start is not None:
        return settings
    if (out / RUN).is_file():
        return as_started(out, settings)
    asked = os.environ.get(VARIABLE)
    names = [asked] if asked else list(encoder.shipped())
    if asked == NO_ENCODER or not names or is_prepared(data) or not _ours_to_choose(settings):
        return settings
    survey = look(data, settings)
    if survey is None:
        return settings
    name = asked or next((one for one in PREFERRED[survey.kind] if one in names), None)
    if name is None:
        return _with(settings, NO_ENCODER)
    why_not = against(encoder.read(name), survey, settings, device)
    if why_not is not None:
        say(f"trained from nothing, without a shipped encoder: {why_not} (--from {name} for one all the same)")
        return _with(settings, NO_ENCODER)
    return _with(settings, name)


def as_started(out: Path, settings: Settings) -> Settings:
    """Of a run that has begun: train.start as it was chosen then."""
    if settings.train.start is not None or not (out / RUN).is_file():
        return settings
    return _with(settings, RunRecord.read(out).settings["train"].get("start"))  # type: ignore[arg-type]


def _with(settings: Settings, start: str | None) -> Settings:
    return replace(settings, train=replace(settings.train, start=start))


def _ours_to_choose(settings: Settings) -> bool:
    """Whether nothing was asked for that an encoder decides, or does without."""
    train, usual = settings.train, ModelSettings()
    return (
        train.task in (None, *LABELLED)
        and not train.pretrain
        and train.freeze != "yes"
        and all(getattr(settings.model, name) == getattr(usual, name) for name in encoder.OWN)
        and not any(name in settings.prepare for name in OWN_WORDS)
    )


def look(data: Path, settings: Settings) -> Survey | None:
    """None where the data is no table of labelled rows, or where preparing it will say what is wrong."""
    given = settings.prepare if settings.train.task is None else {"task": settings.train.task, **settings.prepare}
    try:
        plan = plan_of(data, PrepareSettings.of(**given))
        if plan.stream or plan.columns is None or plan.columns.target is None:
            return None
        draw, sample, rows = random.Random(0), list[tuple[str, ...]](), 0
        for example in plan.examples(LeftOut()):
            if example.split in ("valid", "test"):
                continue
            place = rows if rows < SAMPLE else draw.randrange(rows + 1)
            sample[place : place + 1] = [example.texts] if place < SAMPLE else sample[place : place + 1]
            rows += 1
    except (ValueError, OSError, ImportError):
        return None
    return Survey(rows, sample) if sample else None


def against(start: encoder.Encoder, survey: Survey, settings: Settings, device: torch.device) -> str | None:
    """Why this encoder is not for this table, in a few words; None: it is."""
    trained = model_folder.load(start.folder)
    length = min(encoder.LONGEST, start.config.max_len)
    tokens = Encoder(trained.tokenizer, length)
    encoded = tokens.tokenizer.encode_batch([row[0] if len(row) == 1 else row for row in survey.sample], add_special_tokens=False)
    words = sum(len({*zip(one.sequence_ids, one.word_ids, strict=True)}) for one in encoded)
    pieces = sum(len(one.ids) for one in encoded)
    unknown = sum(one.ids.count(trained.roles["unk"]) for one in encoded) if "unk" in trained.roles else 0
    if not words or pieces > PIECES * words or unknown > UNKNOWN * pieces:
        return f"{start.name} was trained on English, and these texts read otherwise"
    cut = sum(bool(one.overflowing) for one in encoded) / len(encoded)
    if cut > CUT:
        return f"{100 * cut:.0f} % of the rows are longer than the {length} tokens that {start.name} reads"
    train = settings.train
    if device.type != "cpu" or train.epochs or train.steps or not (train.minutes or train.fit_time):
        return None
    tuned = survey.kind == "pair" or not linear.available()  # no linear head on a frozen encoder
    needed = survey.rows * _pace(trained, tokens, survey) * (TRAINING if tuned else 1)
    usual = seconds_of(survey.rows, survey.rows * pieces // len(encoded), encoder=True)
    seconds = usual if train.minutes is None else 60 * train.minutes
    if needed > (1.0 if tuned else FROZEN) * seconds:
        return f"{start.name} would take about {clock(needed)} to go once over {survey.rows:,} rows, and the run has {clock(seconds)}"
    return None


@torch.no_grad()
def _pace(trained: model_folder.Trained, tokens: Encoder, survey: Survey) -> float:
    """Seconds of a row, forward, with a core to itself."""
    ids, _ = tokens.rows(survey.sample[:TIMED])
    body = Pooled(trained.model.eval())
    by_length(trained.model, ids[:4], body)  # the first pass loads code
    wall, core = time.monotonic(), time.process_time()
    by_length(trained.model, ids, body)
    return min(time.monotonic() - wall, time.process_time() - core) / len(ids)
