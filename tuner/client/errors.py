"""Errors between a client and a service.

TunerError
└── ServiceError
    ├── RequestRejected    the service rejects the request: exit status 2
    │   ├── AuthError      a token is missing, invalid, or lacks the scope
    │   └── NotFoundError  the job, file or page does not exist
    ├── ConnectError       no connection, or no complete answer
    └── ServerError        the service failed, or its answer is unusable
"""

from collections.abc import Mapping
from typing import Any

from tuner.errors import RequestError, TunerError, WorkError

_URN = "urn:subgraph-tuner:problem:"
#: Kinds of problems with quotas, which last until other jobs end.
QUOTA_KINDS = ("quota", "quota-too-small")
#: Kind of requests that the service has no space for; it takes longer than a moment to free some.
DISK_FULL = "disk-full"


class ServiceError(TunerError):
    """Base of all errors of a client.

    Attributes:
        status: HTTP status; 0 without an answer.
        kind: Kind of the problem, such as ``not-built``; empty if unknown.
        retry_secs: Time after which to try again, seconds, if the service sent one.
    """

    def __init__(
        self, message: str, *, status: int = 0, kind: str = "", retry_secs: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.retry_secs = retry_secs


class RequestRejected(ServiceError, RequestError):  # noqa: N818  named for the outcome
    """The service rejects the request; the same request fails again.

    ``field`` names the wrong field, if the problem document names exactly one.
    """


class AuthError(RequestRejected):
    """A token is missing, invalid, or lacks the scope."""


class NotFoundError(RequestRejected):
    """The job, file or page does not exist."""


class ConnectError(ServiceError, WorkError):
    """No service answers at the URL, or the connection broke."""


class ServerError(ServiceError, WorkError):
    """The service failed, or its answer cannot be read."""


def error_of(status: int, problem: Mapping[str, Any], retry_secs: float | None) -> ServiceError:
    """Return the error of an answer.

    Args:
        status: HTTP status, 400 or more.
        problem: Problem document; empty without one.
        retry_secs: Seconds of Retry-After.
    """
    kind = str(problem.get("type", "")).removeprefix(_URN)
    # The advice about wrong fields is to read the document.
    parts = ("detail",) if kind == "invalid" and "errors" in problem else ("detail", "advice")
    texts = [str(problem[name]) for name in parts if problem.get(name)]
    message = "; ".join(_phrase(text) for text in texts)
    if not message:
        message = f"the service answered with HTTP status {status}"
        if status < 500:
            message += " and no reason; check that the URL is that of a tuner service"
    error = _class_of(status, kind)(message, status=status, kind=kind, retry_secs=retry_secs)
    named = "token" if status == 401 else _only_field(problem)
    if isinstance(error, RequestError) and named is not None:
        error.field = named.removeprefix("body.").removeprefix("query.")
        error.text = message.removeprefix(f"{named}: ")
    return error


def _only_field(problem: Mapping[str, Any]) -> str | None:
    """Return the field that a problem is about; None if it is about none or several."""
    match problem.get("errors"):
        case [{"field": str(field)}]:
            return field
    return None


def _phrase(sentence: str) -> str:
    """Return a sentence as part of one line."""
    text = " ".join(sentence.split()).rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _class_of(status: int, kind: str) -> type[ServiceError]:
    if kind in QUOTA_KINDS:
        return RequestRejected
    if status in (401, 403):
        return AuthError
    if status in (404, 410):
        return NotFoundError
    # The same request succeeds later if there were too many, and fails again if it is wrong.
    return RequestRejected if status < 500 and status != 429 else ServerError
