"""Time and size limits for the headers of a request, so that a client that sends one byte at a time cannot hold its connection."""

from __future__ import annotations

import asyncio

PATIENCE = 10.0  # seconds from the first byte, or from the connection, to the end of the headers
HEADER_BYTES = 64 * 1024


def patient_protocol(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, which closes a connection whose headers are late or long. uvicorn itself limits neither."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Patient(HttpToolsProtocol):
        timer: asyncio.TimerHandle | None = None
        unfinished = False  # some headers are there, others are not
        size = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def on_message_begin(self) -> None:
            self.unfinished, self.size = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self.unfinished = False
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self.unfinished and not self._idle():
                self._stop()
                return
            self.size += len(data)
            if self.unfinished and self.size > HEADER_BYTES:
                self.transport.close()
            elif self.timer is None and self.timeout_keep_alive_task is None:
                self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _idle(self) -> bool:
            """Whether no request is being read or answered."""
            return self.cycle is None or self.cycle.response_complete

        def _watch(self) -> None:
            self.timer = self.loop.call_later(seconds, self._late)

        def _stop(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def _late(self) -> None:
            self.timer = None
            if not self.transport.is_closing() and (self.unfinished or self._idle()):
                self.transport.close()

    return Patient
