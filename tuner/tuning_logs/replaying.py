"""Having an engine replay what lines say, such that one that kills its worker dies alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.engines.log_base import TraceBatch, TraceText
from tuner.errors import WorkError
from tuner.workers.base import CallTimeout
from tuner.workers.pool import Pool, PoolCall

_TIMEOUT_SECS = 300.0
_ALONE_TIMEOUT_SECS = 30.0


@dataclass(frozen=True)
class Replays:
    """A batch that an engine was asked to read or to write."""

    pool: Pool
    engine: str
    function: str
    batch: TraceBatch
    call: PoolCall

    def results(self) -> Iterator[TraceText]:
        """Wait, and return one answer for each text of the batch."""
        try:
            found: Sequence[TraceText] = self.call.result()
        except (WorkError, CallTimeout) as error:
            yield from self._alone(error)
            return
        yield from found

    def _alone(self, error: Exception) -> Iterator[TraceText]:
        texts = self.batch.texts
        if len(texts) == 1:
            yield TraceText(problem=f"the trace cannot be replayed: {error}")
            return
        for text in texts:
            batch = TraceBatch(self.batch.ir, self.batch.target, (text,))
            yield from submit(
                self.pool, self.engine, self.function, batch, _ALONE_TIMEOUT_SECS
            ).results()


def submit(
    pool: Pool, engine: str, function: str, batch: TraceBatch, timeout_secs: float = _TIMEOUT_SECS
) -> Replays:
    """Ask an engine for ``read_traces`` or ``write_traces`` of a batch."""
    call = pool.submit(engine, function, batch, timeout_secs=timeout_secs)
    return Replays(pool, engine, function, batch, call)
