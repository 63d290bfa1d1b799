"""Connections with deadlines, and a bound on the connections of one client."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from uce_edge.serve.addresses import client_network, share_of

HEAD_SECONDS = 10
"""The time that a client has to send the whole head of a request."""
IDLE_SECONDS = 30
"""The time that a connection may stay idle between two requests."""
TAKE_SECONDS = 30
"""The time that a client has to receive an answer, added to the time of the request."""
_MESSAGE = b'{"error": "This server has too many connections. Try again later."}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\nRetry-After: 1\r\n"
    b"Connection: close\r\n\r\n%b" % (len(_MESSAGE), _MESSAGE)
)


class Connection(H11Protocol):
    """A connection that closes at its deadline, or when other clients need its place.

    uvicorn has a deadline for the time between two requests only, and any byte stops it.
    """

    def __init__(self, *arguments: Any, most: int, seconds: float, **more: Any) -> None:
        """Prepare a connection.

        Args:
            arguments: uvicorn's.
            most: The largest number of connections.
            seconds: The time limit of a request.
            more: uvicorn's.
        """
        super().__init__(*arguments, **more)
        self._most, self._seconds = most, seconds
        self._idle = self._closed = False
        self._began = 0.0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection; above the bound, close the one that has blocked longest."""
        super().connection_made(transport)
        self._origin = client_network(self.client[0]) if self.client else ""
        self._limit(HEAD_SECONDS)
        every = [other for other in self.connections if isinstance(other, Connection) and not other._closed]
        same = [other for other in every if other._origin == self._origin]
        for group, most in ((same, share_of(self._most)), (every, self._most)):
            if len(group) <= most:
                continue
            blocking = [other for other in group if other is not self and other._blocks]
            if not blocking:
                transport.write(_FULL)
                self._closed = True
                transport.close()
            else:
                min(blocking, key=lambda other: other._began)._abort()
            return

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read more; the first bytes of a head start its deadline."""
        if self._idle:
            self._limit(HEAD_SECONDS)
        super().data_received(data)

    def handle_events(self) -> None:
        """Handle a request; a complete head starts its deadline."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            self._limit(self._seconds + TAKE_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        answered = self.cycle
        super().on_response_complete()
        # The rest of a body still belongs to the request and its deadline.
        if self.cycle is answered and not answered.more_body and not self.transport.is_closing():
            self._limit(IDLE_SECONDS, idle=True)

    @property
    def _blocks(self) -> bool:
        """Whether the server waits for this client to send a request or to receive an answer."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    def _limit(self, seconds: float, idle: bool = False) -> None:
        """Start the deadline of the next step."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._idle, self._began = idle, self.loop.time()
        self._deadline = self.loop.call_later(seconds, self._abort)

    def _abort(self) -> None:
        """Close without sending the rest of an answer."""
        self._closed = True
        self.transport.abort()
