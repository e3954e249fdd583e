"""A distilled log has the best lines of each task, unchanged."""

import io
import json
from typing import Any

import pytest

from records.logs import log_lines
from tests.tuner.tuning_logs import make
from tuner.errors import RequestError
from tuner.tuning_logs.distill import Distilled, distill, ranker


def distilled(form: str, lines: list[str], top: int = 1, end: str = "\n") -> tuple[str, Distilled]:
    """Return the lines written and the counts."""
    written: list[str] = []
    stream = io.BytesIO(("\n".join(lines) + end).encode())
    done = distill(stream, ranker(form), top, written.append)
    return "".join(written), done


def record(latency: float | None, workload: str = "w0", **changed: Any) -> str:
    """Return a record of the tuner's own log."""
    names = "error_text module_hash max_error confirmed_secs conditions clock_factor"
    fields: dict[str, Any] = dict.fromkeys([*names.split(), "confirmed_factor", "origin"])
    failed = latency is None
    fields |= {
        "kind": "record",
        "workload": workload,
        "engine": "e",
        "target": "t",
        "trace": "[]",
        "trace_hash": "h",
        "run_secs": None if failed else [latency],
        "latency": latency,
        "error_kind": "run_error" if failed else None,
        "verified": not failed,
        "worker": "w",
        "created": "2026-01-01T00:00:00+00:00",
        "features": None,
        "best": None,
    }
    return log_lines.dump(fields | changed).strip()


def test_the_best_of_each_task_of_an_ansor_log_stay_in_their_order() -> None:
    """Lines are ranked by their mean sample; ties go to the first; failed ones are dropped."""
    slow, fast = make.ansor(3e-3, 5e-3), make.ansor(1e-3, 2e-3)
    other, failed = make.ansor(9e-3, key="k1"), make.ansor(0.0, error=4)
    again = make.ansor(2e-3, 1e-3)

    text, done = distilled("ansor", [failed, slow, other, fast, again], 1)

    assert text == f"{other}\n{fast}\n"
    assert (done.n_read, done.n_kept, done.n_tasks) == (5, 2, 2)
    assert done.skips.reasons == {"it failed": (1, 1)}


def test_the_two_best_are_two_lines() -> None:
    """A task with fewer lines keeps them all."""
    lines = [make.metaschedule((secs,)) for secs in (3e-3, 1e-3, 2e-3)]

    text, done = distilled("metaschedule", [*lines, make.metaschedule((1.0,), 5)], 2)

    assert text.splitlines() == [lines[1], lines[2], make.metaschedule((1.0,), 5)]
    assert (done.n_kept, done.n_tasks) == (3, 2)


def test_definitions_in_a_log_of_the_tuner_are_kept() -> None:
    """The flagged best record precedes faster ones."""
    header = log_lines.header().strip()
    target = log_lines.dump({"kind": "target", "fingerprint": "t", "spec": "{}", "device": {}})
    flagged = record(2e-3, best={"latency": 2e-3, "confirmed": True})

    text, done = distilled(
        "tuner", [header, target.strip(), record(1e-3), flagged, record(None), record(3e-3)]
    )

    assert text.splitlines() == [header, target.strip(), flagged]
    assert done.skips.reasons == {"it failed": (1, 5)}


def test_a_torn_last_line_is_left_out() -> None:
    """The line is reported."""
    line = make.ansor(1e-3)

    text, done = distilled("ansor", [line, line[:40]], end="")

    assert text == f"{line}\n"
    assert done.torn == 1


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("hello", "line 1: not a log"),
        (json.dumps({"format": log_lines.FORMAT, "version": 99}), "not 99"),
    ],
)
def test_a_file_of_another_format_is_refused(first: str, message: str) -> None:
    """The header of another version is refused as well."""
    with pytest.raises(RequestError, match=message):
        distilled("tuner", [first, record(1.0)])


def test_memory_does_not_grow_with_the_lines() -> None:
    """Only the best lines are held, however many come."""
    lines = [make.ansor(1.0 / number) for number in range(1, 2000)]

    text, done = distilled("ansor", lines, 3)

    assert text.splitlines() == lines[-3:]
    assert done.n_read == 1999
