"""Which cost model a pick uses: trained on the first so many records of its target.

How many is a function of the number of records alone, so that a resumed job
searches with the very model it would have had; and it grows in steps, so that
training stays a small share of the time. Where several devices measure, only the
round that trains a model waits for it: the others go on with the one before.
"""

import asyncio
import logging

from sqlalchemy.orm import Session, sessionmaker

from records import cost_models as stored_models
from tuner import cost_models
from tuner.cost_models import blobs
from tuner.errors import WorkerLost, WorkError
from tuner.executors.base import Executor
from tuner.workers.base import CallTimeout

_FIRST = 16
_GROWTH = 1.08
# The latest so many are learned from.
_MOST_ROWS = 20_000
_TIMEOUT_SECS = 600.0
_ATTEMPTS = 2

_LOG = logging.getLogger(__name__)


def trained_on(n_records: int) -> int:
    """Return how many records the model of a target with ``n_records`` is trained on."""
    step = 0
    following = _FIRST
    while following <= n_records:
        step, following = following, max(following + _FIRST, int(following * _GROWTH))
    return step


class CostModelManager:
    """Keeps the cost model of one target, trained and saved as records come in."""

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
        self._n_rows = 0
        self._n_known, self._before = 0, 0
        self._training = asyncio.Lock()

    async def model(self, before_record_id: int) -> bytes:
        """Return the model of a round that may know records older than ``before_record_id``."""
        if self._is_good_enough(before_record_id) or self._is_due_later(before_record_id):
            return self._blob
        async with self._training:
            with self._sessions() as session:
                total = self._count(session, before_record_id)
                n_rows = trained_on(total)
                if n_rows == self._n_rows:
                    return self._blob
                stored = stored_models.load_cost_model(session, self._target_id, self._name)
            if stored is not None and stored.n_records == n_rows:
                self._blob, self._n_rows = stored.blob, n_rows
            else:
                await self._train(n_rows, total - n_rows, before_record_id)
        return self._blob

    def _is_due_later(self, before: int) -> bool:
        """Whether so few records came in since they were counted that no model is due by them."""
        n_more = before - self._before
        return (
            self._before > 0 and n_more >= 0 and trained_on(self._n_known + n_more) == self._n_rows
        )

    def _is_good_enough(self, before: int) -> bool:
        """Whether to take what there is, for nobody else waits for rounds to be in order."""
        if self._n_rows == 0 or len(self._executor.runners) <= 1:
            return False
        return self._training.locked() or before <= self._before

    def _count(self, session: Session, before: int) -> int:
        """Count what may be learned from, from where it was counted to the last time."""
        if before < self._before:
            return stored_models.count_examples(session, self._target_id, before)
        self._n_known += stored_models.count_examples_between(
            session, self._target_id, self._before - 1, before
        )
        self._before = before
        return self._n_known

    async def _train(self, n_rows: int, n_newer: int, before: int) -> None:
        with self._sessions() as session:
            rows = stored_models.training_set(
                session, self._target_id, min(n_rows, _MOST_ROWS) + n_newer, before
            )
        known = rows[: len(rows) - n_newer]
        examples = [(row.task_id, row.features, row.latency) for row in known]
        blob = await self._trained(examples)
        self._n_rows = n_rows
        if blob is None:
            return
        self._blob = blob
        with self._sessions.begin() as session:
            stored_models.save_cost_model(session, self._target_id, self._name, n_rows, self._blob)

    async def _trained(self, examples: list[tuple[int, bytes, float | None]]) -> bytes | None:
        """Return a new model; None if there is none: a search does with the one before."""
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
                reason = f"it gave {blob!r:.200}"
            break
        _LOG.warning("no cost model could be trained: %s", reason)
        return None


def _is_model(blob: object, kind: str) -> bool:
    """Whether a worker answered what it was asked for; it may answer anything."""
    try:
        return isinstance(blob, bytes) and blobs.unseal(blob)[0] == kind
    except ValueError:
        return False
