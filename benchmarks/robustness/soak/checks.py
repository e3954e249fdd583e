"""Checks after a soak test: nothing that was acknowledged is lost, and nothing is left over."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from benchmarks.robustness.soak.ledger import Ledger
from records.models import Event, Job, MeasureRecord, Pick
from records.service.service_models import Build, Lease
from tuner.jobs.submission import uploads_of

_MAX_SHOWN = 5


def lost(session: Session, ledger: Ledger, data_dir: Path) -> Iterator[str]:
    """Yield what was acknowledged and is not, or no longer, in the database."""
    yield from _jobs(session, ledger, data_dir)
    yield from _shown("build", sorted(set(ledger.builds) - set(session.scalars(select(Build.id)))))
    yield from _events(session, ledger)
    yield from _counts(session)


def unfinished(session: Session) -> dict[str, int]:
    """Return the number of jobs and builds that have not ended."""
    states = ("queued", "running")
    return {
        "jobs": session.scalar(select(func.count()).where(Job.state.in_(states))) or 0,
        "builds": session.scalar(select(func.count()).where(Build.state.in_(states))) or 0,
    }


def states(session: Session) -> dict[str, dict[str, int]]:
    """Return the number of jobs and builds by state."""
    return {
        "jobs": dict(Counter(session.scalars(select(Job.state)))),
        "builds": dict(Counter(session.scalars(select(Build.state)))),
    }


def failures(session: Session, ledger: Ledger) -> Iterator[str]:
    """Yield the messages of jobs and builds that failed though their models were sound."""
    bad = {job for job, acked in ledger.jobs.items() if acked.is_bad}
    rows = session.execute(select(Job.id, Job.message).where(Job.state == "failed")).all()
    messages = Counter(message or "" for job, message in rows if job not in bad)
    builds = session.execute(select(Build.job_id, Build.message).where(Build.state == "failed"))
    messages.update(f"build: {message}" for job, message in builds if job not in bad)
    for message, n in messages.most_common():
        yield f"{n} x {message[:200]}"


def leftovers(session: Session, data_dir: Path) -> Iterator[str]:
    """Yield leases, locks and unfinished files that an ended service left behind."""
    for lease in session.scalars(select(Lease)):
        if lease.expires > (session.scalar(select(func.now())) or lease.expires):
            yield f"the lease of {lease.name} is held by {lease.holder}"
    n_open = session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted"))
    if n_open:
        yield f"{n_open} locks of the database are waited for"
    yield from _shown("locked file", sorted(locked_files(data_dir)))


def locked_files(folder: Path) -> Iterator[str]:
    """Yield the files of a folder that a process has locked."""
    inodes = {
        line.split()[5].rpartition(":")[2] for line in Path("/proc/locks").read_text().splitlines()
    }
    for path in folder.rglob("*"):
        if path.is_file() and str(path.stat().st_ino) in inodes:
            yield str(path.relative_to(folder))


def unfinished_files(data_dir: Path) -> list[str]:
    """Return files and folders with names of unfinished ones."""
    left = [
        path
        for name in ("uploads", "archives", "models", "tmp")
        for path in (data_dir / name).glob(".*" if name != "tmp" else "*")
    ]
    return sorted(str(path.relative_to(data_dir)) for path in left)


def orphans(variable: str) -> list[psutil.Process]:
    """Return the processes that have a variable in their environment."""
    left = []
    for process in psutil.process_iter():
        try:
            if variable in process.environ():
                left.append(process)
        except psutil.Error:
            continue
    return left


def _jobs(session: Session, ledger: Ledger, data_dir: Path) -> Iterator[str]:
    rows = {job.id: job for job in session.scalars(select(Job))}
    yield from _shown("job", sorted(set(ledger.jobs) - set(rows)))
    for number, acked in ledger.jobs.items():
        job = rows.get(number)
        if job is None:
            continue
        if job.owner != acked.owner:
            yield f"job {number} belongs to {job.owner}, not to {acked.owner}"
        if job.hidden and "delete" not in acked.actions:
            yield f"job {number} is deleted, and no client asked for it"
        if acked.actions == ["cancel"] and job.state in ("queued", "running"):
            yield f"job {number} was cancelled and is {job.state}"
        uploads = uploads_of(job.request or {}, data_dir)
        if not job.hidden and not all(path.is_file() for path in uploads):
            yield f"job {number} has lost an upload"


def _events(session: Session, ledger: Ledger) -> Iterator[str]:
    stored: dict[tuple[int, int], tuple[str, str]] = {}
    records = set(session.scalars(select(MeasureRecord.id)))
    lost_records = []
    for event in session.scalars(select(Event)):
        data = json.dumps(event.data, sort_keys=True)
        stored[event.job_id, event.sequence] = (event.kind, data)
        if event.kind == "trial" and event.data["record"] not in records:
            lost_records.append(event.data["record"])
    yield from _shown("record of an event", lost_records)
    missing = sorted(set(ledger.events) - set(stored))
    yield from _shown("event", missing)
    changed = [key for key, seen in ledger.events.items() if stored.get(key, seen) != seen]
    yield from _shown("event as it was sent", changed)
    last: Counter[int] = Counter()
    numbers: Counter[int] = Counter()
    for job, sequence in stored:
        last[job] = max(last[job], sequence)
        numbers[job] += 1
    yield from _shown("event without a gap", [job for job in last if last[job] != numbers[job]])


def _counts(session: Session) -> Iterator[str]:
    """Yield picks whose sums differ from their records, and jobs with gaps in their picks."""
    counted: dict[int, int] = dict(
        session.execute(
            select(MeasureRecord.pick_id, func.count())
            .where(MeasureRecord.pick_id.is_not(None))
            .group_by(MeasureRecord.pick_id)
        ).all()  # type: ignore[arg-type]
    )
    sequences: dict[int, list[int]] = {}
    for pick in session.scalars(select(Pick)):
        sequences.setdefault(pick.job_id, []).append(pick.sequence)
        if pick.n_measured != counted.get(pick.id, 0):
            yield f"pick {pick.id} counts {pick.n_measured}, has {counted.get(pick.id, 0)} records"
    for job, numbers in sequences.items():
        if sorted(numbers) != list(range(1, len(numbers) + 1)):
            yield f"job {job} has gaps in its picks"


def _shown(what: str, missing: list[Any]) -> Iterator[str]:
    if missing:
        more = "" if len(missing) <= _MAX_SHOWN else " ..."
        yield f"{what}: {len(missing)}: {', '.join(map(str, missing[:_MAX_SHOWN]))}{more}"
