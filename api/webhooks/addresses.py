"""Addresses of webhooks: a client names them, so they must not lead into the service's network."""

import asyncio
import ipaddress
import socket
from urllib.parse import SplitResult, urlsplit

from tuner.errors import RequestError

MAX_URL_CHARS = 2000
_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def check_url(url: str, *, allows_private: bool) -> SplitResult:
    """Return the parts of the address of a webhook.

    Raises:
        RequestError: If it is not an HTTP address, has a user or a fragment, or is private.
    """
    field = "webhook"
    if len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or " " in url:
        raise RequestError(
            f"must have at most {MAX_URL_CHARS} printable ASCII characters, and no space",
            field=field,
        )
    try:
        parts = urlsplit(url)
        port = port_of(parts)
    except ValueError as error:
        raise RequestError(f"is not a URL: {error}", field=field) from error
    if parts.scheme not in _PORTS or not parts.hostname or not port:
        raise RequestError("must begin with https:// or http:// and a host", field=field)
    if parts.username is not None or parts.fragment:
        raise RequestError("must have neither a user nor a fragment", field=field)
    try:
        address = ipaddress.ip_address(parts.hostname)
    except ValueError:
        return parts
    if not allows_private and not is_public(address):
        raise RequestError("is a private address, which this service refuses", field=field)
    return parts


def port_of(parts: SplitResult) -> int:
    """Return the port of a URL.

    Raises:
        ValueError: If it is not a number up to 65535.
    """
    return _PORTS.get(parts.scheme, 0) if parts.port is None else parts.port


async def resolve(parts: SplitResult, *, allows_private: bool) -> list[str]:
    """Return the addresses to connect to: a name is resolved here, and nowhere after.

    Raises:
        RequestError: If one of the addresses of the host is private, and that is not allowed.
        OSError: If the host has none.
    """
    entries = await asyncio.get_running_loop().getaddrinfo(
        parts.hostname, port_of(parts), type=socket.SOCK_STREAM
    )
    addresses = [str(entry[4][0]) for entry in entries]
    if not allows_private and not all(map(is_public, map(ipaddress.ip_address, addresses))):
        raise RequestError("the address is private")
    return addresses


def is_public(address: Address) -> bool:
    """Return whether the internet routes an address, and any IPv4 address inside it."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast
