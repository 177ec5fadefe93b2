"""Text -> ids: train a tokenizer, or take one, and make it ready for the task. All kinds are `tokenizers` objects.

    wordpiece  lower-cased words and their pieces; unseen characters become [UNK]
    bpe        byte-level pairs; nothing is ever unknown, and decoding gives the text back
    bytes      id = byte; the special tokens follow from 256 on
    a path     any tokenizer.json; its preset truncation and padding are turned off

Classification rows are [CLS] a [SEP] or [CLS] a [SEP] b [SEP]; documents of a language model end with <|endoftext|>.
Text that spells a special token stays text: a review that says "[SEP]" must not end its own sentence.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from tokmix.core.checks import at_least, nearest
from tokmix.core.optional import need, np
from tokmix.runs.files import JsonObject

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.processors import PostProcessor

T = TypeVar("T")
KINDS = ("wordpiece", "bpe", "bytes")
SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "eot": "<|endoftext|>"}
# What tokenizers made elsewhere call the same roles.
OTHER_NAMES = {
    "pad": ("<pad>", "<|pad|>"),
    "unk": ("<unk>",),
    "cls": ("<s>",),
    "sep": ("</s>",),
    "mask": ("<mask>",),
    "eot": ("</s>", "<eos>"),
}
NEEDED = {
    "classify": ("pad", "cls", "sep", "mask"),
    "multilabel": ("pad", "cls", "sep", "mask"),
    "regress": ("pad", "cls", "sep", "mask"),
    "mlm": ("pad", "cls", "sep", "mask", "eot"),
    "lm": ("eot",),
}
MOST_GROWTH, MOST_WORD = 100, 1000  # of tokenizers that are read: characters for one of a text, and of a word that is split
_ALPHABET = 1000  # distinct characters a wordpiece vocabulary keeps
_LONG = re.compile(r"\S{1000}|\s{1000}")


def _tokenizers() -> ModuleType:
    return need("tokenizers", "preparing text")


def train_tokenizer(kind: str, texts: Callable[[], Iterable[str]], vocab: int, lowercase: bool = True) -> Tokenizer:
    """`texts()` gives the training texts, each time anew."""
    if kind == "bytes":
        return byte_tokenizer()

    def pieces() -> Iterator[str]:
        for text in texts():
            yield from _bounded(text)

    return _train_wordpiece(pieces, vocab, lowercase) if kind == "wordpiece" else _train_bpe(pieces, vocab)


def _bounded(text: str) -> Iterator[str]:
    """The text, cut where a word (DNA, base64, a script without spaces) or a gap is too long: the trainers take time quadratic
    in a word's length, hours for a megabyte."""
    start = 0
    for long in _LONG.finditer(text):
        yield text[start : long.end()]
        start = long.end()
    yield text[start:]


