"""Do the words that `explain` names make the answer? Five of them are deleted from each text, and five random ones. A line of JSON.

    python bench/attribution.py RUN --out attribution.jsonl [--texts 500]

RUN is a folder of `tokmix train` on single texts with its data in it. A text counts where the probability of the predicted class falls
further without the named words than without random ones (mean of ten draws). Three ways to name five words:

    together    what `explain` names: one after another, each that which costs most beside those before it. It deletes to choose.
    alone       those that cost most when each is left out by itself
    gradients   integrated gradients of the network (Sundararajan et al. 2017), which never deletes: 32 points from no embedding to the
                text's own. It sees the network alone, also where a bag of words answers with it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from tokmix.study.explain.words import WORD, attribute
from tokmix.training import model_folder
from tokmix.training.baseline import bag_texts
from tokmix.training.eval_data import data_beside
from tokmix.training.predict import Predictor

POINTS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--data", type=Path, help="prepared data, where it is not in the run")
    options = parser.parse_args()
    trained = model_folder.load(options.run)
    if options.data:
        from tokmix.data.tokens import TokenFiles

        files = TokenFiles(options.data)
    else:
        files = data_beside(trained)
    split = files[files.splits[-1]]
    rows = [split.row(i).tolist() for i in range(len(split))]
    texts = [text for text in bag_texts(trained.tokenizer, trained.roles, False, rows) if len(WORD.findall(text)) > 5][: options.texts]
    predictor, better = Predictor(trained), dict.fromkeys(("together", "alone", "gradients"), 0)
    for text in texts:
        found = attribute(trained, [text], predictor=predictor)
        count = len(found.check.words)
        strength = gradients(trained, text, found.answer)
        alone = sorted(found.words, key=lambda word: -word.effect)[:count]
        steep = sorted(found.words, key=lambda word: -strength[word.start])[:count]
        left = predictor([without(text, alone), without(text, steep)])
        after = [found.check.without_strongest, *(one["probabilities"][found.answer] for one in left)]
        for name, value in zip(better, after, strict=True):
            better[name] += value < found.check.without_random
    record = {"run": Path(options.run).name, "answers": trained.record["answers"]["by"], "texts": len(texts), "better": better}
    with open(options.out, "a") as file:
        file.write(json.dumps(record) + "\n")
    print(record)


def without(text: str, words: list) -> str:
    for word in sorted(words, key=lambda word: -word.start):
        text = text[: word.start] + text[word.start + len(word.text) :]
    return text if text.strip() else "."


def gradients(trained: model_folder.Trained, text: str, label: str) -> dict[int, float]:
    """Start of each word -> the sum of its tokens' integrated gradients."""
    model, place = trained.model, trained.labels.index(label)
    (ids,), _ = trained.encoder().rows([(text,)])
    own = model.embedding(torch.tensor(ids.tolist())).detach()  # [T, D]
    shares = (torch.arange(POINTS) + 0.5) / POINTS
    points = (shares[:, None, None] * own).requires_grad_()  # [POINTS, T, D]
    chances = model.finish(model.hidden(points)).log_softmax(-1)[:, place]
    (slope,) = torch.autograd.grad(chances.sum(), points)
    strength = (slope.mean(0) * own).sum(-1).tolist()  # [T]
    shown = trained.tokenizer.encode(text, add_special_tokens=False)
    first = next(at for at in range(len(ids)) if ids[at : at + 1].tolist() == shown.ids[:1])
    starts = [found.start() for found in WORD.finditer(text)]
    sums = dict.fromkeys(starts, 0.0)
    for (begin, _), value in zip(shown.offsets, strength[first:], strict=False):
        word = max((start for start in starts if start <= begin), default=starts[0])
        sums[word] += value
    return sums


if __name__ == "__main__":
    main()
