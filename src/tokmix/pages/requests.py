"""What `play` and `serve` check of every request before a route sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.types import Receive


@dataclass
class Refusal(Exception):
    status: int
    why: str
    headers: dict[str, str] | None = None


def check_host(named: str, hosts: Sequence[str] | None) -> None:
    """Refuse a request whose Host is not in hosts: a foreign page may own a name that leads to this machine. None: allow any."""
    host = named.rpartition(":")[0] if named.rpartition(":")[2].isdigit() else named
    if hosts is not None and host.lower() not in hosts:
        raise Refusal(421, f"this server is called {', '.join(hosts)}, not {host[:80]!r}")


async def read_body(headers: Mapping[bytes, str], receive: Receive, most: int, seconds: float) -> bytes:
    """The whole body, within its bounds of bytes and seconds."""
    length = headers.get(b"content-length", "0")
    if length.isdigit() and int(length) > most:
        raise Refusal(413, f"the body has {int(length):,} bytes; at most {most:,} are taken", {"Connection": "close"})
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(seconds):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the body ended early")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most:
                    raise Refusal(413, f"the body is over {most:,} bytes", {"Connection": "close"})
                more = message.get("more_body", False)
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {seconds:g} s", {"Connection": "close"}) from None
    return b"".join(parts)
