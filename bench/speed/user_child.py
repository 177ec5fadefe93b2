"""One measured process of `tokmix bench user`: python -m bench.speed.user_child GIVEN.json FOUND.json

Runs a tokmix command as a user types it, or a rival that does the same work. Records the time of imports, and writes its results.
"""

from __future__ import annotations

import importlib
import json
import random
import runpy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict

if TYPE_CHECKING:
    from torch import Tensor

    from tokmix.core.mixer import State

LONGEST = 256  # tokens of a row of the BERT-shaped rival


class Classified(Protocol):
    """BERT's output for a batch with labels."""

    loss: Tensor
    logits: Tensor


class Shape(TypedDict):
    """Of the trained model: its stack, and what else the loop builds it by."""

    stack: str
    dim: int
    vocab: int
    head: str
    causal: bool
    max_len: int | None


class Given(TypedDict):
    """GIVEN.json: the first fields are for every kind, the others only for some."""

    kind: str
    args: list[str]
    device: str
    spawned: float
    rows: int
    predict: str
    modules: list[str]
    train: str
    test: str
    tokenizer: str
    seconds: float
    dim: int
    layers: int
    feed_forward: int
    vocab: int
    prompt: int
    new: int
    config: Shape
    tokens: int
    length: int


class Found(TypedDict, total=False):
    """FOUND.json"""

    absent: str
    tokens_per_s: float
    accuracy: float
    rows_per_s: float
    predicted_per_s: float
    parameters: int
    import_s: float


class Process:
    def __init__(self, given: Given):
        self.given, self.spawned = given, given["spawned"]
        self.import_s = 0.0

    def imported(self) -> None:
        self.import_s = time.time() - self.spawned


def command(process: Process) -> Found:
    """`tokmix ARGS`. Its modules are imported first, so that the time of imports is separate; steps of generation are counted."""
    for name in process.given["modules"]:
        importlib.import_module(name)
    from tokmix.core.decoding import Decoder

    process.imported()
    at: list[float] = []
    step = Decoder.next

    def timed(self: Decoder, ids: Tensor, state: State, *, position: int | None = None) -> tuple[Tensor, State]:
        made = step(self, ids, state, position=position)
        at.append(time.time())
        return made

    Decoder.next = timed  # type: ignore[method-assign]
    sys.argv = ["tokmix", *process.given["args"]]
    try:
        runpy.run_module("tokmix", run_name="__main__", alter_sys=False)
    except SystemExit as end:
        if end.code:
            raise
    return {"tokens_per_s": (len(at) - 1) / (at[-1] - at[0])} if len(at) > 1 else {}


