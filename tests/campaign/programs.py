"""What is killed: commands on small data, each with the result that it has to come to."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.comparison import Here
from tests.lab import REST, write_table, write_text
from tests.training.test_contrast import write_pairs
from tokmix.cli.main import main
from tokmix.runs import pool
from tokmix.runs.locks import RUN_LOCK
from tokmix.training.report import read_log

SMALL = [
    "--model.dim", "16", "--train.rows", "16", "--train.steps", "12", "--train.save_steps", "2", "--train.evaluations", "3",
    "--train.log_steps", "1", "--train.threads", "1", "--no-train.baseline", "--train.device", "cpu",
]  # fmt: skip
BAG = "train with a bag of words"
# Those that are killed while they save.
CHECKPOINTS = ("train", "train lm", "train on two ranks", "train in parts on two ranks", "tune side by side", "compare side by side")
ROWS = ["--model.stack", "hypermixing(hidden=16)", "--prepare.vocab", "200", *SMALL]


def write_teacher(folder: Path) -> Path:
    """A tiny BERT with the tokenizer of its few words."""
    import torch
    import transformers

    from tokmix.data.prepare.tokenize import train_tokenizer

    folder.mkdir()
    words = train_tokenizer("wordpiece", lambda: [REST] * 3, 120, True)
    words.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 40}
    transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=words.get_vocab_size(), **sizes)).save_pretrained(folder)
    return folder


def write_lines(path: Path, rows: int = 80) -> Path:
    draw = random.Random(0)
    path.write_text("text\n" + "".join(" ".join(draw.choices(REST.split(), k=draw.randint(1, 9))) + "\n" for _ in range(rows)))
    return path


def digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def tree(folder: Path) -> str:
    """Of the names and contents of all files. The file of a lock says nothing: a power cut may bring it back."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != RUN_LOCK]
    return json.dumps({str(path.relative_to(folder)): digest(path) for path in files})


@dataclass(frozen=True)
class Program:
    name: str
    command: Callable[[Path], list[str]]  # folder -> arguments; a folder that is there is gone on with
    result: Callable[[Path], str]  # a fingerprint of what it came to
    ranks: int = 1
    runs: int = 1  # that train side by side, in the process of the command itself: the fault strikes all of them
    once: bool = False  # what it writes is whole or not there, and it refuses to write it again
    of: str | None = None  # the program whose folder it reads

    def run(self, out: Path, rank: int = 0, port: int = 0, more: tuple[str, ...] = ()) -> int:
        if self.ranks > 1:
            world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in world.items()})
        if self.runs > 1:
            pool.Pool = Here  # type: ignore[assignment,misc]
        return main([*self.command(out), *more])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def losses(out: Path) -> list[float]:
    """Of every step in the logs: none is missing, and none is there twice."""
    logs = [read_log(path)[0] for path in sorted(out.rglob("log.jsonl"))]
    return [value for entries in logs for entry in entries for value in entry.get("losses", [])]


def weights(out: Path) -> str:
    return json.dumps([digest(out / "model" / "model.safetensors"), losses(out)])


def answers(out: Path) -> str:
    return digest(*(out / "model" / name for name in ("model.safetensors", "linear.safetensors")))


def all_weights(out: Path) -> str:
    return digest(*sorted(out.glob("*/*/model/model.safetensors")))


def trials(out: Path) -> str:
    known = json.loads((out / "tune.json").read_text())["trials"]
    return json.dumps([all_weights(out), *([one["number"], one["parameters"], one["score"]] for one in known)])


def table_of(out: Path) -> str:
    known = json.loads((out / "compare.json").read_text())["runs"]
    return json.dumps([all_weights(out), *([one["entry"], one["seed"], one["score"]] for one in known)])


def page(out: Path) -> str:
    """Without the time at which it was made."""
    return re.sub(r" on \d{4}-\d\d-\d\d \d\d:\d\d UTC", "", (out / "report.html").read_text())


