"""``tuner table``: jobs as the database has them."""

import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from records import jobs, measure_records
from tests.tuner.cli.commands.conftest import Shell

Write = Callable[[Callable[[Any], Any]], None]


def test_the_job_that_changed_last_is_shown(tuned: Shell) -> None:
    """Without a number it is the running job, with budget, state and open pick."""
    answer = tuned("table")

    assert answer.status == 0
    assert "2, running" in answer.out
    assert "1 of 100 trials" in answer.out
    assert "unknown: no best record yet for 2 of 2 tasks" in answer.out
    assert "number 2: task 4 (dense_big_1), 64 trials, gradient (open)" in answer.out


def test_a_job_is_chosen_by_number(tuned: Shell) -> None:
    """The total latency is the sum of calls times best latency: 1 x 2 ms + 2 x 1 ms."""
    answer = tuned("table", "1", "--json")

    assert answer.status == 0
    assert (answer.json["job"], answer.json["network"]) == (1, "small")
    assert answer.json["total_latency_secs"] == pytest.approx(4e-3)
    assert [task["trials"] for task in answer.json["tasks"]] == [2, 1]
    assert (answer.json["spent_trials"], answer.json["spent_secs"]) == (3, 61.0)
    assert answer.json["last_pick"]["workload"] == "01" * 8
    assert answer.json["picks"] == []


def test_an_unknown_latency_is_null(tuned: Shell) -> None:
    """JSON has no infinity."""
    assert tuned("table", "2", "--json").json["total_latency_secs"] is None


def test_picks_come_with_reason_and_terms(tuned: Shell) -> None:
    """They are the last N in sequence, or all if there are fewer."""
    one = tuned("table", "2", "--picks", "1", "--json").json["picks"]
    all_ = tuned("table", "2", "--picks", "99", "--json").json["picks"]
    shown = tuned("table", "2", "--picks", "2").out

    assert [pick["sequence"] for pick in one] == [2]
    assert [pick["sequence"] for pick in all_] == [1, 2]
    assert one[0]["reason"] == "gradient"
    assert one[0]["terms"] == {"gain": 1.25e-5, "similarity": None}
    assert "gain 1.25e-05, similarity none" in shown


@pytest.mark.parametrize("number", ["9", "-1", "99999999999999999999999"])
def test_an_unknown_job_is_an_error_that_lists_the_jobs(tuned: Shell, number: str) -> None:
    """The error is one line and the status 2."""
    answer = tuned("table", "--", number)

    assert (answer.status, answer.out) == (2, "")
    assert answer.err == (
        f"tuner: no job {number}; known jobs: 2 (big, running), 1 (small, done)\n"
    )


def test_the_process_exits_with_the_status(tuned: Shell) -> None:
    """A shell sees status and error, too."""
    command, environ = tuned.command("table", "9"), tuned.environ()

    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.startswith("tuner: no job 9; ")


def test_an_empty_database_has_no_table(shell: Shell) -> None:
    """The error says how to create a job."""
    answer = shell("table")

    assert answer.status == 2
    assert answer.err == "tuner: there are no jobs yet; create one with `tuner tune MODEL`\n"


@pytest.mark.parametrize("args", [["--watch", "--json"], ["--picks", "-1"], ["one"]])
def test_a_wrong_request_is_one_line(tuned: Shell, args: list[str]) -> None:
    """It ends with status 2 and prints nothing on stdout."""
    answer = tuned("table", *args)

    assert (answer.status, answer.out) == (2, "")
    assert answer.err.count("\n") == 1


def test_watching_ends_when_the_job_stops(tuned: Shell, write: Write) -> None:
    """The final table is printed last."""
    watcher = subprocess.Popen(
        tuned.command("table", "2", "--watch"),
        stdout=subprocess.PIPE,
        env=tuned.environ(),
        text=True,
    )
    with watcher:
        assert watcher.stdout is not None
        first = watcher.stdout.readline()
        write(lambda session: jobs.set_state(session, 2, "paused", "stopped for a test"))
        rest, _ = watcher.communicate(timeout=30)

    assert first == "running  Total latency - ms  1 of 100 trials, 0:00:00\n"
    assert "2, paused: stopped for a test" in rest
    assert watcher.returncode == 0


def test_a_stopped_job_is_printed_once(tuned: Shell) -> None:
    """There is nothing to watch."""
    answer = tuned("table", "1", "--watch")

    assert (answer.status, answer.out.count("Task scheduler")) == (0, 1)


def test_ctrl_c_ends_watching_in_a_terminal(tuned: Shell, write: Write) -> None:
    """A new record appears after a second, and Ctrl-C is not a failure."""
    controller, terminal = pty.openpty()
    watcher = subprocess.Popen(
        tuned.command("table", "2", "--watch"),
        stdout=terminal,
        env=tuned.environ(TERM="xterm", COLUMNS="120", LINES="40"),
    )
    os.close(terminal)
    with watcher, os.fdopen(controller, "rb", buffering=0) as screen:
        _read_until(screen, "1 of 100 trials")
        write(
            lambda session: measure_records.add_record(
                session,
                measure_records.NewRecord(
                    task_id=3, trace="[]", trace_hash="t9", worker="w", error_kind="run_error"
                ),
            )
        )
        _read_until(screen, "2 of 100 trials")
        watcher.send_signal(signal.SIGINT)
        _read_until(screen, "last pick")
        assert watcher.wait(timeout=30) == 0


def _read_until(screen: Any, text: str) -> None:
    seen, deadline = "", time.monotonic() + 30
    while text not in seen:
        assert time.monotonic() < deadline, seen
        seen += screen.read(65536).decode(errors="replace")


def test_terms_of_picks_are_explained(tuned: Shell) -> None:
    """Below the sentences is a key that has every term in them."""
    shown = tuned("table", "2", "--why").out

    assert "pick 2: task 4" in shown
    for term in ("gain", "hope", "recent slope", "a trial costs"):
        assert f"\n{term}: " in shown
