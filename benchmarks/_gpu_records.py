"""Speed and failures of the newest job, from its records."""

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from benchmarks._gpu_commands import is_sticky
from records import database, jobs
from records.models import MeasureRecord, Pick

_TEXT_LENGTH = 200


def read_job(data_dir: Path, since: datetime) -> dict[str, Any]:
    """Read the results of the newest job.

    Args:
        data_dir: The data directory; its database is a file.
        since: Time before which trials are not in ``trials_now`` and the rate.

    Returns:
        Numbers by name; ``{}`` if there is no job.
    """
    engine = database.open_database(f"sqlite:///{data_dir.absolute() / 'tuner.db'}")
    try:
        with database.sessions(engine, read_only=True)() as session:
            job = jobs.latest_job(session)
            return {} if job is None else _facts(session, job.id, since)
    finally:
        engine.dispose()


def _facts(session: Session, job_id: int, since: datetime) -> dict[str, Any]:
    picks = list(session.scalars(select(Pick).where(Pick.job_id == job_id).order_by(Pick.id)))
    records = list(session.scalars(select(MeasureRecord).join(Pick).where(Pick.job_id == job_id)))
    new = [record.created for record in records if record.created >= since]
    begun = min((pick.created for pick in picks if pick.created >= since), default=since)
    secs = (max(new) - begun).total_seconds() if new else 0.0
    return {
        "job": job_id,
        "state": jobs.get_job(session, job_id).state,
        "spent_secs": jobs.get_job(session, job_id).spent_secs,
        "trials": len(records),
        "trials_now": len(new),
        "measuring_secs": secs,
        "trials_per_sec": len(new) / secs if secs > 0 else None,
        "errors": dict(Counter(r.error_kind for r in records if r.error_kind is not None)),
        "error_texts": {
            record.error_kind: (record.error_text or "").strip()[:_TEXT_LENGTH]
            for record in reversed(records)
            if record.error_kind is not None
        },
        "sticky": sum(is_sticky(record.error_text or "") for record in records),
        "throttled": sum(bool((r.conditions or {}).get("throttled")) for r in records),
        "full_round": _full_round(picks),
    }


def _full_round(picks: list[Pick]) -> dict[str, float] | None:
    """Return the fastest round among those with the most trials; a task may have fewer than 64.

    Its time includes search and builds.
    """
    done = [pick for pick in picks if pick.done and pick.secs and pick.n_measured]
    if not done:
        return None
    n_most = max(pick.n_measured for pick in done)
    secs = min(pick.secs for pick in done if pick.secs and pick.n_measured == n_most)
    return {"trials": n_most, "secs": secs, "trials_per_sec": n_most / secs}
