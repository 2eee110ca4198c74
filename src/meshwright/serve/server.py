"""The socket on which the page is served, from bind to close."""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import InputError
from meshwright.serve.app import guarded
from meshwright.serve.crowd import crowd_protocol
from meshwright.serve.guard import Door
from meshwright.serve.shelf import Shelf

NICENESS = 5  # if training and the page compete for a core, training gets three quarters of it
SEARCHED_PORTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens on the address; if that fails, an error that says what to do instead."""
    family, address = _address(host, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _binding_error(error, host, port) from None
    return listener


def _address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"the address {host!r} is not known: {error}", where="--host", fix="use 127.0.0.1, or an address of this machine"
        ) from None
    family, _, _, _, address = found[0]
    return family, tuple(address)


def _binding_error(error: OSError, host: str, port: int) -> InputError:
    if error.errno == errno.EADDRINUSE:
        free = next_free_port(host, port)
        fix = f"give --port {free}" if free else "give another --port"
        return InputError(f"port {port} of {host} is in use", where="--port", fix=fix)
    if error.errno == errno.EACCES:
        return InputError(f"port {port} needs special rights", where="--port", fix="choose a port from 1024 up")
    return InputError(f"cannot listen on {host}: {error.strerror}", where="--host", fix="use 127.0.0.1, or an address of this machine")


def next_free_port(host: str, port: int) -> int | None:
    """The next free port above `port`, or None."""
    for candidate in range(port + 1, min(port + 1 + SEARCHED_PORTS, 65536)):
        family, address = _address(host, candidate)
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return candidate
    return None


def serve(shelf: Shelf, listener: socket.socket, door: Door, encryption: Encryption | None = None) -> None:
    """Serve the page until Ctrl-C or SIGTERM."""
    import uvicorn

    with suppress(OSError):
        os.nice(NICENESS)
    config = uvicorn.Config(
        guarded(shelf, door),
        log_level="error",  # bad requests from strangers are not worth a message
        http=crowd_protocol(),
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
        ssl_certfile=encryption.certificate if encryption else None,
        ssl_keyfile=encryption.key if encryption else None,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    with closing(listener), suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
    print("meshwright: the page is closed", file=sys.stderr)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether to print a log message of the server: connections that are still open when the page closes are dropped without a message."""
    return "timeout graceful shutdown exceeded" not in record.getMessage()
