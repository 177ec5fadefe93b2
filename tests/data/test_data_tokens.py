"""Token files: what is written is what is read, a folder is complete or absent, and a damaged one says so."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
pytest.importorskip("tokenizers")

from tokmix.data.card import length_facts  # noqa: E402
from tokmix.data.prepare.pipeline import prepare  # noqa: E402
from tokmix.data.tokens import TokenFiles, is_prepared  # noqa: E402
from tokmix.runs.files import new_folder  # noqa: E402


def table(path, n=200, words=8):
    rows = "".join(f"{'word ' * (i % words)}number {i}\t{'ab'[i % 2]}\n" for i in range(n))
    path.write_text("text\tlabel\n" + rows, encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path):
    prepare(table(tmp_path / "a.tsv"), tmp_path / "out", tokenizer="bytes", shard_tokens=700)
    return tmp_path / "out"


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\t\r\n"), min_size=1, max_size=30), min_size=1, max_size=30),
    shard=st.integers(5, 50),
)
def test_rows_come_back_across_shards(tmp_path_factory, rows, shard):
    home = tmp_path_factory.mktemp("rows")
    texts = [f"{text} {i}" for i, text in enumerate(rows)]
    (home / "a.tsv").write_bytes(("text\tscore\n" + "".join(f"{text}\t{i / 2}\n" for i, text in enumerate(texts)) + "last\t7\n").encode())
    prepare(home / "a.tsv", home / "out", tokenizer="bytes", shard_tokens=shard, valid=0, test=0)
    split = TokenFiles(home / "out")["train"]
    expected = [[257 + 1, *text.encode(), 257 + 2] for text in [*texts, "last"]]
    assert [split.row(i).tolist() for i in range(len(split))] == expected
    assert split.targets.tolist() == [*(i / 2 for i in range(len(texts))), 7]
    picked = np.arange(len(split))[::-1][::2]
    flat, lengths = split.rows(picked)
    assert flat.tolist() == [token for i in picked for token in expected[i]]
    assert lengths.tolist() == [len(expected[i]) for i in picked]
    whole = [token for row in expected for token in row]
    assert split.read(3, len(whole) - 1).tolist() == whole[3:-1] and split.read(5, 5).tolist() == []


def test_shards_are_bounded_and_the_card_is_true(folder):
    files = TokenFiles(folder)
    card, train = files.card, files["train"]
    sizes = [path.stat().st_size for path in sorted(folder.glob("train-*.tokens.bin"))]
    assert len(sizes) > 2 and set(sizes[:-1]) == {1400} and sum(sizes) == 2 * train.tokens
    assert len(train) == card.splits["train"].rows == sum(card.splits["train"].labels.values())
    lengths = train.lengths(np.arange(len(train)))
    facts = card.splits["train"].lengths
    assert (facts["min"], facts["max"], facts["mean"]) == (lengths.min(), lengths.max(), pytest.approx(lengths.mean(), abs=1e-3))
    assert facts["p50"] == np.percentile(lengths, 50, method="inverted_cdf")
    assert sum(facts["histogram"].values()) == len(train)
    assert card.source[0]["name"] == "a.tsv" and len(card.source[0]["sha256"]) == 64
    assert str(folder.parent) not in (folder / "card.json").read_text()
    files.verify()
    assert is_prepared(folder) and not is_prepared(folder.parent) and not is_prepared(folder / "nothing")
    with pytest.raises(ValueError, match="no split 'vald'.*did you mean 'valid'"):
        files["vald"]
    with pytest.raises(IndexError):
        train.row(len(train))


def test_preparing_twice_gives_the_same_bytes(tmp_path):
    source = table(tmp_path / "a.tsv")
    for kind in ("wordpiece", "bpe"):
        prepare(source, tmp_path / f"{kind}1", tokenizer=kind, vocab=300), prepare(source, tmp_path / f"{kind}2", tokenizer=kind, vocab=300)
        names = sorted(path.name for path in (tmp_path / f"{kind}1").iterdir())
        assert names == sorted(path.name for path in (tmp_path / f"{kind}2").iterdir())
        for name in names:
            assert (tmp_path / f"{kind}1" / name).read_bytes() == (tmp_path / f"{kind}2" / name).read_bytes(), name


def test_a_split_pickles_as_its_path(folder):
    split = TokenFiles(folder)["train"]
    split.row(0)
    sent = pickle.dumps(split)
    assert len(sent) < 20_000
    assert pickle.loads(sent).row(3).tolist() == split.row(3).tolist()


def change_card(folder, **changes):
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, **changes}))


DAMAGE = {
    "no card": (lambda f: (f / "card.json").unlink(), "it has no card.json"),
    "half a card": (lambda f: (f / "card.json").write_text('{"format": '), "card.json is damaged"),
    "another card": (lambda f: (f / "card.json").write_text("{}"), "does not describe token files"),
    "a later format": (lambda f: change_card(f, version=3), "has format version 3; this tokmix reads version 2"),
    "a card with less": (lambda f: change_card(f, splits=None), "card.json is damaged"),
    "an unknown field": (lambda f: change_card(f, wings=2), "card.json is damaged.*wings"),
    "a missing shard": (lambda f: (f / "train-00001.tokens.bin").unlink(), "train-00001.tokens.bin is missing"),
    "a short shard": (lambda f: os.truncate(f / "train-00001.tokens.bin", 10), "train-00001.tokens.bin has 10 bytes, not 1,400"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "other offsets": (
        lambda f: (f / "train.offsets.bin").write_bytes(bytes((f / "train.offsets.bin").stat().st_size)),
        "offsets.bin does not fit",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_says_so(folder, damage):
    do, message = DAMAGE[damage]
    do(folder)
    with pytest.raises(ValueError, match=message) as caught:
        TokenFiles(folder)
    assert "\n" not in str(caught.value)


def test_changed_content_is_found_by_verify(folder):
    files = TokenFiles(folder)
    path = folder / "valid-00000.tokens.bin"
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="the content of valid-00000.tokens.bin has changed"):
        files.verify()


def test_nothing_is_overwritten(tmp_path):
    source = table(tmp_path / "a.tsv")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(ValueError, match="exists already"):
        prepare(source, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    # Also where it appears while the work is going on.
    with pytest.raises(ValueError, match="exists already"), new_folder(tmp_path / "late") as partial:
        (partial / "x").write_text("x")
        (tmp_path / "late").mkdir()
    assert list((tmp_path / "late").iterdir()) == [] and not list(tmp_path.glob(".late*"))


RUN = "import sys; from tokmix.data.prepare.pipeline import prepare; prepare(sys.argv[1], sys.argv[2], shard_tokens=5000)"


def test_a_kill_at_any_moment_leaves_nothing_that_loads_wrongly(tmp_path):
    source = table(tmp_path / "a.tsv", 12_000, 30)
    out = tmp_path / "out"
    killed = 0
    for delay in (0.0, 0.2, 0.5):
        before = set(tmp_path.glob(".out.partial-*"))
        process = subprocess.Popen([sys.executable, "-c", RUN, str(source), str(out)])
        while process.poll() is None and not set(tmp_path.glob(".out.partial-*")) - before:
            time.sleep(0.005)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        if out.exists():
            TokenFiles(out).verify()
            break
    assert killed > 0
    if not out.exists():
        assert len(list(tmp_path.glob(".out.partial-*"))) <= 1  # a later run removes what a killed one left
        prepare(source, out, shard_tokens=5000)
    TokenFiles(out).verify()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tsv", "out"]


OTHER = """
import sys
from pathlib import Path
from tokmix.runs.files import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "y").write_text("two")
"""


def test_a_folder_in_the_making_is_not_taken_for_abandoned(tmp_path):
    with new_folder(tmp_path / "out") as first:
        (first / "x").write_text("one")
        subprocess.run([sys.executable, "-c", OTHER, str(tmp_path / "out")], check=True)
        assert (first / "x").read_text() == "one"
        (tmp_path / "out" / "y").unlink(), (tmp_path / "out").rmdir()
    assert (tmp_path / "out" / "x").read_text() == "one"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on file sizes")
@pytest.mark.parametrize("room", [500, 16_000])  # reached by the tokenizer, by the tokens
def test_no_space_left_is_one_line_and_leaves_nothing(tmp_path, room):
    source = table(tmp_path / "a.tsv", 3000, 30)
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))\n"
    done = subprocess.run(
        [sys.executable, "-c", limit + RUN, str(source), str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "no space left for" in done.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["a.tsv"]


@given(st.lists(st.integers(0, 300), min_size=1))
def test_length_facts(lengths):
    from collections import Counter

    facts = length_facts(Counter(lengths))
    for percent in (50, 90, 99):
        assert facts[f"p{percent}"] == np.percentile(lengths, percent, method="inverted_cdf")
    assert sum(facts["histogram"].values()) == len(lengths)


def test_one_hash_is_the_hash_of_many():
    from tokmix.data.order import mix, number

    for salts in ((), (0,), (5, 0, 3), (2**63, -7, 2**80)):
        assert number(*salts) == int(mix(0, *salts))
