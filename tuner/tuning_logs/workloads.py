"""Workloads of the lines of a log, as rows of the database."""

from contextlib import suppress
from typing import IO, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from records.logs import workload_names
from records.models import Workload
from records.tasks import NewWorkload, ensure_workload
from tuner.errors import RequestError, WorkError
from tuner.tuning_logs import metaschedule
from tuner.tuning_logs.base import BadLine
from tuner.tuning_logs.files import DAMAGED, MAX_LINE_BYTES
from tuner.tuning_logs.formats import Format
from tuner.workers.base import CallTimeout
from tuner.workers.pool import Pool

_TIMEOUT_SECS = 120.0


class Workloads(Protocol):
    """A source of the workloads that lines of a log refer to."""

    def find(self, text: str) -> int:
        """Return the id of a workload.

        Raises:
            BadLine: If the workload is unknown or cannot be rebuilt.
        """


class IncludedWorkloads:
    """Workloads in a MetaSchedule database; only workloads with records are stored.

    Args:
        stream: File of workloads; only the positions of its lines are kept in memory.
        engine: Module that rebuilds workloads.
        pool: Worker processes with the engine.
    """

    def __init__(
        self, stream: IO[bytes], engine: str, pool: Pool, sessions: sessionmaker[Session]
    ) -> None:
        self._results: dict[str, tuple[int, str]] = {}
        self._stream = stream
        self._engine = engine
        self._pool = pool
        self._sessions = sessions
        self._starts = _starts(stream)

    def find(self, text: str) -> int:
        """Return the id of a workload, given its line number in the file of workloads."""
        if text not in self._results:
            try:
                self._results[text] = self._rebuild(text), ""
            except BadLine as error:
                self._results[text] = 0, str(error)
        workload_id, problem = self._results[text]
        if problem:
            raise BadLine(problem)
        return workload_id

    def _rebuild(self, text: str) -> int:
        number = int(text)
        if number >= len(self._starts):
            raise BadLine(f"workload {number} is not in the database: it has {len(self._starts)}")
        self._stream.seek(self._starts[number])
        try:
            content = self._stream.readline(MAX_LINE_BYTES).decode()
            blob = metaschedule.parse_workload(content)
            rebuilt = self._pool.call(
                self._engine, "read_workload", blob, timeout_secs=_TIMEOUT_SECS
            )
        except (BadLine, UnicodeDecodeError, WorkError, CallTimeout, *DAMAGED) as error:
            raise BadLine(f"workload {number} cannot be used: {error}") from error
        if rebuilt.workload != workload_names.name_of(rebuilt.ir):
            raise BadLine(f"workload {number} was rebuilt under the name of other IR")
        with self._sessions.begin() as session:
            new = NewWorkload(
                hash=rebuilt.workload,
                engine=self._engine,
                ir=rebuilt.ir,
                flop=rebuilt.flop,
                name=rebuilt.name,
            )
            return ensure_workload(session, new).id


class NamedWorkloads:
    """Workloads of extracted networks, which a log refers to by key without including them."""

    def __init__(self, form: Format, pool: Pool, sessions: sessionmaker[Session]) -> None:
        self._engine = form.engine
        module = form.module
        with sessions() as session:
            stmt = select(Workload.id, Workload.ir).where(Workload.engine == module)
            rows = session.execute(stmt.order_by(Workload.id)).all()
        calls = [
            (row.id, pool.submit(module, "write_workload", row.ir, timeout_secs=_TIMEOUT_SECS))
            for row in rows
        ]
        self._ids: dict[str, int] = {}
        for workload_id, call in calls:
            with suppress(WorkError, CallTimeout):  # one unreadable workload must not hide others
                self._ids[call.result()[0].text] = workload_id

    def find(self, text: str) -> int:
        """Return the id of a workload, given its key in the log."""
        if text not in self._ids:
            raise BadLine(
                "its workload is unknown, and the log does not include it; first extract the tasks "
                f"of the network with engine {self._engine}"
            )
        return self._ids[text]


def _starts(stream: IO[bytes]) -> list[int]:
    """Return the position of each line; a line of any length takes little memory.

    Raises:
        RequestError: If the archive is damaged; one that was cut off just has fewer lines.
    """
    starts, at_start = [], True
    position = stream.tell()
    try:
        while part := stream.readline(2**20):
            if at_start:
                starts.append(position)
            at_start = part.endswith(b"\n")
            position += len(part)
    except EOFError:
        pass
    except DAMAGED as error:
        raise RequestError(f"cannot read workloads beyond {len(starts)}: {error}") from error
    return starts