def svm(process: Process) -> Found:
    """A linear SVM on TF-IDF of words and word pairs, as one would write it with scikit-learn."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    process.imported()
    (texts, labels), (test, expected) = _table(process.given["train"]), _table(process.given["test"])
    began = time.time()
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LinearSVC()).fit(texts, labels)
    fitted = time.time()
    right = sum(a == b for a, b in zip(model.predict(test), expected, strict=True))
    between = time.time()
    model.predict(_lines(process.given["predict"]))
    return {"accuracy": right / len(test), "rows_per_s": len(texts) / (fitted - began), "predicted_per_s": _predicted(process, between)}


def bert(process: Process) -> Found:
    """A fine-tuning loop around Hugging Face's BERT of the encoder's size, from random weights, because only speed is measured."""
    import torch
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertForSequenceClassification

    process.imported()
    given, device = process.given, process.given["device"]
    (texts, labels), (test, expected) = _table(given["train"]), _table(given["test"])
    tokenizer = Tokenizer.from_file(given["tokenizer"])
    names = sorted(set(labels))
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=given["dim"], num_hidden_layers=given["layers"],
        num_attention_heads=max(1, given["dim"] // 64), intermediate_size=given["feed_forward"], max_position_embeddings=LONGEST,
    )  # fmt: skip
    config.num_labels = len(names)
    torch.manual_seed(0)
    model: torch.nn.Module = BertForSequenceClassification(config)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)

    def batches(texts: list[str], size: int, order: list[int]) -> Iterator[tuple[list[int], Callable[..., Classified]]]:
        encoded = [one.ids[:LONGEST] for one in tokenizer.encode_batch(texts)]
        for start in range(0, len(texts), size):
            rows = order[start : start + size]
            longest = max(1, *(len(encoded[row]) for row in rows))
            ids = torch.tensor([encoded[row] + [0] * (longest - len(encoded[row])) for row in rows], device=device)
            lengths = torch.tensor([len(encoded[row]) for row in rows], device=device)
            mask = (torch.arange(longest, device=device) < lengths[:, None]).long()
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                yield rows, lambda **more: model(input_ids=ids, attention_mask=mask, **more)  # noqa: B023 - called at once

    began, steps, rows_done = time.time(), 0, 0
    order = list(range(len(texts)))
    random.Random(0).shuffle(order)
    for rows, call in batches(texts, 32, order):
        loss = call(labels=torch.tensor([names.index(labels[row]) for row in rows], device=device)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps, rows_done = steps + 1, rows_done + len(rows)
        if time.time() - began > given["seconds"]:
            break
    loss.item()  # waits for the device
    trained = time.time()
    model.eval()

    @torch.inference_mode()
    def predict(texts: list[str]) -> list[int]:
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        found = [(rows, call().logits.argmax(-1).tolist()) for rows, call in batches(texts, 64, order)]
        told = dict(chain.from_iterable(zip(rows, ids, strict=True) for rows, ids in found))
        return [told[row] for row in range(len(texts))]

    right = sum(names[a] == b for a, b in zip(predict(test), expected, strict=True))
    between = time.time()
    predict(_lines(given["predict"]))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"accuracy": right / len(test), "rows_per_s": rows_done / (trained - began), "predicted_per_s": _predicted(process, between),
            "parameters": parameters}  # fmt: skip


def gpt2(process: Process) -> Found:
    """Hugging Face's `generate` with a GPT-2 of the trained model's size."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    process.imported()
    given = process.given
    config = GPT2Config(
        vocab_size=given["vocab"], n_positions=given["prompt"] + given["new"] + 1, n_embd=given["dim"], n_layer=given["layers"],
        n_head=max(1, given["dim"] // 64), n_inner=given["feed_forward"], bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).eval()
    model.to(given["device"])
    ids = torch.randint(1, given["vocab"], (1, given["prompt"]), device=given["device"])

    def seconds(new: int) -> float:
        began = time.time()
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False).tolist()
        return time.time() - began

    seconds(2)
    rates = [(given["new"] - 1) / (seconds(given["new"]) - seconds(1)) for _ in range(3)]
    return {"tokens_per_s": statistics.median(rates), "parameters": sum(parameter.numel() for parameter in model.parameters())}


def loop(process: Process) -> Found:
    """The best handwritten loop for the same model: fused AdamW, one batch; on a GPU compiled and captured."""
    from bench.speed import train
    from bench.speed.session import Session
    from bench.speed.settings import BenchSettings

    process.imported()
    given = process.given
    gpu = given["device"] == "cuda"
    config = {name: value for name, value in given["config"].items() if name not in ("stack", "max_len")}
    session = Session(BenchSettings("train", device=given["device"], tokens=given["tokens"]), say=lambda line: None)
    model = train.Trained("user", config, given["config"]["stack"], ())
    rows = [train.time_model(session, model, model.stack, setting, given["length"]) for setting in (("compiled",) if gpu else ("eager",))]
    if not rows[0]:
        raise RuntimeError("; ".join(session.notes))
    return {"tokens_per_s": rows[0]["best_tokens_per_s"], "parameters": rows[0]["parameters"]}


def _table(path: str) -> tuple[list[str], list[str]]:
    rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return [row["text"] for row in rows], [str(row["label"]) for row in rows]


def _lines(path: str) -> list[str]:
    return [json.loads(line)["text"] for line in Path(path).read_text(encoding="utf-8").splitlines()]


def _predicted(process: Process, began: float) -> float:
    return float(process.given["rows"] / (time.time() - began))


KINDS: dict[str, Callable[[Process], Found]] = {"command": command, "svm": svm, "bert": bert, "gpt2": gpt2, "loop": loop}


def main(given: str, found: str) -> None:
    process = Process(json.loads(Path(given).read_text()))
    try:
        result = KINDS[process.given["kind"]](process)
    except ImportError as error:
        result = {"absent": f"{error.name} is not installed"}
    Path(found).write_text(json.dumps(result | {"import_s": process.import_s}))


if __name__ == "__main__":
    main(*sys.argv[1:])
