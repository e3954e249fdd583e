"""Refusal of requests that store more while the disk of the service is nearly full."""

from api.errors import DISK_RETRY_AFTER_SECS, Problem
from api.settings import ApiSettings
from tuner.disk_floor import shortage


def check_disk(settings: ApiSettings, n_upload_bytes: int = 0) -> None:
    """Check that free disk space is left after uploads that are arriving; this reads the disk.

    Raises:
        Problem: If there is too little.
    """
    if reason := shortage(settings.tuner, n_upload_bytes=n_upload_bytes):
        headers = {"retry-after": str(DISK_RETRY_AFTER_SECS)}
        raise Problem("disk-full", reason, headers=headers)
