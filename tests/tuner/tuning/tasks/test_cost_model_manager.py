"""The examples of a cost model are read once, and are those that a new process would read."""

from pathlib import Path

import pytest
from sqlalchemy import event

from records import database, measure_records
from records.tuning import cost_models as stored_models
from tests.engines import toy
from tests.records import make
from tuner.executors.local import LocalExecutor
from tuner.settings import Settings
from tuner.tuning.tasks import cost_model_manager
from tuner.tuning.tasks.cost_model_manager import CostModelManager

_MAX_ROWS = 40


def test_examples_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each later read asks for newer records alone, and yields what a full read does."""
    monkeypatch.setattr(cost_model_manager, "_MAX_ROWS", _MAX_ROWS)
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    engine = database.open_database(url)
    sessions = database.sessions(engine)
    with sessions.begin() as session:
        task, target = make.task(session), make.target(session)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    was_full = []
    with LocalExecutor(Settings(url, tmp_path, toy.NAME, 1)) as executor:
        manager = CostModelManager(sessions, executor, target)
        n_counted = 0
        for n_more in (30, 5, 0, 70, 200, 1):
            numbers = range(n_counted, n_counted + n_more)
            trials = [make.timed(task, str(n), 1.0 + n, features=b"f") for n in numbers]
            with sessions.begin() as session:
                measure_records.add_records(session, trials)
            n_counted += n_more
            n_rows = cost_model_manager.n_training_records(n_counted)
            limit = min(n_rows, _MAX_ROWS) + n_counted - n_rows
            with sessions() as session:
                before = measure_records.newest_id(session) + 1
                statements.clear()
                rows = manager._read_examples(session, limit, before)
                was_full.append(any("LIMIT" in statement for statement in statements))
                assert rows == stored_models.training_set(session, target, limit, before)
    engine.dispose()
    assert was_full == [True, False, False, False, False, False]
