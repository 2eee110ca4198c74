"""Connections of the page: many silent ones do not shut others out.

A server that counts connections and refuses the next one is closed by anyone who opens a few hundred and says nothing. Here the newest
comes in, and where there are too many, the one that has asked for nothing the longest goes. Whoever brings no whole request for a while,
or does not take its answer, goes too.
"""

from __future__ import annotations

import asyncio
from typing import Any

MAX_CONNECTIONS = 200
SILENT_S = 30.0  # from a connection's begin, or from its last whole request, to the next one


def crowd_protocol() -> type[asyncio.Protocol]:
    """Uvicorn's protocol of a connection, which also knows when it last asked for something."""
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
            if self.cycle is not before and not self.transport.is_closing():  # a whole request counts, half of one does not
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._end is not None:
                self._end.cancel()
            super().connection_lost(exc)

        def leave(self) -> None:
            self.connections.discard(self)
            self.transport.abort()  # at once: what a reader that does not read has left unread is dropped

        def _wait(self) -> None:
            self.asked_s = self.loop.time()
            if self._end is not None:
                self._end.cancel()
            self._end = self.loop.call_later(SILENT_S, self.leave)

    return CrowdProtocol
