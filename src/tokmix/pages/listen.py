"""The socket of a page or a service, and the host names that requests may use. Needs no torch."""

from __future__ import annotations

import errno
import ipaddress
import socket

LOCAL = ("127.0.0.1", "localhost", "[::1]")


def names_of(shown: str) -> list[str]:
    """Host names for a server on this machine, including the printed address, such as 127.0.0.2."""
    return list(dict.fromkeys([*LOCAL, shown]))


def is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. The error names a port that is taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ValueError(f"--host {host!r} is no address of this machine ({error})") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:  # another port would not help
            raise ValueError(f"--host {host!r} is no address of this machine ({error.strerror})") from None
        raise ValueError(f"cannot listen on {host} port {port}: {error.strerror}; --port takes another, 0 any that is free") from None
    return listener
