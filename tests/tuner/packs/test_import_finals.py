"""Finals of packs, as records see them."""

import pytest
from sqlalchemy.orm import Session

from records import bests, measure_records
from records.models import MeasureRecord
from tests.records import make
from tuner.packs import import_finals
from tuner.packs.registry import RegisteredCandidate, RegisteredPack

_CANDIDATES = {name: RegisteredCandidate(name, "") for name in ("alone", "inside")}
_PACK = RegisteredPack(
    *("0" * 12, "key", "", "a.pyz", "relax", "{}"), ["9.0"], {}, [], {"w0": _CANDIDATES}
)


@pytest.mark.parametrize(("secs", "chosen"), [(3.0, "other"), (4.9, "inside")])
def test_winner_is_no_better_than_what_was_measured_elsewhere(
    session: Session, secs: float, chosen: str
) -> None:
    """Another pack, or a search, may have found a faster kernel since the pack was made."""
    task_id = make.task(session)
    for name, latency in (("alone", 5.0), ("inside", 5.5), ("other", secs)):
        trace_hash = measure_records.trace_hash(name)
        measure_records.add_record(session, make.timed(task_id, trace_hash, latency))
    # A disturbance made the third turn of the other one longer than a call takes.
    race = {"alone": [100.0, 100.0, 110.0], "inside": [99.0, 99.0, 99.0]}
    rows = [{"network": "mlp", "workload": "w0", "calls": 1, "race": race, "chosen": "inside"}]

    n_chosen = import_finals.store_winners(session, _PACK, {"w0": task_id}, rows)

    record_id = bests.best_records(session, [task_id])[task_id].record_id
    best = session.get_one(MeasureRecord, record_id).trace_hash
    assert best == measure_records.trace_hash(chosen)
    assert n_chosen == (chosen == "inside")
