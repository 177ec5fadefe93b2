"""The worker's side of a pool: one task per line on standard input, one answer per line on standard output.

It ends with the process that started it: if standard input ends in the middle of a task, the process gets SIGTERM.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable

from tokmix.runs.pool import Answer, Task


def serve(do: Callable[[Task], Answer]) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # other output must not look like an answer
    tasks: queue.Queue[str | None] = queue.Queue()
    busy = threading.Event()
    threading.Thread(target=_read, args=(tasks, busy), daemon=True).start()
    while (line := tasks.get()) is not None:
        busy.set()
        answer = do(json.loads(line))
        busy.clear()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _read(tasks: queue.Queue[str | None], busy: threading.Event) -> None:
    for line in sys.stdin:
        tasks.put(line)
    tasks.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
