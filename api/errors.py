"""The only mapping from errors to HTTP; answers are RFC 9457 problem documents."""

import errno
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy import exc
from starlette.exceptions import HTTPException

from records.errors import (
    BadLog,
    DatabaseUnusable,
    KeyReused,
    NameInUse,
    NoSuchRow,
    QuotaExceeded,
    SchemaTooNew,
    SchemaTooOld,
)
from tuner.errors import ModelError, RequestError, TargetError, summary
from tuner.jobs.spec import phrase_of

MEDIA_TYPE = "application/problem+json"
#: Key of the name of a problem in the scope of its request, for the access log.
PROBLEM = "tuner.problem"
URN = "urn:subgraph-tuner:problem:"
_RETRY_AFTER_SECS = 5
_QUOTA_RETRY_AFTER_SECS = 60
# An upgrade is followed by a restart of this process.
_UPGRADE_RETRY_AFTER_SECS = 30
#: Retention runs every hour, and an administrator may be at it.
DISK_RETRY_AFTER_SECS = 60
_logger = logging.getLogger("api")


@dataclass(frozen=True)
class Kind:
    """A kind of problem, with the texts that all of its kind share."""

    status: int
    title: str
    advice: str


KINDS = {
    "bad-request": Kind(400, "Bad request", "Send well-formed HTTP."),
    "unauthenticated": Kind(
        401,
        "Token required",
        "Send 'Authorization: Bearer TOKEN'; tuner token create NAME creates one.",
    ),
    "forbidden": Kind(403, "Insufficient scope", "Use a token with the named scope."),
    "quota-too-small": Kind(
        403,
        "Beyond the quota",
        "Request less, delete jobs that use the quota, or ask an administrator for a larger one.",
    ),
    "cross-site": Kind(
        403, "Cross-site request", "Send it from the pages of this service, or with a token."
    ),
    "proxied": Kind(
        403,
        "Proxy not allowed",
        "Run the service with tokens behind a proxy: TUNER_TRUSTED_PROXIES names its address.",
    ),
    "not-found": Kind(404, "Not found", "Check the number; the lists show what exists."),
    "method-not-allowed": Kind(405, "Method not allowed", "Use a method of the Allow header."),
    "not-acceptable": Kind(406, "No acceptable format", "Accept application/json."),
    "too-slow": Kind(408, "Request timed out", "Send it again."),
    "wrong-state": Kind(
        409, "Wrong job state", "GET /api/v1/jobs/{id} returns the state of the job."
    ),
    "name-in-use": Kind(409, "Name in use", "Give the device another name."),
    "not-built": Kind(409, "No library built", "POST /api/v1/jobs/{id}/build, then try again."),
    "too-large": Kind(413, "Request too large", "Send less, or raise the limit of the service."),
    "unsupported-model": Kind(
        415, "Unsupported model format", "Export the network to ONNX and send that."
    ),
    "bad-range": Kind(416, "Range outside the file", "Send the request without Range."),
    "misdirected": Kind(
        421,
        "Host header not allowed",
        "Use 127.0.0.1 or localhost, or run the service with tokens.",
    ),
    "invalid": Kind(422, "Invalid request", "Correct what errors and detail name."),
    "bad-model": Kind(422, "Unusable model", "Correct what detail names."),
    "bad-target": Kind(422, "Unusable target", "Name a target that the service has."),
    "bad-log": Kind(422, "Invalid log", "Correct the named line; nothing was imported."),
    "key-reused": Kind(422, "Idempotency key in use", "Use a new key for a new request."),
    "rate": Kind(429, "Too many requests", "Wait for the seconds that Retry-After names."),
    "quota": Kind(
        429, "Quota in use", "Wait until jobs end, cancel some, or ask for a larger quota."
    ),
    "busy": Kind(429, "Too many at a time", "Wait until others end, then try again."),
    "unexpected": Kind(
        500, "Internal error", "Report the reference, which the log of the service has as well."
    ),
    "crowded": Kind(503, "Too many connections", "Close connections, then try again."),
    "unavailable": Kind(503, "Database unavailable", "Try again in a moment."),
    "outdated": Kind(
        503, "Schema changed", "Install the same version everywhere, and restart the service."
    ),
    "disk-full": Kind(503, "Disk full", "Free space on the disk of the service, then try again."),
}
_OF_STATUS = {
    400: "bad-request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    406: "not-acceptable",
    413: "too-large",
    415: "bad-request",
    422: "invalid",
}
# The first match applies; a DataError of PostgreSQL is a value that does not fit a column.
_OF_EXCEPTION: tuple[tuple[type[Exception], str], ...] = (
    (ModelError, "bad-model"),
    (TargetError, "bad-target"),
    (RequestError, "invalid"),
    (NoSuchRow, "not-found"),
    (NameInUse, "name-in-use"),
    (QuotaExceeded, "quota"),
    (KeyReused, "key-reused"),
    (BadLog, "bad-log"),
    (DatabaseUnusable, "unavailable"),
    (SchemaTooNew, "outdated"),
    (SchemaTooOld, "outdated"),
    (exc.DataError, "invalid"),
    (exc.OperationalError, "unavailable"),
    (exc.InterfaceError, "unavailable"),
    (exc.InternalError, "unavailable"),  # of PostgreSQL, if a transaction took too long
    (exc.TimeoutError, "unavailable"),
)
_DISK_FULL = "53100"  # of PostgreSQL
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Problem(HTTPException):
    """An error of a route; ``slug`` names its kind.

    It is an HTTPException, which frameworks pass on where they would wrap other errors.
    """

    def __init__(
        self,
        slug: str,
        detail: str,
        *,
        advice: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(KINDS[slug].status, detail, dict(headers or {}))
        self.slug = slug
        self.advice = advice
        self.more = more


def wrong_field(
    field: str, message: str, *, slug: str = "invalid", advice: str | None = None
) -> Problem:
    """Return the problem that one field of a request is wrong."""
    field, message = _printable(field), _printable(message)
    errors = [{"field": field, "message": message}]
    return Problem(slug, f"{field}: {message}", advice=advice, errors=errors)


def respond(problem: Problem) -> JSONResponse:
    """Return the answer to a problem."""
    kind = KINDS[problem.slug]
    content = {
        "type": URN + problem.slug,
        "title": kind.title,
        "status": problem.status_code,
        "detail": problem.detail,
        "advice": problem.advice or kind.advice,
        **problem.more,
    }
    return JSONResponse(content, problem.status_code, problem.headers, MEDIA_TYPE)


def as_problem(error: Exception) -> Problem:
    """Return the problem of an exception; unexpected ones are logged with a reference."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error.errors())
    if isinstance(error, HTTPException):
        slug = _OF_STATUS.get(error.status_code, "bad-request")
        detail = error.detail or HTTPStatus(error.status_code).phrase
        problem = Problem(slug, detail, headers=error.headers)
        problem.status_code = error.status_code
        return problem
    if _is_full(error):
        headers = {"retry-after": str(DISK_RETRY_AFTER_SECS)}
        return Problem("disk-full", "there is not enough space to store this", headers=headers)
    for kind, slug in _OF_EXCEPTION:
        if isinstance(error, kind):
            problem = _described(slug, error)
            if isinstance(error, ModelError):
                problem.more["code"] = error.code
            return problem
    reference = secrets.token_hex(6)
    _logger.error("unexpected error %s", reference, exc_info=error)
    return Problem("unexpected", f"reference {reference}", reference=reference)


def _is_full(error: Exception) -> bool:
    """Return whether the disk of the files or of the database is full."""
    if isinstance(error, exc.DBAPIError):
        state = getattr(error.orig, "sqlstate", None)
        return state == _DISK_FULL or "disk is full" in str(error.orig)
    return isinstance(error, OSError) and error.errno in _FULL


def expected() -> list[type[Exception]]:
    """Return the exceptions that have a problem of their own."""
    return [kind for kind, _ in _OF_EXCEPTION]


def _described(slug: str, error: Exception) -> Problem:
    if slug == "unavailable":
        _logger.warning("the database failed: %s", _printable(summary(error)))
        headers = {"retry-after": str(_RETRY_AFTER_SECS)}
        return Problem(slug, "the database does not answer", headers=headers)
    if slug == "outdated":
        # The full text has the address of the database; the log has it.
        headers = {"retry-after": str(_UPGRADE_RETRY_AFTER_SECS)}
        text = "the schema of the database is not the one of this process"
        return Problem(slug, text, headers=headers)
    if isinstance(error, QuotaExceeded):
        return _over_quota(error)
    if isinstance(error, exc.DataError):
        return Problem(slug, "a value is outside the range that can be stored")
    if isinstance(error, RequestError) and error.field is not None:
        return wrong_field(error.field, str(error).removeprefix(f"{error.field}: "), slug=slug)
    return Problem(slug, _printable(summary(error)))


def _over_quota(error: QuotaExceeded) -> Problem:
    """Answer 429 if waiting helps, 403 if only a smaller request or a larger quota does."""
    if not error.waiting_helps:
        return Problem("quota-too-small", str(error), quota=error.quota)
    headers = {"retry-after": str(_QUOTA_RETRY_AFTER_SECS)}
    return Problem("quota", str(error), headers=headers, quota=error.quota)


def _invalid(errors: Sequence[Any]) -> Problem:
    """Name the invalid fields, without repeating their values."""
    named = [(".".join(map(str, error["loc"])), phrase_of(error)) for error in errors]
    named = list(dict.fromkeys(named))  # several parts of a route read the same parameter
    detail = "; ".join(f"{field}: {message}" for field, message in named[:5])
    fields = [
        {"field": _printable(field), "message": _printable(message)}
        for field, message in named[:50]
    ]
    return Problem("invalid", _printable(detail), errors=fields)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text)[:2000]
