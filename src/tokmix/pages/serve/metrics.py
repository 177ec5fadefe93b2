"""What /metrics tells Prometheus. With several workers the numbers of all of them are added up through files in a folder."""

from __future__ import annotations

import os
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SHARED = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's own name


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("tokmix_requests_total", "Requests by path and status.", ["path", "status"], registry=self.registry)
        self.seconds = Histogram(
            "tokmix_request_seconds", "Time to the end of the answer.", ["path"], buckets=SECONDS, registry=self.registry
        )
        self.batch_rows = Histogram("tokmix_batch_rows", "Rows that were computed together.", buckets=ROWS, registry=self.registry)
        tokens = Counter("tokmix_tokens_total", "Tokens read and written.", ["kind"], registry=self.registry)
        self.read, self.written = tokens.labels("read"), tokens.labels("written")
        self.open = Gauge("tokmix_requests_open", "Requests being answered.", multiprocess_mode="livesum", registry=self.registry)

    @cache  # noqa: B019 - one of these a process
    def of(self, path: str, status: int) -> tuple[Counter, Histogram]:
        """Those of a path and a status; looking labels up takes longer than counting."""
        return self.requests.labels(path, str(status)), self.seconds.labels(path)

    def text(self) -> bytes:
        if not os.environ.get(SHARED):
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return generate_latest(registry)
