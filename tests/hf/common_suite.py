"""Run Hugging Face's own common tests on our classes, from a checkout of transformers of the installed version.

python tests/hf/common_suite.py CHECKOUT [-k WORD] [--suite NAME ...]      # CHECKOUT is a checkout of transformers: tests/, utils/, src/

CHECKOUT defaults to the environment variable TOKMIX_TRANSFORMERS. Without one the script says so and exits with 0.
It prints how often each reason to skip a test was given, and exits with 1 when a test fails.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

SUITES = {
    "lm_hsm": ("hsm(variant='gate', heads=2)*2", True),
    "lm_attention": ("attention(heads=2, rotary=True)*2", True),
    "lm_hypermixing": ("hypermixing(heads=2)*2", True),
    "lm_mixed": ("linear_attention(heads=2), hypermlp(heads=2, rank=4)", True),
    "classifier": ("hypermixing(heads=2)*2", False),
    "mlm": ("attention(heads=2)*2", False),
}


class Tester:
    """What transformers' mixins ask for a small config and a batch."""

    batch_size, seq_length, hidden_size, num_hidden_layers, num_attention_heads = 3, 7, 16, 2, 2
    is_training, vocab_size = True, 43

    def __init__(self, parent: unittest.TestCase, stack: str, causal: bool):
        self.parent, self.stack, self.causal = parent, stack, causal

    def get_config(self) -> Any:
        from tokmix.hf import TokmixConfig

        return TokmixConfig(
            stack=self.stack,
            dim=self.hidden_size,
            vocab=self.vocab_size,
            causal=self.causal,
            max_len=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )

    def prepare_config_and_inputs(self) -> tuple[Any, dict[str, Any]]:
        import torch

        ids = torch.randint(3, self.vocab_size, (self.batch_size, self.seq_length))
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    prepare_config_and_inputs_for_common = prepare_config_and_inputs


def cases(checkout: Path) -> dict[str, type[unittest.TestCase]]:
    """One test case a suite, on the mixins of the checkout. Its package is called tests, as ours is: it goes first."""
    sys.path.insert(0, str(checkout))
    models, generation, pipeline = (
        getattr(importlib.import_module(module), name)
        for module, name in (
            ("tests.test_modeling_common", "ModelTesterMixin"),
            ("tests.generation.test_utils", "GenerationTesterMixin"),
            ("tests.test_pipeline_mixin", "PipelineTesterMixin"),
        )
    )
    if importlib.util.find_spec("torchvision") is None:  # then its table of image processors is a dummy; our models have none
        importlib.import_module("tests.pipelines.test_pipelines_feature_extraction").IMAGE_PROCESSOR_MAPPING = {}
    from tokmix import hf

    causal = (hf.TokmixModel, hf.TokmixForCausalLM)
    heads = (hf.TokmixForSequenceClassification, hf.TokmixForTokenClassification, hf.TokmixForQuestionAnswering)
    classes = {"classifier": heads, "mlm": (hf.TokmixModel, hf.TokmixForMaskedLM)}
    pipelines = {
        "feature-extraction": hf.TokmixModel,
        "text-generation": hf.TokmixForCausalLM,
        "fill-mask": hf.TokmixForMaskedLM,
        "text-classification": hf.TokmixForSequenceClassification,
        "zero-shot": hf.TokmixForSequenceClassification,
        "token-classification": hf.TokmixForTokenClassification,
        "question-answering": hf.TokmixForQuestionAnswering,
    }

    def suite(name: str, stack: str, forward: bool) -> type[unittest.TestCase]:
        def set_up(self: Any) -> None:
            self.model_tester = Tester(self, stack, forward)

        def check_cache(self: Any, batch_size: int, past_key_values: Any, seq_length: int, config: Any) -> None:
            self.assertEqual((past_key_values.batch_size, past_key_values.get_seq_length()), (batch_size, seq_length))

        body = {
            "setUp": set_up,
            "_check_past_key_values_for_generate": check_cache,
            "all_model_classes": classes.get(name, causal),
            "pipeline_model_mapping": pipelines,
            "has_attentions": stack.startswith("attention"),
            "test_resize_position_embeddings": False,
            "__module__": __name__,
        }
        return type(name, (models, *([generation] if forward else []), pipeline, unittest.TestCase), body)

    return {name: suite(name, stack, forward) for name, (stack, forward) in SUITES.items()}


