"""``tuner jobs``: listing and changing jobs that run in other processes."""

from collections.abc import Callable
from typing import Any

import pytest

from records.service import submissions
from records.tuning import attempts, events
from tests.tuner.cli.commands.conftest import Shell
from tests.tuner.cli.commands.test_bad_input import toy_cli

__all__ = ["toy_cli"]
Write = Callable[[Callable[[Any], Any]], None]


def test_jobs_are_listed_newest_first(tuned: Shell) -> None:
    """The list shows state, trials with their limit, and time."""
    listed = tuned("jobs", "ls", "--json").json["jobs"]
    shown = tuned("jobs", "ls").out

    assert [(job["job"], job["state"], job["trials"]) for job in listed] == [
        (2, "running", 1),
        (1, "done", 3),
    ]
    assert "1/100" in shown
    assert "small" in shown


def test_list_and_table_show_one_latency(tuned: Shell, write: Write) -> None:
    """The list shows the current best records; both count trials that others made."""
    write(
        lambda session: events.set_status(
            session, 1, phase="confirming the winners", spent_trials=5
        )
    )

    listed = tuned("jobs", "ls").out
    table = tuned("table", "1").out

    assert "4.0000 ms estimated in total" in table
    assert "5 of 100 trials" in table
    assert [line for line in listed.splitlines() if "4.0000" in line and "5/100" in line]


@pytest.mark.parametrize(("job", "status", "state"), [("1", 0, "done"), ("2", 1, "running")])
def test_a_job_is_waited_for(tuned: Shell, job: str, status: int, state: str) -> None:
    """A job that is not done in time, or ended in another way, is exit status 1."""
    answer = tuned("jobs", "wait", job, "--timeout", "0.1", "--json")

    assert (answer.status, answer.json["state"]) == (status, state)


def test_jobs_are_compared_by_workload(tuned: Shell) -> None:
    """Each workload of one of them is a row; what both measured has a ratio."""
    same, other = tuned("jobs", "compare", "1", "1", "--json"), tuned("jobs", "compare", "1", "2")

    assert (same.status, other.status) == (0, 0)
    assert same.json["verdict"] == "Both jobs reached the same latency, within 1 %."
    assert [task["speedup"] for task in same.json["tasks"]] == [1.0, 1.0]
    assert other.out.startswith("A: job 1, ")
    assert "The jobs tune different networks" in other.out
    assert "The jobs have different targets." in other.out
    assert tuned("jobs", "compare", "1", "7").err.startswith("tuner: no job 7;")


@pytest.mark.parametrize(("command", "state"), [("pause", "paused"), ("cancel", "cancelled")])
def test_running_job_is_stopped(tuned: Shell, command: str, state: str) -> None:
    """The state is written to the database, where the process that runs the job reads it."""
    answer = tuned("jobs", command, "2", "--json")

    assert answer.status == 0
    assert answer.json["state"] == state
    assert tuned("table", "2", "--json").json["state"] == state


def test_budget_is_raised_and_never_lowered(tuned: Shell) -> None:
    """A lower limit and a limit of another kind have no effect."""
    assert tuned("jobs", "budget", "2", "--trials", "500", "--json").json["budget_trials"] == 500
    lowered = tuned("jobs", "budget", "2", "--trials", "5", "--seconds", "60", "--json").json

    assert (lowered["budget_trials"], lowered["budget_secs"]) == (500, None)


def test_a_removed_job_keeps_its_records(tuned: Shell) -> None:
    """No command shows the job, but its best records stay."""
    gone = tuned("jobs", "rm", "1")

    assert (gone.status, gone.out) == (0, "job 1 is removed from the list; its records stay\n")
    assert [job["job"] for job in tuned("jobs", "ls", "--json").json["jobs"]] == [2]
    assert "no job 1; known jobs: 2" in tuned("table", "1").err
    assert len(tuned("records", "best", "--json").json["records"]) == 2


