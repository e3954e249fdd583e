"""Cost models are trained on the records of one target."""

from sqlalchemy.orm import Session

from records import measure_records
from records.tuning import cost_models
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
        measure_records.add_record(session, new)
    target_id = make.target(session)

    rows = cost_models.training_set(session, target_id, 10)

    assert [(row.features, row.latency) for row in rows] == [(b"a", 1.0), (b"b", None), (b"e", 2.0)]
    assert {row.task_id for row in rows} == {mine}
    assert cost_models.training_set(session, target_id, 2) == rows[1:]
    assert cost_models.training_set(session, target_id, 9, rows[2].record_id) == rows[:2]


def test_examples_are_counted_and_read_between_two_records(session: Session) -> None:
    """Both bounds, other targets and records without features are excluded."""
    mine, other = make.task(session), make.task(session, core_count=64)
    trials = [make.timed(mine, str(n), 1.0, features=b"f") for n in range(6)]
    trials[2] = make.timed(other, "2", 1.0, features=b"f")
    trials[3] = make.timed(mine, "3", 1.0)
    ids = [one.record_id for one in measure_records.add_records(session, trials) if one is not None]
    target_id = make.target(session)

    assert cost_models.count_examples_between(session, target_id, ids[0], ids[5]) == 2
    assert cost_models.count_examples_between(session, target_id, 0, ids[5] + 1) == 4
    assert cost_models.count_examples(session, target_id) == 4
    assert cost_models.count_examples_between(session, target_id, ids[5], ids[0]) == 0
    read = cost_models.training_set_between(session, target_id, ids[0], ids[5])
    assert [row.record_id for row in read] == [ids[1], ids[4]]
    assert cost_models.training_set_between(
        session, target_id, 0, ids[5] + 1
    ) == cost_models.training_set(session, target_id, 9)


def test_a_saved_model_replaces_the_previous_one(session: Session) -> None:
    """There is one model per target and kind."""
    target_id = make.target(session)
    assert cost_models.load_cost_model(session, target_id, "xgb") is None

    for n, blob in ((10, b"old"), (20, b"new")):
        cost_models.save_cost_model(session, target_id, "xgb", n, blob)
    model = cost_models.load_cost_model(session, target_id, "xgb")

    assert model is not None
    assert (model.n_records, model.blob) == (20, b"new")
