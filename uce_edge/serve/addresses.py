"""Host names of a server and networks of its clients."""

import ipaddress
import socket
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

_HTTP_PORT = 80  # the port of a Host header without one
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Names:
    """The host names that a server accepts."""

    host: str
    """The address that the server listens on."""
    port: int

    def __contains__(self, authority: str) -> bool:
        """Whether a Host header has one of the server's names, with its port."""
        name, port = self.parse(authority) or ("", None)
        if port != self.port:
            return False
        if name in _LOOPBACK or name == self.host.lower():
            return True
        # DNS rebinding needs a name: a page that was opened under an IP address cannot redirect it.
        return not self.local and (ip_address(name) is not None or name in self._machine)

    @staticmethod
    def parse(authority: str) -> tuple[str, int] | None:
        """Split a Host header into name and port; None if it is malformed."""
        try:
            parts = urlsplit(f"//{authority}")
            name, port = (parts.hostname or "").rstrip("."), parts.port or _HTTP_PORT
        except ValueError:  # such as a bracket that is not closed, or a port that is no number
            return None
        return None if "@" in authority or parts.path or parts.query or parts.fragment else (name, port)

    @property
    def local(self) -> bool:
        """Whether only this computer can reach the server."""
        address = ip_address(self.host)
        return self.host == "localhost" or (address is not None and address.is_loopback)

    @property
    def address(self) -> str:
        """The URL of the server, for a browser on this computer."""
        shown = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}/"

    @cached_property
    def _machine(self) -> frozenset[str]:
        """Names of this computer in its network; cached, because the full name may take seconds."""
        return machine_names() | {socket.getfqdn().lower()} - {""}


def machine_names() -> frozenset[str]:
    """The host name of this computer, as its network may spell it."""
    own = socket.gethostname().lower()
    short = own.split(".")[0]
    return frozenset({own, short, f"{short}.local"} - {""})


def ip_address(name: str) -> Address | None:
    """The IP address that a name spells; None for other names."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def client_network(host: str) -> str:
    """The network that counts as one client: an IPv6 client has 2^64 addresses."""
    address = ip_address(host.partition("%")[0])
    if address is None:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address), 64), strict=False))


def share_of(connections: int) -> int:
    """The connections that one client may have: half of all, rounded up."""
    return -(-connections // 2)
