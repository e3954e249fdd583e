"""The answer to probes of readiness, which depends on no other request."""

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from sqlalchemy import Engine, exc
from sqlalchemy.orm import Session

from records import database
from records.errors import RecordsError, SchemaTooNew, SchemaTooOld
from records.service import workers

# Below the time-outs that probes have by default, which are a second or more.
_TIMEOUT_SECS = 5.0
_WATCH_INTERVAL_SECS = 10.0
_LOG = logging.getLogger("api")


class Coordinating(NamedTuple):
    """The state of the coordinating worker.

    Attributes:
        progress_age_secs: Seconds since its main loop was seen to run; None if unknown.
        sandbox: Confinement of its processes, in words; None until they have started.
    """

    progress_age_secs: float | None
    sandbox: str | None


class Readiness:
    """Asks the database through a connection and a thread of its own, once for all that wait.

    Attributes:
        schema_error: Error if the schema has become another than that of this process, which then
            answers no request; None otherwise.

    Args:
        engine: Engine of this probe alone.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, "readiness")
        self._running: asyncio.Future[Coordinating | None] | None = None
        self.schema_error: RecordsError | None = None

    async def watch(self) -> None:
        """Look at the database every few seconds, also without a probe."""
        while True:
            with contextlib.suppress(exc.SQLAlchemyError, RecordsError):
                await self.check()
            await asyncio.sleep(_WATCH_INTERVAL_SECS)

    async def check(self) -> Coordinating | None:
        """Return, once the database answers, the coordinating worker; None if there is none.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: If it does not, or not within seconds.
            SchemaTooNew: If a newer version has upgraded it.
            SchemaTooOld: If an older database has taken its place.
        """
        if self._running is None or self._running.done():
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(self._thread, self._ask)
            # Without a look at its error, asyncio would log the answer as lost.
            self._running.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        try:
            return await asyncio.wait_for(asyncio.shield(self._running), _TIMEOUT_SECS)
        except TimeoutError as error:
            raise exc.TimeoutError(f"no answer in {_TIMEOUT_SECS:.0f} s") from error

    def close(self) -> None:
        """Let the thread end, and close the connections once its question is answered."""
        self._thread.submit(self._engine.dispose)
        self._thread.shutdown(wait=False)

    def _ask(self) -> Coordinating | None:
        try:
            database.check_schema(self._engine)
        except (SchemaTooNew, SchemaTooOld) as error:
            if self.schema_error is None:
                _LOG.error("no request is answered any more: %s", error)
            self.schema_error = error
            raise
        self.schema_error = None
        with Session(self._engine) as session:
            active = workers.active_worker(session)
            if active is None:
                return None
            sandbox = active.device.get("sandbox")
            return Coordinating(workers.progress_age_secs(active), sandbox and str(sandbox))
