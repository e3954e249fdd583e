"""Checks that a request of a browser comes from a page of this service."""

from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from api.clients.auth import secret_of
from api.errors import Problem
from api.settings import is_loopback

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_OWN_SITES = ("same-origin", "none")
# Headers of proxies; browsers and programs on this machine send none of them.
_PROXY_HEADERS = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
)


def check_direct(connection: HTTPConnection) -> None:
    """Reject a request that came through a proxy, where no token is required.

    A proxy on this machine would make everyone who reaches it an administrator.

    Raises:
        Problem: If it has a header of a proxy, or is HTTP/1.0, which nginx speaks by default.
    """
    if connection.scope["http_version"] == "1.0":
        raise Problem("proxied", "the request is HTTP/1.0, as some proxies send it")
    for name in _PROXY_HEADERS:
        if name in connection.headers:
            raise Problem("proxied", f"the request has the header {name} of a proxy")


def check_one_host(connection: HTTPConnection) -> None:
    """Reject a request with several Host headers, which proxies read in different ways.

    Raises:
        Problem: If it has several, or none in HTTP/1.1 (RFC 9112, 3.2).
    """
    n_hosts = len(connection.headers.getlist("host"))
    if n_hosts > 1 or (n_hosts == 0 and connection.scope["http_version"] == "1.1"):
        raise Problem("bad-request", f"the request has {n_hosts} Host headers")


def check_host(connection: HTTPConnection) -> None:
    """Reject a Host other than this machine, where no token is required.

    Otherwise a page could read answers after its name was rebound to 127.0.0.1 (DNS rebinding).

    Raises:
        Problem: If the Host is another one.
    """
    host = connection.headers.get("host", "")
    name, colon, port = host.rpartition(":")
    if not is_loopback(name if colon and port.isdecimal() else host):
        raise Problem("misdirected", f"the Host {host[:200]!r} is not this machine")


def check_same_origin(connection: HTTPConnection) -> None:
    """Reject a change that a page of another site sends; programs without a browser may send it.

    A request with a bearer token needs no check, because no page can make a browser add one.
    Browsers do add other kinds of Authorization, such as Basic.

    Raises:
        Problem: If another site sent the request.
    """
    headers = connection.headers
    secret, from_cookie = secret_of(connection)
    has_bearer_token = secret is not None and not from_cookie
    if connection.scope["method"] in _SAFE_METHODS or has_bearer_token:
        return
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in _OWN_SITES:
        raise Problem("cross-site", f"Sec-Fetch-Site is {site[:50]!r}")
    if origin is not None and _authority(origin) != headers.get("host", "").lower():
        raise Problem("cross-site", f"the Origin {origin[:200]!r} is not this service")


def _authority(origin: str) -> str:
    """Return host and port of an origin; empty for one without, such as ``null``."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
