"""A time limit for the headers of a request: a reader that sends them a byte at a time would hold its connection for ever."""

from __future__ import annotations

import asyncio
from typing import Any

PATIENCE = 10.0  # seconds from the first byte, or from the connection, to the end of the headers


def patient_protocol(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, which closes a connection whose headers are late. uvicorn itself only limits the time between requests."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Patient(H11Protocol):
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:  # the headers are all there
                self._stop()
            elif self.timer is None:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self.timer = self.loop.call_later(seconds, self._late)

        def _stop(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def _late(self) -> None:
            self.timer = None
            if not self.transport.is_closing():
                self.transport.close()

    return Patient
