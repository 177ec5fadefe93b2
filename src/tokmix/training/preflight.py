"""Steps of `train`, `tune` and `compare` before training: check the settings, prepare the data, leave no folder behind on errors."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokmix.core import stack
from tokmix.core.mixer import check_options
from tokmix.core.model import ModelConfig
from tokmix.core.outline import outline
from tokmix.data.card import Card
from tokmix.data.prepare.pipeline import prepare, source_facts
from tokmix.data.tokens import is_prepared
from tokmix.runs.files import Damaged, remove_folder, sha256_together
from tokmix.runs.machine import memory_of
from tokmix.training import encoder
from tokmix.training.distill import teacher
from tokmix.training.distributed import World
from tokmix.training.model_folder import READ
from tokmix.training.run_record import Choices
from tokmix.training.settings import Settings

MOST_LAYERS = 1000  # most layers of a run; building more takes minutes before they can be checked


def check_stack(text: str) -> None:
    """Refuse a stack that no task can use. Whether it fits the data is checked later."""
    specs = stack.parse(text)
    if len(specs) > MOST_LAYERS:
        raise ValueError(f"stack {text!r} has {len(specs):,} layers; a run takes at most {MOST_LAYERS:,}")
    for spec in specs:
        check_options(spec.name, spec.options)


def check_memory(config: ModelConfig, world: World) -> None:
    """Check that weights, gradients and the optimizer's two moments fit in memory, sharded or not."""
    parameters = outline(config).parameter_count()
    needed, there = 16 * parameters, memory_of(world.device)
    if there is not None and needed > there * world.size:
        raise ValueError(
            f"the model has {parameters:,} parameters and needs {needed / 2**30:,.1f} GiB to train; {world.device} has"
            f" {there / 2**30:,.1f} GiB: choose a smaller model.dim or a shorter stack"
        )


def source_of(data: Path) -> str:
    """The identity of the data for --resume: the content of prepared data, the name of other data, whose content `check_source`
    compares after preparation."""
    return card_hash(data) if is_prepared(data) else data.name


def card_hash(folder: Path) -> str:
    return hashlib.sha256((folder / "card.json").read_bytes()).hexdigest()


def check_not_late(data: str | Path, settings: Mapping[str, object], prefix: str = "") -> None:
    """Refuse settings of prepare for data that is already prepared."""
    if settings and is_prepared(data):
        raise ValueError(f"{data} is prepared already, so {prefix}{next(iter(settings))} comes too late")


def prepare_settings(settings: Settings) -> dict[str, Any]:
    task = {"rtd": "mlm", "embed": "classify", "distill": "mlm"}.get(
        settings.train.task or "", settings.train.task
    )  # the task that its data is prepared for
    given = settings.prepare if task is None else {"task": task, **settings.prepare}
    start = encoder.named(settings.train.start)
    if settings.train.teacher is not None and start is None:
        teacher.check(Path(settings.train.teacher))
        given = {"tokenizer": str(Path(settings.train.teacher) / "tokenizer.json"), "max_len": encoder.LONGEST, **given}
    if start is None:
        return given
    if "tokenizer" in given:
        raise ValueError("prepare.tokenizer comes from the encoder: leave it out, or train without --from")
    return encoder.read(start).preparation | given


def token_folder(data: Path, out: Path) -> Path:
    """`data` itself if it is prepared, else out/data."""
    return data if is_prepared(data) else out / "data"


def prepared_in(data: Path, out: Path, settings: Settings) -> Path:
    """The folder of token files, made if missing."""
    folder = token_folder(data, out)
    if not folder.exists():
        prepare(data, folder, **prepare_settings(settings))
    return folder


def check_source(data: Path, out: Path, settings: Settings) -> None:
    """A resumed run uses out/data. Check that it was made from this data, unless the data is gone."""
    folder = out / "data"
    if is_prepared(data) or not data.exists() or not folder.exists():
        return
    before, now = Card.read(folder).source, source_facts(data, **prepare_settings(settings))
    changed = [one["name"] for one in [*now, *before] if one not in before or one not in now]
    if changed:
        raise ValueError(f"{out} was started on other data, so it cannot be resumed on {data}: {changed[0]} is not what it was")


def check_start(start: encoder.Encoder | None, out: Path, chosen: Choices) -> None:
    """A resumed run has to name the encoder it started from, whose weights count until the first checkpoint."""
    if start is None:
        return
    now = int(sha256_together(start.folder / name for name in READ)[:12], 16)
    if chosen.get("encoder", lambda: now) != now:
        raise ValueError(f"{out} was started from the encoder {start.name} as it was before: its files have changed, so start a new run")


def put_aside(model: Path, error: Damaged, say: Callable[[str], None]) -> None:
    """A damaged model folder gets another name."""
    aside = model.with_name(f"{model.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    model.rename(aside)
    say(f"{error}; it is now called {aside.name}, and the model is made again from the last checkpoint")


@contextmanager
def nothing_left_of(out: Path, new: bool) -> Iterator[None]:
    """On bad data or settings, remove the new folder, so that a second try can use its name."""
    try:
        yield
    except BaseException:
        if new:
            remove_folder(out)
        raise
