"""Lines of Ansor's logs are parsed, or refused with a reason."""

import json
from datetime import UTC, datetime

import pytest

from tests.tuner.tuning_logs import make
from tuner.tuning_logs import ansor
from tuner.tuning_logs.base import BadLine


def test_a_measurement_has_samples_and_a_time() -> None:
    """Task and state stay text for the engine."""
    entry = ansor.parse(make.ansor(2e-3, 1e-3))

    assert (entry.workload, entry.run_secs, entry.error_kind) == ("k0", (2e-3, 1e-3), None)
    assert json.loads(entry.trace) == make.STATE
    assert json.loads(entry.target)["hardware"][0] == 2
    assert entry.created == datetime.fromtimestamp(1700000000, UTC)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (1, "build_error"),
        (2, "build_error"),
        (3, "build_error"),
        (4, "run_error"),
        (5, "wrong_result"),
        (6, "build_timeout"),
        (7, "run_timeout"),
        (8, "worker_lost"),
    ],
)
def test_error_numbers_map_to_error_kinds(error: int, kind: str) -> None:
    """A failed trial has no samples, whatever its line contains."""
    entry = ansor.parse(make.ansor(1e10, error=error))

    assert (entry.error_kind, entry.run_secs) == (kind, None)
    assert entry.error_text == f"Ansor's error number {error}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is nested too deeply"),
        ("[]", "it is not a measurement with an input and a result"),
        (
            make.ansor(1.0, version="v0.5"),
            "log version 'v0.5' is unknown; only 'v0.6' is supported",
        ),
        ('{"i":[],"r":[]}', "log version None is unknown; only 'v0.6' is supported"),
        (make.ansor(1.0, i=[1]), "its input is not a task and a schedule"),
        (make.ansor(1.0, i=[["k", 1, []], []]), "its task is not a key, a target and the hardware"),
        (make.ansor(1.0, r=[1.0]), "its result is not samples, an error number and two times"),
        (make.ansor(1.0, time="now"), "its time is not a time"),
        (make.ansor(1.0, time=1e30), "its time is not a time"),
        (make.ansor(), "it has no samples"),
        (make.ansor(-1.0), "a sample is not a duration"),
        (make.ansor(1.0).replace("[1.0]", "[NaN]"), "it is not JSON"),
        (make.ansor(1.0, error=99), "error number 99 is unknown"),
    ],
)
def test_a_useless_line_is_refused_with_a_reason(line: str, reason: str) -> None:
    """The reason is one sentence with the value."""
    with pytest.raises(BadLine) as caught:
        ansor.parse(line)

    assert str(caught.value) == reason


def test_written_lines_can_be_parsed() -> None:
    """Task and state are unchanged; the time loses its fraction of a second."""
    task = json.dumps(["k0", "llvm", [2], "", 0, []])
    at = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)

    entry = ansor.parse(ansor.dump(task, json.dumps(make.STATE), [1e-3, 2e-3], at))

    assert (entry.workload, entry.run_secs) == ("k0", (1e-3, 2e-3))
    assert entry.created == at.replace(microsecond=0)
