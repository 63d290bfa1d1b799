"""Who may ask a server: by the name it is asked for, and by a token."""

import hmac
import os
import socket
from collections.abc import Iterable

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from uce_edge.errors import UsageError, expected
from uce_edge.serve.page_server import Names, number_of

LIVE = "/v2/health/live"
"""The path that is open without a token."""
TOKEN = "UCE_EDGE_TOKEN"
"""The environment variable with the secret; an option would show it to everybody on the machine."""
_SHORTEST = 16


def token() -> str | None:
    """The secret of the environment; None without one.

    Raises:
        UsageError: It is short, or no client could send it.
    """
    found = os.environ.get(TOKEN)
    if found is not None and (len(found) < _SHORTEST or not (found.isascii() and found.isprintable()) or " " in found):
        rule = f"at least {_SHORTEST} plain characters without blanks"
        raise UsageError(expected(TOKEN, rule, f"{len(found)} of them", "Make one: openssl rand -hex 16"))
    return found


class HostNames:
    """The names under which a server may be asked.

    A page elsewhere can make its own name point to this computer (DNS rebinding), and would then use the server through
    the browser of somebody who opened it. That browser still sends the name of the page as Host.
    """

    def __init__(self, host: str, more: Iterable[str] = ()) -> None:
        """Collect the names.

        Args:
            host: The address that the server listens on.
            more: Further names that clients use.
        """
        own = socket.gethostname().lower()
        short = own.split(".")[0]
        self._listening = Names(host, 0)
        machine = () if self._listening.local else (own, short, f"{short}.local")
        self._names = {"localhost", "127.0.0.1", "::1", host.lower(), *machine, *(name.lower() for name in more)} - {""}

    def __contains__(self, authority: str) -> bool:
        """Whether a Host header names this server; its port does not matter, because it may be forwarded."""
        name, _ = Names.parse(authority) or ("", 0)
        # No page can be opened under a number that is not its own server's.
        return name in self._names or (not self._listening.local and number_of(name) is not None)


class Guard:
    """Middleware: refuses ambiguous requests, names that are not the server's, and clients without the token."""

    def __init__(self, app: ASGIApp, names: HostNames | None, secret: str | None) -> None:
        """Stand before an application.

        Args:
            app: The application.
            names: Its names; None where a proxy before it has others.
            secret: The token; None if there is none. Who knows it may use any name.
        """
        self._app = app
        self._names = names if secret is None else None
        self._expected = None if secret is None else f"Bearer {secret}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        app = self._app if scope["type"] != "http" else self._refusal(scope) or self._app
        await app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name, []).append(value)
        if b"content-length" in given and b"transfer-encoding" in given:
            # A proxy before this server may read the other one, and see another end of the request.
            return _refused(400, "Send one of the headers Content-Length and Transfer-Encoding, not both.")
        hosts = given.get(b"host", [])  # none in HTTP/1.0, which no browser speaks
        if self._names is not None and any(host.decode("latin-1") not in self._names for host in hosts):
            return _refused(
                421, "This name is not one of this server's. Use its address, or start it with: --allow-host NAME"
            )
        if self._expected is not None and scope["path"] != LIVE:
            values = given.get(b"authorization", [])
            if len(values) != 1 or not hmac.compare_digest(values[0], self._expected):
                text = "This server wants a token: send the header `Authorization: Bearer TOKEN`."
                return JSONResponse({"error": text}, 401, {"WWW-Authenticate": "Bearer"})
        return None


def _refused(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status, {"Connection": "close"})
