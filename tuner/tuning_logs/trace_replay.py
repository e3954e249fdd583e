"""Replay of logged schedules by an engine; schedules that crash their worker are isolated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.engines.log_base import TraceBatch, TraceText
from tuner.errors import WorkError
from tuner.workers.base import CallTimeout, FutureCall
from tuner.workers.pool import Pool

_TIMEOUT_SECS = 300.0
_ALONE_TIMEOUT_SECS = 30.0


@dataclass(frozen=True)
class Replays:
    """A batch of schedules that an engine reads or writes."""

    pool: Pool
    engine: str
    function: str
    batch: TraceBatch
    call: FutureCall

    def results(self) -> Iterator[TraceText]:
        """Wait, and yield one result for each text of the batch."""
        try:
            results: Sequence[TraceText] = self.call.result()
        except (WorkError, CallTimeout) as error:
            yield from self._one_by_one(error)
            return
        yield from results

    def _one_by_one(self, error: Exception) -> Iterator[TraceText]:
        """Repeat a failed batch text by text, so that only the bad ones fail."""
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
    """Submit a batch to ``read_traces`` or ``write_traces`` of an engine."""
    call = pool.submit(engine, function, batch, timeout_secs=timeout_secs)
    return Replays(pool, engine, function, batch, call)
