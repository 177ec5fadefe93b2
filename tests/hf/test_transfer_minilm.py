"""bench/transfer_minilm.py on a small model: what is packed is enough, and each recipe is measured next to the teacher."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import pytest
import torch
import transformers

from bench.transfer_minilm import main
from bench.transfer_probe import STRENGTH, accuracy
from tests.training.test_transfer import teacher
from tokmix.data.prepare.tokenize import byte_tokenizer
from tokmix.hf import wrap_tokenizer

transformers.logging.set_verbosity_error()


def test_the_probe_is_that_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(400, 12, generator=generator), torch.randn(400, 3, generator=generator)
    labels = ["abc"[int(place)] for place in (x[:, :3] + 0.7 * noise).argmax(1)]
    parts = (x[:250], labels[:250]), (x[250:], labels[250:])
    theirs = linear_model.LogisticRegression(max_iter=1000, C=STRENGTH, tol=1e-8).fit(x[:250].double().numpy(), labels[:250])
    assert accuracy(*parts) == pytest.approx(100 * theirs.score(x[250:].double().numpy(), labels[250:]))
    assert 60 < accuracy(*parts) < 100


def test_what_is_packed_is_enough_for_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = teacher(tmp_path / "model", "bert")
    wrap_tokenizer(byte_tokenizer(), {"pad": 256}).save_pretrained(model)
    for task in ("trec", "sst2"):
        (tmp_path / "data" / task).mkdir(parents=True)
        for split, count in (("train", 30), ("test", 8)):
            with gzip.open(tmp_path / "data" / task / f"{split}.tsv.gz", "wt", encoding="utf-8") as file:
                file.write("text\tlabel\n" + "".join(f"{['yes', 'no'][n % 2]} {n}\t{n % 2}\n" for n in range(count)))
    text = "".join(f"the {n} foxes jump over {n * 7} lazy dogs\n<|endoftext|>\n" for n in range(400))
    (tmp_path / "text.txt.bz2").write_bytes(bz2.compress(text.encode()))
    pack, out = tmp_path / "pack", tmp_path / "out"
    main(["pack", str(pack), "--data", str(tmp_path / "data"), "--text", str(tmp_path / "text.txt.bz2"), "--model", str(model)])
    recipes = ["linear_attention; attention; every second", "hypermixing(heads=2); values; last 1"]
    main(["run", str(pack), "--out", str(out), "--quick", *(word for recipe in recipes for word in ("--recipe", recipe))])
    result = json.loads((out / "result.json").read_text())
    assert list(result["accuracy"]) == ["teacher", *recipes] and result["accuracy"]["teacher"]["trec"] == 100
    assert set(result["ms on one core, CPU time, quartiles"]) == {"teacher", *recipes}
    assert [one["cost"]["tokens"] > 1000 for one in result["transfers"].values()] == [True, True]
    assert "| teacher | 100.0 (+0.0)" in capsys.readouterr().out
    for old, new in zip(*(transformers.BertModel.from_pretrained(one).parameters() for one in (model, pack / "teacher")), strict=True):
        assert torch.equal(old.half().float(), new)
