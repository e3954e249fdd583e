"""Which workload of the database a line of a log is about."""

from contextlib import suppress
from typing import IO, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

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
    """Finds workloads by what lines of a log say."""

    def find(self, text: str) -> int:
        """Return the id of a workload.

        Raises:
            BadLine: If it is unknown, or cannot be rebuilt.
        """


class HeldWorkloads:
    """The workloads that a MetaSchedule database holds; those that records name are stored.

    Args:
        stream: The file of workloads; where its lines begin is all that is kept of it.
        engine: The module that rebuilds them.
        pool: Where it does.
        sessions: Of the database.
    """

    def __init__(
        self, stream: IO[bytes], engine: str, pool: Pool, sessions: sessionmaker[Session]
    ) -> None:
        self._found: dict[str, tuple[int, str]] = {}
        self._stream = stream
        self._engine = engine
        self._pool = pool
        self._sessions = sessions
        self._starts = _starts(stream)

    def find(self, text: str) -> int:
        """See the contract."""
        if text not in self._found:
            try:
                self._found[text] = self._rebuild(text), ""
            except BadLine as error:
                self._found[text] = 0, str(error)
        workload_id, problem = self._found[text]
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
            found = self._pool.call(self._engine, "read_workload", blob, timeout_secs=_TIMEOUT_SECS)
        except (BadLine, UnicodeDecodeError, WorkError, CallTimeout, *DAMAGED) as error:
            raise BadLine(f"workload {number} cannot be used: {error}") from error
        with self._sessions.begin() as session:
            new = NewWorkload(
                hash=found.workload,
                engine=self._engine,
                ir=found.ir,
                flop=found.flop,
                name=found.name,
            )
            return ensure_workload(session, new).id


class NamedWorkloads:
    """Workloads that a log names and does not hold: those that networks were split into."""

    def __init__(self, form: Format, pool: Pool, sessions: sessionmaker[Session]) -> None:
        self._engine = form.engine
        module = form.module
        with sessions() as session:
            wanted = select(Workload.id, Workload.ir).where(Workload.engine == module)
            rows = session.execute(wanted.order_by(Workload.id)).all()
        calls = [
            (row.id, pool.submit(module, "write_workload", row.ir, timeout_secs=_TIMEOUT_SECS))
            for row in rows
        ]
        self._ids: dict[str, int] = {}
        for each, call in calls:
            with suppress(WorkError, CallTimeout):  # that one cannot be read, and the others can
                self._ids[call.result()[0].text] = each

    def find(self, text: str) -> int:
        """See the contract."""
        if text not in self._ids:
            raise BadLine(
                "its workload is unknown, and the log does not hold it; extract the network "
                f"first: tuner tasks MODEL --engine {self._engine}"
            )
        return self._ids[text]


def _starts(stream: IO[bytes]) -> list[int]:
    """Return where each line begins; a line of any length takes little memory.

    Raises:
        RequestError: If what is packed is damaged; what was cut off ends sooner.
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
