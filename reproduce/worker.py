"""A process that does jobs: `python -m reproduce.worker`, fed by a pool (tokmix/runs/pool.py). What came of a job stands in its file."""

from __future__ import annotations

import math
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tokmix.runs.pool_server import serve

PAUSED = "paused"


def do(task: dict[str, Any]) -> dict[str, Any]:
    """A job that fails has failed for good: its one line is its outcome, and the log has the rest."""
    import torch

    from bench.speed.machine import code
    from reproduce.job import Context, Job, PausedError, runner
    from tokmix.runs.files import write_json
    from tokmix.runs.machine import machine, versions
    from tokmix.training.meter import Meter

    job = Job(task["key"], task["kind"], task["spec"])
    device = torch.device(task["device"] or ("cuda" if torch.cuda.is_available() else "cpu"))
    context = Context(
        device, None if task["data"] is None else Path(task["data"]), lambda text: print(f"{job.key}: {text}", file=sys.stderr),
        None if task.get("checkpoint") is None else Path(task["checkpoint"]),
        math.inf if task.get("until") is None else task["until"],
    )  # fmt: skip
    _compile_often()
    meter = Meter(device)
    meter.start()
    try:
        outcome = runner(job.kind)(job.spec, context)
    except PausedError:
        meter.stop()
        return {"state": PAUSED, "error": None, "seconds": meter.totals()["seconds"]}
    except Exception as error:
        traceback.print_exc()
        outcome = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", "runs": []}
    meter.stop()
    measured = meter.totals() | {"workers": task["workers"]}
    if task["workers"] > 1:  # the counter is that of all of them
        measured["energy_joules"] = None
    record = {"key": job.key, "kind": job.kind, "spec": job.spec, "outcome": outcome, "measured": measured}
    write_json(Path(task["out"]), record | {"machine": machine(), "versions": versions(), "code": code()})
    return {"state": "failed" if "error" in outcome else "finished", "error": outcome.get("error"), "seconds": measured["seconds"]}


def _compile_often() -> None:
    """A worker meets many shapes of batch, and shifts of a ladder; and a layer that cannot be compiled runs as it is."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.accumulated_recompile_limit = 1024
    torch._dynamo.config.suppress_errors = True


if __name__ == "__main__":
    # Compiling takes as many cores as this worker has: it would take all of them, and so would its neighbours.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    serve(do)
