"""The bag of words in numpy answers as scikit-learn's does."""

from __future__ import annotations

from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("sklearn")
pytest.importorskip("safetensors")

from tests.lab import BAD, GOOD, REST  # noqa: E402
from tokmix.export.bag import write_bag  # noqa: E402
from tokmix.runtime import bag  # noqa: E402
from tokmix.training import linear  # noqa: E402

TEXTS = [f"{one}, {other} {third}!" for one in REST.split() for other in GOOD.split() for third in BAD.split()][:200]
ODD = ["", "a", "  ", "a a  a\tb", "\u0130\u00c0 \u00df \ufb01_x\u2028y \u2019 \u03a3", "never seen", "don't! 12 3.5"]


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_scores_are_those_of_scikit_learn(tmp_path: Path, task: str) -> None:
    targets = np.arange(len(TEXTS)) % 3
    kind = linear.Kind("ridge" if task == "regress" else "svm", 1.0, characters=True)
    fitted = linear.fit_kind(task, TEXTS, targets, 3, kind)
    model, out = tmp_path / "model", tmp_path / "out"
    model.mkdir()
    out.mkdir()
    fitted.save(model)
    known = linear.load(model)
    assert known is not None
    wanted = known.scores(TEXTS + ODD)
    np.testing.assert_allclose(bag.load(model).scores(TEXTS + ODD), wanted, atol=1e-5)
    write_bag(model, out, int8=True)
    assert np.abs(bag.load(out).scores(TEXTS) - wanted[: len(TEXTS)]).max() < 0.05
    assert bag.load(out).weights.dtype == np.int8 and bag.load(model).weights.dtype == np.float32
    (out / bag.NAME).write_text("{}")
    with pytest.raises(ValueError, match="is damaged: format None"):
        bag.load(out)


def test_pairs_are_measured_as_in_training(tmp_path: Path) -> None:
    pairs = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True))
    linear.fit_kind("classify", pairs, np.arange(len(pairs)) % 2, 2, linear.Kind("svm", 1.0, characters=True)).save(tmp_path)
    known = linear.load(tmp_path)
    assert known is not None and known.made.pairs is not None
    odd = [(one, other) for one in ODD for other in ODD]
    np.testing.assert_allclose(bag.load(tmp_path).scores(pairs + odd), known.scores(pairs + odd), atol=1e-5)
