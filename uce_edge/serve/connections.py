"""The connections of a server: each has deadlines, and no client can take the places of the others."""

import asyncio
import ipaddress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10
"""How long a client may take for the whole head of a request."""
IDLE_SECONDS = 30
"""How long a connection may stay open after an answer without another request."""
TAKE_SECONDS = 30
"""How long a client may take to receive an answer, beside the time that a request has."""
_SHARE = 2
"""One client may have the half of all connections."""
_SENTENCE = b'{"error": "This server has too many connections. Try again later."}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\nRetry-After: 1\r\n"
    b"Connection: close\r\n\r\n%b" % (len(_SENTENCE), _SENTENCE)
)


class Connection(H11Protocol):
    """A connection that ends when its client keeps the server waiting for too long, or when others need its place.

    uvicorn has a clock for the time between two requests alone, which any byte stops.
    """

    def __init__(self, *arguments: Any, most: int, seconds: float, **more: Any) -> None:
        """Prepare a connection.

        Args:
            arguments: uvicorn's.
            most: How many connections there may be.
            seconds: The time of a request, until its answer is known.
            more: uvicorn's.
        """
        super().__init__(*arguments, **more)
        self._most, self._seconds = most, seconds
        self._idle = self._gone = False
        self._began = 0.0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection; with too many of them, the one that has kept the server waiting longest goes."""
        super().connection_made(transport)
        self._origin = _network(self.client[0]) if self.client else ""
        self._limit(HEAD_SECONDS)
        everyone = [other for other in self.connections if isinstance(other, Connection) and not other._gone]
        same = [other for other in everyone if other._origin == self._origin]
        for group, most in ((same, -(-self._most // _SHARE)), (everyone, self._most)):
            if len(group) <= most:
                continue
            waiting = [other for other in group if other is not self and other._keeps_waiting]
            if not waiting:
                transport.write(_FULL)
                self._gone = True
                transport.close()
            else:
                min(waiting, key=lambda other: other._began)._abort()
            return

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; the first bytes of a head begin its deadline."""
        if self._idle:
            self._limit(HEAD_SECONDS)
        super().data_received(data)

    def handle_events(self) -> None:
        """Answer what was read; a complete head begins the deadline of its request."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            self._limit(self._seconds + TAKE_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        answered = self.cycle
        super().on_response_complete()
        # Not while the rest of a body is on its way: that belongs to the request, and to its deadline.
        if self.cycle is answered and not answered.more_body and not self.transport.is_closing():
            self._limit(IDLE_SECONDS, idle=True)

    @property
    def _keeps_waiting(self) -> bool:
        """Whether the server waits for this client: for a request or the rest of it, or until it takes the answer."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    def _limit(self, seconds: float, idle: bool = False) -> None:
        """Begin to wait for the next step."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._idle, self._began = idle, self.loop.time()
        self._deadline = self.loop.call_later(seconds, self._abort)

    def _abort(self) -> None:
        """Close without sending what the client did not take."""
        self._gone = True
        self.transport.abort()


def _network(host: str) -> str:
    """Who a client is, by address: with IPv6, one client has 2^64 of them."""
    try:
        number = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(number, ipaddress.IPv4Address):
        return str(number)
    return str(number.ipv4_mapped or ipaddress.ip_network((int(number), 64), strict=False))
