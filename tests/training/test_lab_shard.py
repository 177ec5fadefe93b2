"""Weights spread over two real processes: every mixer, the lab's own loop, and checkpoints that any number of processes reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("numpy")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

from tests.lab import write_table
from tests.training.test_lab_world import GIVEN, SCRIPT, losses
from tokmix.cli.main import main
from tokmix.data.prepare.pipeline import prepare
from tokmix.training.checkpoint import Checkpoints, load_tensors
from tokmix.training.settings import Settings
from tokmix.training.train import run

ROOT = Path(__file__).parents[2]
AVERAGED = GIVEN | {"train.average": 0.9, "train.clip": 0.5}  # a clip that acts: the norm has to be that of all parts

WALK = """
import copy, os, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
import tokmix
from tests.cases import DEFAULTS

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size, folder = dist.get_rank(), dist.get_world_size(), sys.argv[1]
assert size == int(sys.argv[2])


def made(case, seed):
    torch.manual_seed(seed)
    head = "lm" if case.causal else "mlm"
    config = tokmix.ModelConfig(stack=f"{case.name}*2", dim=16, vocab=11, head=head, causal=case.causal, max_len=9)
    model = tokmix.Model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def sharded(model):
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def loss(model, ids):
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flip(1).flatten())


def walk():
    ids = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(1))
    for case in DEFAULTS:
        whole = made(case, 0)
        model = sharded(copy.deepcopy(whole))
        one, part = loss(whole, ids), loss(model, ids[rank::size])
        one.backward(), part.backward()
        total = part.detach() / size
        dist.all_reduce(total)
        assert abs(float(total - one.detach())) < 1e-5, f"loss of {case}"
        for (name, a), (_, b) in zip(whole.named_parameters(), model.named_parameters(), strict=True):
            assert a.grad is not None and b.grad is not None, f"{name} of {case} has no gradient"
            assert len(a) == 1 or b.to_local().numel() < a.numel(), f"{name} of {case} is not in parts"
            assert torch.allclose(a.grad, b.grad.full_tensor(), atol=1e-5), f"gradient of {name} of {case}"
    return len(DEFAULTS)


def reshard(step):
    # 0: two ranks save; 1: one rank reads that and saves; 2: two ranks read that.
    case = next(case for case in DEFAULTS if case.name == "hypermixing" and case.causal)
    wanted = made(case, 0)
    model = sharded(made(case, 0 if step == 0 else 5))
    if step:
        state = get_model_state_dict(model)
        dcp.load(state, checkpoint_id=f"{folder}/{step - 1}")
        set_model_state_dict(model, state)
        for (name, a), (_, b) in zip(wanted.named_parameters(), model.named_parameters(), strict=True):
            assert torch.equal(a, b.full_tensor()), name
    dcp.save(get_model_state_dict(model), checkpoint_id=f"{folder}/{step}")


step = int(sys.argv[3])
if step == 0:
    print(f"mixers walked {walk()}\\n", end="")  # in one piece: two of them write
reshard(step)
dist.barrier()
sys.stdout.flush()
os._exit(0)  # a thread of torch's may abort a process as it ends (github.com/pytorch/pytorch/issues/190489 has the message)
"""


def torchrun(processes: int, script: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), str(script), *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}  # the script imports tests
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_every_mixer_shards_and_a_sharded_checkpoint_moves_between_world_sizes(tmp_path):
    from tests.cases import DEFAULTS

    script = tmp_path / "walk.py"
    script.write_text(WALK)
    for step, processes in enumerate((2, 1, 2)):
        said = torchrun(processes, script, str(tmp_path / "saved"), str(processes), str(step))
        assert step or said.count(f"mixers walked {len(DEFAULTS)}") == 2


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shard")
    prepare(write_table(folder / "t.csv", 200), folder / "data", vocab=200)
    return folder / "data"


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "run"
    run(data, out, Settings.of(None, AVERAGED), quiet=True)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [((2, True, 0),), ((2, True, 15), (1, False, 25), (2, False, 35), (2, True, 0)), ((2, True, 50), (2, True, 0))],
    ids=["sharded", "mixed", "stopped after the last step"],
)
def test_sharded_the_losses_and_the_model_are_those_of_one_process(data, alone, tmp_path, plan):
    """(processes, sharded, the step to stop after): a checkpoint of each is continued by the next."""
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "run"
    for processes, sharded, stop in plan:
        given = [str(data), str(out), json.dumps(AVERAGED | {"train.shard": sharded}), str(stop)]
        if processes == 1:
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, str(tmp_path / "script.py"), *given], cwd=ROOT, check=True, env=env, timeout=300)
        else:
            torchrun(processes, tmp_path / "script.py", *given)
        if stop:
            assert Checkpoints(out / "checkpoints").load()[1]["step"] == stop
    one, other = losses(alone), losses(out)
    assert len(one) == len(other) == 50 and one[0] > one[-1]
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-5
    mine, theirs = (load_tensors(folder / "model" / "model.safetensors")[0] for folder in (alone, out))
    assert mine.keys() == theirs.keys()
    # A bias of attention's keys has no gradient but rounding, which the optimizer blows up: it says nothing.
    assert all(torch.allclose(mine[name], theirs[name], atol=1e-4) for name in mine if not name.endswith(".k.bias"))
    figures = [json.loads((folder / "model" / "training.json").read_text())["figures"] for folder in (alone, out)]
    assert figures[0]["rows"] == figures[1]["rows"] and figures[0]["loss"] == pytest.approx(figures[1]["loss"], abs=1e-5)


def test_sharding_alone_is_one_line_and_leaves_nothing(data, tmp_path, capsys):
    assert main(["train", str(data), "--out", str(tmp_path / "run"), "--train.shard"]) == 1
    said = capsys.readouterr().err
    assert "there is one: start it with torchrun" in said and len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()