WORDS = ("this", "is", "test", "in", "new", "york", "the", "man", "of", "hugging", "face", "not", "hello", "my", "name")


def tiny_models(folder: Path) -> None:
    """A model and a tokenizer for each pipeline, where PipelineTesterMixin looks for them instead of the hub."""
    import json

    import tokenizers
    from transformers import PreTrainedTokenizerFast

    from tokmix import hf

    special = {"pad_token": "[PAD]", "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = [*special.values(), *letters, *(f"##{letter}" for letter in letters), *WORDS]
    words = tokenizers.Tokenizer(tokenizers.models.WordPiece({word: i for i, word in enumerate(known)}, unk_token="[UNK]"))
    words.normalizer = tokenizers.normalizers.Lowercase()
    words.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    words.decoder = tokenizers.decoders.WordPiece()
    summary = {}
    for kind in (hf.TokmixModel, *hf.MODELS.values()):
        causal = kind in (hf.TokmixModel, hf.TokmixForCausalLM)
        stack = "hypermixing(heads=2), attention(heads=2)"
        config = hf.TokmixConfig(
            stack=stack, dim=16, vocab=len(known), causal=causal, max_len=512, pad_token_id=0, bos_token_id=1, eos_token_id=2
        )
        place = folder / config.model_type / kind.__name__
        kind(config).save_pretrained(place)
        named = PreTrainedTokenizerFast(tokenizer_object=words, model_input_names=["input_ids", "attention_mask"], **special)
        named.save_pretrained(place)
        summary[kind.__name__] = {"tokenizer_classes": ["PreTrainedTokenizerFast"], "processor_classes": []}
    (folder / "reports").mkdir()
    (folder / "reports" / "tiny_model_summary.json").write_text(json.dumps(summary))


def run(checkout: Path, suites: list[str], word: str | None) -> int:
    made = cases(checkout)
    chosen = unittest.TestSuite()
    for name in suites:
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(made[name]):
            if word is None or word in test.id():
                chosen.addTest(test)
    result = unittest.TextTestRunner(verbosity=1, buffer=True).run(chosen)
    wrong = sorted({str(test.id()) for test, _ in (*result.failures, *result.errors)})
    for reason, count in Counter(_short(reason) for _, reason in result.skipped).most_common():
        print(f"skipped {count:4}  {reason}")
    for name in wrong:
        print(f"FAIL  {name}")
    print(f"{result.testsRun - len(result.skipped) - len(wrong)} passed, {len(wrong)} failed, {len(result.skipped)} skipped")
    return int(bool(wrong))


def _short(reason: str) -> str:
    """One line, the same for every suite and test."""
    return re.sub(r"^\w+::\w+ is skipped: ", "", " ".join(reason.split()))[:100]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", default=os.environ.get("TOKMIX_TRANSFORMERS"))
    parser.add_argument("-k", dest="word", help="run the tests whose name holds this word")
    parser.add_argument("--suite", action="append", choices=list(SUITES))
    given = parser.parse_args()
    if given.checkout is None or not (Path(given.checkout) / "tests" / "test_modeling_common.py").is_file():
        print(f"skipped: {given.checkout!r} is no checkout of transformers (it has no tests/test_modeling_common.py)")
        return 0
    if importlib.util.find_spec("parameterized") is None:
        print("skipped: transformers' tests need the package parameterized")
        return 0
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() not in (ROOT, ROOT / "tests" / "hf")]
    sys.path.insert(0, str(ROOT / "src"))
    with tempfile.TemporaryDirectory() as folder:
        tiny_models(Path(folder))
        os.environ["TRANSFORMERS_TINY_MODEL_PATH"] = folder
        return run(Path(given.checkout), given.suite or list(SUITES), given.word)


if __name__ == "__main__":
    sys.exit(main())
