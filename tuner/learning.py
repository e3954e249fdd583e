"""Which cost model a pick uses: trained on the first so many records of its target.

How many is a function of the number of records alone, so that a resumed job
searches with the very model it would have had; and it grows in steps, so that
training stays a small share of the time.
"""

from sqlalchemy.orm import Session, sessionmaker

from records import cost_models as stored_models
from tuner import cost_models
from tuner.executors.local import LocalExecutor

_FIRST = 16
_GROWTH = 1.08
# The latest so many are learned from.
_MOST_ROWS = 20_000
_TIMEOUT_SECS = 600.0


def trained_on(n_records: int) -> int:
    """Return how many records the model of a target with ``n_records`` is trained on."""
    step = 0
    following = _FIRST
    while following <= n_records:
        step, following = following, max(following + _FIRST, int(following * _GROWTH))
    return step


class Learner:
    """Keeps the cost model of one target, trained and saved as records come in."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        workers: LocalExecutor,
        target_id: int,
        kind: str = cost_models.DEFAULT_KIND,
        seed: int = 0,
    ) -> None:
        self._sessions = sessions
        self._workers = workers
        self._target_id = target_id
        self._kind = kind
        self._seed = seed
        self._name = f"{kind}/{seed}"
        self._blob = cost_models.create(kind, seed).save()
        self._n_rows = 0

    def model(self, before_record_id: int | None) -> bytes:
        """Return the model of a round that may know records older than ``before_record_id``."""
        with self._sessions() as session:
            total = stored_models.count_examples(session, self._target_id, before_record_id)
            n_rows = trained_on(total)
            if n_rows == self._n_rows:
                return self._blob
            stored = stored_models.load_cost_model(session, self._target_id, self._name)
            if stored is not None and stored.n_records == n_rows:
                self._blob, self._n_rows = stored.blob, n_rows
                return self._blob
            newer = total - n_rows
            rows = stored_models.training_set(
                session, self._target_id, min(total, _MOST_ROWS + newer), before_record_id
            )
        known = rows[: len(rows) - newer]
        examples = [(row.task_id, row.features, row.latency) for row in known]
        self._blob = self._workers.train(
            self._kind, self._seed, examples, timeout_secs=_TIMEOUT_SECS
        )
        self._n_rows = n_rows
        with self._sessions.begin() as session:
            stored_models.save_cost_model(session, self._target_id, self._name, n_rows, self._blob)
        return self._blob
