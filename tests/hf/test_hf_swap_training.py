"""A swapped Llama-shaped model in other people's training: LoRA by PEFT, a step under FSDP2, assisted generation, static caches."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.hf.test_hf_swap import made, outputs, padded
from tests.hf_models import made as tokmix_made
from tokmix.hf import lora_config, swap

ROOT = Path(__file__).parents[2]

STEP = """
import copy, os, sys
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from tests.hf.test_hf_swap import made
from tokmix.hf import swap

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
whole = swap(made("llama"), "hypermixing(heads=2)", layers="every second").train()
model = copy.deepcopy(whole)
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
ids = torch.randint(3, 31, (4, 9), generator=torch.Generator().manual_seed(1))
for one, rows in ((whole, ids), (model, ids[rank::2])):
    update = torch.optim.SGD(one.parameters(), lr=0.1)
    one(rows, labels=rows, use_cache=False).loss.backward()
    update.step()
moved = 0.0
fresh = swap(made("llama"), "hypermixing(heads=2)", layers="every second")
for (name, a), (_, b), (_, c) in zip(whole.named_parameters(), model.named_parameters(), fresh.named_parameters(), strict=True):
    assert torch.allclose(a, b.full_tensor(), atol=1e-5), name
    moved = max(moved, float((a - c).abs().max()))
assert moved > 1e-3
print(f"rank {rank} same\\n", end="")
dist.barrier()
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.slow
def test_a_step_under_fsdp2_on_two_ranks_is_that_of_one(tmp_path: Path) -> None:
    script = tmp_path / "step.py"
    script.write_text(STEP)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=300)
    assert "rank 0 same" in done.stdout and "rank 1 same" in done.stdout, done.stderr[-3000:]


@pytest.mark.filterwarnings("ignore")  # PEFT's own
@pytest.mark.parametrize("init", ["fresh", "values"])
def test_lora_reaches_old_and_new_layers(init: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = swap(made("llama"), "hypermixing(heads=2)", layers="every second", init=init)
    ids, mask = padded(left=True)
    base = copy.deepcopy(model)
    plain = outputs(model, ids, mask)
    tuned = peft.get_peft_model(model, lora_config(model, r=2, init_lora_weights=False))
    tuned(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
    trained = [name for name, parameter in tuned.named_parameters() if parameter.grad is not None and parameter.grad.abs().max() > 0]
    assert all("lora_" in name for name in trained)
    for part in ("layers.0.self_attn.q_proj", "layers.1.self_attn.mixer.net_in", "layers.1.mlp.up_proj"):
        assert any(part in name for name in trained), part
    assert any("self_attn.out" in name for name in trained) == (init == "values")
    tuned.eval()
    found = outputs(tuned, ids, mask)
    assert (found - plain).abs().max() > 1e-3
    how: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(tuned.generate(input_ids=ids, **how), tuned.generate(input_ids=ids, use_cache=False, **how))
    tuned.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    assert torch.allclose(outputs(again, ids, mask), found, atol=1e-5)
    assert torch.allclose(outputs(tuned.merge_and_unload(), ids, mask), found, atol=1e-4)


@pytest.mark.parametrize("init", ["fresh", "values"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_near_single(init: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = swap(made("llama"), "hypermixing(heads=2)", layers="every second", init=init)
    ids, mask = padded(left=True)
    expected = outputs(model, ids, mask)
    model.save_pretrained(tmp_path)
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
    assert {parameter.dtype for parameter in half.parameters()} == {dtype}
    assert (outputs(half, ids, mask).float() - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, in its compiler
def test_a_compiled_swapped_model_gives_the_same() -> None:
    model = swap(made("llama"), "hypermixing(heads=2)", layers="every second", init="values")
    ids, mask = padded(left=True)
    expected = outputs(model, ids, mask)
    assert torch.allclose(outputs(torch.compile(model), ids, mask), expected, atol=1e-4)


def test_what_a_swapped_cache_cannot_do_is_refused() -> None:
    """A mixer's state cannot be cropped, nor shared out over the slots of continuous batching."""
    model, ids = swap(made("llama"), "hypermixing(heads=2)", layers=[1]), padded(left=False)[0][:1]
    with pytest.raises(ValueError, match="roll its cache back"):
        model.generate(ids, assistant_model=made("llama"), max_new_tokens=4, do_sample=False, pad_token_id=0)
    with pytest.raises(ValueError, match="takes a new DynamicCache"):
        model.generate(ids, cache_implementation="static", max_new_tokens=4, do_sample=False, pad_token_id=0)
    for one in (model, tokmix_made()):
        with pytest.raises(ValueError, match="continuous batching deals out keys"):
            one.generate_batch([[3, 4, 5], [6, 7]], generation_config=one.generation_config)