def programs(folder: Path) -> list[Program]:
    table, text = write_table(folder / "t.csv", 100), write_text(folder / "text", 30)
    teacher, lines, pairs = write_teacher(folder / "teacher"), write_lines(folder / "lines.csv"), write_pairs(folder / "pairs.tsv", 60)

    def train(*more: str, data: Path = table, rows: list[str] = ROWS, command: str = "train") -> Callable[[Path], list[str]]:
        return lambda out: [command, str(data), "--out", str(out), "--resume", *rows, *more]

    def embed_train(out: Path) -> list[str]:
        given = [*SMALL[2:], "--train.rows", "8"]  # the encoder's sizes
        return ["embed-train", str(whole(folder, "pretrain")), str(pairs), "--out", str(out), "--resume", *given]

    def distill(out: Path) -> list[str]:
        given = ["--model.dim", "8", "--model.stack", "hsm", "--prepare.max_len", "32", *SMALL]
        return ["distill", str(teacher), str(lines), "--out", str(out), "--resume", *given]

    def transfer(out: Path) -> list[str]:
        given = ["--stack", "hypermixing(heads=2)", "--tokens", "1200", "--batch", "200", "--length", "20", "--save-seconds", "0.05"]
        given += ["--precision", "float32", "--threads", "1", "--device", "cpu"]
        return ["transfer", str(teacher), "--data", str(text), "--out", str(out), "--resume", *given]

    def tune(*more: str) -> Callable[[Path], list[str]]:
        def command(out: Path) -> list[str]:
            told = ["--workers", "1", *more, *(["--resume"] if (out / "study.json").exists() else [])]
            return ["tune", str(table), "--out", str(out), *told, *ROWS]

        return command

    def compare(*more: str) -> Callable[[Path], list[str]]:
        told = ["--data", str(table), "--jobs", "1", "--resume", "--prepare.vocab", "200", *more, *SMALL]
        return lambda out: ["compare", "hypermixing(hidden=16)", *told, "--out", str(out)]

    def once(name: str, command: Callable[[Path], list[str]], result: Callable[[Path], str] = tree, of: str | None = None) -> Program:
        return Program(name, command, result, once=True, of=of)

    beside, trained = ("--side-by-side", "yes"), str(whole(folder, "train"))
    lm = ["--model.stack", "hsm*2", "--model.length", "32", "--prepare.vocab", "300", *SMALL]
    return [
        Program("train", train(), weights),
        Program("train with a warm-up", train("--train.pretrain", "1"), weights),
        Program("train lm", train(data=text, rows=lm), weights),
        Program(BAG, train("--train.baseline"), answers),
        Program("pretrain", train(data=text, rows=lm, command="pretrain"), weights),
        Program("embed-train", embed_train, weights, of="pretrain"),
        Program("distill", distill, weights),
        Program("transfer", transfer, weights),
        once("prepare", lambda out: ["prepare", str(table), "--out", str(out), "--vocab", "200"]),
        once("export", lambda out: ["export", str(whole(folder, BAG)), "--out", str(out)], of=BAG),
        once("embed", lambda out: ["embed", trained, str(folder / "text" / "0.txt"), "--out", str(out / "vectors.npy")], of="train"),
        once("report", lambda out: ["report", trained, "--out", str(out / "report.html")], page, of="train"),
        once("kernels", lambda out: ["kernels", str(out)]),
        Program("tune", tune("--trials", "2"), trials),
        Program("tune side by side", tune("--trials", "3", *beside), trials, runs=3),
        Program("train on two ranks", train(), weights, ranks=2),
        Program("train in parts on two ranks", train("--train.shard"), weights, ranks=2),
        Program("compare", compare("identity", "--seeds", "1"), table_of),
        Program("compare side by side", compare("--seeds", "3", *beside), table_of, runs=3),
    ]


def whole(folder: Path, name: str) -> Path:
    """Where what a program comes to without faults is kept."""
    return folder / "whole" / name.replace(" ", "-")
