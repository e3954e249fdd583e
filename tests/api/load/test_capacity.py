"""Slots, connections and threads of a process follow from each other."""

import resource

import pytest

from api.load import capacity


@pytest.mark.parametrize(
    "url", ["sqlite:///x.db", "postgresql://host/x", "postgresql+psycopg://h/x"]
)
def test_there_is_a_connection_and_a_thread_for_each_slot(url: str) -> None:
    """No holder of a slot waits for either, whatever else runs in threads."""
    bounds = capacity.capacity_of(url)
    n_slots = bounds.n_readers + bounds.n_writers

    assert bounds.n_connections >= n_slots + capacity.N_EVENT_THREADS
    assert bounds.n_threads > n_slots + bounds.n_file_writers + capacity.MAX_EXPORTS


def test_one_request_writes_to_sqlite_at_a_time() -> None:
    """It has one write lock, for which others would wait in threads."""
    assert capacity.capacity_of("sqlite:///x.db").n_writers == 1


@pytest.mark.parametrize(
    ("requested", "n_files", "expected"),
    [(4096, 1_000_000, 4096), (4096, 1024, 768), (10, 1024, 10), (4096, 64, 1)],
)
def test_connections_leave_room_for_files(
    monkeypatch: pytest.MonkeyPatch, requested: int, n_files: int, expected: int
) -> None:
    """Without it, a process at its limit of open files accepts no probe and opens no database."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (n_files, n_files))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)

    assert capacity.max_connections(requested) == expected
