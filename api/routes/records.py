"""Measure records: best records, lists, exports and imports."""

import asyncio
import io
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter
from sqlalchemy import exc
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.app_state import State
from api.clients.auth import Subject
from api.dependencies import Administering, ReaderDep, Reading, StateDep, Submitting, WriterDep
from api.documents import pagination, schemas
from api.documents.openapi import problems
from api.documents.schemas import CodeIn, Id, Text
from api.errors import Problem
from api.load.exports import MEDIA_TYPE, ExportResponse
from api.routes import PREFIX
from records import jobs, tasks
from records.errors import NoSuchRow
from records.logs import measure_log
from records.models import Target
from records.service import kernel_codes
from records.service.owners import audit
from records.service.owners.access import check_visible
from tuner.queries import records as record_queries
from tuner.schemas import BestView, Imported, Page, RecordCode, RecordDetails, RecordView

router = APIRouter(prefix=PREFIX, tags=["records"])
_MAX_MEMORY_BYTES = 8 * 2**20
_MAX_LINE_CHARS = 64 * 2**20
# Less than the limit of a transaction, whose end would look like an outage.
_MAX_IMPORT_SECS = 50.0
_IMPORT_ADVICE = (
    "On the machine of the service, tuner records import FILE --database URL has no such limit."
)
_WAIT_SECS, _RETRY_AFTER_SECS = 30.0, 30
_CODE_RETRY_AFTER_SECS = 5
_BEST_PAGE = TypeAdapter(Page[BestView])
Workload = Annotated[
    Annotated[Text, Query(max_length=200, description="Hash of a workload, or its beginning.")]
    | None,
    Query(),
]
Name = Annotated[
    Annotated[Text, Query(max_length=200, description="Part of the workload's name.")] | None,
    Query(),
]


@router.get("/records/best", response_model=Page[BestView], responses=problems(404))
async def list_best_records(  # noqa: PLR0913, PLR0917  a parameter for each field of the query
    state: StateDep,
    subject: Reading,
    workload: Workload = None,
    name: Name = None,
    target: schemas.OptionalId = None,
    job: schemas.OptionalId = None,
    cursor: schemas.Cursor = None,
    limit: schemas.Limit = 100,
) -> Response:
    """List the fastest verified record of every task: of a workload, a target, a job, or all."""
    query = {
        "workload": workload,
        "name": name,
        "target_id": target,
        "after": pagination.number_of(cursor),
        "limit": limit + 1,
    }
    # One hop to a thread and no response model to validate, because look-ups are frequent.
    transactions = state.lookups if job is None else state.reads
    page = await transactions.run(_best_page, subject, job, limit, query)
    return Response(_BEST_PAGE.dump_json(page), media_type="application/json")


def _best_page(
    session: Session, subject: Subject, job: int | None, limit: int, query: dict[str, Any]
) -> Page[BestView]:
    task_ids = None
    if job is not None:
        check_visible(session, subject.viewer, job)
        weighted = tasks.tasks_of_job(session, jobs.get_job(session, job))
        task_ids = [task.task_id for task in weighted]
    rows = record_queries.read_bests(session, task_ids=task_ids, **query)
    shown, more = pagination.cut(rows, limit)
    return Page(shown, pagination.encode(shown[-1].task) if more else None)


@router.get("/records/list", response_model=Page[RecordView])
def list_records(  # noqa: PLR0913, PLR0917  a parameter for each field of the query
    _subject: Reading,
    session: ReaderDep,
    workload: Workload = None,
    name: Name = None,
    task: schemas.OptionalId = None,
    failed: Annotated[bool, Query(description="Failed trials only.")] = False,
    cursor: schemas.Cursor = None,
    limit: schemas.Limit = 50,
) -> Page[RecordView]:
    """List measure records, the newest first."""
    rows = record_queries.read_records(
        session,
        workload=workload,
        name=name,
        task=task,
        failed=failed,
        before=pagination.number_of(cursor),
        limit=limit + 1,
    )
    shown, more = pagination.cut(rows, limit)
    return Page(shown, pagination.encode(shown[-1].record) if more else None)


@router.get("/records/{record_id}", response_model=RecordDetails, responses=problems(404))
def read_record(record_id: Id, subject: Reading, session: ReaderDep) -> RecordDetails:
    """Serve a measure record with its trace, and the job that paid for it if it is visible."""
    return record_queries.read_record(session, record_id, subject.viewer)


@router.get("/records/{record_id}/code", response_model=RecordCode, responses=problems(404))
def read_code(record_id: Id, _subject: Reading, session: ReaderDep) -> RecordCode:
    """Serve the parts of a record's code that were asked for; those without a text wait."""
    record_queries.read_record(session, record_id)
    return record_queries.read_code(session, record_id)


