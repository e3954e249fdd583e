"""Logs carry every record exactly, and damaged logs are refused."""

import io
import json
import math
import random
from typing import Any

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from records import bests, database, measure_records
from records.errors import BadLog
from records.logs import imported as imported_records
from records.logs import measure_log
from records.models import ERROR_KINDS, BestRecord, MeasureRecord, Target
from tests.records import make


def exported(session: Session, target_id: int | None = None) -> str:
    """Return the log of a database."""
    stream = io.StringIO()
    measure_log.export(session, stream, target_id)
    return stream.getvalue()


def imported(session: Session, text: str) -> measure_log.ImportReport:
    """Import a log."""
    return measure_log.import_(session, io.StringIO(text), trusted=True)


def bests_of(session: Session) -> set[tuple[str, float, bool]]:
    """Return the trace hash, latency and confirmation of each best record."""
    rows = session.execute(
        select(MeasureRecord.trace_hash, BestRecord.latency, BestRecord.confirmed).join(BestRecord)
    )
    return {(name, latency, confirmed) for name, latency, confirmed in rows}


def fill(session: Session, seed: int) -> None:
    """Store random records of random tasks, some of them confirmed."""
    rng = random.Random(seed)
    task_ids = [make.task(session, f"w{n}", core_count) for n in range(3) for core_count in (2, 64)]
    pick_id = make.pick(session, make.job(session), task_ids[0], 9, {}).id
    for n in range(60):
        features = rng.choice([None, rng.randbytes(rng.randrange(40))])
        shared = {"features": features, "module_hash": rng.choice([None, f"m{n}"])}
        task_id, trace_hash = rng.choice(task_ids), f"t{n}-\N{SNOWMAN}\u2028"
        if rng.random() < 0.3:
            kind = rng.choice(ERROR_KINDS)
            error = rng.choice([None, math.inf, 0.5])
            new = make.failed(task_id, trace_hash, kind, max_error=error, **shared)
        else:
            secs = [rng.lognormvariate(-9, 3) for _ in range(rng.randrange(1, 5))]
            extra: dict[str, Any] = {
                "verified": rng.random() < 0.8,
                "pick_id": rng.choice([None, pick_id]),
            }
            extra["conditions"] = rng.choice([None, {"sm_mhz": n, "throttled": ["power"]}])
            new = make.timed(task_id, trace_hash, *secs, **shared, **extra)
        measure_records.add_record(session, new)
    for task_id in task_ids[::2]:
        for record in bests.top_records(session, task_id, 3):
            bests.confirm(session, record.id, [rng.lognormvariate(-9, 3) for _ in range(5)])
        bests.choose_confirmed(session, task_id)


@pytest.mark.parametrize("seed", range(2))
def test_a_round_trip_is_byte_identical(session: Session, empty: Session, seed: int) -> None:
    """A log of either database imported into an empty one is exported unchanged."""
    fill(session, seed)
    text = exported(session)

    report = imported(empty, text)

    assert report == measure_log.ImportReport(n_added=60, n_known=0, n_bad=0)
    assert exported(empty) == text
    assert bests_of(empty) == bests_of(session)


def test_a_log_of_sqlite_can_be_imported_into_any_database(
    session: Session, empty: Session
) -> None:
    """The export of the imported log has the same bytes."""
    fill(empty, 0)
    text = exported(empty)

    imported(session, text)

    assert exported(session) == text


def test_importing_again_changes_nothing(session: Session) -> None:
    """Every record is known, and the best records stay."""
    fill(session, 1)
    text = exported(session)

    assert imported(session, text) == measure_log.ImportReport(n_added=0, n_known=60, n_bad=0)
    assert exported(session) == text


def test_only_one_target_is_exported(session: Session) -> None:
    """Records, workloads and fingerprints of other targets are left out."""
    fill(session, 2)
    text = exported(session, make.target(session, 64))

    targets = [line for line in map(json.loads, text.splitlines()) if line.get("kind") == "target"]

    assert [target["device"]["n_cores"] for target in targets] == [64]


def test_definitions_come_before_their_records(session: Session) -> None:
    """A log begins with its format and version and can be read in one pass."""
    measure_records.add_record(session, make.timed(make.task(session), "t", 1.0))

    lines = [json.loads(line) for line in exported(session).splitlines()]

    assert lines[0] == {"format": "subgraph-tuner records", "version": 1}
    assert [line["kind"] for line in lines[1:]] == ["target", "workload", "record"]


def test_a_known_record_takes_its_confirmation(session: Session, empty: Session) -> None:
    """A second log of the same records adds samples measured since."""
    task_id = make.task(session)
    record = measure_records.add_record(session, make.timed(task_id, "t", 1.0))
    assert record is not None
    imported(empty, exported(session))
    bests.confirm(session, record.id, [0.9])
    bests.choose_confirmed(session, task_id)

    report = imported(empty, exported(session))

    assert report == measure_log.ImportReport(n_added=0, n_known=1, n_bad=0)
    assert bests_of(empty) == {("t", 0.9, True)}


@pytest.mark.parametrize(("theirs", "winner"), [(0.5, "theirs"), (2.0, "mine"), (1.0, "mine")])
def test_the_faster_best_survives_an_import(
    session: Session, empty: Session, theirs: float, winner: str
) -> None:
    """Ties go to the record that the database already has."""
    measure_records.add_record(empty, make.timed(make.task(empty), "mine", 1.0))
    measure_records.add_record(session, make.timed(make.task(session), "theirs", theirs))

    imported(empty, exported(session))

    assert {name for name, _, _ in bests_of(empty)} == {winner}


