"""How a service is, as anybody may ask it."""

import time
from email.utils import parsedate_to_datetime

import httpx

from tuner.client.errors import ServerError, ServiceError
from tuner.client.models import Health
from tuner.client.transport import Transport


def read_health(transport: Transport) -> Health:
    """Ask a service whether it is alive and ready, what it is, and what time it has.

    Raises:
        Unreachable: If nobody answers.
    """
    asked = time.time()
    response = transport.send("GET", "//healthz")
    took = time.time() - asked
    try:
        ready, detail = True, _said(transport.send("GET", "//readyz"))
    except ServerError as error:
        ready, detail = False, str(error)
    return Health(ready, detail, _version(transport), _skew(response, asked + took / 2))


def _said(response: httpx.Response) -> str:
    try:
        return str(response.json().get("status", "ready"))
    except (ValueError, AttributeError):
        return response.text.strip()[:100] or "ready"


def _version(transport: Transport) -> str | None:
    """Look the version up in the description of the API, which may need a token."""
    try:
        version = transport.send("GET", "/openapi.json").json()["info"]["version"]
    except (ServiceError, ValueError, KeyError, TypeError):
        return None
    return str(version)


def _skew(response: httpx.Response, ours: float) -> float | None:
    try:
        theirs = parsedate_to_datetime(response.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return None
    # A date has whole seconds: on the average it is half of one behind.
    return theirs + 0.5 - ours