@router.post(
    "/records/{record_id}/code",
    response_model=RecordCode,
    status_code=202,
    responses=problems(404, 429),
)
def print_code(
    record_id: Id,
    subject: Submitting,
    session: WriterDep,
    body: Annotated[CodeIn | None, Body()] = None,
) -> RecordCode:
    """Have a worker compile the candidate of a record again and print parts of its code.

    A text is kept for a day; a part that failed is tried again.
    """
    record_queries.read_record(session, record_id)
    parts = (body or CodeIn()).parts
    if not kernel_codes.ask(session, record_id, parts):
        raise Problem(
            "busy",
            "the code of many records waits already",
            headers={"retry-after": str(_CODE_RETRY_AFTER_SECS)},
        )
    detail = {"record": record_id, "parts": parts}
    audit.log_action(session, subject.name, subject.address, "code", detail=detail)
    return record_queries.read_code(session, record_id)


@router.get(
    "/records",
    response_class=StreamingResponse,
    responses={200: {"content": {MEDIA_TYPE: {}}}, **problems(404)},
)
async def export_records(
    state: StateDep, subject: Reading, target: schemas.OptionalId = None
) -> ExportResponse:
    """Export measure records as JSON lines, which another database can import.

    An export takes ten minutes at most; a process serves two at a time, one of each token.
    """
    if target is not None:
        await state.reads.run(_target, target)
    return ExportResponse(state.bulk_readers, state.exports, subject.name, target)


@router.post(
    "/records",
    response_model=Imported,
    responses=problems(408, 413),
    openapi_extra={
        "requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}
    },
)
async def import_records(
    request: Request,
    subject: Administering,
    state: StateDep,
    trust: Annotated[bool, Query(description="Take the records as measured here.")] = False,
) -> Imported:
    """Import JSON lines that an export wrote: all of them, or none if one is damaged.

    The records are claims until `tuner records verify` has measured them, unless you trust them
    like a program that you run. Requires the scope admin.
    """
    # Received completely first, because an import holds the write lock of the database.
    async with state.incoming.receiving(request, subject, is_import=True):
        with tempfile.SpooledTemporaryFile(_MAX_MEMORY_BYTES) as spool:
            async for chunk in request.stream():
                await run_in_threadpool(spool.write, chunk)
            async with _turn(state):
                await run_in_threadpool(_check, spool)
                # Writers wait here and not for the lock of the database, which gives up earlier.
                async with state.writes.slots.slot():
                    report = await run_in_threadpool(_import, state, spool, subject, trust)
        return record_queries.summarise_import(report)


@asynccontextmanager
async def _turn(state: State) -> AsyncIterator[None]:
    """Be the only import of this process inside.

    Raises:
        Problem: If another one does not end soon.
    """
    try:
        async with asyncio.timeout(_WAIT_SECS):
            await state.importing.acquire()
    except TimeoutError as error:
        headers = {"retry-after": str(_RETRY_AFTER_SECS)}
        raise Problem("busy", "another import is running", headers=headers) from error
    try:
        yield
    finally:
        state.importing.release()


def _check(spool: Any) -> None:
    """Check a log before the transaction, which keeps others from writing."""
    with _lines_of(spool) as lines:
        measure_log.check(_checked(lines))


def _import(state: State, spool: Any, subject: Subject, trust: bool) -> measure_log.ImportReport:
    with (
        _lines_of(spool) as lines,
        _in_time() as deadline,
        state.bulk_sessions.begin() as session,
    ):
        report = measure_log.import_(session, _until(deadline, _checked(lines)), trusted=trust)
        counts = {"added": report.n_added, "known": report.n_known, "torn": report.n_bad}
        detail = {**counts, "refused": report.n_refused, "trusted": trust}
        audit.log_action(session, subject.name, subject.address, "import", None, detail)
    return report


@contextmanager
def _lines_of(spool: Any) -> Iterator[io.TextIOWrapper]:
    """Read a file as text from its start, and leave it open."""
    lines = io.TextIOWrapper(spool, encoding="utf-8", newline="\n")
    try:
        lines.seek(0)
        yield lines
    finally:
        lines.detach()


def _checked(lines: io.TextIOWrapper) -> Iterator[str]:
    """Yield lines of limited length; no export writes longer ones."""
    while line := lines.readline(_MAX_LINE_CHARS):
        if len(line) >= _MAX_LINE_CHARS:
            raise Problem("bad-log", f"a line has more than {_MAX_LINE_CHARS} characters")
        yield line


@contextmanager
def _in_time() -> Iterator[float]:
    """Yield the time by which an import has to be stored, by the monotonic clock.

    Raises:
        Problem: If the import took too long, which the database ends in a statement.
    """
    deadline = time.monotonic() + _MAX_IMPORT_SECS
    try:
        yield deadline
    except (exc.OperationalError, exc.InternalError) as error:
        if time.monotonic() < deadline:
            raise
        raise _too_long() from error


def _until(deadline: float, lines: Iterator[str]) -> Iterator[str]:
    """Yield lines until an import has taken too long: a deadline of the database ends statements.

    Raises:
        Problem: If it has.
    """
    for line in lines:
        if time.monotonic() > deadline:
            raise _too_long()
        yield line


def _too_long() -> Problem:
    detail = f"storing the records takes longer than {_MAX_IMPORT_SECS:g} s; nothing was stored"
    return Problem("too-large", detail, advice=_IMPORT_ADVICE)


def _target(session: Session, target_id: int) -> Target:
    target = session.get(Target, target_id)
    if target is None:
        raise NoSuchRow(f"no target {target_id}")
    return target
