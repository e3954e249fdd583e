"""Comparisons: of two jobs by what each of them measured, of two libraries by their manifests."""

from collections.abc import Iterable, Mapping

from sqlalchemy.orm import Session

from tuner.library.manifest import Manifest
from tuner.queries import history
from tuner.queries import jobs as job_queries
from tuner.queries.history import OwnResult
from tuner.schemas import JobComparison, JobSummary, JobView, OwnTask, TaskComparison

# Latencies this close count as equal: measuring again changes as much.
_EQUAL = 0.01


def compare_jobs(session: Session, a: int, b: int) -> JobComparison:
    """Compare two jobs; their workloads are paired by hash.

    Best records belong to all jobs of a target, so they would make any two jobs equal.

    Raises:
        NoSuchRow: If a job does not exist.
    """
    views = [job_queries.read_job(session, job_id) for job_id in (a, b)]
    sides = [_sides(session, view) for view in views]
    totals = [_total(session, view) for view in views]
    names = {task.workload: task.name for view in reversed(views) for task in view.tasks}
    compared = (
        _compare(workload, name, sides[0].get(workload), sides[1].get(workload))
        for workload, name in names.items()
    )
    return JobComparison(
        a=views[0].job,
        b=views[1].job,
        a_secs=totals[0],
        b_secs=totals[1],
        verdict=_verdict(views[0].job, views[1].job, totals[0], totals[1])
        + _about_targets(views[0].job, views[1].job),
        tasks=_sorted(compared),
    )


def compare_libraries(a: Manifest, b: Manifest) -> list[TaskComparison]:
    """Compare two libraries by the records that their subgraphs were built from.

    Subgraphs are paired by workload, and those without a record have no latency.

    Returns:
        Workloads, the largest differences of the latency first.
    """
    sides = [
        {
            each.workload: OwnTask(
                weight=each.n_calls, latency_secs=None if each.record is None else each.latency
            )
            for each in library.subgraphs
        }
        for library in (a, b)
    ]
    names = {each.workload: each.name for library in (b, a) for each in library.subgraphs}
    return _sorted(
        _compare(workload, name, sides[0].get(workload), sides[1].get(workload))
        for workload, name in names.items()
    )


def _sorted(tasks: Iterable[TaskComparison]) -> list[TaskComparison]:
    return sorted(tasks, key=lambda task: (-abs(task.saved_secs or 0.0), task.name, task.workload))


def _sides(session: Session, view: JobView) -> Mapping[str, OwnTask]:
    own = history.own_results(session, view.job.id)
    sides = {}
    for task in view.tasks:
        secs, trials = own.get(task.task_id, OwnResult())
        sides[task.workload] = OwnTask(weight=task.weight, latency_secs=secs, trials=trials)
    return sides


def _compare(workload: str, name: str, a: OwnTask | None, b: OwnTask | None) -> TaskComparison:
    if not a or not b or not a.latency_secs or not b.latency_secs:
        return TaskComparison(workload=workload, name=name, a=a, b=b)
    speedup = a.latency_secs / b.latency_secs
    return TaskComparison(
        workload=workload,
        name=name,
        a=a,
        b=b,
        speedup=speedup,
        saved_secs=a.weight * a.latency_secs - b.weight * b.latency_secs,
        faster="equal" if abs(speedup - 1) <= _EQUAL else "b" if speedup > 1 else "a",
    )


def _total(session: Session, view: JobView) -> float | None:
    """Return the latency after the last round of a job; other jobs may have improved it since."""
    points = history.read_history(session, view.job.id, to_now=False).points
    totals = [p.total_latency_secs for p in points if p.total_latency_secs is not None]
    return totals[-1] if totals else view.job.total_latency_secs


def _verdict(a: JobSummary, b: JobSummary, a_secs: float | None, b_secs: float | None) -> str:
    # A job that has not loaded its model has no network.
    if None not in (a.network_id, b.network_id) and a.network_id != b.network_id:
        return "The jobs tune different networks, so their latencies do not compare."
    if a_secs is None or b_secs is None:
        job = a if a_secs is None else b
        return f"Job {job.id} ({job.name}) is {job.state} and has no latency."
    ratio = a_secs / b_secs
    if abs(ratio - 1) <= _EQUAL:
        return "Both jobs reached the same latency, within 1 %."
    first, second = (f"B ({b.name})", "A") if ratio > 1 else (f"A ({a.name})", "B")
    return f"{first} runs its network {max(ratio, 1 / ratio):.2f} times as fast as {second}."


def _about_targets(a: JobSummary, b: JobSummary) -> str:
    are_known = None not in (a.target_id, b.target_id)
    return " The jobs have different targets." if are_known and a.target_id != b.target_id else ""