def test_a_job_of_the_service_is_resumed(tuned: Shell, write: Write) -> None:
    """A cancelled or quarantined job is queued again for the worker of the service."""

    def submit(session: Any) -> None:
        submissions.submit(
            session,
            submissions.Submission(
                submission="s",
                request={},
                objective="weighted_sum",
                seed=0,
                budget_trials=8,
                budget_secs=None,
                priority=0,
                name="nightly",
            ),
        )

    write(submit)

    assert tuned("jobs", "cancel", "3", "--json").json["state"] == "cancelled"
    resumed = tuned("jobs", "resume", "3", "--json").json
    assert (resumed["state"], resumed["name"], resumed["network"]) == ("queued", "nightly", None)
    assert "nightly" in tuned("jobs", "ls").out
    assert "job 3 is queued" in tuned("jobs", "resume", "3").err
    assert "its network is not split yet (the job is queued)" in tuned("table", "3").err

    write(lambda session: attempts.quarantine_job(session, 3, "loading the model"))

    assert "died 3 times while loading the model" in tuned("jobs", "ls").out
    assert "release it with `tuner jobs release 3`" in tuned("jobs", "resume", "3").err
    released = tuned("jobs", "release", "3", "--json").json
    assert (released["state"], released["quarantined"]) == ("queued", False)
    assert "neither job 3 nor a build of it is quarantined" in tuned("jobs", "release", "3").err


def test_priority_is_set(tuned: Shell) -> None:
    """A priority may be negative."""
    assert tuned("jobs", "priority", "--json", "2", "--", "-3").json["priority"] == -3


def test_jobs_are_labelled_and_found_by_tags(tuned: Shell) -> None:
    """The note of a job follows the list, without what would control a terminal."""
    tuned("jobs", "label", "1", "--tag", "release,night", "--note", "before\x1b[31m driver")
    listed = tuned("jobs", "ls", "--tag", "night", "--json").json["jobs"]
    shown = tuned("jobs", "ls").out
    removed = tuned("jobs", "label", "1", "--tag", "", "--note", "", "--json").json

    assert [(job["job"], job["tags"]) for job in listed] == [(1, ["night", "release"])]
    assert "night release" in shown
    assert "job 1: before [31m driver" in shown
    assert (removed["tags"], removed["note"]) == ([], None)
    assert tuned("jobs", "label", "1").status == 2


def test_a_job_is_tuned_with_tags(toy_cli: Shell) -> None:
    """The tags of a later command replace those of the job."""
    options = ("tune", "zoo:mlp", "--trials", "1", "--tag", "night")
    assert toy_cli(*options, "--tag", "vision").status == 0
    tagged = toy_cli("jobs", "ls", "--tag", "vision", "--json").json["jobs"]
    assert toy_cli(*options).status == 0

    assert [job["tags"] for job in tagged] == [["night", "vision"]]
    assert toy_cli("jobs", "ls", "--tag", "vision", "--json").json["jobs"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pause", "9"), "no job 9; known jobs: 2 (big, running), 1 (small, done)"),
        (("cancel", "1"), "job 1 is done"),
        (("resume", "1"), "job 1 is not a job of the service; run `tuner tune`"),
        (("rm", "2"), "job 2 is running; stop it first with `tuner jobs cancel 2`"),
        (("budget", "2"), "give --trials, --seconds, or both"),
        (("budget", "2", "--seconds", "-1"), "--seconds must be above 0"),
        (("budget", "2", "--trials", "0"), "--trials"),
        (("priority", "2", "99"), "PRIORITY"),
        (("pause", "two"), "JOB"),
    ],
)
def test_wrong_requests_change_nothing(
    tuned: Shell, arguments: tuple[str, ...], words: str
) -> None:
    """Each prints one line and ends with status 2."""
    answer = tuned("jobs", *arguments)

    assert answer.status == 2
    assert words in answer.err
    assert tuned("jobs", "ls", "--json").json["jobs"][0]["state"] == "running"
