"""Access control: accepted host names and a bearer token."""

import hmac
import os
from collections.abc import Iterable

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from uce_edge.errors import UsageError, expected
from uce_edge.serve.addresses import Names, ip_address, machine_names

LIVE = "/v2/health/live"
"""The liveness endpoint, which needs no token."""
TOKEN = "UCE_EDGE_TOKEN"
"""The environment variable of the token; other users of the machine could read an option."""
_SHORTEST = 16


def token() -> str | None:
    """Read the token from the environment; None without one.

    Raises:
        UsageError: The token is short, or no client could send it.
    """
    found = os.environ.get(TOKEN)
    if found is not None and (len(found) < _SHORTEST or not (found.isascii() and found.isprintable()) or " " in found):
        rule = f"at least {_SHORTEST} plain characters without blanks"
        raise UsageError(expected(TOKEN, rule, f"{len(found)} of them", "Make one: openssl rand -hex 16"))
    return found


class HostNames:
    """The host names that a server accepts, as protection from DNS rebinding.

    A third-party page can make its own name point to this computer, and so use the server through a user's browser.
    The browser still sends the page's name as Host.
    """

    def __init__(self, host: str, more: Iterable[str] = ()) -> None:
        """Collect the names.

        Args:
            host: The address that the server listens on.
            more: Further accepted names.
        """
        self._listening = Names(host, 0)
        machine = frozenset[str]() if self._listening.local else machine_names()
        self._names = {"localhost", "127.0.0.1", "::1", host.lower(), *machine, *(name.lower() for name in more)} - {""}

    def __contains__(self, authority: str) -> bool:
        """Whether a Host header names this server. Its port is ignored, because it may be forwarded."""
        name, _ = Names.parse(authority) or ("", 0)
        # DNS rebinding needs a name: a page that was opened under an IP address cannot redirect it.
        return name in self._names or (not self._listening.local and ip_address(name) is not None)


class Guard:
    """Middleware that rejects ambiguous requests, other host names and missing tokens."""

    def __init__(self, app: ASGIApp, names: HostNames | None, secret: str | None) -> None:
        """Wrap an application.

        Args:
            app: The application.
            names: The accepted host names; None behind a proxy with other names.
            secret: The token; None for no token. A client with the token may use any name.
        """
        self._app = app
        self._names = names if secret is None else None
        self._expected = None if secret is None else f"Bearer {secret}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or reject it."""
        app = self._app if scope["type"] != "http" else self._rejection(scope) or self._app
        await app(scope, receive, send)

    def _rejection(self, scope: Scope) -> Response | None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        if b"content-length" in headers and b"transfer-encoding" in headers:
            # A proxy may read the other header, and so see another end of the request (request smuggling).
            return _rejected(400, "Send one of the headers Content-Length and Transfer-Encoding, not both.")
        hosts = headers.get(b"host", [])  # absent in HTTP/1.0, which no browser uses
        if self._names is not None and any(host.decode("latin-1") not in self._names for host in hosts):
            return _rejected(
                421, "This server does not accept that host name. Use its address, or start it with: --allow-host NAME"
            )
        if self._expected is not None and scope["path"] != LIVE:
            values = headers.get(b"authorization", [])
            if len(values) != 1 or not hmac.compare_digest(values[0], self._expected):
                text = "This server needs a token: send the header `Authorization: Bearer TOKEN`."
                return JSONResponse({"error": text}, 401, {"WWW-Authenticate": "Bearer"})
        return None


def _rejected(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status, {"Connection": "close"})
