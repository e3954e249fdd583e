"""Import of results of a pack: ordinary records of the device that measured them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from records import measure_records, tasks
from records.measure_records import NewRecord
from records.models import Workload
from records.storage.text import storable
from records.targets import ensure_target
from tuner.context import Context
from tuner.devices import gpus
from tuner.engines.base import RunResult, origin_of
from tuner.errors import RequestError
from tuner.packs import import_finals, registry, result_lines
from tuner.packs.import_finals import NetworkTimes
from tuner.packs.registry import RegisteredCandidate, RegisteredPack
from tuner.packs.runner.measure import Key, results_of
from tuner.tuning.writing.storage_retry import sessions_with_retry
from tuner.workers import result_validation

# Records of one statement.
_GROUP = 500


@dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    Attributes:
        pack: Id of the pack.
        device: Name of the GPU.
        n_added: Records that were added.
        n_known: Results that were there already.
        n_wrong: Results, among all, whose outputs are wrong.
        n_failed: Results, among all, that failed otherwise.
        n_left: Candidates of the pack without a result.
        n_torn_bytes: Bytes at the end of the file that are damaged and were left out.
        missing: Parts of the identity of the GPU that the results lack.
        n_by_finals: Workloads whose best record the finals chose, and not the times alone.
    """

    pack: str
    device: str
    n_added: int
    n_known: int
    n_wrong: int
    n_failed: int
    n_left: int
    n_torn_bytes: int
    missing: tuple[str, ...]
    networks: tuple[NetworkTimes, ...]
    n_by_finals: int


def import_results(context: Context, path: Path) -> ImportReport:
    """Store the results of a pack that was made here; what is known is not stored again.

    Args:
        context: Settings and database.
        path: File of results by ``python PACK run``.

    Raises:
        RequestError: If the file is not of a pack of this data directory, was changed, or is of a
            GPU that the pack is not for; nothing is stored then.
    """
    content = path.read_bytes()
    pack = registry.load(context.settings.data_dir, result_lines.pack_of(content))
    rows, n_bytes = result_lines.load(pack.key, content)
    if not rows:
        raise RequestError(
            f"{path} has no results of pack {pack.pack}: its lines do not have the key of the pack"
        )
    check_header(pack, rows)
    if sum("device" in row for row in rows) > 1:
        raise RequestError(f"{path} has the results of several runs; import the file of each")
    device, missing = identity_of(rows[0]["device"], pack)
    with sessions_with_retry(context).begin() as session:
        n_added, new = store_results(session, pack, device, rows)
        n_by_finals = store_finals(session, pack, device, rows)
    results = _candidates(pack, rows)
    imported = {**pack.imported, str(device["name"]): len(results)}
    registry.store(context.settings.data_dir, replace(pack, imported=imported))
    kinds = [each.error_kind for each in new]
    n_wrong = kinds.count("wrong_result")
    return ImportReport(
        pack=pack.pack,
        device=str(device["name"]),
        n_added=n_added,
        n_known=len(new) - n_added,
        n_wrong=n_wrong,
        n_failed=len(kinds) - kinds.count(None) - n_wrong,
        n_left=pack.n_candidates
        - sum(name in pack.workloads.get(workload, ()) for workload, name in results),
        n_torn_bytes=len(content) - n_bytes,
        missing=missing,
        networks=tuple(import_finals.network_times(rows)),
        n_by_finals=n_by_finals,
    )


def check_header(pack: RegisteredPack, rows: Sequence[Mapping[str, Any]]) -> None:
    """Check that results begin with the header of a run of the pack.

    Raises:
        RequestError: If they do not.
    """
    if rows[0].get("format") != result_lines.FORMAT:
        raise RequestError(f"results of pack {pack.pack} are of another version; import them there")
    if rows[0].get("pack") != pack.pack or not isinstance(rows[0].get("device"), dict):
        raise RequestError(f"the results have no header of pack {pack.pack}")


def store_results(
    session: Session,
    pack: RegisteredPack,
    device: dict[str, Any],
    rows: Sequence[dict[str, Any]],
) -> tuple[int, list[NewRecord]]:
    """Store the results among some rows; what is known is not stored again.

    Args:
        device: Fingerprint of the GPU by :func:`identity_of`.
        rows: Rows by :func:`tuner.packs.result_lines.load`.

    Returns:
        Number of records that were added, and the records of all results.

    Raises:
        RequestError: If the database does not have a workload.
    """
    results = _candidates(pack, rows)
    new = list(_records(pack, _task_ids(session, pack, device, results), results))
    n_added = 0
    for start in range(0, len(new), _GROUP):
        stored = measure_records.add_records(session, new[start : start + _GROUP])
        n_added += sum(each is not None for each in stored)
    return n_added, new