def _train_bpe(texts: Callable[[], Iterable[str]], vocab: int) -> Tokenizer:
    t = _tokenizers()
    at_least("vocab", vocab, 256 + len(SPECIALS))
    tokenizer = t.Tokenizer(t.models.BPE())
    _byte_level(tokenizer, use_regex=True)
    trainer = t.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIALS.values()),
        initial_alphabet=sorted(t.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


def _train_wordpiece(texts: Callable[[], Iterable[str]], vocab: int, lowercase: bool) -> Tokenizer:
    t = _tokenizers()
    normalizer = t.normalizers.BertNormalizer(lowercase=lowercase)
    counts: Counter[str] = Counter()
    for text in texts():
        counts.update(normalizer.normalize_str(text))
    letters = sorted(letter for letter in counts if not letter.isspace())
    letters = sorted(sorted(letters, key=lambda letter: -counts[letter])[:_ALPHABET])
    at_least("vocab", vocab, len(SPECIALS) + 2 * len(letters))
    # The trainer numbers the ##letters in the order of a hash map, which differs from run to run and breaks ties differently
    # (huggingface/tokenizers issue 1794). Handing them over as special tokens fixes their numbers; the vocabulary is then
    # put into a fresh tokenizer, in which they are ordinary.
    fixed = [*SPECIALS.values(), *("##" + letter for letter in letters)]
    trainer = t.trainers.WordPieceTrainer(
        vocab_size=vocab, special_tokens=fixed, initial_alphabet=letters, limit_alphabet=len(letters), min_frequency=2, show_progress=False
    )
    trained = _wordpiece(t.models.WordPiece(unk_token=SPECIALS["unk"]), normalizer)
    trained.train_from_iterator(texts(), trainer)
    tokenizer = _wordpiece(t.models.WordPiece(vocab=trained.get_vocab(), unk_token=SPECIALS["unk"]), normalizer)
    tokenizer.add_special_tokens(list(SPECIALS.values()))
    return tokenizer


def _wordpiece(model: WordPiece, normalizer: BertNormalizer) -> Tokenizer:
    t = _tokenizers()
    tokenizer = t.Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = t.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = t.decoders.WordPiece()
    return tokenizer


def _byte_level(tokenizer: Tokenizer, use_regex: bool) -> None:
    t = _tokenizers()
    tokenizer.pre_tokenizer = t.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = t.decoders.ByteLevel()


def byte_tokenizer() -> Tokenizer:
    """Raw bytes as a tokenizer.json like any other: a BPE without merges whose ids are the bytes."""
    t = _tokenizers()
    tokenizer = t.Tokenizer(t.models.BPE(vocab={_letter(byte): byte for byte in range(256)}, merges=[]))
    _byte_level(tokenizer, use_regex=False)
    tokenizer.add_special_tokens(list(SPECIALS.values()))
    return tokenizer


def _letter(byte: int) -> str:
    """The letter that stands for a byte in byte-level vocabularies: printable Latin-1 for itself, the rest from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in shown else chr(0x100 + [other for other in range(256) if other not in shown].index(byte))


def load_tokenizer(path: str | Path) -> Tokenizer:
    """A tokenizer.json, without the truncation and padding it may have been saved with."""
    path = Path(path)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"tokenizer {str(path)!r} is neither a file nor one of {', '.join(KINDS)}{nearest(path, KINDS)}")
    try:
        tokenizer = _tokenizers().Tokenizer.from_file(str(path))
    except Exception as error:
        raise ValueError(f"{path} is not a tokenizer.json: {' '.join(str(error).split())}") from None
    _check_bounded(tokenizer, path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _check_bounded(tokenizer: Tokenizer, path: Path) -> None:
    """A file made to harm could make a text a billion times as long, or compare the parts of a word for hours."""
    growth = 1 if tokenizer.normalizer is None else _growth(json.loads(tokenizer.normalizer.__getstate__()))
    if growth > MOST_GROWTH:
        raise ValueError(f"{path} makes texts up to {growth:,} times as long; at most {MOST_GROWTH} times is read")
    if getattr(tokenizer.model, "max_input_chars_per_word", 0) > MOST_WORD:
        raise ValueError(f"{path} splits words of more than {MOST_WORD:,} characters, which takes hours")


def _growth(normalizer: JsonObject) -> int:
    """How many times as long its replacements may make a text."""
    own = len(normalizer["content"]) if normalizer["type"] == "Replace" else 1
    return max(own, 1) * math.prod(map(_growth, normalizer.get("normalizers", ())))


def begun(tokenizer: Tokenizer, eot: int) -> Tokenizer:
    """A copy that puts end-of-text before every text, as a language model has read documents: after the end of the one before."""
    t = _tokenizers()
    copy = t.Tokenizer.from_str(tokenizer.to_str())
    before, begin = copy.post_processor, _beginning(copy, eot)
    copy.post_processor = begin if before is None else t.processors.Sequence([before, begin])
    return copy


def _beginning(tokenizer: Tokenizer, eot: int) -> PostProcessor:
    name = tokenizer.id_to_token(eot)
    return _tokenizers().processors.TemplateProcessing(single=[name, "$A"], pair=[name, "$A", "$B:1"], special_tokens=[(name, eot)])


def _unbegun(tokenizer: Tokenizer, eot: int) -> PostProcessor | None:
    """The post-processor without what `begun` added: a tokenizer.json of a model folder is one to prepare other data with."""
    found, begin = tokenizer.post_processor, _beginning(tokenizer, eot).__getstate__()
    if found is not None and found.__getstate__() == begin:
        return None
    parts = list(found) if isinstance(found, _tokenizers().processors.Sequence) else []
    return parts[0] if len(parts) == 2 and parts[1].__getstate__() == begin else found


def make_ready(tokenizer: Tokenizer, task: str, pair: bool = False) -> dict[str, int]:
    """Give the tokenizer the special tokens and the template of the task where it lacks them -> ids of the roles."""
    t = _tokenizers()
    for role in NEEDED[task]:
        if _find(tokenizer, role) is None:
            tokenizer.add_special_tokens([SPECIALS[role]])
    names = {role: name for role in SPECIALS if (name := _find(tokenizer, role)) is not None}
    roles = {role: number for role, name in names.items() if (number := tokenizer.token_to_id(name)) is not None}
    if "eot" in roles:
        tokenizer.post_processor = _unbegun(tokenizer, roles["eot"])
    if task == "lm":
        if tokenizer.num_special_tokens_to_add(False):
            tokenizer.post_processor = None  # a stream of documents has no [CLS]
    elif not tokenizer.num_special_tokens_to_add(pair):
        cls, sep = names["cls"], names["sep"]
        tokenizer.post_processor = t.processors.TemplateProcessing(
            single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=[(cls, roles["cls"]), (sep, roles["sep"])]
        )
    roles.setdefault("pad", roles.get("eot", 0))
    return roles


def _find(tokenizer: Tokenizer, role: str) -> str | None:
    return next((name for name in (SPECIALS[role], *OTHER_NAMES[role]) if tokenizer.token_to_id(name) is not None), None)


def vocab_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id: vocabularies made elsewhere may have holes."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


class Encoder:
    """Texts -> ids, the same for preparing, predicting and evaluating.

    rows       one or two texts each -> ids with special tokens, at most max_len of them, the longer text cut first
    documents  texts -> ids without special tokens
    """

    def __init__(self, tokenizer: Tokenizer, max_len: int | None = None):
        # A copy: what is set here is not part of the saved tokenizer.
        self.tokenizer = _tokenizers().Tokenizer.from_str(tokenizer.to_str())
        self.tokenizer.encode_special_tokens = True
        self.bytes = _is_bytes(tokenizer)
        self.max_len = max_len
        if max_len is not None:
            at_least("max_len", max_len, max(map(tokenizer.num_special_tokens_to_add, (False, True))) + 1)
            self.tokenizer.enable_truncation(max_len, strategy="longest_first")

    def rows(self, texts: Sequence[tuple[str, ...]]) -> tuple[list[np.ndarray], list[int]]:
        """-> (ids of each row, which rows were cut)"""
        given = [row[0] if len(row) == 1 else row for row in texts]
        encoded = self._encode(given)
        return [np.asarray(row.ids, dtype=np.uint32) for row in encoded], [i for i, row in enumerate(encoded) if row.overflowing]

    def documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        assert self.max_len is None, "documents are not cut"
        if self.bytes:  # the same ids, without the detour
            return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) for text in texts]
        return [np.asarray(row.ids, dtype=np.uint32) for row in self._encode(texts, add_special_tokens=False)]

    def _encode(self, texts: Sequence[str | tuple[str, ...]], add_special_tokens: bool = True) -> list[Encoding]:
        try:
            return self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except (MemoryError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in the library's Rust is no Exception
            raise ValueError(f"the tokenizer cannot read a text: {' '.join(str(error).split())[:300]}") from None


def _is_bytes(tokenizer: Tokenizer) -> bool:
    return tokenizer.normalizer is None and tokenizer.get_vocab(with_added_tokens=False) == {_letter(byte): byte for byte in range(256)}


def batched(items: Iterable[T], size: int, weight: Callable[[T], int] = lambda item: 1) -> Iterator[list[T]]:
    """Lists of items, each closed once its weights reach `size`: bounds what is encoded at once."""
    held: list[T] = []
    total = 0
    for item in items:
        held.append(item)
        total += weight(item)
        if total >= size:
            yield held
            held, total = [], 0
    if held:
        yield held
