"""Which requests a browser may send: those of our own pages, and of nobody else's."""

from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from api.auth import secret_of
from api.errors import Problem
from api.settings import is_loopback

_SAFE = ("GET", "HEAD", "OPTIONS")
_OURS = ("same-origin", "none")


def check_host(connection: HTTPConnection) -> None:
    """Refuse a Host that is not this machine, where no token protects it.

    A page whose name was bound to 127.0.0.1 after it was loaded would be served otherwise.

    Raises:
        Problem: If the Host is another.
    """
    host = connection.headers.get("host", "")
    if not is_loopback(_host_name(host)):
        raise Problem("misdirected", f"the Host {host[:200]!r} is not this machine")


def check_same_origin(connection: HTTPConnection) -> None:
    """Refuse a change that a page of another site sends; programs that are no browser may.

    A request with a token of its own needs no check: no page can make a browser send one for
    it. Other kinds of Authorization, such as Basic, browsers send by themselves.

    Raises:
        Problem: If another site sent it.
    """
    headers = connection.headers
    secret, from_cookie = secret_of(connection)
    if connection.scope["method"] in _SAFE or (secret is not None and not from_cookie):
        return
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in _OURS:
        raise Problem("cross-site", f"Sec-Fetch-Site is {site[:50]!r}")
    if origin is not None and urlsplit_host(origin) != headers.get("host", "").lower():
        raise Problem("cross-site", f"the Origin {origin[:200]!r} is not this service")


def urlsplit_host(origin: str) -> str:
    """Return host and port of an origin; empty if it has none, as ``null``."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _host_name(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
