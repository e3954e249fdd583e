"""Cost models learn from the records of one target."""

from sqlalchemy.orm import Session

from records import cost_models, measures
from tests.records import make


def test_training_set_is_the_latest_in_order(session: Session) -> None:
    """Failures have no latency; other targets and records without features are left out."""
    mine, other = make.task(session), make.task(session, core_count=64)
    for new in (
        make.timed(mine, "a", 1.0, features=b"a"),
        make.failed(mine, "b", features=b"b"),
        make.timed(other, "c", 1.0, features=b"c"),
        make.timed(mine, "d", 1.0),
        make.timed(mine, "e", 2.0, features=b"e"),
    ):
        measures.add_record(session, new)
    target_id = make.target(session)

    rows = cost_models.training_set(session, target_id, 10)

    assert [(row.features, row.latency) for row in rows] == [(b"a", 1.0), (b"b", None), (b"e", 2.0)]
    assert {row.task_id for row in rows} == {mine}
    assert cost_models.training_set(session, target_id, 2) == rows[1:]
    assert cost_models.training_set(session, target_id, 9, rows[2].record_id) == rows[:2]


def test_a_saved_model_replaces_the_one_before(session: Session) -> None:
    """One model per target and kind."""
    target_id = make.target(session)
    assert cost_models.load_cost_model(session, target_id, "xgb") is None

    for n, blob in ((10, b"old"), (20, b"new")):
        cost_models.save_cost_model(session, target_id, "xgb", n, blob)
    model = cost_models.load_cost_model(session, target_id, "xgb")

    assert model is not None
    assert (model.n_records, model.blob) == (20, b"new")
