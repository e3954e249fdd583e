"""Refusal of requests that store more while the disk of the service is nearly full."""

from starlette.requests import HTTPConnection

from api.errors import DISK_RETRY_AFTER_SECS, Problem
from api.settings import ApiSettings
from tuner.disk_floor import shortage


def check_disk(settings: ApiSettings, connection: HTTPConnection | None = None) -> None:
    """Check that free disk space is left after the body of a request; this reads the disk.

    Raises:
        Problem: If there is too little.
    """
    length = "0" if connection is None else connection.headers.get("content-length", "0")
    n_bytes = int(length[:20]) if length.isdecimal() else 0
    if reason := shortage(settings.tuner, n_bytes):
        headers = {"retry-after": str(DISK_RETRY_AFTER_SECS)}
        raise Problem("disk-full", reason, headers=headers)
