"""Workloads are named by the SHA-256 of their IR, whatever way it enters."""

import hashlib
import io
import json
import zlib
from dataclasses import replace

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from records import measure_records, tasks
from records.errors import WrongName
from records.logs import measure_log, workload_names
from records.models import MeasureRecord, Workload
from tests.records import make

IR = zlib.compress(b"a kernel")
NAME = hashlib.sha256(b"a kernel").hexdigest()


def named(name: str, ir: bytes) -> tasks.NewWorkload:
    """Return a workload with a name and IR."""
    return replace(make.workload(), hash=name, ir=ir)


def test_name_does_not_depend_on_the_compression() -> None:
    """Another version of zlib gives other bytes, which have the same name."""
    irs = [IR, zlib.compress(b"a kernel", 0), b"a kernel"]

    assert {workload_names.name_of(ir) for ir in irs} == {NAME}


def test_ir_that_does_not_end_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut off, or a bomb of a few bytes."""
    with pytest.raises(WrongName, match="cut off"):
        workload_names.name_of(IR[:-5])
    monkeypatch.setattr(workload_names, "_MAX_IR_BYTES", 1000)
    with pytest.raises(WrongName, match="larger than 1000 bytes"):
        workload_names.name_of(zlib.compress(bytes(2000)))


def test_workload_with_the_name_of_another_is_not_stored(session: Session) -> None:
    """The row of the true one is not returned for it either."""
    tasks.ensure_workload(session, named(NAME, IR))

    for name in (NAME, "0" * 64):
        with pytest.raises(WrongName):
            tasks.ensure_workload(session, named(name, b"other"))

    assert session.scalars(select(Workload.ir)).all() == [IR]


def test_lines_of_a_log_with_a_false_name_are_refused(session: Session, empty: Session) -> None:
    """Its records are left out and counted; the lines of other workloads are read."""
    task_ids = [make.task(session, name) for name in ("w0", "w1")]
    for task_id in task_ids:
        measure_records.add_record(session, make.timed(task_id, "t", 1e-3))
    stream = io.StringIO()
    measure_log.export(session, stream)
    text = stream.getvalue().replace(json.dumps("w0"), json.dumps(NAME))

    report = measure_log.import_(empty, io.StringIO(text), trusted=True)

    assert (report.n_added, report.n_refused) == (1, 1)
    assert [NAME in reason for reason in report.refusals] == [True]
    assert empty.scalars(select(Workload.hash)).all() == ["w1"]
    assert len(empty.scalars(select(MeasureRecord)).all()) == 1


def test_workload_is_found_by_the_beginning_of_its_name(session: Session) -> None:
    """As tables show it; an ambiguous or unknown beginning names nothing."""
    tasks.ensure_workload(session, named(NAME, IR))
    tasks.ensure_workload(session, make.workload(f"{NAME[:4]}-other"))

    texts = [NAME[:16], NAME[:4], "x"]
    assert [tasks.full_name(session, text) for text in texts] == [NAME, NAME[:4], "x"]
