"""`tokmix generate MODEL --prompt ...`: continue a text, token by token as it comes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TextIO

from tokmix.core import sampling
from tokmix.core.checks import check_text, printable
from tokmix.training import model_folder
from tokmix.training.imports import import_files
from tokmix.training.model_folder import Trained


def begin(trained: Trained, prompt: str) -> tuple[list[int], int | None]:
    """The ids of the prompt, and how many more the model takes; None: any number."""
    if trained.task != "lm":
        raise ValueError(f"{trained.folder} is a model for {trained.task}, and generate needs one for lm")
    check_text(prompt)
    limit = trained.model.limit
    # In training, every document follows an end-of-text token.
    start = [trained.roles["eot"], *map(int, trained.encoder().documents([prompt])[0])]
    if limit is not None and len(start) >= limit:
        raise ValueError(f"the prompt has {len(start) - 1} tokens, and this model takes at most {limit - 2} to go on from: shorten it")
    return start, None if limit is None else limit - len(start)


def stream(
    trained: Trained,
    prompt: str,
    max_new: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    draft: Trained | None = None,
    draft_tokens: int = 4,
) -> Iterator[str]:
    """Pieces of text as they are generated; joined they are the continuation, which ends with the document or after max_new tokens."""
    start, room = begin(trained, prompt)
    end, max_new = trained.roles["eot"], max_new if room is None else min(max_new, room)
    ids: list[int] = []
    shown = ""
    before = trained.tokenizer.decode(start[1:])
    for _, token in sampling.generate(
        trained.model, [start], max_new, temperature=temperature, top_k=top_k, top_p=top_p, stop=(end,), seed=seed, stream=True,
        draft=None if draft is None else draft.model, draft_tokens=draft_tokens,
    ):  # fmt: skip
        if token == end:
            break
        ids.append(token)
        text = trained.tokenizer.decode(start[1:] + ids)[len(before) :]
        if not text.endswith("\ufffd"):  # an incomplete character so far
            yield text[len(shown) :]
            shown = text


def run(
    model: str | Path,
    prompt: str,
    *,
    max_new: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    device: str = "cpu",
    draft: str | Path | None = None,
    draft_tokens: int = 4,
    imports: Sequence[str | Path] = (),
    out: TextIO | None = None,
) -> str:
    """Print the prompt and its continuation as it comes; -> the continuation. draft: the folder of a smaller model that proposes tokens."""
    import_files(imports)
    out = out or sys.stdout
    trained = model_folder.load(model, device)
    helper = None if draft is None else _draft(draft, device, trained)
    _, room = begin(trained, prompt)
    if room is not None and room < max_new:
        print(f"this model takes {trained.model.limit} tokens: it can give {room} after this prompt, not {max_new}", file=sys.stderr)
    pieces = []
    shown = printable if out.isatty() else str  # a file gets the text unchanged
    for i, piece in enumerate(chain(stream(trained, prompt, max_new, temperature, top_k, top_p, seed, helper, draft_tokens), [""])):
        if i == 0:  # check everything before the first output
            out.write(shown(prompt))
        out.write(shown(piece))
        out.flush()
        pieces.append(piece)
    out.write("\n")
    return "".join(pieces)


def _draft(folder: str | Path, device: str, trained: Trained) -> Trained:
    draft = model_folder.load(folder, device)
    if draft.tokenizer.get_vocab() != trained.tokenizer.get_vocab():
        raise ValueError(f"{draft.folder} has another vocabulary than {trained.folder}: a draft model needs the same tokenizer")
    return draft
