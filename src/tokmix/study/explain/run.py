"""`tokmix explain MODEL TEXT`: which token reads which in a trained model, for one text.

An exact map takes tokens x width backward rows. Above EXACT numbers, every token's norms are estimated from SAMPLES random
directions, and the maps say so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch

from tokmix.core import checks
from tokmix.data.prepare.targets import LABELLED
from tokmix.data.prepare.tokenize import Encoder
from tokmix.show.plots import check_picture
from tokmix.study.explain import jacobian as explain
from tokmix.study.explain.words import Attribution, attribute
from tokmix.training import model_folder
from tokmix.training.imports import import_files
from tokmix.training.model_folder import Trained

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENS = 256  # most tokens of a text; a larger map takes too long and cannot be read
EXACT = 2**17  # tokens^2 x width x layers up to which maps are exact
SAMPLES = 32


@dataclass(frozen=True)
class Explained:
    tokens: list[str]  # as shown on the axes
    maps: list[explain.Map]
    cut: bool = False  # the text was longer than the model reads
    words: Attribution | None = None  # which words made the label or score

    def record(self, heads: bool = True) -> dict[str, object]:
        words = {} if self.words is None else {"words": self.words.record()}
        return {**words, "tokens": self.tokens, "cut": self.cut, "maps": [_record(one, heads) for one in self.maps]}


def _record(one: explain.Map, heads: bool) -> dict[str, object]:
    known: dict[str, object] = {
        "title": one.title, "layer": one.layer, "mixer": one.mixer, "what": one.what, "estimate": one.samples is not None,
        "samples": one.samples, "weights": one.weights.tolist(),
    }  # fmt: skip
    return known | ({"heads": one.heads.tolist()} if heads and one.heads is not None else {})


def of_text(
    trained: Trained,
    texts: Sequence[str],
    *,
    layer: int | None = None,
    samples: int | None = None,
    limit: int = TOKENS,
    fallback: int = SAMPLES,
    seed: int = 0,
) -> Explained:
    """texts: one, or the two of a pair. samples: None = exact where that is affordable, else `fallback`; 0 = exact."""
    ids, cut = encode(trained, texts)
    if cut and len(ids) > limit:
        _refuse_long(_whole(trained, texts), limit)
    return of_ids(trained, ids, layer=layer, samples=samples, limit=limit, fallback=fallback, seed=seed, cut=cut)


def of_ids(
    trained: Trained,
    ids: Sequence[int],
    *,
    layer: int | None = None,
    samples: int | None = None,
    limit: int = TOKENS,
    fallback: int = SAMPLES,
    seed: int = 0,
    cut: bool = False,
) -> Explained:
    if samples is not None:
        checks.at_least("samples", samples, 0)
    if not ids:
        raise ValueError("the text has no tokens")
    if len(ids) > limit:
        _refuse_long(len(ids), limit)
    model = trained.model
    if samples is None:
        layers = 1 if layer else len(model.layers)
        samples = 0 if len(ids) ** 2 * model.config.dim * layers <= EXACT else fallback
    device = model.embedding.weight.device
    row = torch.tensor(list(ids), device=device)
    return Explained(
        token_names(trained.tokenizer, ids), explain.model_maps(model, row, layer=layer, samples=samples or None, seed=seed), cut
    )


def _refuse_long(tokens: int, limit: int) -> NoReturn:
    raise ValueError(f"the text has {tokens:,} tokens, and a map takes at most {limit}: give a shorter one")


def _whole(trained: Trained, texts: Sequence[str]) -> int:
    """Number of tokens of the text before it is cut to the model's length."""
    encoder = Encoder(trained.tokenizer)
    if trained.about.stream:
        return len(encoder.documents([texts[0]])[0]) + (trained.task == "lm")
    return len(encoder.rows([tuple(texts)])[0][0])


def encode(trained: Trained, texts: Sequence[str], encoder: Encoder | None = None) -> tuple[list[int], bool]:
    """-> (ids as the model reads them, whether the text was cut). encoder: the model's own, if already made."""
    encoder = encoder or trained.encoder()
    wanted = 2 if trained.pair else 1
    if len(texts) != wanted:
        raise ValueError(f"this model reads {wanted} text{'s' * (wanted > 1)} at a time, not {len(texts)}")
    if not any(text.strip() for text in texts):
        raise ValueError("the text is empty")
    for text in texts:
        checks.check_text(text)
    if trained.about.stream:
        ids = encoder.documents([texts[0]])[0].tolist()
        # In training, every document follows an end-of-text token.
        ids = [trained.roles["eot"], *ids] if trained.task == "lm" else ids
        limit = trained.model.limit
        return (ids, False) if limit is None or len(ids) <= limit else (ids[:limit], True)
    rows, cut = encoder.rows([tuple(texts)])
    return rows[0].tolist(), bool(cut)


def token_names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """How tokens are shown: a space as ·, a line end as ⏎, part of a character by its bytes' letters."""
    names = []
    for token in ids:
        text = tokenizer.decode([token], skip_special_tokens=False)
        if not text or "\ufffd" in text:
            text = tokenizer.id_to_token(token) or f"#{token}"
        names.append("".join(_shown(letter) for letter in text))
    return names


def _shown(letter: str) -> str:
    if letter == " ":
        return "·"
    if letter == "\n":
        return "⏎"
    return letter if letter.isprintable() else f"\\x{ord(letter):02x}"


def run(
    model: str | Path,
    texts: Sequence[str],
    *,
    out: str | Path | None = None,
    as_json: bool = False,
    samples: int | None = None,
    layer: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    imports: Sequence[str | Path] = (),
) -> Explained:
    """Print which words decided the label or score, then the maps. out: a file for a plot of the maps."""
    from tokmix.study.explain import draw as maps

    import_files(imports)
    if out is not None:
        check_picture(out)
    trained = model_folder.load(model, device)
    found = of_text(trained, texts, layer=layer, samples=samples, seed=seed)
    if trained.task in LABELLED:
        found = replace(found, words=attribute(trained, texts, seed))
    if found.cut:
        print(f"the text was cut to {len(found.tokens)} tokens, which is what this model reads", file=sys.stderr)
    if out is not None:
        maps.picture(out, found, heads=layer is not None)
    if as_json:
        print(json.dumps(found.record(), ensure_ascii=False))
    else:
        if found.words is not None:
            print("\n".join([*found.words.lines(), ""]))
        print(maps.in_terminal(found))
        if out is not None:
            print(f"drawn into {out}")
    return found
