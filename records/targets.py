"""Targets: compilation targets together with the devices that measure for them."""

import hashlib
import json
from typing import Any

from sqlalchemy.orm import Session

from records.models import Target
from records.upsert import find_or_insert


def fingerprint(spec: str, device: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of the canonical JSON of ``[spec, device]``."""
    text = json.dumps([spec, device], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def ensure_target(session: Session, spec: str, device: dict[str, Any]) -> Target:
    """Return the row of a target, inserting it if it is new.

    Args:
        session: The transaction.
        spec: Canonical JSON text of the target; another spelling is another target.
        device: Device fingerprint: names and versions, in any order of keys.
    """
    key = {"fingerprint": fingerprint(spec, device)}
    return find_or_insert(session, Target, key, {"spec": spec, "device": device})
