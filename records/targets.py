"""Targets: compilation targets together with the devices that measure for them."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Text, cast, exists, select, update
from sqlalchemy.orm import Session

from records.models import Job, Pick, Target
from records.storage.upsert import find_or_insert


def fingerprint(spec: str, device: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of the canonical JSON of ``[spec, device]``."""
    text = json.dumps([spec, device], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def device_name(spec: str, device: Mapping[str, Any]) -> str:
    """Return the name of a target's device; without one, its kind and the target's fingerprint."""
    if name := device.get("name"):
        return str(name)
    try:
        kind = json.loads(spec)["kind"]
    except (ValueError, TypeError, KeyError):
        kind = "unknown"
    return f"{kind} device {fingerprint(spec, dict(device))[:8]}"


def ensure_target(session: Session, spec: str, device: dict[str, Any]) -> Target:
    """Return the row of a target, inserting it if it is new.

    Args:
        spec: Canonical JSON text of the target; another spelling is another target.
        device: Device fingerprint: names and versions, in any order of keys.
    """
    key = {"fingerprint": fingerprint(spec, device)}
    return find_or_insert(session, Target, key, {"spec": spec, "device": device})


def evaluators(session: Session, target_id: int) -> list[dict[str, Any]]:
    """Return the settings of the evaluator that the trials of a target's jobs were timed with.

    Jobs without a trial do not count; equal settings are returned once.
    """
    settings = cast(Job.settings["evaluator"], Text)
    has_trials = exists().where(Pick.job_id == Job.id, Pick.n_measured > 0)
    stmt = select(settings).where(Job.target_id == target_id, has_trials).distinct()
    different: list[dict[str, Any]] = []
    for text in session.scalars(stmt):
        # Versions of this package write equal settings with other spaces.
        evaluator = None if text is None else json.loads(text)
        if evaluator is not None and evaluator not in different:
            different.append(evaluator)
    return different


def set_apart(session: Session, target_id: int, timed_with: dict[str, Any]) -> None:
    """Make a target with all its records another one, so that its fingerprint is free again.

    Args:
        timed_with: Settings of the evaluator that distinguish its records.
    """
    target = session.get_one(Target, target_id, with_for_update=True)
    # The number keeps targets apart that are set apart one after the other.
    target.device = {**target.device, "timed_with": timed_with, "apart": target_id}
    target.fingerprint = fingerprint(target.spec, target.device)
    session.flush()


def clock_reference(session: Session, target_id: int, secs: float) -> float:
    """Return the time of the engine's clock kernel that clock factors of a target refer to.

    Args:
        secs: Time of the kernel now; the first one becomes the reference.
    """
    first = update(Target).where(Target.id == target_id, Target.clock_secs.is_(None))
    session.execute(first.values(clock_secs=secs))
    return clock_secs(session, target_id) or secs


def clock_secs(session: Session, target_id: int) -> float | None:
    """Return the time of the clock kernel that factors refer to; None if it was never timed."""
    return session.scalar(select(Target.clock_secs).where(Target.id == target_id))


def peaks_of(session: Session, target_id: int) -> dict[str, Any] | None:
    """Return the measured peaks of a target's device; None if they are unknown."""
    return session.get_one(Target, target_id).peaks


def store_peaks(session: Session, target_id: int, peaks: dict[str, Any]) -> None:
    """Store the measured peaks of a target's device; of each, the first one stays."""
    target = session.get_one(Target, target_id, with_for_update=True)
    target.peaks = {**peaks, **(target.peaks or {})}
