"""The condition of a service, which needs no token."""

import time
from email.utils import parsedate_to_datetime

import httpx

from tuner.client.errors import ServerError, ServiceError
from tuner.client.models import Health
from tuner.client.transport import Transport


def read_health(transport: Transport) -> Health:
    """Return liveness, readiness, version and clock skew of a service.

    Raises:
        ConnectError: If no service answers.
    """
    started = time.time()
    response = transport.send("GET", "//healthz")
    middle = (started + time.time()) / 2
    try:
        ready, detail = True, _status(transport.send("GET", "//readyz"))
    except ServerError as error:
        ready, detail = False, str(error)
    return Health(ready, detail, _version(transport), _skew(response, middle))


def _status(response: httpx.Response) -> str:
    try:
        return str(response.json().get("status", "ready"))
    except (ValueError, AttributeError):
        return response.text.strip()[:100] or "ready"


def _version(transport: Transport) -> str | None:
    """Return the version in the OpenAPI document, which may require a token."""
    try:
        version = transport.send("GET", "/openapi.json").json()["info"]["version"]
    except (ServiceError, ValueError, KeyError, TypeError):
        return None
    return str(version)


def _skew(response: httpx.Response, local_time: float) -> float | None:
    try:
        service_time = parsedate_to_datetime(response.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return None
    # Dates are truncated to whole seconds, by half a second on average.
    return service_time + 0.5 - local_time