def store_finals(
    session: Session,
    pack: RegisteredPack,
    device: dict[str, Any],
    rows: Sequence[dict[str, Any]],
) -> int:
    """Have finals among all rows of a run choose best records; return how many they chose.

    Arguments are those of :func:`store_results`, which was called before.
    """
    task_ids = _task_ids(session, pack, device, _candidates(pack, rows))
    return import_finals.store_winners(session, pack, task_ids, rows)


def _candidates(
    pack: RegisteredPack, rows: Sequence[dict[str, Any]]
) -> dict[Key, tuple[Mapping[str, Any], RegisteredCandidate]]:
    """Return the results of candidates of the pack."""
    return {
        key: (row, candidate)
        for key, row in results_of(rows).items()
        if (candidate := pack.candidate(*key)) is not None
    }


def _task_ids(
    session: Session, pack: RegisteredPack, device: dict[str, Any], results: Iterable[Key]
) -> dict[str, int]:
    """Return the tasks of the workloads of results on a GPU."""
    target_id = ensure_target(session, pack.spec, device).id
    return {
        workload: _task_id(session, pack, target_id, workload)
        for workload in dict.fromkeys(workload for workload, _ in results)
    }


def identity_of(
    described: Mapping[str, Any], pack: RegisteredPack
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fingerprint of a GPU as a tuner on its machine makes it, and what it lacks.

    Raises:
        RequestError: If the pack is not for this GPU.
    """
    if described.get("capability") not in pack.capabilities:
        raise RequestError(
            f"pack {pack.pack} is for GPUs of compute capability {pack.capabilities[0]}, and "
            f"{described.get('name')} has {described.get('capability')}"
        )
    device = {
        name: described[name]
        for name in gpus.IDENTITY
        if isinstance(described.get(name), gpus.IDENTITY[name])
    }
    missing = tuple(name for name in gpus.IDENTITY if name not in device)
    return {"name": "unnamed GPU", **device, **pack.versions}, missing


def _records(
    pack: RegisteredPack,
    task_ids: Mapping[str, int],
    results: Mapping[Key, tuple[Mapping[str, Any], RegisteredCandidate]],
) -> Iterator[NewRecord]:
    """Yield the record of each result."""
    for (workload, _), (row, candidate) in results.items():
        result = result_validation.validate_run(_result(row))
        yield NewRecord(
            task_id=task_ids[workload],
            trace=candidate.trace,
            trace_hash=measure_records.trace_hash(candidate.trace),
            worker=f"pack {pack.pack}",
            run_secs=result.run_secs,
            error_kind=result.error_kind,
            error_text=storable(result.error_text) or None,
            module_hash=candidate.module_hash,
            verified=result.run_secs is not None,
            max_error=result.max_error,
            conditions=result.conditions,
            origin=origin_of(candidate.trace, None),
        )


def _task_id(session: Session, pack: RegisteredPack, target_id: int, workload: str) -> int:
    """Return the task of a workload on the GPU.

    Raises:
        RequestError: If the database does not have the workload.
    """
    stmt = select(Workload.id).where(Workload.hash == workload, Workload.engine == pack.engine)
    workload_id = session.scalar(stmt)
    if workload_id is None:
        raise RequestError(
            f"the database has no workload {workload[:16]}: pack {pack.pack} was made with another"
        )
    return tasks.ensure_task(session, workload_id, target_id).id


def _result(row: Mapping[str, Any]) -> RunResult:
    """Return a row as the result of a run, unchecked."""
    return RunResult(
        run_secs=row.get("run_secs"),
        error_kind=row.get("error_kind"),
        error_text=row.get("error_text", ""),
        max_error=row.get("max_error"),
        conditions=_conditions(row.get("conditions")),
    )


def _conditions(value: Any) -> dict[str, Any] | None:
    """Return conditions in the form of other runners: clocks, and names of what limits them."""
    if not isinstance(value, dict) or not value:
        return None
    mask = value.get("reasons")
    read = {name: value[name] for name in ("sm_mhz",) if isinstance(value.get(name), int)}
    if isinstance(mask, int):
        reasons = gpus.name_reasons(mask)
        read |= {"reasons": list(reasons), "throttled": list(gpus.throttling(reasons))}
    return read
