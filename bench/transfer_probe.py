"""What a swapped sentence encoder keeps, and its speed: linear probes on frozen features of both, and the time of 512 tokens.

    python -m bench.transfer_probe TEACHER STUDENT --data FOLDER

FOLDER holds trec/ and sst2/, each with train and test .tsv.gz of text and label. Features: the mean of the last hidden states,
normalised. The probe is a logistic regression. Speed: one sequence on one CPU core, and batches on a GPU, the models taking turns.
Prints one JSON line. It needs torch and transformers alone.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

import tokmix.hf  # noqa: F401 - restores swaps

MOST = 6000  # rows of train
ROUNDS = 30
TASKS = ("trec", "sst2")
STRENGTH = 10  # of the losses of all rows next to half the squared weights: C of scikit-learn


def rows(path: Path, most: int = MOST) -> tuple[list[str], list[str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    random.Random(0).shuffle(found)
    return [row["text"] for row in found[:most]], [row["label"] for row in found[:most]]


@torch.inference_mode()
def features(model: Any, tokenizer: Any, texts: list[str]) -> Tensor:
    """[N, D] on the CPU."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    out = torch.zeros(len(texts), model.config.hidden_size)
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        batch = tokenizer([texts[i] for i in chosen], padding=True, truncation=True, max_length=128, return_tensors="pt").to(model.device)
        hidden = model(**batch).last_hidden_state.float()
        mask = batch["attention_mask"][..., None]
        out[chosen] = F.normalize((hidden * mask).sum(1) / mask.sum(1)).cpu()
    return out


def accuracy(train: tuple[Tensor, list[str]], test: tuple[Tensor, list[str]]) -> float:
    """Of a logistic regression with an unpenalised bias, the same as scikit-learn's. The problem is convex: Newton's method solves it."""
    names = sorted(set(train[1]))
    x = F.pad(train[0].double(), (0, 1), value=1.0)  # the last column is the bias
    y = F.one_hot(torch.tensor([names.index(label) for label in train[1]])).double()
    K, D = len(names), x.shape[1]
    decay = torch.ones(D, dtype=torch.double)
    decay[-1] = 1e-6  # not 0, because the biases may all move together
    weight = torch.zeros(K, D, dtype=torch.double)

    def loss(weight: Tensor) -> Tensor:
        return STRENGTH * F.cross_entropy(x @ weight.T, y, reduction="sum") + (decay * weight.square()).sum() / 2

    for _ in range(50):
        p = (x @ weight.T).softmax(1)
        slope = STRENGTH * (p - y).T @ x + decay * weight  # [K, D]
        if float(slope.abs().max()) < 1e-6:
            break
        curvature = torch.zeros(K, D, K, D, dtype=torch.double)
        for k in range(K):
            for other in range(K):
                shared = STRENGTH * p[:, k] * (float(k == other) - p[:, other])
                curvature[k, :, other] = (x * shared[:, None]).T @ x
            curvature[k, :, k] += decay.diag()
        step = torch.linalg.solve(curvature.view(K * D, K * D), slope.flatten()).view(K, D)
        while float(step.abs().max()) > 1e-9 and loss(weight - step) > loss(weight):
            step = step / 2
        weight = weight - step
    guesses = (F.pad(test[0].double(), (0, 1), value=1.0) @ weight.T).argmax(1).tolist()
    return 100 * sum(names[guess] == label for guess, label in zip(guesses, test[1], strict=True)) / len(test[1])


def probes(models: dict[str, Any], tokenizer: Any, data: Path, most: int = MOST) -> dict[str, dict[str, float]]:
    """Accuracy of each model on each task, in percent."""
    found: dict[str, dict[str, float]] = {}
    for task in TASKS:
        parts = {split: rows(data / task / f"{split}.tsv.gz", most) for split in ("train", "test")}
        for name, model in models.items():
            made = {split: (features(model, tokenizer, texts), labels) for split, (texts, labels) in parts.items()}
            found.setdefault(name, {})[task] = round(accuracy(made["train"], made["test"]), 2)
    return found


def quartiles(times: list[float]) -> list[float]:
    return [round(float(value), 3) for value in torch.tensor(times).quantile(torch.tensor([0.25, 0.5, 0.75]))]


def in_turns(models: dict[str, Any], once: Callable[[Any], float], rounds: int) -> dict[str, list[float]]:
    """Quartiles of the times that `once` gives for each model."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(rounds + 3):
        for name, model in models.items():
            taken = once(model)
            if turn >= 3:
                times[name].append(taken)
    return {name: quartiles(one) for name, one in times.items()}


@torch.inference_mode()
def core_speed(models: dict[str, Any], tokens: int = 512, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Milliseconds of CPU time of one sequence on one core."""
    ids = torch.randint(5, next(iter(models.values())).config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def once(model: Any) -> float:
        began = time.process_time()
        model(ids)
        return 1e3 * (time.process_time() - began)

    try:
        return in_turns(models, once, rounds)
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def gpu_speed(models: dict[str, Any], batch: int, tokens: int = 512, rounds: int = ROUNDS) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of a batch: `eager` as called from Python, `graph` as a replay of a CUDA graph, without the host."""
    ids = torch.randint(
        5, next(iter(models.values())).config.vocab_size, (batch, tokens), generator=torch.Generator().manual_seed(0)
    ).cuda()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(call: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))

    found = {"eager": in_turns(models, lambda model: timed(lambda: model(ids)), rounds)}
    try:
        graphs = {name: _captured(model, ids) for name, model in models.items()}
    except RuntimeError as error:  # a model that asks the GPU something on the way
        print(f"no CUDA graphs: {error}")
    else:
        found["graph"] = in_turns(graphs, lambda graph: timed(graph.replay), rounds)
    return found


def _captured(model: Any, ids: Tensor) -> Any:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(ids)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(ids)
    return graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher")
    parser.add_argument("student")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only-speed", action="store_true")
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.teacher)
    models = {name: AutoModel.from_pretrained(getattr(given, name)).float().eval() for name in ("teacher", "student")}
    found: dict[str, object] = {} if given.only_speed else {"accuracy": probes(models, tokenizer, given.data)}
    found["ms of 512 tokens (quartiles, one core, CPU time)"] = core_speed(models)
    if torch.cuda.is_available():
        halves = {name: model.to("cuda", torch.bfloat16) for name, model in models.items()}
        found["ms of batches of 512 tokens (quartiles, GPU, bfloat16)"] = {size: gpu_speed(halves, size) for size in (1, 64)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
