"""Cost model of a target: trained and stored as its records come in.

A pick uses a model that is trained on the first records of its target. Their number is a
function of the number of records alone, so that a resumed job searches with the model that it
would have had; it grows in steps, so that training stays a small share of the time. Where several
devices measure, only the round that trains a model waits for it; the others use the one before.
"""

import asyncio
import logging

from sqlalchemy.orm import Session, sessionmaker

from records.tuning import cost_models as stored_models
from records.tuning.cost_models import TrainingRow
from tuner import cost_models
from tuner.cost_models import blobs
from tuner.errors import WorkerLost, WorkError
from tuner.executors.base import Executor
from tuner.workers.base import CallTimeout

_FIRST_STEP = 16
_GROWTH = 1.08
# Training uses the latest records up to this number.
_MAX_ROWS = 20_000
_TIMEOUT_SECS = 600.0
_ATTEMPTS = 2

_LOG = logging.getLogger(__name__)


def n_training_records(n_records: int) -> int:
    """Return the number of records that the model of a target with ``n_records`` is trained on."""
    step = 0
    following = _FIRST_STEP
    while following <= n_records:
        step, following = following, max(following + _FIRST_STEP, int(following * _GROWTH))
    return step


class CostModelManager:
    """Current cost model of one target; used in the thread of the event loop."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        executor: Executor,
        target_id: int,
        kind: str = cost_models.DEFAULT_KIND,
        seed: int = 0,
    ) -> None:
        self._sessions = sessions
        self._executor = executor
        self._target_id = target_id
        self._kind = kind
        self._seed = seed
        self._name = f"{kind}/{seed}"
        self._blob = cost_models.create(kind, seed).save()
        self._n_trained = 0
        self._n_counted, self._counted_before = 0, 0
        self._examples: list[TrainingRow] = []
        self._examples_before = 0
        self._training = asyncio.Lock()

    async def model(self, before_record_id: int) -> bytes:
        """Return the model for a round that may know records older than ``before_record_id``."""
        if self._is_good_enough(before_record_id) or self._is_current(before_record_id):
            return self._blob
        async with self._training:
            with self._sessions() as session:
                n_records = self._count(session, before_record_id)
                n_rows = n_training_records(n_records)
                if n_rows == self._n_trained:
                    return self._blob
                stored = stored_models.load_cost_model(session, self._target_id, self._name)
            if stored is not None and stored.n_records == n_rows:
                self._blob, self._n_trained = stored.blob, n_rows
            else:
                await self._train(n_rows, n_records - n_rows, before_record_id)
        return self._blob

    def _is_current(self, before: int) -> bool:
        """Return whether too few records came in since the last count to require a new model."""
        n_more = before - self._counted_before
        return (
            self._counted_before > 0
            and n_more >= 0
            and n_training_records(self._n_counted + n_more) == self._n_trained
        )

    def _is_good_enough(self, before: int) -> bool:
        """Return whether to use the model at hand, as rounds of several devices have no order."""
        if self._n_trained == 0 or len(self._executor.runners) <= 1:
            return False
        return self._training.locked() or before <= self._counted_before

    def _count(self, session: Session, before: int) -> int:
        """Count the examples before a record, from where the last count ended."""
        if before < self._counted_before:
            return stored_models.count_examples(session, self._target_id, before)
        self._n_counted += stored_models.count_examples_between(
            session, self._target_id, self._counted_before - 1, before
        )
        self._counted_before = before
        return self._n_counted

    async def _train(self, n_rows: int, n_newer: int, before: int) -> None:
        """Train on the first ``n_rows`` records, which ``n_newer`` follow, and store the model."""
        with self._sessions() as session:
            rows = self._read_examples(session, min(n_rows, _MAX_ROWS) + n_newer, before)
        examples = [(row.task_id, row.features, row.latency) for row in rows[: len(rows) - n_newer]]
        blob = await self._train_in_worker(examples)
        self._n_trained = n_rows
        if blob is None:
            return
        self._blob = blob
        with self._sessions.begin() as session:
            stored_models.save_cost_model(session, self._target_id, self._name, n_rows, self._blob)

    def _read_examples(self, session: Session, limit: int, before: int) -> list[TrainingRow]:
        """Return the latest examples before a record, in ascending order.

        Those that were read before are kept: to read all of a large target took a fifth of the
        time of a coordinator with hundreds of devices.
        """
        if 0 < self._examples_before <= before:
            newer = stored_models.training_set_between(
                session, self._target_id, self._examples_before - 1, before
            )
            rows = [*self._examples, *newer]
        else:
            rows = []
        if len(rows) < limit:
            rows = stored_models.training_set(session, self._target_id, limit, before)
        self._examples, self._examples_before = rows[-limit:], before
        return self._examples

    async def _train_in_worker(
        self, examples: list[tuple[int, bytes, float | None]]
    ) -> bytes | None:
        """Return a new model; None if training failed, and searches use the one before."""
        for _ in range(_ATTEMPTS):
            try:
                blob = await self._executor.train(
                    self._kind, self._seed, examples, timeout_secs=_TIMEOUT_SECS
                )
            except WorkerLost as error:
                reason = str(error)
                continue
            except (CallTimeout, WorkError, OSError) as error:
                reason = str(error) or f"it took longer than {_TIMEOUT_SECS:g} s"
            else:
                if _is_model(blob, self._kind):
                    return bytes(blob)
                reason = f"the worker returned {blob!r:.200}"
            break
        _LOG.warning("cannot train a cost model: %s", reason)
        return None


def _is_model(blob: object, kind: str) -> bool:
    """Return whether the result of a worker, which can be anything, is a model of a kind."""
    try:
        return isinstance(blob, bytes) and blobs.unseal(blob)[0] == kind
    except ValueError:
        return False
