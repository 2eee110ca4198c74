"""Connections of the page: many idle ones do not keep others out.

If a server refuses new connections above a limit, anyone can block it by opening a few hundred and sending nothing. Here a new connection
is always accepted; if there are too many, the one that has been idle for longest is closed. A connection is also closed if it sends no
complete request for a while, or does not read its response.
"""

from __future__ import annotations

import asyncio
from typing import Any

MAX_CONNECTIONS = 200
SILENT_S = 30.0  # from the start of a connection, or from its last complete request, to the next one


def crowd_protocol() -> type[asyncio.Protocol]:
    """Uvicorn's protocol class, which also remembers when the connection last sent a request."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class CrowdProtocol(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.asked_s = self.loop.time()
            self._end: asyncio.TimerHandle | None = None

        @property
        def is_served(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()
            others = [other for other in self.connections if isinstance(other, CrowdProtocol) and other is not self]
            if len(others) >= MAX_CONNECTIONS:
                min(others, key=lambda other: (other.is_served, other.asked_s)).leave()

        def handle_events(self) -> None:
            before = self.cycle
            super().handle_events()
            if self.cycle is not before and not self.transport.is_closing():  # only a complete request counts
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._end is not None:
                self._end.cancel()
            super().connection_lost(exc)

        def leave(self) -> None:
            self.connections.discard(self)
            self.transport.abort()  # at once: data that the client has not read is dropped

        def _wait(self) -> None:
            self.asked_s = self.loop.time()
            if self._end is not None:
                self._end.cancel()
            self._end = self.loop.call_later(SILENT_S, self.leave)

    return CrowdProtocol
