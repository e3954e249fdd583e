"""Refusal of requests that store more while the disk of the service is nearly full."""

from api.errors import DISK_RETRY_AFTER_SECS, Problem
from api.settings import ApiSettings
from api.uploads.incoming import Incoming
from tuner.disk_floor import shortage


def check_disk(settings: ApiSettings, incoming: Incoming | None = None) -> None:
    """Check that free disk space is left after all that is arriving; this reads the disk.

    Raises:
        Problem: If there is too little.
    """
    incoming = incoming or Incoming()
    if reason := shortage(
        settings.tuner,
        n_upload_bytes=incoming.n_upload_bytes,
        n_import_bytes=incoming.n_import_bytes,
    ):
        headers = {"retry-after": str(DISK_RETRY_AFTER_SECS)}
        raise Problem("disk-full", reason, headers=headers)
