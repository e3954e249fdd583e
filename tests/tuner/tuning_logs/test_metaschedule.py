"""Lines of MetaSchedule's databases are parsed, or refused with a reason."""

import json
from pathlib import Path

import pytest

from tests.tuner.tuning_logs import make
from tuner.errors import RequestError
from tuner.tuning_logs import metaschedule
from tuner.tuning_logs.base import BadLine


def test_a_record_has_samples_and_numbers_its_workload() -> None:
    """Trace and target stay text for the engine; equal targets are equal texts."""
    entry = metaschedule.parse_record(make.metaschedule((1e-3, 3e-3), 7))
    turned = dict(reversed(make.TARGET.items()))
    other = metaschedule.parse_record(make.metaschedule((1e-3, 3e-3), 7, turned))

    assert (entry.workload, entry.run_secs) == ("7", (1e-3, 3e-3))
    assert json.loads(entry.trace) == make.TRACE
    assert entry.target == other.target


def test_a_record_of_a_failed_trial_has_an_error() -> None:
    """MetaSchedule gives it 1e10 seconds and no reason."""
    entry = metaschedule.parse_record(make.metaschedule((1e10,)))

    assert (entry.run_secs, entry.error_kind) == (None, "run_error")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[0,", "it is not JSON"),
        ("{}", "it is not a record of a workload"),
        ("[-1,[[],[1.0],{},[]]]", "it is not a record of a workload"),
        ("[true,[[],[1.0],{},[]]]", "it is not a record of a workload"),
        ("[0,[[]]]", "it is not a record of a workload"),
        (make.metaschedule(None), "it was never measured"),
        (make.metaschedule([]), "it has no samples"),
        (make.metaschedule(["1"]), "a sample is not a duration"),
        (make.metaschedule([10**400]), "a sample is not a duration"),
        (make.metaschedule([1e11]), "a sample is not a duration"),
        (make.metaschedule(target=None), "it names no target"),
    ],
)
def test_a_useless_record_is_refused_with_a_reason(line: str, reason: str) -> None:
    """The reason is one sentence."""
    with pytest.raises(BadLine) as caught:
        metaschedule.parse_record(line)

    assert str(caught.value) == reason


@pytest.mark.parametrize("line", ["[1,2]", '["h"]', "{}"])
def test_a_workload_is_a_pair_of_texts(line: str) -> None:
    """Any other line is refused."""
    assert metaschedule.parse_workload('["1","aGk="]') == "aGk="
    with pytest.raises(BadLine, match="not a pair of hash and IR"):
        metaschedule.parse_workload(line)


@pytest.mark.parametrize("name", ["", metaschedule.RECORDS, metaschedule.WORKLOADS])
def test_a_database_is_found_by_its_folder_and_by_either_file(tmp_path: Path, name: str) -> None:
    """Both files are returned."""
    for file in (metaschedule.RECORDS, metaschedule.WORKLOADS):
        (tmp_path / file).touch()

    workloads, records = metaschedule.files_of(str(tmp_path / name))

    assert (workloads.name, records.name) == (metaschedule.WORKLOADS, metaschedule.RECORDS)


@pytest.mark.parametrize("name", ["", metaschedule.RECORDS, "other.json"])
def test_half_a_database_is_refused(tmp_path: Path, name: str) -> None:
    """The message names the missing file."""
    (tmp_path / metaschedule.RECORDS).touch()
    (tmp_path / "other.json").touch()

    with pytest.raises(RequestError, match="a MetaSchedule database has two files"):
        metaschedule.files_of(str(tmp_path / name))


def test_written_records_can_be_parsed() -> None:
    """Samples keep every digit."""
    secs = [0.1 + 0.2, 1e-9]
    line = metaschedule.dump_record(3, json.dumps(make.TRACE), secs, json.dumps({}), "[]")

    entry = metaschedule.parse_record(line)

    assert (entry.workload, entry.run_secs) == ("3", tuple(secs))