@pytest.mark.parametrize("n_cut", [1, 2, 200])
def test_a_torn_last_line_is_reported(session: Session, empty: Session, n_cut: int) -> None:
    """Lines before the cut are kept; a line that only lacks its newline is complete."""
    task_id = make.task(session)
    for name, secs in (("a", 2.0), ("b", 1.0)):
        measure_records.add_record(session, make.timed(task_id, name, secs))
    text = exported(session)[:-n_cut]

    report = imported(empty, text)

    whole = n_cut == 1
    assert report == (
        measure_log.ImportReport(2, 0, 0) if whole else measure_log.ImportReport(1, 0, 1)
    )
    assert bests_of(empty) == ({("b", 1.0, False)} if whole else {("a", 2.0, False)})


@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        (('"version":1', '"version":2'), 1, "reads logs of version 1, not 2"),
        (('"version":1', '"version":true'), 1, "not True"),
        (("subgraph-tuner records", "other"), 1, "not a log"),
        (('"kind":"target"', '"kind":"tarot"'), 2, "unknown kind 'tarot'"),
        (("Test CPU", "Better CPU"), 2, "fingerprint"),
        (('"ir":"', '"ir":"*'), 3, "base64"),
        (('"flop":2000000000.0', '"flop":"many"'), 3, "flop of a workload"),
        (('"kind":"workload"', '"kind":"workload","age":1'), 3, "fields.*age"),
        (('"run_secs":[1.5]', '"run_secs":[NaN]'), 4, "NaN is not JSON"),
        (('"run_secs":[1.5]', '"run_secs":[true]'), 4, "finite seconds"),
        (('"run_secs":[1.5]', '"run_secs":null'), 4, "CHECK|check"),
        (('"run_secs":[1.5]', '"run_secs":[0.1]'), 4, "median"),
        (('"workload":"w0"', '"workload":"w9"'), 4, "before its workload"),
        (('"worker":"w1"', '"worker":null'), 4, "worker of a record"),
        (('"worker":"w1"', r'"worker":"\u0000"'), 4, "NUL"),
        (('"worker":"w1"', r'"worker":"\ud800"'), 4, "surrogates"),
        (('"verified":true', '"verified":false'), 4, "not verified"),
        (('"max_error":1e-06', '"max_error":"nan"'), 4, "max_error"),
        (("+00:00", ""), 4, "time zone"),
        (('"error_kind":null', '"error_kind":"tired"'), 4, "CHECK|check"),
    ],
)
def test_a_damaged_line_is_named(
    engine: Engine, change: tuple[str, str], line: int, reason: str
) -> None:
    """The error has the line number and the reason, and a rollback leaves nothing."""
    factory = database.sessions(engine)
    with factory() as session:
        measure_records.add_record(session, make.timed(make.task(session), "t", 1.5))
        text = exported(session)
        session.rollback()
    damaged = text.replace(*change)
    assert damaged != text

    with (
        pytest.raises(BadLog, match=f"^line {line}: .*({reason})") as raised,
        factory.begin() as session,
    ):
        imported(session, damaged)

    assert raised.value.line_number == line
    assert "\n" not in str(raised.value)
    with factory() as session:
        assert session.scalar(select(func.count()).select_from(MeasureRecord)) == 0


@pytest.mark.parametrize("text", ["", "\n", "[]\n", '{"format":', "\x00\x01"])
def test_a_file_that_is_not_a_log_is_refused(empty: Session, text: str) -> None:
    """The first line decides."""
    with pytest.raises(BadLog, match=r"^line 1: "):
        imported(empty, text)


def test_a_blank_or_broken_line_inside_is_refused(session: Session, empty: Session) -> None:
    """Only the last line may be incomplete."""
    measure_records.add_record(session, make.timed(make.task(session), "t", 1.0))
    lines = exported(session).splitlines(keepends=True)

    for broken in ("\n", lines[1][:30] + "\n", "[" * 100_000 + "\n", "3\n"):
        with pytest.raises(BadLog, match=r"^line 2: "):
            imported(empty, "".join([lines[0], broken, *lines[1:]]))


def test_records_of_a_log_are_claims(session: Session, sqlite_url: str) -> None:
    """They belong to a target of their own, are not verified, and are the best of no task."""
    fill(session, 1)
    text = exported(session)
    engine = database.open_database(sqlite_url.replace("records.db", "other.db"))
    with database.sessions(engine).begin() as other:
        report = measure_log.import_(other, io.StringIO(text))
        again = measure_log.import_(other, io.StringIO(text))
        claims = list(other.scalars(select(MeasureRecord)))
        targets = list(other.scalars(select(Target)))
        assert bests_of(other) == set()
        copied = exported(other)
        trusted = measure_log.import_(other, io.StringIO(copied), trusted=True)
    engine.dispose()

    assert report.n_added == len(claims) == again.n_known > 0
    assert not any(record.verified for record in claims)
    assert all(imported_records.is_claimed(target) for target in targets)
    assert (trusted.n_added, trusted.n_known) == (0, len(claims)), "a claim stays one"


def test_a_claim_of_what_was_measured_here_is_known(session: Session) -> None:
    """The log of this database adds nothing to it, and changes no best record."""
    fill(session, 2)
    before, n_records = bests_of(session), session.scalar(select(func.count(MeasureRecord.id)))
    report = measure_log.import_(session, io.StringIO(exported(session)))

    assert (report.n_added, report.n_known) == (0, n_records)
    assert not any(
        imported_records.is_claimed(target) for target in session.scalars(select(Target))
    )
    assert bests_of(session) == before
