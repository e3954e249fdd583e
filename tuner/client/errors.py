"""What can go wrong between a client and a service.

TunerError
└── ServiceError
    ├── Refused         the service does not do this, and says why: exit status 2
    │   ├── NotAllowed  a token is missing, wrong, or not enough
    │   └── NotThere    there is no such thing
    ├── Unreachable     nobody answers, or no answer arrives whole
    └── Failed          the service failed at what it was right to ask for
"""

from collections.abc import Mapping
from typing import Any

from tuner.errors import RequestError, TunerError, WorkError

_URN = "urn:subgraph-tuner:problem:"


class ServiceError(TunerError):
    """Base of everything that a service answers, or does not.

    Attributes:
        status: Of HTTP; 0 if there was no answer.
        kind: Of the problem, such as ``not-built``; empty if nobody named it.
        retry_secs: When to try again, if the service says.
    """

    def __init__(
        self, message: str, *, status: int = 0, kind: str = "", retry_secs: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.retry_secs = retry_secs


class RequestRejected(ServiceError, RequestError):  # noqa: N818  the name says what happened
    """The request is not one that the service fulfils as it is."""


class AuthError(RequestRejected):
    """A token is missing, is not good, or does not allow this."""


class NotFoundError(RequestRejected):
    """There is no such job, file or page."""


class ConnectError(ServiceError, WorkError):
    """Nobody answers at the URL, or the connection broke."""


class ServerError(ServiceError, WorkError):
    """The service failed, or answered what makes no sense."""


def error_of(status: int, problem: Mapping[str, Any], retry_secs: float | None) -> ServiceError:
    """Return the error that an answer stands for.

    Args:
        status: Of HTTP, 400 or more.
        problem: Its problem document; empty if it had none.
        retry_secs: From Retry-After.
    """
    said = [str(problem[name]) for name in ("detail", "advice") if problem.get(name)]
    message = "; ".join(_phrase(text) for text in said)
    kind = str(problem.get("type", "")).removeprefix(_URN)
    message = message or f"the service answered with HTTP status {status}"
    if status == 401:
        message += "; give it with --token or TUNER_TOKEN"
    return _class_of(status)(message, status=status, kind=kind, retry_secs=retry_secs)


def _phrase(sentence: str) -> str:
    """Return a sentence as part of one line."""
    text = " ".join(sentence.split()).rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _class_of(status: int) -> type[ServiceError]:
    if status in (401, 403):
        return AuthError
    if status in (404, 410):
        return NotFoundError
    # Too many requests pass by themselves; a wrong request does not.
    return RequestRejected if status < 500 and status != 429 else ServerError
