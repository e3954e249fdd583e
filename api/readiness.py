"""The answer to probes of readiness, which depends on no other request."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Engine, exc
from sqlalchemy.orm import Session

from records import workers

# Below the time-outs that probes have by default, which are a second or more.
_TIMEOUT_SECS = 5.0


class Readiness:
    """Asks the database through a connection and a thread of its own, once for all that wait.

    Args:
        engine: Engine of this probe alone.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, "readiness")
        self._running: asyncio.Future[float | None] | None = None

    async def check(self) -> float | None:
        """Return, once the database answers, the seconds since the coordinator made progress.

        None means that no worker coordinates.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: If it does not, or not within seconds.
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
        """Let the thread end."""
        self._thread.shutdown(wait=False)

    def _ask(self) -> float | None:
        with Session(self._engine) as session:
            active = workers.active_worker(session)
            return None if active is None else workers.progress_age_secs(active)
