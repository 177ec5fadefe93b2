"""HTTP by uvicorn, with a time limit for a request's headers, which uvicorn lacks: a client that sends them letter by letter is cut off."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedProtocol(H11Protocol):
    late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """The clock runs from a request's first byte, and from the start of a connection, until the headers are there."""
        from tokmix.pages.serve import server

        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self.late is None and self.timeout_keep_alive_task is None:
            self.late = self.loop.call_later(server.HEADER_SECONDS, self._cut_off)

    def _unwatch(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None

    def _cut_off(self) -> None:
        self.late = None
        if not self.transport.is_closing() and self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
